"""A refresh whose owners, driver and workers are all on Ray, and the end of its owner's process."""

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from actors.jobs_model import Job, JobState
from actors.model import LATEST, ScanRequest
from actors.server import Server
from cluster.settings import Settings
from tests.contract.domain import DATABASE, make_settings, make_table, new_key, ref
from tests.contract.ray_cluster import end_owners
from tests.processes import OwnProcesses
from tests.unit.view_requests import check, encoded, envelope, spec
from udtf.refresh_model import RefreshOptions
from udtf.spec import ViewDefinition

pytestmark = [pytest.mark.cluster, pytest.mark.anyio, pytest.mark.timeout(240)]

SOURCE, VIEW = ref("src"), ref("v")
OUTPUT = pa.schema([("id", pa.int64())])
ROWS = pa.table({"id": list(range(10))})
CODE = """
import time
def expand(id):
    time.sleep(0.4)
    yield {"id": id * 10}
"""
WAIT_S = 120.0


@pytest.fixture
def settings(ray: None, tmp_path: Path) -> Iterator[Settings]:
    settings = make_settings(
        tmp_path / "root",
        jobs={"flush_interval_s": 0.1, "spare_driver_s": 0},
        ray={"namespace": f"test-{uuid.uuid4().hex[:12]}"},
    )
    yield settings
    end_owners(settings)


def chunker() -> ViewDefinition:
    code = envelope("chunker", artifact={"encoding": "python-source", "data": CODE})
    record = spec("chunker", code, num_cpus=0.5, memory=512 << 20)
    return check("chunker", "SELECT id FROM src", encoded(OUTPUT), record)


async def until(server: Server, job_id: str, items: int | None) -> Job:
    """Wait until so many items are done; None is the end."""
    for _ in range(int(WAIT_S * 10)):
        job = await server.describe_job(DATABASE, job_id)
        if job.state.is_over if items is None else job.metric("items_done") >= items:
            return job
        assert not job.state.is_over, job
        await asyncio.sleep(0.1)
    raise AssertionError(f"never so far: {job}")


async def test_a_refresh_outlives_the_owner_of_jobs(
    own_processes: OwnProcesses, settings: Settings
) -> None:
    server = Server.on_ray(settings)
    await make_table(server, SOURCE, ROWS)
    await server.create_view(VIEW, chunker(), new_key())
    options = RefreshOptions(concurrency=1, source_task_size=2)
    job_id = await server.refresh_view(VIEW, options)
    await until(server, job_id, 2)
    driver = own_processes.named("actors.view_driver")
    assert len(driver) == 2
    (owner,) = own_processes.named("ray::JobProcess")
    owner.kill()
    job = await until(server, job_id, None)
    assert job.state is JobState.DONE, job.failure
    assert (job.attempt, job.metric("items_done")) == (2, 5)
    stream = await server.scan(VIEW, LATEST, ScanRequest(), None)
    ids = [row["id"] for batch in stream.batches() for row in batch.to_pylist()]
    assert sorted(ids) == [10 * number for number in range(10)]
    assert own_processes.named("actors.view_driver") == []
