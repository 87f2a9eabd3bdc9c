"""Small inserts of one process into one table, on their way to its owner: one call at a time.

A call costs up to 1.5 ms and a commit 5 ms, whatever they hold. What arrives while a call is under
way shares the next one; and as callers that were answered together tend to come again together, the
next one is held back for a moment, until there are as many as there were. A lone caller never
waits.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from actors.model import Commit, InsertItem
from cluster.clock import Clock
from cluster.errors import DestrierError
from cluster.settings import ActorSettings

SendBatch = Callable[[Sequence[InsertItem]], Awaitable[Sequence[Commit | DestrierError]]]

# A call is held back for at most this share of what the last one took. Then one whose companions
# stay away takes half as long again, once; and 32 callers that do come back share two commits in
# place of three, for two thirds of the processor time.
_PAUSE_SHARE = 0.5
_PAUSE_S_MAX = 0.01


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
        self._wanted = 0
        self._enough = asyncio.Event()

    async def put(self, item: InsertItem) -> Commit:
        """Wait for the answer to an item."""
        answer: asyncio.Future[Commit] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if len(self._waiting) >= self._wanted:
            self._enough.set()
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
                self._wanted = min(len(batch) + len(self._waiting), self._limits.batch_requests_max)
                for (_, waiting), answer in zip(batch, answers, strict=True):
                    if waiting.done():
                        continue
                    if isinstance(answer, Commit):
                        waiting.set_result(answer)
                    else:
                        waiting.set_exception(answer)
                await self._hold_back(min(took_s * _PAUSE_SHARE, _PAUSE_S_MAX))
        finally:
            self._sender = None
            self._ended()

    async def _hold_back(self, pause_s: float) -> None:
        """Wait until as many callers wait as there were, but not for long."""
        if len(self._waiting) >= self._wanted:
            return
        self._enough.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._enough.wait()

    def _next_batch(self) -> list[tuple[InsertItem, "asyncio.Future[Commit]"]]:
        batch: list[tuple[InsertItem, asyncio.Future[Commit]]] = []
        size = 0
        while self._waiting and len(batch) < self._limits.batch_requests_max:
            size += len(self._waiting[0][0].body)
            if batch and size > self._limits.batch_bytes_max:
                break
            batch.append(self._waiting.popleft())
        return batch
