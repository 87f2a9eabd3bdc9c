"""Which jobs run at the same time, above all of one view, and what they then read."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from actors.jobs_model import Job, JobPhase, JobState
from cluster.errors import ConcurrentModification
from tests.unit.job_fakes import (
    DATABASE,
    FakeCapacity,
    FakeDriver,
    FakeViews,
    Owned,
    item,
    owned,
    planned,
    publish,
    submission,
    succeed,
)
from tests.unit.job_scripts import Messages, hang, wait_for_cancel
from udtf.refresh_model import RefreshOptions
from udtf.resources import WorkerResources

pytestmark = pytest.mark.anyio

# Drivers of these tests wait for the test, not for the owner's patience.
PATIENT: dict[str, Any] = {"jobs": {"stall_timeout_s": 30}}
FULL = RefreshOptions(full=True)


async def succeed_at_9(driver: FakeDriver) -> Messages:
    yield planned(key="key of 9", version=9)
    yield item(1)
    yield item(2)
    yield publish(driver.task["job_id"], 9)


async def paused(owner: Owned, **options: Any) -> str:
    """A job that was paused when it had done an item of source version 7."""
    job_id = await owner.jobs.submit(submission(options=RefreshOptions(**options)))
    await owner.until(job_id, lambda job: job.metric("items") == 1)
    await owner.jobs.pause(DATABASE, job_id)
    await owner.until_state(job_id, JobState.PAUSED)
    return job_id


async def until_waiting_for(owner: Owned, job_id: str, reason: str) -> Job:
    return await owner.until(job_id, lambda job: reason in (job.waiting_for or ""))


async def resumed_beside_a_publication(owner: Owned) -> tuple[str, str]:
    """A paused job that is resumed and waits, and a newer one of its view that is published."""
    older = await paused(owner)
    newer = await owner.jobs.submit(submission(options=FULL))
    await owner.until(newer, lambda job: job.phase is JobPhase.PUBLISH)
    await owner.jobs.resume(DATABASE, older)
    await until_waiting_for(owner, older, newer)
    return older, newer


# --- one view -------------------------------------------------------------------------------------


async def test_a_resumed_job_waits_while_a_newer_one_of_its_view_computes(tmp_path: Path) -> None:
    async with owned(tmp_path, wait_for_cancel, wait_for_cancel, succeed, **PATIENT) as owner:
        older = await paused(owner)
        newer = await owner.jobs.submit(submission(options=FULL))
        await owner.until(newer, lambda job: job.metric("items") == 1)
        await owner.jobs.resume(DATABASE, older)
        job = await until_waiting_for(owner, older, newer)
        assert job.state is JobState.PENDING
        assert [driver.killed.is_set() for driver in owner.drivers.started] == [True, False]
        await owner.jobs.cancel(DATABASE, newer)
        assert (await owner.until_over(older)).state is JobState.DONE


async def test_a_resumed_job_waits_while_a_newer_one_of_its_view_is_published(
    tmp_path: Path,
) -> None:
    views = FakeViews()
    views.publish_gate = asyncio.Event()
    async with owned(tmp_path, wait_for_cancel, succeed, fake_views=views, **PATIENT) as owner:
        older, newer = await resumed_beside_a_publication(owner)
        assert len(owner.drivers.started) == 2
        views.publish_gate.set()
        assert (await owner.until_over(newer)).state is JobState.DONE
        assert (await owner.until_over(older)).state is JobState.DONE
        assert views.commits[newer] < views.commits[older]


async def test_neither_of_two_jobs_waits_for_ever_when_a_commit_was_in_vain(
    tmp_path: Path,
) -> None:
    views = FakeViews()
    views.publish_gate = asyncio.Event()
    views.publish_errors = [ConcurrentModification("the view has a newer version")]
    async with owned(tmp_path, wait_for_cancel, succeed, fake_views=views, **PATIENT) as owner:
        older, newer = await resumed_beside_a_publication(owner)
        views.publish_gate.set()
        for job_id in (older, newer):
            assert (await owner.until_over(job_id)).state is JobState.DONE


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_paused_job_does_not_turn_the_view_back_when_a_newer_one_is_done(
    tmp_path: Path, restarts: bool
) -> None:
    async with owned(tmp_path, wait_for_cancel, succeed_at_9, **PATIENT) as owner:
        job_id = await paused(owner)
        owner.views.version = 9
        newer = await owner.until_over(await owner.jobs.submit(submission()))
        assert newer.result is not None and newer.result.source_version == 9
        if not restarts:
            await owner.jobs.resume(DATABASE, job_id)
            await owner.until_over(job_id)
            assert owner.drivers.started[2].task["options"]["source_version"] is None
    if restarts:
        async with owned(tmp_path, succeed_at_9, **PATIENT) as successor:
            await successor.jobs.resume(DATABASE, job_id)
            await successor.until_over(job_id)
            assert successor.drivers.started[0].task["options"]["source_version"] is None


async def test_a_newer_job_found_publishing_is_waited_for_by_the_next_owner(
    tmp_path: Path,
) -> None:
    views = FakeViews()
    views.publish_gate = asyncio.Event()
    async with owned(tmp_path, wait_for_cancel, succeed_at_9, fake_views=views, **PATIENT) as owner:
        older = await paused(owner)
        newer = await owner.jobs.submit(submission(options=FULL))
        await owner.until(newer, lambda job: job.phase is JobPhase.PUBLISH and views.calls > 0)
        await owner.jobs.resume(DATABASE, older)
    async with owned(tmp_path, succeed_at_9, fake_views=views, **PATIENT) as successor:
        await until_waiting_for(successor, older, newer)
        views.publish_gate.set()
        assert (await successor.until_over(newer)).state is JobState.DONE
        assert (await successor.until_over(older)).state is JobState.DONE
        (driver,) = successor.drivers.started
        assert driver.task["options"]["source_version"] is None


async def test_a_job_goes_on_with_the_version_that_was_asked_for_when_a_newer_one_is_done(
    tmp_path: Path,
) -> None:
    async with owned(tmp_path, wait_for_cancel, succeed_at_9, succeed, **PATIENT) as owner:
        job_id = await paused(owner, source_version=7)
        await owner.until_over(await owner.jobs.submit(submission()))
        await owner.jobs.resume(DATABASE, job_id)
        await owner.until_over(job_id)
        assert owner.drivers.started[2].task["options"]["source_version"] == 7
        assert owner.drivers.started[2].computed == [2]


async def test_a_paused_job_keeps_its_items_when_a_newer_one_showed_the_same_version(
    tmp_path: Path,
) -> None:
    async with owned(tmp_path, wait_for_cancel, succeed, **PATIENT) as owner:
        job_id = await paused(owner)
        await owner.until_over(await owner.jobs.submit(submission()))
        await owner.jobs.resume(DATABASE, job_id)
        await owner.until_over(job_id)
        assert owner.drivers.started[2].task["options"]["source_version"] == 7
        assert owner.drivers.started[2].computed == [2]


# --- all views ------------------------------------------------------------------------------------


async def test_a_job_of_another_view_begins_while_one_is_published(tmp_path: Path) -> None:
    begin = asyncio.Event()

    async def succeed_later(driver: FakeDriver) -> Messages:
        await begin.wait()
        yield planned()
        yield publish(driver.task["job_id"])

    views = FakeViews()
    views.publish_gate = asyncio.Event()
    limits = {**PATIENT["jobs"], "running_max": 1}
    async with owned(tmp_path, succeed_later, hang, fake_views=views, jobs=limits) as owner:
        await owner.jobs.submit(submission())
        other = await owner.jobs.submit(submission(view_id=("w",)))
        await until_waiting_for(owner, other, "jobs.running_max")
        begin.set()
        await owner.until_state(other, JobState.RUNNING)
        assert views.commits == {}


class SlowCapacity(FakeCapacity):
    """Says what there is when the test lets it."""

    def __init__(self) -> None:
        super().__init__({"CPU": 2.0}, free={"CPU": 0.0})
        self.gate = asyncio.Event()

    async def free(self) -> Sequence[Mapping[str, float]]:
        await self.gate.wait()
        return await super().free()


async def test_a_job_of_another_view_begins_while_one_waits_for_room(tmp_path: Path) -> None:
    capacity = SlowCapacity()
    limits = {**PATIENT["jobs"], "running_max": 1}
    async with owned(tmp_path, hang, capacity=capacity, jobs=limits) as owner:
        first = await owner.jobs.submit(submission(resources=WorkerResources(1)))
        other = await owner.jobs.submit(submission(view_id=("w",)))
        await until_waiting_for(owner, other, "jobs.running_max")
        capacity.gate.set()
        await owner.until_state(other, JobState.RUNNING)
        assert (await owner.jobs.describe(DATABASE, first)).state is JobState.PENDING
