"""One connection, byte for byte: upgrades, trailers, long heads, what is not HTTP."""

import asyncio
import json
import re
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from serve_app.connection import Connection
from tests.unit.asgi_client import answer, echo, run, turn_until

HEAD_BYTES_MAX = 2000
UPGRADES = [
    b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n",
    b"Upgrade: h2c\r\nConnection: close, upgrade\r\n",
    b"Upgrade: h2c\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
]


class Wire(asyncio.Transport):
    """A connection to nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.sent += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


@dataclass
class Client:
    """What one client sends and gets."""

    app: Any = echo
    keep_alive_s: int = 300
    wire: Wire = field(default_factory=Wire)

    def __post_init__(self) -> None:
        config = uvicorn.Config(
            self.app, lifespan="off", log_config=None, timeout_keep_alive=self.keep_alive_s
        )
        config.load()
        self.connection = Connection(
            config, ServerState(), {}, head_bytes_max=HEAD_BYTES_MAX, stalled_timeout_s=300
        )
        self.connection.connection_made(self.wire)

    async def send(self, *parts: bytes) -> None:
        """Each of `parts` is a read of its own."""
        for part in parts:
            if not self.wire.closed:
                self.connection.data_received(part)
            await asyncio.sleep(0)

    async def answers(self, number: int = 1) -> list[tuple[int, Any]]:
        """The status and JSON of each answer, when there are `number`."""
        await turn_until(lambda: len(self._answers()) >= number)
        return self._answers()

    def _answers(self) -> list[tuple[int, Any]]:
        got = []
        for text in re.split(rb"HTTP/1\.1 (?=\d{3} )", self.wire.sent)[1:]:
            body = text.partition(b"\r\n\r\n")[2]
            lines = body.split(b"\r\n")
            # In chunks: the length, the body, and the end.
            if len(lines) > 1:
                if b"0" not in lines:
                    continue
                body = lines[1]
            if body:
                got.append((int(text[:3]), json.loads(body)))
        return got


def request(body: bytes = b"", headers: bytes = b"", path: bytes = b"/v1/a") -> bytes:
    length = b"content-length: %d\r\n" % len(body)
    return b"POST %b HTTP/1.1\r\nhost: x\r\n%b%b\r\n%b" % (path, headers, length, body)


def chunked(headers: bytes = b"") -> bytes:
    return b"POST /v1/a HTTP/1.1\r\nhost: x\r\n%btransfer-encoding: chunked\r\n\r\n" % headers


def in_parts(sent: bytes, size: int) -> list[bytes]:
    return [sent[start : start + size] for start in range(0, len(sent), size)]


# Upgrades


@pytest.mark.parametrize("headers", UPGRADES)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_body_is_read_when_an_upgrade_is_offered(headers: bytes, size: int) -> None:
    async def test() -> None:
        whole = request(b'{"predicate":"x > 1"}', headers)
        parts = chunked(headers) + b'5\r\n{"pre\r\n10\r\ndicate":"x > 1"}\r\n0\r\n\r\n'
        for sent in (whole, parts):
            client = Client()
            await client.send(*in_parts(sent, size))
            [(status, got)] = await client.answers()
            assert (status, got["body"]) == (200, '{"predicate":"x > 1"}')
            assert got["headers"]["host"] == "x"
            assert "upgrade" not in got["headers"]

    run(test())


@pytest.mark.parametrize("headers", UPGRADES)
def test_body_is_no_request_when_an_upgrade_is_offered(headers: bytes) -> None:
    async def test() -> None:
        inner = request(b"drop")
        client = Client()
        sent = request(inner, headers)
        head = len(sent) - len(inner)
        await client.send(sent[:head], sent[head:])
        assert [got["body"] for _, got in await client.answers()] == [inner.decode()]

    run(test())


def test_connection_goes_on_when_an_upgrade_was_offered() -> None:
    async def test() -> None:
        client = Client()
        offered = [request(b"%d" % n, UPGRADES[0]) for n in range(3)]
        await client.send(b"".join(offered) + request(b"3"), request(b"4"))
        assert [got["body"] for _, got in await client.answers(5)] == ["0", "1", "2", "3", "4"]

    run(test())


def test_tunnel_is_refused() -> None:
    async def test() -> None:
        client = Client()
        await client.send(b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n")
        [(status, got)] = await client.answers()
        assert (status, got["code"]) == (400, 13)
        assert "CONNECT" in got["error"]
        assert client.wire.closed

    run(test())


# Trailers


def test_trailers_are_no_headers() -> None:
    async def test() -> None:
        client = Client()
        end = b"0\r\nauthorization: Bearer x\r\nx-lancedb-database: other\r\n\r\n"
        await client.send(chunked() + b"2\r\n{}\r\n", end)
        [(status, got)] = await client.answers()
        assert (status, got["body"]) == (200, "{}")
        assert set(got["headers"]) == {"host", "transfer-encoding"}

    run(test())


@pytest.mark.parametrize(
    ("begins", "more"),
    [(b"0\r\n", b"a:b\r\n" * 20), (b"0\r\n", b"a" * 100), (b"2;x=", b"a" * 100)],
)
def test_what_is_no_body_is_refused_when_it_goes_on(begins: bytes, more: bytes) -> None:
    async def test() -> None:
        client = Client()
        await client.send(chunked() + b"2\r\n{}\r\n" + begins, *[more] * 30)
        [(status, got)] = await client.answers()
        assert (status, got["code"]) == (400, 13)
        assert "trailers" in got["error"]
        assert client.wire.closed

    run(test())


def test_small_chunks_are_a_body_of_any_length() -> None:
    async def test() -> None:
        client = Client()
        await client.send(chunked(), *[b"1;x=%b\r\n7\r\n" % (b"y" * 50)] * 100, b"0\r\n\r\n")
        [(status, got)] = await client.answers()
        assert (status, got["body"]) == (200, "7" * 100)

    run(test())


# Heads


@pytest.mark.parametrize("headers", [b"x: %b\r\n" % (b"y" * 3000), b"x: y\r\n" * 1100])
def test_long_head_is_refused_when_it_comes_whole(headers: bytes) -> None:
    async def test() -> None:
        client = Client()
        await client.send(request(headers=headers))
        [(status, got)] = await client.answers()
        assert (status, got["instance"]) == (400, "/v1/a")
        assert "fewer or shorter" in got["error"]
        client = Client()
        await client.send(request(b"1") + request(headers=headers))
        assert [got["body"] for _, got in await client.answers()] == ["1"]
        assert client.wire.closed

    run(test())


def test_head_is_not_charged_with_the_body_before_it() -> None:
    async def test() -> None:
        client = Client()
        second = request(b"{}")
        await client.send(request(b"x" * 5000) + second[:20], second[20:])
        assert [got["body"] for _, got in await client.answers(2)] == ["x" * 5000, "{}"]

    run(test())


def test_blank_lines_do_not_keep_an_idle_connection() -> None:
    async def test() -> None:
        client = Client(keep_alive_s=0)
        client.connection.data_received(b"\r\n")
        await turn_until(lambda: client.wire.closed)

    run(test())


# What is not HTTP


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (request(path="/v1/table/é/count_rows".encode()), "percent-encode"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", "neither TLS nor HTTP/2"),
        (b"POST /v1/a HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", "headers"),
        (chunked() + b"zz\r\n", "chunks"),
    ],
)
def test_what_is_not_http_is_told_what_to_change(sent: bytes, told: str) -> None:
    async def test() -> None:
        client = Client()
        await client.send(sent)
        [(status, got)] = await client.answers()
        assert (status, got["status"], got["code"]) == (400, 400, 13)
        assert told in got["error"]
        head = client.wire.sent.partition(b"\r\n\r\n")[0]
        for line in (b"content-type: application/json", b"connection: close", b"x-request-id: "):
            assert b"\r\n" + line in head
        assert client.wire.closed

    run(test())


def test_refusal_has_the_request_id_of_the_client() -> None:
    async def test() -> None:
        client = Client()
        await client.send(chunked(b"x-request-id: mine\r\n") + b"zz\r\n")
        await client.answers()
        assert b"\r\nx-request-id: mine\r\n" in client.wire.sent

    run(test())


def test_request_is_answered_before_what_follows_it_is_refused() -> None:
    proceed = asyncio.Event()

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        await proceed.wait()
        await answer(send, 200, b'"done"')

    async def test() -> None:
        client = Client(waits)
        await client.send(request(b"{}"), b"garbage\r\n\r\n", request(b"{}"))
        assert client.wire.sent == b""
        proceed.set()
        assert await client.answers() == [(200, "done")]
        assert client.wire.closed

    run(test())


def test_begun_answer_gets_no_second_status_when_the_body_breaks() -> None:
    async def begins(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    async def test() -> None:
        client = Client(begins)
        await client.send(chunked())
        await turn_until(lambda: client.wire.sent != b"")
        await client.send(b"zz\r\n")
        assert client.wire.closed
        assert client.wire.sent.count(b"HTTP/1.1 ") == 1

    run(test())
