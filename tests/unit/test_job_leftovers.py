"""Files that jobs wrote and nobody will commit: whose are deleted, and when."""

import asyncio
from pathlib import Path

import pytest

from actors.jobs_model import JobState
from cluster.errors import (
    InvalidInput,
    OutcomeUnknown,
    ServiceUnavailable,
    TableNotFound,
    TransactionNotFound,
)
from tests.unit.job_fakes import DATABASE, FakeViews, Owned, owned, submission, succeed
from tests.unit.job_scripts import die_after_one, die_before_all, fail, wait_for_cancel

pytestmark = pytest.mark.anyio


async def until_discarded(owner: Owned, jobs: list[str]) -> None:
    for _ in range(500):
        if [job_id for job_id, _ in owner.views.discarded] == jobs:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"discarded: {owner.views.discarded}")


async def test_files_of_a_cancelled_job_are_deleted(tmp_path: Path) -> None:
    async with owned(tmp_path, wait_for_cancel) as owner:
        job_id = await owner.jobs.submit(submission())
        await owner.until(job_id, lambda job: job.metric("items") == 1)
        await owner.jobs.cancel(DATABASE, job_id)
        await owner.until_over(job_id)
        await until_discarded(owner, [job_id])
        await owner.jobs.tidy()
        assert owner.views.discarded == [(job_id, ())]


async def test_files_of_a_job_that_was_cancelled_in_a_pause_are_deleted(tmp_path: Path) -> None:
    async with owned(tmp_path, wait_for_cancel) as owner:
        job_id = await owner.jobs.submit(submission())
        await owner.until(job_id, lambda job: job.metric("items") == 1)
        await owner.jobs.pause(DATABASE, job_id)
        await owner.until_state(job_id, JobState.PAUSED)
        await owner.jobs.tidy()
        assert owner.views.discarded == []
        await owner.jobs.cancel(DATABASE, job_id)
        await owner.jobs.tidy()
        assert owner.views.discarded == [(job_id, ())]


async def test_files_of_a_failed_job_stay_while_its_items_can_be_gone_on_from(
    tmp_path: Path,
) -> None:
    async with owned(tmp_path, fail, wait_for_cancel, succeed) as owner:
        failed = await owner.jobs.submit(submission())
        await owner.until_over(failed)
        await owner.jobs.tidy()
        assert owner.views.discarded == []
        again = await owner.jobs.submit(submission(failed_only=True))
        await owner.until_state(again, JobState.RUNNING)
        await owner.jobs.tidy()
        assert owner.views.discarded == []
        await owner.jobs.cancel(DATABASE, again)
        await owner.until_over(again)
        # Both have the item that the first one did, which may still be gone on from.
        await until_discarded(owner, [again])
        assert owner.views.discarded[0][1] == ("f1", "f2")
        last = await owner.jobs.submit(submission(failed_only=True))
        assert (await owner.until_over(last)).state is JobState.DONE
        await owner.jobs.tidy()
        assert owner.views.discarded[1:] == [(failed, ())]


async def test_a_job_that_failed_as_a_whole_is_gone_on_from(tmp_path: Path) -> None:
    limits = {"attempts_max": 1}
    async with owned(tmp_path, die_after_one, die_before_all, succeed, jobs=limits) as owner:
        failed = await owner.until_over(await owner.jobs.submit(submission()))
        assert failed.state is JobState.FAILED and failed.metric("items_failed") == 0
        # This one had done nothing, so the one before counts.
        await owner.until_over(await owner.jobs.submit(submission()))
        await owner.jobs.tidy()
        assert failed.job_id not in [job_id for job_id, _ in owner.views.discarded]
        again = await owner.until_over(await owner.jobs.submit(submission(failed_only=True)))
        assert again.state is JobState.DONE
        driver = owner.drivers.started[2]
        assert [status["id"] for status in driver.task["done_items"]] == ["i1"]
        assert driver.task["checkpoint_key"] == "key" and driver.computed == [2]
        options = driver.task["options"]
        assert options["full"] is False and options["source_version"] == 7
        await owner.jobs.tidy()
        assert failed.job_id in [job_id for job_id, _ in owner.views.discarded]


async def test_there_is_nothing_to_go_on_from_when_no_item_had_ended(tmp_path: Path) -> None:
    async with owned(tmp_path, die_before_all, jobs={"attempts_max": 1}) as owner:
        failed = await owner.until_over(await owner.jobs.submit(submission()))
        assert failed.state is JobState.FAILED
        with pytest.raises(InvalidInput, match="failed_only"):
            await owner.jobs.submit(submission(failed_only=True))


async def test_files_of_a_job_that_is_done_are_left_to_its_commit(tmp_path: Path) -> None:
    async with owned(tmp_path) as owner:
        await owner.until_over(await owner.jobs.submit(submission()))
        await owner.jobs.tidy()
        assert owner.views.discarded == []


async def test_what_cannot_be_deleted_now_is_deleted_later(tmp_path: Path) -> None:
    views = FakeViews()
    views.discard_errors = [ServiceUnavailable("moving"), OutcomeUnknown("lost")]
    async with owned(tmp_path, wait_for_cancel, fake_views=views, jobs={"kept_s": 1}) as owner:
        job_id = await owner.jobs.submit(submission())
        await owner.until(job_id, lambda job: job.metric("items") == 1)
        await owner.jobs.cancel(DATABASE, job_id)
        await owner.until_over(job_id)
        await owner.jobs.tidy()
        await owner.jobs.tidy()
        assert views.discarded == [(job_id, ())]
        views.discard_errors = [TableNotFound("view v is gone")]
        await asyncio.sleep(1.1)
        await owner.jobs.tidy()
        with pytest.raises(TransactionNotFound):
            await owner.jobs.describe(DATABASE, job_id)
