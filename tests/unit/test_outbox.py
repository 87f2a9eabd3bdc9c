"""Small inserts on their way to a table's owner: who shares a call, and who waits for whom."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest

from actors.model import Commit, InsertItem, RequestKey
from actors.outbox import Outbox
from cluster.clock import SystemClock
from cluster.errors import DestrierError, InvalidInput
from cluster.settings import ActorSettings

CALL_S = 0.02

pytestmark = pytest.mark.anyio


class Owner:
    """Answers every call after a while with a commit, and notes what it held."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.refuses: dict[str, Exception] = {}
        self.fails: Exception | None = None

    @property
    def sizes(self) -> list[int]:
        return [len(call) for call in self.calls]

    async def append(self, items: Sequence[InsertItem]) -> list[Commit | DestrierError]:
        self.calls.append([item.key.id for item in items])
        await asyncio.sleep(CALL_S)
        if self.fails is not None:
            raise self.fails
        commit = Commit(len(self.calls), "t", 1)
        return [self.refuses.get(item.key.id, commit) for item in items]  # type: ignore[misc]


def item(name: str, size: int = 1) -> InsertItem:
    return InsertItem(RequestKey(name, ""), b"b" * size, None)


class Setup:
    def __init__(self, **limits: int) -> None:
        self.owner = Owner()
        self.ended = 0
        self.outbox = Outbox(
            ActorSettings.model_validate(limits), SystemClock(), self.owner.append, self.end
        )

    def end(self) -> None:
        self.ended += 1

    async def repeat(self, name: str, times: int) -> None:
        """A caller that sends its next item when the last was answered."""
        for number in range(times):
            await self.outbox.put(item(f"{name}{number}"))


async def test_a_lone_caller_is_sent_at_once_each_time() -> None:
    setup = Setup()
    await setup.repeat("a", 3)
    assert setup.owner.calls == [["a0"], ["a1"], ["a2"]]


async def test_what_arrives_during_a_call_shares_the_next() -> None:
    setup = Setup()
    first = asyncio.ensure_future(setup.repeat("a", 1))
    await asyncio.sleep(CALL_S / 2)
    await asyncio.gather(*(setup.repeat(name, 1) for name in "bc"))
    await first
    assert setup.owner.calls == [["a0"], ["b0", "c0"]]


async def test_callers_that_come_again_are_sent_together() -> None:
    setup = Setup()
    first = asyncio.ensure_future(setup.repeat("a", 4))
    await asyncio.sleep(CALL_S / 2)
    await asyncio.gather(first, *(setup.repeat(name, 4) for name in "bc"))
    assert setup.owner.sizes == [1, 3, 3, 3, 2]


async def test_one_that_does_not_come_again_is_not_waited_for_twice() -> None:
    setup = Setup()
    began_s: list[float] = []

    async def append(items: Sequence[InsertItem]) -> list[Commit | DestrierError]:
        began_s.append(asyncio.get_running_loop().time())
        return await Owner.append(setup.owner, items)

    setup.outbox = Outbox(ActorSettings(), SystemClock(), append, setup.end)
    await asyncio.gather(setup.repeat("a", 8), setup.repeat("b", 1))
    assert setup.owner.sizes == [2, 1, 1, 1, 1, 1, 1, 1]
    waited_s, *others_s = (later - call for call, later in pairwise(began_s))
    assert waited_s > CALL_S + CALL_S / 4
    assert min(others_s) < waited_s


async def test_an_item_that_is_refused_is_refused_alone() -> None:
    setup = Setup()
    setup.owner.refuses["b"] = InvalidInput("no")
    answers = await asyncio.gather(
        *(setup.outbox.put(item(name)) for name in "abc"), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [Commit, InvalidInput, Commit]


async def test_every_caller_learns_of_a_call_that_failed_and_the_next_goes_on() -> None:
    setup = Setup()
    setup.owner.fails = RuntimeError("lost")
    answers = await asyncio.gather(
        *(setup.outbox.put(item(name)) for name in "abc"), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [RuntimeError] * 3
    setup.owner.fails = None
    assert (await setup.outbox.put(item("d"))).rows == 1


async def test_a_caller_that_went_away_does_not_disturb_the_others() -> None:
    setup = Setup()
    gone = asyncio.ensure_future(setup.outbox.put(item("a")))
    stays = asyncio.ensure_future(setup.outbox.put(item("b")))
    await asyncio.sleep(CALL_S / 2)
    gone.cancel()
    assert (await stays).rows == 1


@pytest.mark.parametrize("limits", [{"batch_requests_max": 2}, {"batch_bytes_max": 25}])
async def test_a_call_holds_no_more_than_its_bounds(limits: dict[str, int]) -> None:
    setup = Setup(**limits)
    await asyncio.gather(*(setup.outbox.put(item(name, 10)) for name in "abcde"))
    assert setup.owner.sizes == [2, 2, 1]


async def test_the_outbox_ends_when_nobody_comes_again() -> None:
    setup = Setup()
    await setup.repeat("a", 1)
    assert setup.ended == 0
    await asyncio.sleep(CALL_S * 2)
    assert setup.ended == 1
    await setup.repeat("b", 1)
    assert setup.owner.sizes == [1, 1]
