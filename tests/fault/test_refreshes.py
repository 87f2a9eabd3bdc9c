"""Whole refreshes in this process's owners with real drivers, without Ray, and what kills them.

A chunker view whose code takes its time: whatever dies, the view shows its last good rows until it
shows exactly what its definition says, and no item is computed by two attempts.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from actors.jobs_model import Job, JobState
from actors.model import LATEST, InsertMode, ScanRequest
from actors.server import Server
from tests.contract.domain import DATABASE, ipc, make_settings, make_table, new_key, ref
from tests.processes import OwnProcesses
from tests.unit.view_requests import check, encoded, envelope, spec
from udtf.refresh_model import RefreshMode, RefreshOptions
from udtf.spec import ViewDefinition

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

SOURCE, VIEW = ref("src"), ref("v")
OUTPUT = pa.schema([("id", pa.int64()), ("part", pa.int64())])
QUICK = RefreshOptions(concurrency=1, source_task_size=2)
PARTITIONED = RefreshOptions(concurrency=1)
WAIT_S = 60.0
CODE = """
import time
def expand(id, n):
    time.sleep({seconds})
    if n < 0:
        raise ValueError("n is negative")
    for part in range(n % 3):
        yield {{"id": id, "part": part}}
"""


def chunker(seconds: float, **changes: Any) -> ViewDefinition:
    """A view whose code takes so long for each row."""
    source = CODE.format(seconds=seconds)
    code = envelope("chunker", artifact={"encoding": "python-source", "data": source})
    query = "SELECT id, n FROM src"
    return check("chunker", query, encoded(OUTPUT), spec("chunker", code, **changes))


def partitioned(folder: Path) -> ViewDefinition:
    """A view whose code skips one partition until there is a file."""
    source = f"""
import os
def expand(source):
    rows = source.to_arrow()
    if rows["n"][0].as_py() < 0 and not os.path.exists({str(folder / "now")!r}):
        raise ValueError("not yet")
    yield rows.rename_columns(["id", "part"])
