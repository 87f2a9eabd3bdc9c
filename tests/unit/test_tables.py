"""Calls of a table's owner from a replica, while owners leave and others take over."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from actors import tables
from actors.model import Commit, InsertItem, RequestKey, TableLocation, TableRecord
from actors.owner_errors import OwnerGone
from actors.owners import Owner
from actors.tables import Tables
from cluster.clock import SystemClock
from cluster.errors import DestrierError, InvalidInput, ServiceUnavailable, TableNotFound
from cluster.identifiers import ObjectId, TableRef
from cluster.settings import ActorSettings

TABLE = TableRef("db", ObjectId.of(["t"]))
CALL_TIMEOUT_S = 60.0
GONE = OwnerGone("table t is moving to another owner; try again")
DONE = Commit(7, "t", 1)

pytestmark = pytest.mark.anyio


class Clock(SystemClock):
    """Time passes when it is waited for."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class Deployment:
    """One table and its owner, which answers inserts as it is told and notes them."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.life = "first"
        self.opened = 0
        self.calls: list[tuple[str, list[str]]] = []
        # For one call each: an error, or an answer per item. None left: all is done.
        self.answers: list[DestrierError | list[Commit | DestrierError]] = []
        limits = ActorSettings(call_timeout_s=CALL_TIMEOUT_S)
        self.tables = Tables(self, self.find, self.is_over, limits, self.clock)

    @property
    def location(self) -> TableLocation:
        return TableLocation("/root/db/t.lance", self.life, False)

    async def find(self, table: TableRef) -> TableRecord:
        return TableRecord(table.id, self.location, {}, is_only_declared=False)

    async def is_over(self, location: TableLocation) -> bool:
        return location.incarnation != self.life

    async def open_table(self, table: TableRef) -> tuple[TableRecord, Owner]:
        self.opened += 1
        return await self.find(table), self

    async def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        location: TableLocation = arguments[0]
        items: Sequence[InsertItem] = arguments[1]
        self.calls.append((str(location.incarnation), [item.key.id for item in items]))
        answer = self.answers.pop(0) if self.answers else [DONE] * len(items)
        if isinstance(answer, DestrierError):
            raise answer
        return answer

    def catalog(self, database: str) -> Owner:
        raise AssertionError("nobody asks the catalog but for the table")

    def jobs(self) -> Owner:
        raise AssertionError("no jobs here")

    async def close(self) -> None:
        return

    async def insert(self, *names: str) -> list[Commit | BaseException]:
        items = [InsertItem(RequestKey(name, ""), b"rows") for name in names]
        return await asyncio.gather(
            *(self.tables.append(TABLE, item) for item in items), return_exceptions=True
        )


@pytest.fixture
def deployment(monkeypatch: pytest.MonkeyPatch) -> Deployment:
    deployment = Deployment()

    async def wait(attempt: int) -> None:
        deployment.clock.now_s += 1.0

    monkeypatch.setattr(tables, "wait_a_little", wait)
    return deployment


async def test_inserts_are_given_up_at_the_deadline_when_the_owner_keeps_leaving(
    deployment: Deployment,
) -> None:
    deployment.answers = [GONE] * 1_000
    answers = await deployment.insert("a", "b")
    assert [type(answer) for answer in answers] == [ServiceUnavailable] * 2
    assert deployment.opened == CALL_TIMEOUT_S + 2
    assert deployment.clock.now_s == CALL_TIMEOUT_S + 1


async def test_inserts_are_given_up_at_the_deadline_when_owners_leave_with_them_waiting(
    deployment: Deployment,
) -> None:
    deployment.answers = [[DONE, GONE], *([GONE] for _ in range(1_000))]
    done, given_up = await deployment.insert("a", "b")
    assert done == DONE
    assert type(given_up) is ServiceUnavailable
    assert "nothing was changed" in str(given_up)
    assert deployment.opened == CALL_TIMEOUT_S + 2
    assert deployment.clock.now_s == CALL_TIMEOUT_S + 1


async def test_both_ways_of_leaving_share_one_deadline(deployment: Deployment) -> None:
    deployment.answers = [*[GONE] * 40, [GONE], *[GONE] * 1_000]
    assert [type(answer) for answer in await deployment.insert("a")] == [ServiceUnavailable]
    assert deployment.clock.now_s == CALL_TIMEOUT_S + 1


async def test_the_next_owner_gets_only_what_the_last_one_left(deployment: Deployment) -> None:
    refusal = InvalidInput("no")
    deployment.answers = [[DONE, GONE, refusal, GONE], GONE, [GONE, DONE]]
    assert await deployment.insert("a", "b", "c", "d") == [DONE, DONE, refusal, DONE]
    assert [names for _, names in deployment.calls] == [
        ["a", "b", "c", "d"],
        ["b", "d"],
        ["b", "d"],
        ["b"],
    ]
    assert deployment.opened == 4


async def test_what_was_left_never_reaches_the_next_life_of_the_name(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def drop_and_make_anew(attempt: int) -> None:
        deployment.life = "second"

    monkeypatch.setattr(tables, "wait_a_little", drop_and_make_anew)
    deployment.answers = [[DONE, GONE]]
    done, refused = await deployment.insert("a", "b")
    assert done == DONE
    assert isinstance(refused, TableNotFound)
    assert deployment.calls == [("first", ["a", "b"])]
