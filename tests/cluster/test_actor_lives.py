"""Table actors come with the first write, go when they are idle, and are never too many."""

import asyncio
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from actors.catalog_actor import owner_names
from actors.model import LATEST, InsertMode
from actors.server import Server
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
        actors={"idle_s": IDLE_S, "live_max": 2},
        ray={"namespace": f"test-{uuid.uuid4().hex[:12]}"},
    )
    yield settings
    end_owners(settings)


def table_actors(settings: Settings) -> list[str]:
    return [name for name in owner_names(settings) if name.startswith(TABLE_PREFIX)]


async def insert(server: Server, table: TableRef) -> None:
    await server.insert_rows(table, None, InsertMode.APPEND, new_key(), ipc(ROWS))


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
