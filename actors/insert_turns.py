"""Small inserts that wait for their turn, in a replica or in front of the commit lane.

What waits when a turn begins shares it. Requests that were answered together tend to come again
together, so the next turn is held back for a moment, until as many wait as came together before. A
lone caller never waits, and where companions stay away one turn of many does.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from actors.model import Commit, InsertItem
from cluster.clock import Clock
from cluster.errors import DestrierError
from cluster.settings import ActorSettings

Turn = Callable[[Sequence[InsertItem]], Awaitable[Sequence[Commit | DestrierError]]]

# At most so long, whatever the last turn took.
_PAUSE_S_MAX = 0.01
# Who waited for nobody does not wait the next so many times.
_TURNS_AFTER_VAIN = 16


@dataclass(slots=True)
class _Waiting:
    item: InsertItem
    answer: asyncio.Future[Commit]


class InsertTurns:
    """Does `turn` with what waits, one at a time, each with inserts of one branch.

    A turn is held back for `pause_share` of what the last one took, at most. `ended` is called when
    nothing waits and nobody came again.
    """

    def __init__(
        self,
        limits: ActorSettings,
        clock: Clock,
        turn: Turn,
        pause_share: float,
        ended: Callable[[], None],
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._turn = turn
        self._pause_share = pause_share
        self._ended = ended
        self._waiting: deque[_Waiting] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._wanted = 0
        self._enough = asyncio.Event()
        self._turns_without_pause = 0
        self.waiting_bytes = 0

    def put(self, item: InsertItem) -> "asyncio.Future[Commit]":
        """What the turn that holds the item will answer."""
        waiting = _Waiting(item, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self.waiting_bytes += len(item.body)
        if len(self._waiting) >= self._wanted:
            self._enough.set()
        if self._pump is None:
            self._pump = asyncio.ensure_future(self._do_turns())
        return waiting.answer

    def refuse_all(self, error: DestrierError) -> None:
        """Refuse what waits; the turn that was begun goes on."""
        refused = list(self._waiting)
        self._waiting.clear()
        self.waiting_bytes = 0
        _answer(refused, [error] * len(refused))

    async def _do_turns(self) -> None:
        try:
            while self._waiting:
                batch = self._next_batch()
                answers: Sequence[Commit | Exception]
                started_s = self._clock.monotonic()
                try:
                    answers = await self._turn([waiting.item for waiting in batch])
                except Exception as error:  # noqa: BLE001 - whatever it is, each caller learns it
                    answers = [error] * len(batch)
                took_s = self._clock.monotonic() - started_s
                _answer(batch, answers)
                await self._hold_back(len(batch), took_s)
        finally:
            self._pump = None
            self._ended()

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._waiting and len(batch) < self._limits.batch_requests_max:
            item = self._waiting[0].item
            if batch and item.branch != batch[0].item.branch:
                break
            if batch and size + len(item.body) > self._limits.batch_bytes_max:
                break
            batch.append(self._waiting.popleft())
            size += len(item.body)
        self.waiting_bytes -= size
        return batch

    async def _hold_back(self, answered: int, took_s: float) -> None:
        """Wait for as many as were answered to come again."""
        there = len(self._waiting)
        self._wanted = min(answered + there, self._limits.batch_requests_max)
        if there >= self._wanted:
            return
        if self._turns_without_pause:
            self._turns_without_pause -= 1
            return
        self._enough.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(took_s * self._pause_share, _PAUSE_S_MAX)):
                await self._enough.wait()
        if len(self._waiting) == there:
            self._turns_without_pause = _TURNS_AFTER_VAIN


def _answer(batch: Sequence[_Waiting], answers: Sequence[Commit | Exception]) -> None:
    for waiting, answer in zip(batch, answers, strict=True):
        # The caller may have left.
        if waiting.answer.done():
            continue
        if isinstance(answer, Commit):
            waiting.answer.set_result(answer)
        else:
            waiting.answer.set_exception(answer)
