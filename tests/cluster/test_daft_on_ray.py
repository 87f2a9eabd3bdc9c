"""Plans on a real cluster: the answers of the process itself, whatever happens to the workers.

Tables have their owners in this process, so that a test can put a faulty item in the place of the
right one; only the first test has everything where a deployment has it.
"""

import asyncio
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import psutil
import pyarrow as pa
import pytest

from actors import plan_runner
from actors.model import LATEST, Assignment, InsertMode, ScanRequest
from actors.owners import LocalOwners
from actors.server import Server
from actors.staging import StagedRewrite
from actors.work_items import CountItem, StageItem
from cluster.clock import SystemClock
from cluster.errors import InvalidInput, ServiceUnavailable, Throttling
from cluster.naming import PLAN_ACTOR
from cluster.settings import Settings
from tests.contract.domain import DATABASE, ipc, make_settings, make_table, new_key, ref
from tests.contract.ray_cluster import end_owners, own_ray

pytestmark = [pytest.mark.cluster, pytest.mark.anyio, pytest.mark.timeout(300)]

T = ref("t")
FRAGMENTS = 100
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("name", pa.utf8()),
        pa.field("s", pa.struct([pa.field("x", pa.int64()), pa.field("label", pa.utf8())])),
    ],
    metadata={"made by": "a test"},
)
ROWS = pa.Table.from_pylist(
    [
        {
            "id": number,
            "n": number % 7,
            "name": f"name {number}",
            "s": None if number % 5 == 0 else {"x": number, "label": "kept"},
        }
        for number in range(1_000)
    ],
    SCHEMA,
)
# Enough for a plan whose workers are there; the first one starts them.
SHORT_S = 8.0


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    """The namespace of a deployment on a Ray of this module."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    with own_ray():
        yield name
        end_owners(Settings.model_validate({"ray": {"namespace": name}}))


@pytest.fixture
def settings(namespace: str, tmp_path: Path) -> Settings:
    return make_settings(tmp_path / "root", engine={"engine": "daft"}, ray={"namespace": namespace})


@pytest.fixture
async def server(settings: Settings) -> Server:
    """Owners in this process, plans on the cluster; a table of many fragments."""
    server = planned_server(settings)
    await make_table(server, T, SCHEMA.empty_table())
    record = await server.catalog(DATABASE).find_table(T.id)
    lance.write_dataset(ROWS, record.location.uri, mode="append", max_rows_per_file=10)
    assert len(lance.dataset(record.location.uri).get_fragments()) == FRAGMENTS
    return server


def planned_server(settings: Settings, **engine: Any) -> Server:
    from actors.ray_plans import RayReads, RayStaging

    changed = settings.engine.model_copy(update=engine)
    settings = settings.model_copy(update={"engine": changed})
    clock = SystemClock()
    owners = LocalOwners(settings, clock, RayStaging(settings))
    return Server(settings, owners, clock, RayReads(settings))


async def count(server: Server, predicate: str, engine: Any = None) -> int:
    return (await server.count_rows(T, LATEST, predicate, engine)).count


async def scan(server: Server, engine: Any = None, **request: Any) -> pa.Table:
    stream = await server.scan(T, LATEST, ScanRequest(**request), engine)
    batches = await asyncio.to_thread(list, stream.batches())
    return pa.Table.from_batches(batches, stream.schema)


async def update(server: Server, predicate: str | None, *pairs: tuple[str, str]) -> int:
    assignments = [Assignment(tuple(target.split(".")), text) for target, text in pairs]
    commit, _ = await server.update_rows(T, None, new_key(), assignments, predicate, None, None)
    return commit.rows


def plan_actor(settings: Settings) -> Any:
    import ray

    return ray.get_actor(PLAN_ACTOR, settings.ray.namespace)


async def test_a_deployment_reads_and_changes_rows_on_the_cluster(settings: Settings) -> None:
    server = Server.on_ray(settings)
    await make_table(server, T, ROWS.slice(0, 500))
    body = ipc(ROWS.slice(500))
    await server.insert_rows(T, None, InsertMode.APPEND, new_key(), body)
    assert await count(server, "n = 3") == 143
    assert plan_actor(settings) is not None
    assert await update(server, "id >= 400 AND id < 600", ("n", "-1"), ("s.x", "id * 2")) == 200
    assert await count(server, "n = -1") == 200
    deleted = await server.delete_rows(T, None, new_key(), "id < 100", None)
    assert deleted.rows == 100
    found = await scan(server, columns=(("id", "id"), ("x", "s.x")), filter="id < 402")
    assert found.num_rows == 302
    assert {row["id"]: row["x"] for row in found.to_pylist()}[401] == 802
    assert found == await scan(
        server, "lance", columns=(("id", "id"), ("x", "s.x")), filter="id < 402"
    )


@pytest.mark.parametrize(
    ("request_", "rows"),
    [
        pytest.param({}, 1_000, id="everything"),
        pytest.param({"filter": "n = 3", "limit": 100}, 100, id="limit after filter"),
        pytest.param({"limit": 1}, 1, id="limit of one"),
        pytest.param({"filter": "n = 3", "offset": 140, "limit": 10}, 3, id="offset after filter"),
        pytest.param({"offset": 995, "with_row_id": True}, 5, id="offset"),
        pytest.param({"offset": 1_000}, 0, id="offset at the end"),
        pytest.param({"filter": "n = 3", "offset": 5_000}, 0, id="offset beyond the end"),
        pytest.param({"columns": (("x", "s.x + 1"), ("id", "id"))}, 1_000, id="expression"),
    ],
)
async def test_a_scan_is_that_of_the_process(
    server: Server, request_: dict[str, Any], rows: int
) -> None:
    found = await scan(server, **request_)
    assert found.num_rows == rows
    expected = await scan(server, "lance", **request_)
    assert found.schema.serialize() == expected.schema.serialize()
    assert found.to_pylist() == expected.to_pylist()


async def test_a_count_is_that_of_lance(server: Server) -> None:
    record = await server.catalog(DATABASE).find_table(T.id)
    predicate = "n = 3 AND s IS NOT NULL"
    expected = lance.dataset(record.location.uri).count_rows(predicate)
    assert expected == 114
    assert await count(server, predicate) == expected


async def test_an_update_keeps_schema_row_ids_and_lineage(server: Server) -> None:
    record = await server.catalog(DATABASE).find_table(T.id)
    before = lance.dataset(record.location.uri)
    pairs = [("n", "id"), ("s.label", "concat(name, '!')")]
    assert await update(server, "n = 3", *pairs) == 143
    after = lance.dataset(record.location.uri)
    assert after.schema.serialize() == before.schema.serialize()
    columns = ["id", "_rowid", "_row_created_at_version"]
    assert sorted_rows(after, columns) == sorted_rows(before, columns)
    assert after.count_rows(f"_row_last_updated_at_version = {after.version}") == 143
    for row in after.to_table().to_pylist():
        was = ROWS.slice(row["id"], 1).to_pylist()[0]
        if was["n"] == 3:
            label = was["name"] + "!"
            assert row["n"] == row["id"]
            assert row["s"] == (None if was["s"] is None else {**was["s"], "label": label})
        else:
            assert row == was
    body = ipc(ROWS.slice(0, 3))
    await server.insert_rows(T, None, InsertMode.APPEND, new_key(), body)
    assert await count(server, "id >= 0") == 1_003


def sorted_rows(dataset: Any, columns: list[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = dataset.scanner(columns=columns).to_table().to_pylist()
    return sorted(rows, key=lambda row: row["id"])


async def test_errors_of_workers_are_the_callers(server: Server) -> None:
    with pytest.raises(InvalidInput, match="name 0"):
        await count(server, "cast(name AS int) > 1")
    with pytest.raises(InvalidInput, match="name 0"):
        await scan(server, columns=(("x", "cast(name AS int)"),))
    with pytest.raises(InvalidInput, match="name "):
        await update(server, None, ("n", "cast(name AS int)"))


def marker_of(item: CountItem | StageItem) -> Path:
    """A file beside the table; while it is there, the item fails."""
    return Path(f"{item.target.uri}.fault")


class DiesOnce(CountItem):
    """A count whose first worker dies of it."""

    def perform(self) -> Iterator[int]:
        if 0 in self.fragments and marker_of(self).exists():
            marker_of(self).unlink()
            os._exit(1)
        yield from super().perform()


class DiesCounting(CountItem):
    """A count of which every worker dies."""

    def perform(self) -> Iterator[int]:
        if marker_of(self).exists():
            os._exit(1)
        yield from super().perform()


class DiesStaging(StageItem):
    """A change of which every worker dies when its files are written."""

    def perform(self) -> Iterator[StagedRewrite]:
        staged = list(super().perform())
        if marker_of(self).exists():
            os._exit(1)
        yield from staged


class HangsCounting(CountItem):
    """A count that does not come back, and says where."""

    def perform(self) -> Iterator[int]:
        while marker_of(self).exists():
            marker_of(self).write_text(str(os.getpid()))
            time.sleep(0.2)
        yield from super().perform()


async def fault_of(server: Server) -> Path:
    record = await server.catalog(DATABASE).find_table(T.id)
    path = Path(f"{record.location.uri}.fault")
    path.touch()
    return path


async def given_up(request: Callable[[], Awaitable[object]]) -> None:
    """Expect that the request ends at the short deadline."""
    started = time.monotonic()
    with pytest.raises(ServiceUnavailable, match="nothing was changed"):
        await request()
    assert time.monotonic() - started < SHORT_S + 5


async def test_work_of_a_worker_that_dies_is_done_by_another(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_runner, "CountItem", DiesOnce)
    fault = await fault_of(server)
    assert await count(server, "n = 3") == 143
    assert not fault.exists()


@pytest.mark.soak
async def test_a_count_of_which_workers_die_is_given_up(
    server: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await count(server, "n = 3") == 143
    monkeypatch.setattr(plan_runner, "CountItem", DiesCounting)
    fault = await fault_of(server)
    hurried = planned_server(settings, plan_timeout_s=SHORT_S)
    await given_up(lambda: count(hurried, "n = 3"))
    fault.unlink()
    assert await count(server, "n = 3") == 143


@pytest.mark.soak
async def test_a_change_of_which_workers_die_changes_nothing(
    server: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await count(server, "n = 3") == 143
    monkeypatch.setattr(plan_runner, "StageItem", DiesStaging)
    fault = await fault_of(server)
    version = (await server.count_rows(T, LATEST, None, None)).version
    hurried = planned_server(settings, plan_timeout_s=SHORT_S)
    await given_up(lambda: update(hurried, "n = 3", ("n", "100")))
    assert (await server.count_rows(T, LATEST, None, None)).version == version
    assert await count(server, "n = 3", "lance") == 143
    fault.unlink()
    assert await update(server, "n = 3", ("n", "100")) == 143
    assert await count(server, "n = 100") == 143


@pytest.mark.soak
async def test_work_that_hangs_ends_with_its_plan(
    server: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await count(server, "n = 3") == 143
    monkeypatch.setattr(plan_runner, "CountItem", HangsCounting)
    fault = await fault_of(server)
    hurried = planned_server(settings, plan_timeout_s=SHORT_S)
    await given_up(lambda: count(hurried, "n = 3"))
    worker = int(fault.read_text())
    ends_by = time.monotonic() + 30
    while psutil.pid_exists(worker) and time.monotonic() < ends_by:
        await asyncio.sleep(0.1)
    assert not psutil.pid_exists(worker)
    fault.unlink()
    assert await count(server, "n = 3") == 143


async def test_a_plan_is_run_again_when_its_actor_dies(
    server: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    assert await count(server, "n = 3") == 143
    monkeypatch.setattr(plan_runner, "CountItem", HangsCounting)
    fault = await fault_of(server)
    counting = asyncio.create_task(count(server, "n = 3"))
    while not fault.read_text():
        await asyncio.sleep(0.05)
    fault.unlink()
    fault.touch()
    ray.kill(plan_actor(settings))
    while not fault.read_text():
        await asyncio.sleep(0.05)
    fault.unlink()
    assert await counting == 143


@pytest.mark.parametrize(
    ("plans_max", "told"),
    [pytest.param(1, "too many", id="too many"), pytest.param(9, "is busy", id="no worker")],
)
async def test_plans_whose_turn_does_not_come_are_refused(
    server: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch, plans_max: int, told: str
) -> None:
    from actors.plan_actor import start_plan_actor

    crowded = settings.ray.model_copy(update={"namespace": f"{settings.ray.namespace}-{plans_max}"})
    settings = settings.model_copy(update={"ray": crowded})
    engine = {"plans_max": plans_max, "plan_timeout_s": SHORT_S}
    start_plan_actor(
        settings.model_copy(update={"engine": settings.engine.model_copy(update=engine)})
    )
    server = planned_server(settings)
    monkeypatch.setattr(plan_runner, "CountItem", HangsCounting)
    fault = await fault_of(server)
    counting = asyncio.create_task(count(server, "n = 3"))
    while not fault.read_text():
        await asyncio.sleep(0.05)
    with pytest.raises(Throttling, match=told):
        await count(server, "n = 4")
    fault.unlink()
    assert await counting == 143
    end_owners(settings)
