"""Requests that come more than once, also in one call."""

import asyncio

import pytest

from actors.model import Commit, RequestKey
from actors.once import Once
from actors.request_log import DoneRequest, RequestLog
from cluster.errors import (
    InternalError,
    InvalidInput,
    OutcomeUnknown,
    ServiceUnavailable,
    Throttling,
)

pytestmark = pytest.mark.anyio

KEY = RequestKey("a", "digest")


class Work:
    """Counts how often it is begun; ends when it is told to."""

    def __init__(self) -> None:
        self.begun = 0
        self.end = asyncio.Event()
        self.fails: BaseException | None = None

    async def __call__(self) -> Commit:
        self.begun += 1
        await self.end.wait()
        if self.fails is not None:
            raise self.fails
        return Commit(self.begun, "t", 1)


def once(pending_max: int = 9) -> Once:
    return Once(RequestLog(9), pending_max)


async def test_a_request_that_comes_twice_is_done_once_and_answered_twice() -> None:
    requests, work = once(), Work()
    first = asyncio.ensure_future(requests.do_each([(KEY, work), (KEY, work)]))
    second = asyncio.ensure_future(requests.do_each([(KEY, work)]))
    await asyncio.sleep(0)
    work.end.set()
    done, again = Commit(1, "t", 1), Commit(1, "t", 1, repeated=True)
    assert [*await first, *await second] == [done, again, again]
    assert work.begun == 1


async def test_what_was_done_is_answered_from_the_log() -> None:
    log, work = RequestLog(9), Work()
    log.record(Commit(7, "t", 1), [DoneRequest(KEY, 3)])
    (answer,) = await Once(log, 9).do_each([(KEY, work)])
    assert answer == Commit(7, "t", 3, repeated=True)
    assert work.begun == 0


async def test_one_that_cannot_be_begun_is_refused_alone() -> None:
    requests, work = once(pending_max=1), Work()
    work.end.set()
    other_body, another = RequestKey("a", "other"), RequestKey("b", "digest")
    answers = await requests.do_each([(KEY, work), (other_body, work), (another, work)])
    assert [type(answer) for answer in answers] == [Commit, InvalidInput, Throttling]
    assert work.begun == 1


@pytest.mark.parametrize(
    ("fails", "answer"),
    [
        (ValueError("private"), InternalError),
        (InvalidInput("no"), InvalidInput),
        (asyncio.CancelledError(), ServiceUnavailable),
    ],
    ids=repr,
)
async def test_work_that_fails_is_answered_and_may_be_begun_again(
    fails: BaseException, answer: type[Exception]
) -> None:
    requests, work = once(), Work()
    work.fails = fails
    work.end.set()
    (found,) = await requests.do_each([(KEY, work)])
    assert type(found) is answer
    assert "private" not in str(found)
    work.fails = None
    assert (await requests.do_each([(KEY, work)]))[0] == Commit(2, "t", 1)


async def test_work_goes_on_when_the_caller_leaves() -> None:
    requests, work = once(), Work()
    caller = asyncio.ensure_future(requests.do_each([(KEY, work)]))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    again = asyncio.ensure_future(requests.do_each([(KEY, work)]))
    await asyncio.sleep(0)
    work.end.set()
    assert await again == [Commit(1, "t", 1, repeated=True)]
    assert work.begun == 1


async def test_an_unknown_outcome_is_told_before_the_same_request_can_begin_again() -> None:
    requests, slow, work = once(), Work(), Work()
    work.fails = OutcomeUnknown("who knows")
    told: list[int] = []
    both = [(KEY, work), (RequestKey("b", "digest"), slow)]
    caller = asyncio.ensure_future(requests.do_each(both, lambda: told.append(work.begun)))
    await asyncio.sleep(0)
    work.end.set()
    while not told:
        await asyncio.sleep(0)
    assert told == [1]
    assert not caller.done()
    work.fails = None
    assert await requests.do_each([(KEY, work)]) == [Commit(2, "t", 1)]
    slow.end.set()
    assert [type(answer) for answer in await caller] == [OutcomeUnknown, Commit]
    assert told == [1]
