"""A request is carried out once, however often and wherever from it is sent."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from actors.model import Commit, RequestKey
from actors.request_log import RequestLog, check_same_body
from cluster.errors import (
    DestrierError,
    InternalError,
    OutcomeUnknown,
    ServiceUnavailable,
    Throttling,
)

Work = Callable[[], Awaitable[Commit]]


@dataclass(slots=True)
class _Running:
    digest: str
    answer: asyncio.Future[Commit]


@dataclass(frozen=True, slots=True)
class _Awaited:
    answer: asyncio.Future[Commit]
    is_repeated: bool = False


class Once:
    """What is being done now, beside the log of what was done."""

    def __init__(self, log: RequestLog, pending_max: int) -> None:
        self._log = log
        self._pending_max = pending_max
        self._running: dict[str, _Running] = {}

    async def do_each(
        self,
        requests: Sequence[tuple[RequestKey, Work]],
        unknown: Callable[[], object] = lambda: None,
    ) -> list[Commit | DestrierError]:
        """Do what is new, or give the answers of the same requests that were or are being done.

        One answer per request, in order: one that is refused is refused alone. What was or is being
        done for another call is answered as `repeated`. Work goes on when the caller goes away;
        nothing is awaited between the look and the start. `unknown` is called when a request's
        outcome is, before the same request can begin again.
        """
        answers = [self._begin(key, work, unknown) for key, work in requests]
        running = {answer.answer for answer in answers if isinstance(answer, _Awaited)}
        if running:
            await asyncio.wait(running)
        return [_outcome(answer) if isinstance(answer, _Awaited) else answer for answer in answers]

    async def settle(self) -> None:
        """Wait until nothing is being done."""
        running = [entry.answer for entry in self._running.values()]
        await asyncio.gather(*running, return_exceptions=True)

    def _begin(
        self, key: RequestKey, work: Work, unknown: Callable[[], object]
    ) -> "_Awaited | Commit | DestrierError":
        """The answer, or what will have it; the error of a request that cannot be begun."""
        try:
            done = self._log.find(key)
            if done is not None:
                return done
            running = self._running.get(key.id)
            if running is not None:
                check_same_body(running.digest, key)
                return _Awaited(running.answer, is_repeated=True)
            if len(self._running) >= self._pending_max:
                raise Throttling("too many requests wait for this table; slow down")
            answer = asyncio.ensure_future(work())
        except DestrierError as error:
            return error
        self._running[key.id] = _Running(key.digest, answer)
        answer.add_done_callback(partial(self._finished, key.id, unknown))
        return _Awaited(answer)

    def _finished(
        self, key_id: str, unknown: Callable[[], object], answer: "asyncio.Future[Commit]"
    ) -> None:
        self._running.pop(key_id, None)
        # Looking also marks the error as seen: the caller may have gone away.
        if not answer.cancelled() and isinstance(answer.exception(), OutcomeUnknown):
            unknown()


def _outcome(awaited: _Awaited) -> Commit | DestrierError:
    answer = awaited.answer
    if answer.cancelled():
        return ServiceUnavailable("the table's actor is stopping; try again")
    error = answer.exception()
    if error is None:
        return replace(answer.result(), repeated=True) if awaited.is_repeated else answer.result()
    if isinstance(error, DestrierError):
        return error
    failure = InternalError("the table's actor failed")
    failure.__cause__ = error
    return failure
