"""The listener on a real socket: backpressure, early refusals, stopping, a shared port."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from cluster.errors import InvalidInput, ServiceUnavailable
from cluster.settings import Settings
from serve_app.gateway import Gateway
from serve_app.listener import Listener, listen_shared, reserve_address

MUCH = 64 << 20


def settings(**http: Any) -> Settings:
    return Settings(http={"port": 0, **http})


async def answer(send: Any, status: int, body: bytes) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def refuses(scope: Any, receive: Any, send: Any) -> None:
    await answer(send, 401, b"no")


class AnswersMuch:
    """64 MB in two parts."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"%d" % MUCH)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for left in (1, 0):
            part = b"r" * (MUCH // 2)
            await send({"type": "http.response.body", "body": part, "more_body": left > 0})
        self.ended.set()


def serving(app: Any, chosen: Settings, close: Any = None) -> tuple[Listener, int]:
    async def build() -> Gateway:
        return Gateway(app, chosen, close=close)

    listener = Listener(chosen.http, build)
    return listener, listener.start()


def test_client_of_a_refused_upload_sees_the_status_and_keeps_its_connection() -> None:
    async def some_rows() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"r" * 65536

    async def send_five() -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            for _ in range(5):
                got = await client.post("/v1/table/t/insert", content=some_rows())
                assert got.status_code == 401

    listener, port = serving(refuses, settings())
    try:
        asyncio.run(send_five())
    finally:
        listener.stop(1)


def test_upload_waits_when_the_app_does_not_read() -> None:
    proceed = threading.Event()

    async def reads_late(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(None, proceed.wait, 10)
        await answer(send, 200, b"")

    listener, port = serving(reads_late, settings())
    with socket.create_connection(("127.0.0.1", port)) as client:
        size = 64 << 20
        head = f"POST /v1/table/t/insert HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n"
        client.sendall(head.encode())
        client.settimeout(0.5)
        sent = 0
        try:
            while sent < size:
                sent += client.send(b"x" * min(1 << 20, size - sent))
        except TimeoutError:
            pass
        assert sent < size
    proceed.set()
    listener.stop(1)


def test_stop_finishes_what_is_accepted_and_closes_the_port() -> None:
    entered, proceed, answered = threading.Event(), threading.Event(), threading.Event()

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        entered.set()
        await asyncio.get_running_loop().run_in_executor(None, proceed.wait, 10)
        await answer(send, 200, b"7")
        answered.set()

    async def close() -> None:
        closed.append(answered.is_set())

    closed: list[bool] = []
    listener, port = serving(waits, settings(), close)
    got: list[httpx.Response] = []
    url = f"http://127.0.0.1:{port}/v1/table/t/count_rows"
    asking = threading.Thread(target=lambda: got.append(httpx.post(url)))
    asking.start()
    assert entered.wait(5)
    stopping = threading.Thread(target=listener.stop, args=(5,))
    stopping.start()
    proceed.set()
    stopping.join(10)
    asking.join(5)
    assert (got[0].status_code, got[0].text) == (200, "7")
    assert closed == [True]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 1)


def test_head_over_its_bound_is_refused() -> None:
    listener, port = serving(refuses, settings(head_bytes_max=2000))
    try:
        for line in (b"x: " + b"y" * 3000, b"\r\n".join([b"x: y"] * 700)):
            with socket.create_connection(("127.0.0.1", port), 5) as client:
                client.sendall(b"POST / HTTP/1.1\r\n" + line)
                assert client.recv(100).startswith(b"HTTP/1.1 400 ")
    finally:
        listener.stop(1)


def test_client_that_reads_nothing_holds_no_slot() -> None:
    app = AnswersMuch()
    listener, port = serving(app, settings(request_timeout_s=0.2))
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as client:
            client.sendall(b"POST /v1/table/t/query HTTP/1.1\r\nhost: x\r\n\r\n")
            assert app.ended.wait(5)
            received = 0
            with contextlib.suppress(ConnectionResetError):
                while got := client.recv(1 << 20):
                    received += len(got)
            assert received < MUCH
    finally:
        listener.stop(1)


def test_client_that_reads_slowly_gets_the_whole_answer() -> None:
    listener, port = serving(AnswersMuch(), settings(request_timeout_s=0.5))
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            client.sendall(b"POST /v1/table/t/query HTTP/1.1\r\nhost: x\r\n\r\n")
            begun = time.monotonic()
            received = 0
            # Each part takes longer than the timeout.
            while received < MUCH:
                received += len(client.recv(1 << 20))
                while time.monotonic() < begun + 1.4 * received / MUCH:
                    time.sleep(0.001)
    finally:
        listener.stop(1)


def test_reserved_address_is_shared_by_listeners_and_refused_to_others() -> None:
    held = reserve_address("127.0.0.1", 0)
    port = held.getsockname()[1]
    with pytest.raises(ServiceUnavailable, match=r"http\.port"):
        reserve_address("127.0.0.1", port)
    listeners = [listen_shared("127.0.0.1", port) for _ in range(2)]
    with pytest.raises(ServiceUnavailable, match="already in use"):
        reserve_address("127.0.0.1", port)
    socket.create_connection(("127.0.0.1", port), 5).close()
    for opened in (held, *listeners):
        opened.close()


def test_unknown_host_is_a_wrong_setting() -> None:
    with pytest.raises(InvalidInput, match="cannot listen"):
        reserve_address("no-such-host.invalid", 0)
