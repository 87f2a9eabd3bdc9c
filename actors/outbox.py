"""Small inserts of one process into one table, on their way to its owner: one call at a time.

A call costs up to 1.5 ms and a commit 5 ms, whatever they hold. What arrives while a call is under
way shares the next one, and the next one is held back for a moment, until there are as many callers
as there were.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from actors.companions import Companions
from actors.model import Commit, InsertItem
from cluster.clock import Clock
from cluster.errors import DestrierError
from cluster.settings import ActorSettings

SendBatch = Callable[[Sequence[InsertItem]], Awaitable[Sequence[Commit | DestrierError]]]

# Of what the last call took: one whose companions stay away takes half as long again, once, and 32
# callers that do come back share two commits in place of three.
_PAUSE_SHARE = 0.5


class Outbox:
    """A queue in front of `send`; `ended` is called when nothing waits and nobody came again."""

    def __init__(
        self, limits: ActorSettings, clock: Clock, send: SendBatch, ended: Callable[[], None]
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._send = send
        self._ended = ended
        self._waiting: deque[tuple[InsertItem, asyncio.Future[Commit]]] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._companions = Companions(self._waiting, _PAUSE_SHARE)

    async def put(self, item: InsertItem) -> Commit:
        """Wait for the answer to an item."""
        answer: asyncio.Future[Commit] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        self._companions.came()
        if self._sender is None:
            self._sender = asyncio.ensure_future(self._send_waiting())
        return await answer

    async def _send_waiting(self) -> None:
        try:
            while self._waiting:
                batch = self._next_batch()
                answers: Sequence[Commit | Exception]
                started_s = self._clock.monotonic()
                try:
                    answers = await self._send([item for item, _ in batch])
                except Exception as error:  # noqa: BLE001 - whatever it is, each caller learns it
                    answers = [error] * len(batch)
                took_s = self._clock.monotonic() - started_s
                wanted = min(len(batch) + len(self._waiting), self._limits.batch_requests_max)
                for (_, waiting), answer in zip(batch, answers, strict=True):
                    if waiting.done():
                        continue
                    if isinstance(answer, Commit):
                        waiting.set_result(answer)
                    else:
                        waiting.set_exception(answer)
                await self._companions.hold_back(wanted, took_s)
        finally:
            self._sender = None
            self._ended()

    def _next_batch(self) -> list[tuple[InsertItem, "asyncio.Future[Commit]"]]:
        batch: list[tuple[InsertItem, asyncio.Future[Commit]]] = []
        size = 0
        while self._waiting and len(batch) < self._limits.batch_requests_max:
            size += len(self._waiting[0][0].body)
            if batch and size > self._limits.batch_bytes_max:
                break
            batch.append(self._waiting.popleft())
        return batch
