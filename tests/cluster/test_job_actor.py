"""The owner of jobs as an actor: it outlives its process, and knows what the cluster has."""

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.jobs_model import Job, JobState, Submission, WatchedView
from actors.model import TableLocation
from actors.ray_owners import RayOwners
from cluster.errors import InvalidInput, TransactionNotFound
from cluster.settings import Settings
from tests.contract.domain import DATABASE, make_settings
from tests.contract.ray_cluster import end_owners
from tests.processes import OwnProcesses
from udtf.resources import WorkerResources

pytestmark = [pytest.mark.cluster, pytest.mark.anyio]

WAIT_S = 60.0


@pytest.fixture
def settings(ray: None, tmp_path: Path) -> Iterator[Settings]:
    settings = make_settings(
        tmp_path / "root",
        jobs={"flush_interval_s": 0.05},
        ray={"namespace": f"test-{uuid.uuid4().hex[:12]}"},
    )
    yield settings
    end_owners(settings)


def missing_view(**changes: object) -> Submission:
    values = {"database": DATABASE, "view_id": ("v",), "view": TableLocation("/v")} | changes
    return Submission(**values)  # type: ignore[arg-type]


async def over(settings: Settings, job_id: str) -> Job:
    for _ in range(int(WAIT_S * 20)):
        job: Job = await RayOwners(settings).jobs().call("describe", DATABASE, job_id)
        if job.state.is_over:
            return job
        await asyncio.sleep(0.05)
    raise AssertionError(f"never over: {job}")


async def test_jobs_outlive_the_process_of_their_owner(
    own_processes: OwnProcesses, settings: Settings
) -> None:
    jobs = RayOwners(settings).jobs()
    job_id = await jobs.call("submit", missing_view())
    before = await over(settings, job_id)
    assert before.state is JobState.FAILED and before.failure is not None
    assert before.failure.type == "TableNotFound"
    await jobs.call("watch", WatchedView(DATABASE, ("v",)))
    (owner,) = own_processes.named("ray::JobProcess")
    owner.kill()
    # The call waits for the next process.
    assert await jobs.call("describe", DATABASE, job_id) == before
    history = await jobs.call("view_history", DATABASE, ("v",))
    assert history.last_failure == before
    with pytest.raises(TransactionNotFound):
        await jobs.call("describe", DATABASE, "none")


async def test_what_the_cluster_lacks_is_refused_at_once(settings: Settings) -> None:
    asked = missing_view(resources=WorkerResources(1, 64), code_name="embed")
    with pytest.raises(InvalidInput, match="embed asks for 1 CPUs, 64 GPUs"):
        await RayOwners(settings).jobs().call("submit", asked)
