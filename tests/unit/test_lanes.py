"""Blocking work with a deadline, in a thread of its own."""

import asyncio
import threading
import time

import pytest

from actors.lanes import Lane
from cluster.errors import ServiceUnavailable

pytestmark = pytest.mark.anyio


def late(deadline_s: float) -> ServiceUnavailable:
    return ServiceUnavailable(f"over {deadline_s:g} s")


@pytest.mark.parametrize("turns", range(3))
async def test_who_is_cancelled_as_the_work_ends_is_cancelled(turns: int) -> None:
    lane, may_end = Lane("test", 60, late), threading.Event()
    waiting = asyncio.ensure_future(lane.run(may_end.wait, 60))
    await asyncio.sleep(0.05)
    may_end.set()
    # The work ends while the loop stands still, and is heard of in the turns after that.
    time.sleep(0.1)
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_work_that_takes_too_long_is_given_up_and_the_lane_says_that_it_hangs() -> None:
    lane, may_end = Lane("test", 0.05, late), threading.Event()
    with pytest.raises(ServiceUnavailable, match=r"over 0.05 s"):
        await lane.run(may_end.wait, 60)
    assert lane.hangs
    may_end.set()
