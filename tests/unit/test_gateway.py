"""The gateway: routing, request ids, bodies, bounds, draining, probes."""

import asyncio
from typing import Any

import pytest

from cluster.settings import Settings
from serve_app.gateway import Gateway
from tests.unit.asgi_client import HeldApp, Message, answer, call, echo, run, settings, turn_until

# Routing


@pytest.mark.parametrize(
    ("sent", "routed", "slash"),
    [
        ("/v1/table/t/count_rows", "/v1/table/t/count_rows", False),
        ("/v1/table/t/count_rows/", "/v1/table/t/count_rows", True),
        ("/v1/table/t/count_rows///", "/v1/table/t/count_rows", True),
        ("/v1/table/a%2Fb/count_rows", "/v1/table/a%2Fb/count_rows", False),
        ("/v1/table/a%24b+c/count_rows/", "/v1/table/a%24b+c/count_rows", True),
        ("/", "/", False),
    ],
)
def test_path_keeps_its_escapes_and_loses_its_slash(sent: str, routed: str, slash: bool) -> None:
    async def test() -> None:
        told = (await call(Gateway(echo, settings()), sent)).json
        assert told["path"] == routed
        assert told["state"]["trailing_slash"] is slash

    run(test())


def test_base_path_is_stripped_and_every_other_path_is_unknown() -> None:
    async def test() -> None:
        gateway = Gateway(echo, settings(base_path="/lance"))
        assert (await call(gateway, "/lance/v1/table/t/drop")).json["path"] == "/v1/table/t/drop"
        for path in ("/v1/table/t/drop", "/lancet/v1/table/t/drop", "/lance"):
            refused = await call(gateway, path)
            assert refused.status == 404
            assert refused.json["instance"] == path

    run(test())


def test_path_with_raw_bytes_is_refused_when_it_is_not_ascii() -> None:
    async def test() -> None:
        refused = await call(Gateway(echo, settings()), "/v1/table/\xe9/drop")
        assert (refused.status, refused.json["code"]) == (400, 13)

    run(test())


# Request ids


def test_request_id_of_the_client_is_handed_on_and_sent_back() -> None:
    async def test() -> None:
        got = await call(Gateway(echo, settings()), headers={"x-request-id": "abc-1"})
        assert got.json["state"]["request_id"] == "abc-1"
        assert got.headers["x-request-id"] == "abc-1"

    run(test())


@pytest.mark.parametrize("sent", ["", "x" * 129, "tab\there", "caf\xe9"])
def test_request_id_is_made_when_the_client_sends_none_that_can_be_used(sent: str) -> None:
    async def test() -> None:
        got = await call(Gateway(echo, settings()), headers={"x-request-id": sent})
        made = got.headers["x-request-id"]
        assert len(made) == 36
        assert made == got.json["state"]["request_id"]

    run(test())


def test_request_id_is_on_refusals_and_never_twice() -> None:
    async def tells_an_id(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, 200, b"", [(b"x-request-id", b"of the app")])

    async def test() -> None:
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/",
            "raw_path": b"/",
            "headers": [(b"x-request-id", b"mine")],
        }
        await Gateway(tells_an_id, settings())(scope, receive, send)
        named = [value for name, value in sent[0]["headers"] if name == b"x-request-id"]
        assert named == [b"mine"]

        gateway = Gateway(echo, settings(json_body_bytes_max=1))
        refused = await call(gateway, parts=(b"{  }",), headers={"x-request-id": "mine"})
        assert (refused.status, refused.headers["x-request-id"]) == (413, "mine")

    run(test())


# JSON bodies


def test_json_body_reaches_the_app_in_one_piece() -> None:
    seen: list[Message] = []

    async def records(scope: Any, receive: Any, send: Any) -> None:
        seen.append(await receive())
        await answer(send, 200, b"")

    async def test() -> None:
        await call(Gateway(records, settings()), parts=(b'{"a"', b":1", b"}"))
        assert seen == [{"type": "http.request", "body": b'{"a":1}', "more_body": False}]

    run(test())


@pytest.mark.parametrize(
    "path",
    [
        "/v1/table/t/insert",
        "/v1/table/t/create/",
        "/v1/table/t/merge_insert",
        "/v1/tables/t",
    ],
)
def test_upload_reaches_the_app_as_it_is(path: str) -> None:
    async def test() -> None:
        gateway = Gateway(echo, settings(json_body_bytes_max=4))
        got = await call(gateway, path, (b"first", b"second"), {"content-type": "text/plain"})
        assert got.json["body"] == "firstsecond"
        assert got.json["headers"] == {"content-type": "text/plain"}

    run(test())


@pytest.mark.parametrize(
    "path", ["/v1/namespace/n/create", "/v1/materialized_view/v/create", "/v1/table/t/tags/create"]
)
def test_create_of_anything_but_a_table_is_bound_as_json(path: str) -> None:
    async def test() -> None:
        gateway = Gateway(echo, settings(json_body_bytes_max=4))
        assert (await call(gateway, path, (b'{"a":1}',))).status == 413

    run(test())


def test_json_body_over_its_bound_is_refused_and_read_to_its_end() -> None:
    async def test() -> None:
        gateway = Gateway(echo, settings(json_body_bytes_max=10))
        for sent in ({"content-length": "12"}, {"transfer-encoding": "chunked"}):
            got = await call(gateway, parts=(b"123456", b"7890ab"), headers=sent)
            assert (got.status, got.json["code"], got.parts_read) == (413, 13, 2)
            assert "10 bytes" in got.json["error"]
            assert "connection" not in got.headers

    run(test())


