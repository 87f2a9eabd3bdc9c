"""Small inserts in front of the commit lane: who shares a commit, and who waits for whom."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest

from actors.insert_queue import InsertQueue
from actors.model import Commit, InsertItem, RequestKey
from cluster.clock import SystemClock
from cluster.errors import DestrierError, InvalidInput, ServiceUnavailable, Throttling
from cluster.settings import ActorSettings

COMMIT_S = 0.02

pytestmark = pytest.mark.anyio


def item(name: str, branch: str | None = None) -> InsertItem:
    return InsertItem(RequestKey(name, ""), b"b" * 10, branch)


class Setup:
    """A queue in front of commits that take a while."""

    def __init__(self, **limits: int) -> None:
        self.commits: list[list[str]] = []
        self.began_s: list[float] = []
        self.refuses: dict[str, DestrierError] = {}
        settings = ActorSettings.model_validate(limits)
        self.queue = InsertQueue(settings, SystemClock(), self.commit)

    @property
    def sizes(self) -> list[int]:
        return [len(commit) for commit in self.commits]

    async def commit(self, items: Sequence[InsertItem]) -> list[Commit | DestrierError]:
        self.began_s.append(asyncio.get_running_loop().time())
        self.commits.append([item.key.id for item in items])
        await asyncio.sleep(COMMIT_S)
        commit = Commit(len(self.commits), "t", 1)
        return [self.refuses.get(item.key.id, commit) for item in items]

    async def replica(self, name: str, size: int, times: int) -> None:
        """Sends its next items together, a moment after all the last ones were answered."""
        for turn in range(times):
            items = [item(f"{name}{turn}.{number}") for number in range(size)]
            await asyncio.gather(*map(self.queue.put, items))
            await asyncio.sleep(COMMIT_S / 8)


async def test_a_lone_caller_is_committed_at_once_each_time() -> None:
    setup = Setup()
    for number in range(4):
        await setup.queue.put(item(str(number)))
    assert setup.sizes == [1] * 4
    assert max(later - began for began, later in pairwise(setup.began_s)) < 1.5 * COMMIT_S


async def test_replicas_that_come_in_turns_come_to_share_each_commit() -> None:
    setup = Setup()
    first = asyncio.ensure_future(setup.replica("a", 2, 4))
    await asyncio.sleep(COMMIT_S / 4)
    await asyncio.gather(first, setup.replica("b", 3, 3))
    assert setup.sizes == [2, 5, 5, 5]


async def test_one_that_stays_away_is_not_waited_for_twice() -> None:
    setup = Setup()
    await asyncio.gather(*(setup.queue.put(item(name)) for name in "ab"))
    for number in range(4):
        # Not before the wait for both is over.
        await asyncio.sleep(COMMIT_S)
        await asyncio.gather(setup.queue.put(item(str(number))))
    assert setup.sizes == [2, 1, 1, 1, 1]
    assert max(later - began for began, later in pairwise(setup.began_s)) < 3 * COMMIT_S


async def test_one_that_is_refused_is_refused_alone_and_branches_are_committed_apart() -> None:
    setup = Setup()
    setup.refuses["b"] = InvalidInput("no")
    items = [item("a"), item("b"), item("c", "dev"), item("d", "dev"), item("e")]
    answers = await asyncio.gather(*map(setup.queue.put, items), return_exceptions=True)
    assert setup.commits == [["a", "b"], ["c", "d"], ["e"]]
    assert [type(answer) for answer in answers] == [Commit, InvalidInput, Commit, Commit, Commit]


async def test_what_waits_is_bounded_and_refused_at_the_end() -> None:
    setup = Setup(pending_bytes_max=30, batch_requests_max=1)
    first, second, third = (setup.queue.put(item(name)) for name in "abc")
    with pytest.raises(Throttling):
        setup.queue.put(item("d"))
    await asyncio.sleep(COMMIT_S / 2)
    setup.queue.refuse_all(ServiceUnavailable("moving"))
    assert (await first).version == 1
    for waiting in (second, third):
        with pytest.raises(ServiceUnavailable):
            await waiting
    assert (await setup.queue.put(item("e"))).version == 2
    assert setup.commits == [["a"], ["e"]]
