"""Which actor a table gets, and when it is spoken to; actors are plain objects here."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actors import table_actors
from actors.model import TableLocation
from actors.owner_errors import OwnerGone
from actors.table_actors import RayTableOwners
from cluster.identifiers import TableRef
from tests.contract.domain import DATABASE, make_settings, ref

pytestmark = pytest.mark.anyio

T = ref("t")
U = ref("u")


class Method:
    """A method as a Ray handle has it."""

    def __init__(self, method: Callable[..., Awaitable[Any]]) -> None:
        self.remote = method


class Actor:
    """A table actor whose `hold` answers when it is let; its other methods say what was asked."""

    def __init__(self) -> None:
        self.may_hold = asyncio.Event()
        self.asked_to_hold = asyncio.Event()
        self.held_table: tuple[TableRef, TableLocation] | None = None
        self.calls: list[str] = []
        self.hold = Method(self._hold)
        self.call = Method(self._call)
        self.retire = Method(partial(self._call, "retire"))

    async def _hold(self, table: TableRef, location: TableLocation) -> bool:
        self.asked_to_hold.set()
        await self.may_hold.wait()
        self.held_table = (table, location)
        return True

    async def _call(self, method: str) -> float | None:
        if self.held_table is None:
            raise OwnerGone("this process owns no table yet")
        self.calls.append(method)
        return 1.0 if method == "idle_s" else None


class Cluster:
    """Which actors were started, and which were ended."""

    def __init__(self) -> None:
        self.actors: list[Actor] = []
        self.ended: list[Actor] = []

    def start(self, name: str, settings: object) -> Actor:
        self.actors.append(Actor())
        return self.actors[-1]

    async def actor(self, number: int) -> Actor:
        """The one with this number, when it was asked to hold a table."""
        async with asyncio.timeout(10):
            while len(self.actors) <= number:
                await asyncio.sleep(0.001)
            await self.actors[number].asked_to_hold.wait()
        return self.actors[number]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(table_actors, "start_table_actor", cluster.start)
    monkeypatch.setattr(table_actors, "owner_names", lambda settings: [])
    monkeypatch.setattr(table_actors.ray, "kill", cluster.ended.append)
    return cluster


def owners(tmp_path: Path, live_max: int = 2) -> RayTableOwners:
    actors = {"live_max": live_max, "spare_s": 0}
    return RayTableOwners(DATABASE, make_settings(tmp_path / "root", actors=actors))


def at(tmp_path: Path, table: TableRef) -> TableLocation:
    return TableLocation(str(tmp_path / str(table.id)))


async def test_a_table_that_is_dropped_while_it_is_opened_is_opened_first(
    cluster: Cluster, tmp_path: Path
) -> None:
    tables = owners(tmp_path)
    opening = asyncio.create_task(tables.open(T, at(tmp_path, T)))
    actor = await cluster.actor(0)
    ending = asyncio.create_task(tables.end(T, at(tmp_path, T)))
    await asyncio.sleep(0.01)
    assert not ending.done()
    actor.may_hold.set()
    await ending
    assert await opening is actor
    assert actor.calls == ["retire"]
    assert cluster.ended == [actor]


async def test_looking_after_owners_asks_none_that_is_being_started(
    cluster: Cluster, tmp_path: Path
) -> None:
    tables = owners(tmp_path)
    opening = asyncio.create_task(tables.open(T, at(tmp_path, T)))
    actor = await cluster.actor(0)
    await tables.look()
    actor.may_hold.set()
    await opening
    assert actor.calls == []
    await tables.look()
    assert actor.calls == ["must_be_replaced", "idle_s"]
    assert cluster.ended == []


async def test_those_that_are_being_started_count_and_are_not_asked_to_make_room(
    cluster: Cluster, tmp_path: Path
) -> None:
    tables = owners(tmp_path, live_max=1)
    first = asyncio.create_task(tables.open(T, at(tmp_path, T)))
    actor = await cluster.actor(0)
    with pytest.raises(table_actors.ServiceUnavailable, match=r"^1 tables are being written to"):
        await tables.open(U, at(tmp_path, U))
    actor.may_hold.set()
    await first
    second = asyncio.create_task(tables.open(U, at(tmp_path, U)))
    (await cluster.actor(1)).may_hold.set()
    await second
    assert actor.calls == ["idle_s", "retire"]
    assert cluster.ended == [actor]


async def test_an_owner_that_was_never_heard_of_again_is_ended_and_another_started(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_actors, "_CALL_TIMEOUT_S", 0.05)
    tables = owners(tmp_path)
    with pytest.raises(table_actors.ServiceUnavailable, match="no owner of table t can be started"):
        await tables.open(T, at(tmp_path, T))
    assert len(cluster.actors) == 2
    assert cluster.ended == cluster.actors
