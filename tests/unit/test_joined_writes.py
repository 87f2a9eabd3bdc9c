"""Small pieces of one turn of the loop leave together, in order, before the connection closes."""

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

    def write(self, data: Any) -> None:
        assert not self.closed
        self.sent.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


@pytest.fixture
def below() -> Recorded:
    return Recorded()


def joined(below: Recorded) -> JoinedWrites:
    return JoinedWrites(below, asyncio.get_running_loop())


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
