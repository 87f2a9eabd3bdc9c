"""Calls over a Unix socket: answers, errors, many at a time, and sides that leave."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from actors.direct_calls import CallClient, CallServer, Door
from actors.owner_errors import OwnerGone, OwnerLost
from cluster.errors import InternalError, TableNotFound

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="sockets without a file are Linux's"),
]


class Echo:
    """Something that can be called."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.was_called = asyncio.Event()

    async def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        self.was_called.set()
        if method == "refuse":
            raise TableNotFound("table t is not there")
        if method == "fail":
            raise ZeroDivisionError("a secret of the code")
        if method == "answer with what cannot be sent":
            return lambda: None
        if method == "wait":
            await self.may_answer.wait()
        return method, arguments, keywords


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
async def server(echo: Echo) -> AsyncIterator[CallServer]:
    server = CallServer(echo.call)
    yield server
    await server.close()


@pytest.fixture
async def door(server: CallServer) -> Door:
    door = await server.door()
    assert door is not None
    return door


@pytest.fixture
async def client(door: Door) -> AsyncIterator[CallClient]:
    client = await CallClient.connect(door)
    yield client
    await client.close()


async def test_a_call_takes_arguments_there_and_the_answer_back(client: CallClient) -> None:
    body = os.urandom(3 << 20)
    assert await client.call("say", body, 1, end=None) == ("say", (body, 1), {"end": None})


async def test_there_is_one_door_when_two_ask_for_it_at_once(server: CallServer) -> None:
    doors = await asyncio.gather(server.door(), server.door())
    assert doors[0] == doors[1] == await server.door()
    for door in doors:
        assert door is not None
        client = await CallClient.connect(door)
        assert await client.call("say") == ("say", (), {})
        await client.close()


async def test_errors_arrive_as_themselves_and_failures_without_their_words(
    client: CallClient,
) -> None:
    with pytest.raises(TableNotFound, match=r"^table t is not there$"):
        await client.call("refuse")
    with pytest.raises(InternalError) as failed:
        await client.call("fail")
    assert str(failed.value) == "an owner failed"
    # For the log, where it happened.
    assert "a secret of the code" in failed.value.__notes__[0]
    with pytest.raises(InternalError):
        await client.call("answer with what cannot be sent")
    assert await client.call("go on") == ("go on", (), {})


async def test_many_calls_are_under_way_at_a_time(client: CallClient, echo: Echo) -> None:
    slow = asyncio.create_task(client.call("wait"))
    await echo.was_called.wait()
    answers = await asyncio.gather(*(client.call("say", number) for number in range(100)))
    assert [arguments for _, arguments, _ in answers] == [(number,) for number in range(100)]
    assert not slow.done()
    echo.may_answer.set()
    assert await slow == ("wait", (), {})


async def test_a_caller_that_leaves_does_not_disturb_the_others(
    client: CallClient, echo: Echo
) -> None:
    leaving = asyncio.create_task(client.call("wait"))
    await echo.was_called.wait()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    echo.may_answer.set()
    assert await client.call("say") == ("say", (), {})


async def test_the_outcome_is_unknown_of_what_was_under_way_when_the_other_side_ended(
    server: CallServer, client: CallClient, echo: Echo
) -> None:
    waiting = asyncio.create_task(client.call("wait"))
    await echo.was_called.wait()
    await server.close()
    with pytest.raises(OwnerLost):
        await waiting
    assert client.is_over
    with pytest.raises(OwnerGone):
        await client.call("say")


async def test_nobody_is_behind_the_door_of_one_that_has_ended(
    server: CallServer, door: Door
) -> None:
    await server.close()
    with pytest.raises(OwnerGone):
        await CallClient.connect(door)


async def test_a_frame_that_cannot_be_read_ends_the_connection(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stranger.connect(door.address)
    reader, writer = await asyncio.open_unix_connection(sock=stranger)
    writer.write(door.secret + (4).to_bytes(8, "little") + b"none")
    welcome = int.from_bytes(await reader.readexactly(8), "little")
    assert len(await reader.readexactly(welcome)) == welcome
    assert await reader.read() == b""
    writer.close()
    assert "UnpicklingError" in caplog.text


@pytest.mark.parametrize("sent", [bytes(32), b"\x80\x05" + bytes(30) + bytes(8), b""])
async def test_strangers_are_sent_away_unheard(door: Door, echo: Echo, sent: bytes) -> None:
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stranger.connect(door.address)
    reader, writer = await asyncio.open_unix_connection(sock=stranger)
    writer.write(sent)
    if not sent:
        writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    assert not echo.was_called.is_set()


def test_the_secret_is_not_shown() -> None:
    assert "s3cret" not in repr(Door("place", "address", b"s3cret"))


async def test_one_that_leaves_answers_what_is_under_way_and_says_that_the_rest_was_not_done(
    echo: Echo, server: CallServer, client: CallClient
) -> None:
    under_way = asyncio.create_task(client.call("wait"))
    await echo.was_called.wait()
    leaving = asyncio.create_task(server.leave())
    await asyncio.sleep(0.05)
    echo.was_called.clear()
    # The connection is still there, but nobody reads what is sent.
    too_late = asyncio.create_task(client.call("say"))
    await asyncio.sleep(0.05)
    assert not too_late.done()
    echo.may_answer.set()
    assert await under_way == ("wait", (), {})
    with pytest.raises(OwnerGone):
        await too_late
    await leaving
    assert client.is_over and not echo.was_called.is_set()


@pytest.mark.parametrize("turns", range(16))
async def test_a_caller_that_connects_while_one_leaves_is_answered_or_has_done_nothing(
    echo: Echo, server: CallServer, door: Door, turns: int
) -> None:
    async def connect_and_call() -> Any:
        client = await CallClient.connect(door)
        try:
            return await client.call("say")
        finally:
            await client.close()

    calling = asyncio.create_task(connect_and_call())
    # Both sides run in this loop.
    for _ in range(turns):
        await asyncio.sleep(0)
    await server.leave()
    try:
        assert await calling == ("say", (), {})
    except OwnerGone:
        assert not echo.was_called.is_set()
