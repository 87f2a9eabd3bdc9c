"""A request is carried out once, however often and wherever from it is sent."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from actors.model import Commit, RequestKey
from actors.request_log import RequestLog, check_same_body
from cluster.errors import Throttling


@dataclass(slots=True)
class _Running:
    digest: str
    answer: asyncio.Task[Commit]


class Once:
    """What is being done now, beside the log of what was done."""

    def __init__(self, log: RequestLog, pending_max: int) -> None:
        self._log = log
        self._pending_max = pending_max
        self._running: dict[str, _Running] = {}

    async def do(self, key: RequestKey, work: Callable[[], Awaitable[Commit]]) -> Commit:
        """Do `work`, or give the answer of the same request that was or is being done.

        `work` goes on when the caller goes away; nothing is awaited between the look and the start.

        Raises:
            InvalidInput: the request id was used with another body.
            Throttling: too many requests wait.
        """
        done = self._log.find(key)
        if done is not None:
            return done
        running = self._running.get(key.id)
        if running is None:
            if len(self._running) >= self._pending_max:
                raise Throttling("too many requests wait for this table; slow down")
            task = asyncio.ensure_future(work())
            running = self._running[key.id] = _Running(key.digest, task)
            task.add_done_callback(partial(self._finished, key.id))
        else:
            check_same_body(running.digest, key)
        return await asyncio.shield(running.answer)

    async def settle(self) -> None:
        """Wait until nothing is being done."""
        running = [entry.answer for entry in self._running.values()]
        await asyncio.gather(*running, return_exceptions=True)

    def _finished(self, key_id: str, task: "asyncio.Task[Commit]") -> None:
        self._running.pop(key_id, None)
        if not task.cancelled():
            # Marks the error as seen: the caller may have gone away.
            task.exception()