def test_app_never_runs_when_the_client_leaves_within_a_json_body() -> None:
    async def test() -> None:
        app = HeldApp()
        got = await call(Gateway(app, settings()), parts=(b'{"pred',), ends=False)
        assert (got.status, app.running) == (0, 0)

    run(test())


def test_disconnect_reaches_the_app_within_an_upload() -> None:
    seen: list[str] = []

    async def records(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(2):
            seen.append((await receive())["type"])

    async def test() -> None:
        await call(Gateway(records, settings()), "/v1/table/t/insert", (b"part",), ends=False)
        assert seen == ["http.request", "http.disconnect"]

    run(test())


# Bounds


def test_requests_over_the_bound_are_refused_until_one_ends() -> None:
    async def test() -> None:
        app = HeldApp()
        gateway = Gateway(app, settings(requests_in_flight_max=2))
        held = [asyncio.create_task(call(gateway)) for _ in range(2)]
        await turn_until(lambda: app.running == 2)
        refused = await call(gateway)
        assert (refused.status, refused.json["code"]) == (503, 17)
        assert refused.headers["retry-after"] == "1"
        app.released.set()
        assert [(await one).status for one in held] == [200, 200]
        assert (await call(gateway)).status == 200

    run(test())


def test_bytes_over_the_bound_are_refused_until_some_are_released() -> None:
    async def test() -> None:
        app = HeldApp()
        gateway = Gateway(app, settings(bytes_in_flight_max=10))
        held = asyncio.create_task(
            call(gateway, parts=(b"123456",), headers={"content-length": "6"})
        )
        await turn_until(lambda: app.running == 1)
        assert (
            await call(gateway, parts=(b"12345",), headers={"content-length": "5"})
        ).status == 503
        app.released.set()
        await held
        assert (
            await call(gateway, parts=(b"12345",), headers={"content-length": "5"})
        ).status == 200

    run(test())


def test_upload_of_any_size_counts_with_no_more_than_the_part_that_is_held() -> None:
    async def test() -> None:
        chosen = Settings(http={"bytes_in_flight_max": 10}, limits={"insert_small_bytes_max": 8})
        sent = {"content-length": "1000000"}
        got = await call(Gateway(echo, chosen), "/v1/table/t/insert", (b"rows",), sent)
        assert got.status == 200

    run(test())


# Draining and probes


def test_draining_refuses_new_requests_and_waits_for_accepted_ones() -> None:
    async def test() -> None:
        app = HeldApp()
        gateway = Gateway(app, settings())
        held = asyncio.create_task(call(gateway))
        await turn_until(lambda: app.running == 1)
        draining = asyncio.create_task(gateway.drain(5))
        await asyncio.sleep(0)
        refused = await call(gateway)
        assert (refused.status, refused.headers["connection"]) == (503, "close")
        assert not draining.done()
        app.released.set()
        assert (await held).status == 200
        assert await draining is True

    run(test())


def test_draining_says_so_when_a_request_outlasts_it() -> None:
    async def test() -> None:
        app = HeldApp()
        gateway = Gateway(app, settings())
        held = asyncio.create_task(call(gateway))
        await turn_until(lambda: app.running == 1)
        assert await gateway.drain(0.02) is False
        app.released.set()
        await held

    run(test())


def test_probes_tell_health_and_draining() -> None:
    async def test() -> None:
        healthy = [True]
        gateway = Gateway(echo, settings(base_path="/lance"), lambda: healthy[0])
        for name in ("healthz", "readyz"):
            assert (await call(gateway, f"/-/{name}", method="GET")).status == 200
        healthy[0] = False
        assert (await call(gateway, "/-/healthz", method="GET")).body == b"unhealthy\n"
        healthy[0] = True
        await gateway.drain(1)
        got = await call(gateway, "/-/readyz", method="GET")
        assert (got.status, got.body) == (503, b"draining\n")
        assert (await call(gateway, "/-/unknown", method="GET")).status == 404

    run(test())


def test_metrics_count_requests_by_operation_and_status() -> None:
    async def named(scope: Any, receive: Any, send: Any) -> None:
        scope["state"]["operation"] = "CountTableRows"
        await answer(send, 200, b"7")

    async def test() -> None:
        gateway = Gateway(named, settings(), replica="r1")
        for _ in range(3):
            await call(gateway)
        await call(gateway, "/v1/table/\xe9/drop")
        text = (await call(gateway, "/-/metrics", method="GET")).body.decode()
        labels = 'operation="CountTableRows",replica="r1"'
        assert f'destrier_requests_total{{{labels},status="200"}} 3.0' in text
        assert 'operation="unmatched",replica="r1",status="400"} 1.0' in text
        assert f"destrier_request_seconds_count{{{labels}}} 3.0" in text
        assert 'destrier_requests_in_flight{replica="r1"} 0.0' in text

    run(test())


# Pages of other hosts


@pytest.mark.parametrize(
    ("mode", "origin", "status"),
    [
        ("off", "https://evil.example", 403),
        ("off", "null", 403),
        ("off", "http://127.0.0.1:2333", 200),
        ("off", "http://localhost:8080", 200),
        ("on", "https://evil.example", 200),
    ],
)
def test_browser_pages_of_other_hosts_are_refused_when_everyone_is_trusted(
    mode: str, origin: str, status: int
) -> None:
    async def test() -> None:
        gateway = Gateway(echo, Settings(auth={"mode": mode}))
        assert (await call(gateway, headers={"origin": origin})).status == status

    run(test())
