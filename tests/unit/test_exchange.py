"""One request through the gateway: what is read before an answer, time, faults of the app."""

import asyncio
from typing import Any

import pytest

from serve_app.gateway import Gateway
from tests.unit.asgi_client import HeldApp, Message, answer, call, echo, run, settings, turn_until

# Refused uploads


async def refuses(scope: Any, receive: Any, send: Any) -> None:
    await answer(send, 401, b"no")


def test_refused_upload_is_read_before_it_is_answered() -> None:
    async def test() -> None:
        got = await call(Gateway(refuses, settings()), "/v1/table/t/insert", (b"x",) * 50)
        assert (got.status, got.parts_read) == (401, 50)
        assert "connection" not in got.headers

    run(test())


def test_refused_upload_is_not_read_beyond_the_bound() -> None:
    async def test() -> None:
        gateway = Gateway(refuses, settings(refused_body_drain_bytes_max=10))
        got = await call(gateway, "/v1/table/t/insert", (b"xxxx",) * 50)
        assert (got.status, got.parts_read, got.headers["connection"]) == (401, 3, "close")
        told = {"content-length": "200"}
        got = await call(gateway, "/v1/table/t/insert", (b"xxxx",) * 50, told)
        assert (got.status, got.parts_read, got.headers["connection"]) == (401, 0, "close")

    run(test())


def test_client_that_waits_for_100_continue_is_not_asked_for_a_refused_body() -> None:
    async def test() -> None:
        sent = {"expect": "100-continue", "content-length": "4"}
        got = await call(Gateway(refuses, settings()), "/v1/table/t/insert", (b"rows",), sent)
        assert (got.status, got.parts_read, got.headers["connection"]) == (401, 0, "close")

    run(test())


# Time


def test_request_over_its_time_is_answered_with_503() -> None:
    async def test() -> None:
        got = await call(Gateway(HeldApp(), settings(request_timeout_s=0.05)))
        assert (got.status, got.json["code"]) == (503, 17)

    run(test())


def test_stopped_server_answers_what_it_cuts_off() -> None:
    async def test() -> None:
        app = HeldApp()
        sent: list[int] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message.get("status", 0))

        scope = {"type": "http", "method": "GET", "path": "/", "raw_path": b"/", "headers": []}
        cut_off = asyncio.create_task(Gateway(app, settings())(scope, receive, send))
        await turn_until(lambda: app.running == 1)
        cut_off.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cut_off
        assert sent == [503, 0]

    run(test())


def test_upload_may_take_any_time_while_bytes_flow() -> None:
    async def test() -> None:
        gateway = Gateway(echo, settings(request_timeout_s=0.2))
        parts = [b"row"] * 10

        async def receive() -> Message:
            await asyncio.sleep(0.05)
            return {"type": "http.request", "body": parts.pop(), "more_body": bool(parts)}

        status: list[int] = []

        async def send(message: Message) -> None:
            status.append(message.get("status", 0))

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/table/t/insert",
            "raw_path": b"/v1/table/t/insert",
            "headers": [],
        }
        await gateway(scope, receive, send)
        assert status[0] == 200

    run(test())


def test_answer_may_take_any_time_once_it_has_begun() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(0.15)
        await send({"type": "http.response.body", "body": b"rows"})

    async def test() -> None:
        got = await call(Gateway(slow, settings(request_timeout_s=0.05)))
        assert (got.status, got.body) == (200, b"rows")

    run(test())


# Faults of the app


def test_fault_after_a_whole_answer_is_not_raised_again() -> None:
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, 500, b"told")
        raise RuntimeError("logged by the app")

    async def test() -> None:
        assert (await call(Gateway(fails, settings()))).body == b"told"

    run(test())


def test_fault_within_an_answer_ends_the_connection() -> None:
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("half an answer")

    async def test() -> None:
        with pytest.raises(RuntimeError, match="half an answer"):
            await call(Gateway(fails, settings()))

    run(test())
