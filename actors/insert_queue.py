"""Small inserts that wait for a commit: what arrives while one is under way is the next.

Each replica sends what its callers want as one call. Of two replicas, whose calls took turns, each
commit held the inserts of one; now the next one is held back for a moment, until as many wait as
there were.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from actors.companions import Companions
from actors.model import Commit, InsertItem
from cluster.clock import Clock
from cluster.errors import DestrierError, Throttling
from cluster.settings import ActorSettings

CommitBatch = Callable[
    [str | None, Sequence[InsertItem]], Awaitable[Sequence[Commit | DestrierError]]
]


# Of what the last commit took; a replica's callers come again within that time.
_PAUSE_SHARE = 1.0


@dataclass(slots=True)
class _Waiting:
    item: InsertItem
    answer: asyncio.Future[Commit]


class InsertQueue:
    """A bounded queue in front of `commit`, which gets the items of one branch at a time."""

    def __init__(self, limits: ActorSettings, clock: Clock, commit: CommitBatch) -> None:
        self._limits = limits
        self._clock = clock
        self._commit = commit
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self._companions = Companions(self._waiting, _PAUSE_SHARE)
        self._pump: asyncio.Task[None] | None = None

    def put(self, item: InsertItem) -> "asyncio.Future[Commit]":
        """What the commit that holds the item will answer.

        Raises:
            Throttling: too many bytes wait.
        """
        if self._bytes + len(item.body) > self._limits.pending_bytes_max:
            raise Throttling("too many bytes wait to be inserted into this table; slow down")
        waiting = _Waiting(item, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._bytes += len(item.body)
        self._companions.came()
        if self._pump is None or self._pump.done():
            self._pump = asyncio.ensure_future(self._commit_waiting())
        return waiting.answer

    def refuse_all(self, error: DestrierError) -> None:
        """Refuse what waits; what is being committed goes on."""
        while self._waiting:
            waiting = self._waiting.popleft()
            self._bytes -= len(waiting.item.body)
            if not waiting.answer.done():
                waiting.answer.set_exception(error)

    async def _commit_waiting(self) -> None:
        while self._waiting:
            batch = self._next_batch()
            items = [waiting.item for waiting in batch]
            started_s = self._clock.monotonic()
            try:
                answers = await self._commit(items[0].branch, items)
            except DestrierError as error:
                answers = [error] * len(batch)
            for waiting, answer in zip(batch, answers, strict=True):
                if waiting.answer.done():
                    continue
                if isinstance(answer, DestrierError):
                    waiting.answer.set_exception(answer)
                else:
                    waiting.answer.set_result(answer)
            wanted = min(len(batch) + len(self._waiting), self._limits.batch_requests_max)
            await self._companions.hold_back(wanted, self._clock.monotonic() - started_s)

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._waiting and len(batch) < self._limits.batch_requests_max:
            waiting = self._waiting[0]
            if batch and waiting.item.branch != batch[0].item.branch:
                break
            if batch and size + len(waiting.item.body) > self._limits.batch_bytes_max:
                break
            self._waiting.popleft()
            size += len(waiting.item.body)
            batch.append(waiting)
        self._bytes -= size
        return batch
