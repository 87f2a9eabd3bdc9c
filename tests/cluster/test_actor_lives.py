"""Table actors come with the first write, go when they are idle, and are never too many."""

import asyncio
import errno
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray

from actors import direct_calls
from actors.direct_calls import CallClient, Door
from actors.model import LATEST, InsertMode
from actors.server import Server
from actors.table_actors import owner_names
from cluster.errors import TableBranchNotFound
from cluster.identifiers import TableRef
from cluster.naming import CATALOG_PREFIX, TABLE_PREFIX, catalog_actor_name
from cluster.settings import Settings
from tests.contract.domain import DATABASE, ipc, make_settings, make_table, new_key, ref
from tests.contract.ray_cluster import end_owners

pytestmark = [pytest.mark.cluster, pytest.mark.anyio]

ROWS = pa.table({"id": [1]})
IDLE_S = 1.5
WAIT_S = 60.0


@pytest.fixture
def settings(ray: None, tmp_path: Path) -> Iterator[Settings]:
    settings = make_settings(
        tmp_path / "root",
        actors={"idle_s": IDLE_S, "live_max": 2, "spare_s": 0},
        ray={"namespace": f"test-{uuid.uuid4().hex[:12]}"},
    )
    yield settings
    end_owners(settings)


def with_spare(settings: Settings, spare_s: float) -> Settings:
    """The same deployment, in which a process waits for a table and none leaves for idleness."""
    changed = settings.actors.model_copy(update={"spare_s": spare_s, "idle_s": 60.0})
    return settings.model_copy(update={"actors": changed})


def table_actors(settings: Settings) -> list[str]:
    return [name for name in owner_names(settings) if name.startswith(TABLE_PREFIX)]


async def insert(server: Server, table: TableRef, branch: str | None = None) -> None:
    await server.insert_rows(table, branch, InsertMode.APPEND, new_key(), ipc(ROWS))


async def test_reads_start_no_table_actor_and_idle_ones_leave(settings: Settings) -> None:
    server = Server.on_ray(settings)
    await make_table(server, ref("t"), ROWS)
    assert (await server.count_rows(ref("t"), LATEST, None, None)).count == 1
    assert owner_names(settings) == [catalog_actor_name(DATABASE)]
    await insert(server, ref("t"))
    assert len(table_actors(settings)) == 1
    deadline = time.monotonic() + WAIT_S
    while table_actors(settings) and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    assert table_actors(settings) == []
    # Nothing was lost with one that had nothing to do: what is refused is refused plainly.
    with pytest.raises(TableBranchNotFound):
        await insert(server, ref("t"), "absent")
    await insert(server, ref("t"))
    assert (await server.count_rows(ref("t"), LATEST, None, None)).count == 3


async def test_the_longest_idle_actor_makes_room(settings: Settings) -> None:
    server = Server.on_ray(settings)
    tables = [ref(f"t{number}") for number in range(4)]
    for table in tables:
        await make_table(server, table, ROWS)
        await insert(server, table)
        assert len(table_actors(settings)) <= 2
    for table in tables:
        await insert(server, table)
        assert (await server.count_rows(table, LATEST, None, None)).count == 3


async def test_dropping_a_table_ends_its_actor(settings: Settings) -> None:
    server = Server.on_ray(settings)
    await make_table(server, ref("t"), ROWS)
    await insert(server, ref("t"))
    assert len(table_actors(settings)) == 1
    await server.catalog(DATABASE).drop_table(ref("t").id)
    assert table_actors(settings) == []
    assert [name for name in owner_names(settings) if name.startswith(CATALOG_PREFIX)]


async def test_a_table_is_given_the_process_that_waits_and_another_when_that_dies(
    settings: Settings,
) -> None:
    settings = with_spare(settings, 2.0)
    server = Server.on_ray(settings)
    await make_table(server, ref("t"), ROWS)
    waiting = await until(lambda: table_actors(settings))
    await insert(server, ref("t"))
    # The one that waited has the table now, and the next one waits.
    with_table = await until(lambda: len(table_actors(settings)) == 2 and table_actors(settings))
    assert set(waiting) < set(with_table)
    ray.kill(ray.get_actor(waiting[0], namespace=settings.ray.namespace))
    await insert(server, ref("t"))
    assert (await server.count_rows(ref("t"), LATEST, None, None)).count == 3
    assert waiting[0] not in table_actors(settings)
    # Nobody opens another table: the one that waits for one leaves.
    await until(lambda: len(table_actors(settings)) == 1)


@pytest.mark.parametrize(("place", "tries"), [("another machine", 0), (None, 1)])
async def test_a_table_that_cannot_be_reached_otherwise_is_written_through_ray(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, place: str | None, tries: int
) -> None:
    doors: list[Door] = []

    async def out_of_reach(door: Door) -> CallClient:
        doors.append(door)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(CallClient, "connect", out_of_reach)
    if place is not None:
        # Of this process; the owner's is what it was.
        monkeypatch.setattr(direct_calls, "_place", lambda: place)
    server = Server.on_ray(settings)
    await make_table(server, ref("t"), ROWS)
    await insert(server, ref("t"))
    await insert(server, ref("t"))
    assert (await server.count_rows(ref("t"), LATEST, None, None)).count == 3
    # It is not tried again.
    assert len(doors) == tries


async def test_a_catalog_that_is_started_again_knows_the_owners_of_the_last_one(
    settings: Settings,
) -> None:
    settings = with_spare(settings, 60.0)
    server = Server.on_ray(settings)
    await make_table(server, ref("t"), ROWS)
    await insert(server, ref("t"))
    before = await until(lambda: len(table_actors(settings)) == 2 and table_actors(settings))
    catalog = ray.get_actor(catalog_actor_name(DATABASE), namespace=settings.ray.namespace)
    ray.kill(catalog, no_restart=False)
    # Another replica, which has to ask for the owner.
    other = Server.on_ray(settings)
    await insert(other, ref("t"))
    await insert(server, ref("t"))
    assert (await server.count_rows(ref("t"), LATEST, None, None)).count == 4
    assert sorted(table_actors(settings)) == sorted(before)


async def until(look: Callable[[], Any]) -> Any:
    """Wait for something that is true, and return it."""
    deadline = time.monotonic() + WAIT_S
    while not (found := look()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    return found