"""
    code = envelope("udtf", artifact={"encoding": "python-source", "data": source})
    policy = {"matchers": [{"action": "skip", "exceptions": ["ValueError"]}]}
    record = spec("udtf", code, partition_by="n", error_handling=policy)
    return check("udtf", "SELECT id, n FROM src", encoded(OUTPUT), record)


def rows(first: int, count: int, n: int | None = None) -> pa.Table:
    ids = list(range(first, first + count))
    return pa.table({"id": ids, "n": ids if n is None else [n] * count})


def wanted(ids: range) -> list[tuple[int, int]]:
    """What the view is to show of source rows whose n is their id."""
    return [(number, part) for number in ids for part in range(number % 3)]


@asynccontextmanager
async def serving(tmp_path: Path, spare_driver_s: float = 0) -> AsyncIterator[Server]:
    jobs = {"flush_interval_s": 0.1, "spare_driver_s": spare_driver_s}
    settings = make_settings(tmp_path / "root", jobs=jobs)
    server = Server.local(settings)
    try:
        yield server
    finally:
        await server.close()


async def shown(server: Server) -> list[tuple[int, int]]:
    stream = await server.scan(VIEW, LATEST, ScanRequest(), None)
    found = [row for batch in stream.batches() for row in batch.to_pylist()]
    return sorted((row["id"], row["part"]) for row in found)


async def over(server: Server, job_id: str) -> Job:
    for _ in range(int(WAIT_S * 20)):
        job = await server.describe_job(DATABASE, job_id)
        if job.state.is_over:
            return job
        await asyncio.sleep(0.05)
    raise AssertionError(f"never over: {job}")


async def until_items(server: Server, job_id: str, count: int) -> Job:
    for _ in range(int(WAIT_S * 20)):
        job = await server.describe_job(DATABASE, job_id)
        assert not job.state.is_over, job
        if job.metric("items_done") >= count:
            return job
        await asyncio.sleep(0.05)
    raise AssertionError(f"never so far: {job}")


async def test_refreshes_from_the_first_to_one_with_nothing_to_do(
    tmp_path: Path, own: OwnProcesses
) -> None:
    async with serving(tmp_path) as server:
        await make_table(server, SOURCE, rows(0, 6))
        created = await server.create_view(VIEW, chunker(0), new_key(), with_data=True)
        assert created.job_id is not None
        job = await over(server, created.job_id)
        assert job.state is JobState.DONE, job.failure
        assert await shown(server) == wanted(range(6))
        await server.insert_rows(SOURCE, None, InsertMode.APPEND, new_key(), ipc(rows(6, 4)))
        job = await over(server, await server.refresh_view(VIEW, QUICK))
        assert job.result is not None and job.result.mode is RefreshMode.INCREMENTAL
        assert (job.result.rows_read, job.result.items) == (4, 2)
        assert await shown(server) == wanted(range(10))
        job = await over(server, await server.refresh_view(VIEW, QUICK))
        assert job.result is not None and job.result.mode is RefreshMode.NO_OP
        assert own.alive() == []


async def one_driver_but(own: OwnProcesses, *others: int) -> int:
    for _ in range(int(WAIT_S * 20)):
        pids = [process.pid for process in own.drivers()]
        if len(pids) == 1 and pids[0] not in others:
            return pids[0]
        await asyncio.sleep(0.05)
    raise AssertionError(f"never one driver: {pids}")


async def test_a_driver_is_ready_for_the_next_job_and_ends_with_its_owner(
    tmp_path: Path, own: OwnProcesses
) -> None:
    async with serving(tmp_path, spare_driver_s=60) as server:
        await make_table(server, SOURCE, rows(0, 6))
        await server.create_view(VIEW, chunker(0), new_key())
        assert own.drivers() == []
        assert (await over(server, await server.refresh_view(VIEW, QUICK))).result is not None
        spare = await one_driver_but(own)
        await server.insert_rows(SOURCE, None, InsertMode.APPEND, new_key(), ipc(rows(6, 4)))
        job = await over(server, await server.refresh_view(VIEW, QUICK))
        assert job.result is not None and job.result.mode is RefreshMode.INCREMENTAL
        assert await shown(server) == wanted(range(10))
        # It was used up, and another one took its place.
        await one_driver_but(own, spare)
    assert own.alive() == []


async def test_a_driver_that_nobody_needs_leaves(tmp_path: Path, own: OwnProcesses) -> None:
    async with serving(tmp_path, spare_driver_s=1) as server:
        await make_table(server, SOURCE, rows(0, 6))
        await server.create_view(VIEW, chunker(0), new_key())
        await over(server, await server.refresh_view(VIEW, QUICK))
        await one_driver_but(own)
        for _ in range(int(WAIT_S * 20)):
            if not own.alive():
                break
            await asyncio.sleep(0.05)
        assert own.alive() == []


async def test_a_driver_that_is_killed_costs_no_finished_item(
    tmp_path: Path, own: OwnProcesses
) -> None:
    async with serving(tmp_path) as server:
        await make_table(server, SOURCE, rows(0, 12))
        await server.create_view(VIEW, chunker(0.3), new_key())
        job_id = await server.refresh_view(VIEW, QUICK)
        await until_items(server, job_id, 2)
        for process in own.drivers():
            process.kill()
        job = await over(server, job_id)
        assert job.state is JobState.DONE, job.failure
        assert job.attempt == 2 and job.metric("items_done") == 6
        assert await shown(server) == wanted(range(12))
        events = (await server.job_events(DATABASE, job_id, 100)).items
        planned = [event.message for event in events if event.kind == "planned"]
        assert "2 of them done already" in planned[1] or "3 of them done already" in planned[1]
        assert own.alive() == []


async def test_a_server_that_is_started_again_goes_on(tmp_path: Path, own: OwnProcesses) -> None:
    async with serving(tmp_path) as server:
        await make_table(server, SOURCE, rows(0, 12))
        await server.create_view(VIEW, chunker(0.3), new_key())
        job_id = await server.refresh_view(VIEW, QUICK)
        await until_items(server, job_id, 2)
        assert await shown(server) == []
    assert own.alive() == []
    async with serving(tmp_path) as server:
        job = await over(server, job_id)
        assert job.state is JobState.DONE, job.failure
        assert job.attempt == 2 and await shown(server) == wanted(range(12))
    assert own.alive() == []


async def test_a_cancelled_refresh_leaves_the_last_rows(tmp_path: Path, own: OwnProcesses) -> None:
    async with serving(tmp_path) as server:
        await make_table(server, SOURCE, rows(0, 2))
        await server.create_view(VIEW, chunker(0.3), new_key())
        await over(server, await server.refresh_view(VIEW, QUICK))
        before = await shown(server)
        await server.insert_rows(SOURCE, None, InsertMode.APPEND, new_key(), ipc(rows(2, 20)))
        job_id = await server.refresh_view(VIEW, QUICK)
        await until_items(server, job_id, 1)
        await server.cancel_job(DATABASE, job_id)
        job = await over(server, job_id)
        assert job.state is JobState.CANCELLED
        assert own.alive() == [] and await shown(server) == before == wanted(range(2))


async def test_failed_items_alone_are_computed_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        table = pa.table({"id": [1, 2, 3, 4], "n": [1, 1, 2, -1]})
        await make_table(server, SOURCE, table)
        await server.create_view(VIEW, partitioned(tmp_path), new_key())
        job = await over(server, await server.refresh_view(VIEW, PARTITIONED))
        assert job.state is JobState.DONE and job.result is not None, job.failure
        assert (job.result.items, job.result.items_skipped) == (3, 1)
        assert await shown(server) == [(1, 1), (2, 1), (3, 2)]
        errors = (await server.job_errors(DATABASE, job.job_id, None, 10)).items
        assert [(e.error.type, e.error.message) for e in errors] == [("ValueError", "not yet")]
        (tmp_path / "now").touch()
        # The source has not moved, so another refresh finds nothing to do.
        same = await over(server, await server.refresh_view(VIEW, PARTITIONED))
        assert same.result is not None and same.result.mode is RefreshMode.NO_OP
        again = await server.refresh_view(VIEW, PARTITIONED, failed_only=True)
        job = await over(server, again)
        assert job.result is not None and job.result.items_skipped == 0, job.failure
        assert await shown(server) == [(1, 1), (2, 1), (3, 2), (4, -1)]
        events = (await server.job_events(DATABASE, again, 100)).items
        assert any("2 of them done already" in event.message for event in events)


async def test_a_view_that_is_dropped_takes_its_driver_with_it(
    tmp_path: Path, own: OwnProcesses
) -> None:
    async with serving(tmp_path) as server:
        await make_table(server, SOURCE, rows(0, 40))
        await server.create_view(VIEW, chunker(0.3), new_key())
        job_id = await server.refresh_view(VIEW, QUICK)
        await until_items(server, job_id, 1)
        await server.drop_view(VIEW)
        assert own.alive() == []
        assert (await server.describe_job(DATABASE, job_id)).state is JobState.CANCELLED
