"""Small pieces of one turn of the loop leave together, in order, before the connection closes.

A client that takes nothing is let go, one that takes little is not."""

import asyncio
from typing import Any

import pytest

from serve_app.joined_writes import JoinedWrites

pytestmark = pytest.mark.anyio
MUCH = b"m" * (1 << 16)


class Recorded(asyncio.Transport):
    """A connection to nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed = False
        self.aborted = asyncio.Event()
        # What waits at each look; the last stays.
        self.waiting = [0]

    def write(self, data: Any) -> None:
        assert not self.closed
        self.sent.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True
        self.aborted.set()

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.waiting.pop(0) if len(self.waiting) > 1 else self.waiting[0]


@pytest.fixture
def below() -> Recorded:
    return Recorded()


def joined(below: Recorded) -> JoinedWrites:
    return JoinedWrites(below, asyncio.get_running_loop(), 0.001)


async def test_head_and_body_are_one_piece(below: Recorded) -> None:
    connection = joined(below)
    connection.write(b"head")
    connection.write(b"body")
    assert below.sent == []
    await asyncio.sleep(0)
    assert below.sent == [b"headbody"]


async def test_turns_of_the_loop_are_pieces_of_their_own(below: Recorded) -> None:
    connection = joined(below)
    for part in (b"one", b"two"):
        connection.write(part)
        await asyncio.sleep(0)
    assert below.sent == [b"one", b"two"]


async def test_much_is_sent_at_once_and_after_what_waits(below: Recorded) -> None:
    connection = joined(below)
    connection.write(b"head")
    connection.write(MUCH)
    assert below.sent == [b"head", MUCH]
    connection.write(b"rest")
    await asyncio.sleep(0)
    assert below.sent == [b"head", MUCH, b"rest"]


async def test_closing_sends_what_waits_first(below: Recorded) -> None:
    connection = joined(below)
    connection.write(b"last")
    connection.close()
    assert below.sent == [b"last"]
    assert connection.is_closing()
    await asyncio.sleep(0)
    assert below.sent == [b"last"]


async def test_what_waits_for_a_client_that_went_away_is_dropped(below: Recorded) -> None:
    connection = joined(below)
    connection.write(b"answer")
    below.closed = True
    await asyncio.sleep(0)
    assert below.sent == []


async def test_client_that_takes_nothing_is_let_go(below: Recorded) -> None:
    connection = joined(below)
    below.waiting = [7]
    connection.abort_if_stalled()
    async with asyncio.timeout(5):
        await below.aborted.wait()


async def test_client_that_takes_nothing_is_let_go_while_closing(below: Recorded) -> None:
    connection = joined(below)
    below.waiting = [7]
    connection.close()
    async with asyncio.timeout(5):
        await below.aborted.wait()


async def test_client_that_takes_little_is_let_go_only_when_it_stops(below: Recorded) -> None:
    connection = joined(below)
    # Each look is followed by one that remembers.
    below.waiting = [9, 8, 8, 7, 7, 6, 6]
    connection.abort_if_stalled()
    async with asyncio.timeout(5):
        await below.aborted.wait()
    assert below.waiting == [6]


async def test_client_that_has_taken_enough_is_not_looked_at(below: Recorded) -> None:
    loop = asyncio.get_running_loop()
    connection = joined(below)
    below.waiting = [7]
    connection.abort_if_stalled()
    connection.go_on()
    later = loop.create_future()
    # Due after the look would have been.
    loop.call_later(0.01, later.set_result, None)
    await later
    assert not below.aborted.is_set()
