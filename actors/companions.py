"""Requests that were answered together tend to come again together: a moment's wait joins them."""

import asyncio
from collections.abc import Sized
from contextlib import suppress

# At most so long, whatever the last turn took.
_PAUSE_S_MAX = 0.01
# Who waited for nobody does not wait the next so many times.
_TURNS_AFTER_VAIN = 16


class Companions:
    """Holds a turn back until as many requests wait in `queue` as came together before.

    It waits `pause_share` of what the last turn took, at most. A lone caller never waits, and where
    companions stay away one turn of many does.
    """

    def __init__(self, queue: Sized, pause_share: float) -> None:
        self._queue = queue
        self._pause_share = pause_share
        self._wanted = 0
        self._enough = asyncio.Event()
        self._turns_without = 0

    def came(self) -> None:
        """The queue has one more."""
        if len(self._queue) >= self._wanted:
            self._enough.set()

    async def hold_back(self, wanted: int, took_s: float) -> None:
        """Wait for so many, after a turn that took so long."""
        self._wanted = wanted
        there = len(self._queue)
        if there >= wanted:
            return
        if self._turns_without:
            self._turns_without -= 1
            return
        self._enough.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(took_s * self._pause_share, _PAUSE_S_MAX)):
                await self._enough.wait()
        if len(self._queue) == there:
            self._turns_without = _TURNS_AFTER_VAIN
