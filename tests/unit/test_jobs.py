"""Jobs from their submission to their end, with drivers that do what a test says."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.jobs_model import JobPhase, JobState, Trigger
from actors.model import TableLocation
from cluster.errors import (
    ConcurrentModification,
    DestrierError,
    InternalError,
    InvalidInput,
    InvalidTableState,
    OutcomeUnknown,
    ServiceUnavailable,
    TableNotFound,
    Throttling,
    TransactionNotFound,
)
from tests.unit.job_fakes import (
    DATABASE,
    FakeCapacity,
    FakeDriver,
    FakeViews,
    item,
    owned,
    planned,
    publish,
    submission,
    succeed,
)
from tests.unit.job_scripts import Messages, die_after_one, fail, hang, skip_one, wait_for_cancel
from udtf.refresh_model import ItemState, RefreshMode, RefreshOptions
from udtf.resources import WorkerResources

pytestmark = pytest.mark.anyio


# --- the ordinary course --------------------------------------------------------------------------


async def test_a_job_that_succeeds_says_what_it_did(tmp_path: Path) -> None:
    async with owned(tmp_path) as owner:
        job_id = await owner.jobs.submit(submission(requested_by="ann"))
        job = await owner.until_over(job_id)
        assert (job.state, job.phase, job.attempt) == (JobState.DONE, JobPhase.DONE, 1)
        assert job.result is not None and job.failure is None
        assert job.result.mode is RefreshMode.REBUILD
        assert (job.result.rows_written, job.result.source_version) == (10, 7)
        assert (job.result.version, job.result.rows_evicted) == (10, 4)
        counts = {metric.name: (metric.count, metric.total) for metric in job.metrics}
        assert counts["items"] == (2, 2) and counts["rows_read"] == (20, 20)
        assert counts["rows_written"] == (10, None) and counts["rows_committed"] == (10, None)
        assert job.started_ms is not None and job.ended_ms is not None
        assert job.created_ms <= job.started_ms <= job.ended_ms
        events = (await owner.jobs.events(DATABASE, job_id, 100)).items
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        kinds = [event.kind for event in events]
        assert kinds[0] == "submitted" and kinds[-1] == "state"
        assert {"phase", "planned", "progress", "published"} <= set(kinds)
        assert "the first refresh" in next(e.message for e in events if e.kind == "planned")
        assert sum(event.rows_processed or 0 for event in events) == 10
        assert owner.drivers.started[0].killed.is_set()


async def test_a_refresh_with_nothing_to_do_is_done(tmp_path: Path) -> None:
    async def no_op(driver: FakeDriver) -> Messages:
        yield {**planned(0), "type": "no_op", "mode": "no_op"}

    async with owned(tmp_path, no_op) as owner:
        job = await owner.until_over(await owner.jobs.submit(submission()))
        assert job.state is JobState.DONE and job.result is not None
        assert (job.result.mode, job.result.rows_written) == (RefreshMode.NO_OP, 0)
        assert (job.result.source_version, job.result.version) == (7, 3)
        assert owner.views.calls == 0


async def test_code_that_fails_fails_the_job_at_once(tmp_path: Path) -> None:
    async with owned(tmp_path, fail) as owner:
        job_id = await owner.jobs.submit(submission())
        job = await owner.until_over(job_id)
        assert job.state is JobState.FAILED and job.failure is not None
        assert job.failure.message == "part 2: ValueError: bad row"
        assert (job.failure.type, job.failure.item) == ("ValueError", "i2")
        assert job.failure.phase is JobPhase.COMPUTE and not job.failure.retryable
        assert job.attempt == 1 and owner.views.calls == 0
        errors = (await owner.jobs.errors(DATABASE, job_id, None, 10)).items
        assert [(e.item, e.label, e.state, e.error.message) for e in errors] == [
            ("i2", "part 2", ItemState.FAILED, "bad row")
        ]
        assert (await owner.jobs.errors(DATABASE, job_id, "1", 10)).items == ()
        for token in ("x", "-1", "9" * 5_000):
            with pytest.raises(InvalidInput, match="page_token is none"):
                await owner.jobs.errors(DATABASE, job_id, token, 10)


async def test_a_job_of_another_database_is_not_there(tmp_path: Path) -> None:
    async with owned(tmp_path) as owner:
        job_id = await owner.jobs.submit(submission())
        for database, wanted in ((DATABASE, "none"), ("other", job_id)):
            for method in ("describe", "cancel", "pause", "resume"):
                with pytest.raises(TransactionNotFound):
                    await getattr(owner.jobs, method)(database, wanted)
            with pytest.raises(TransactionNotFound):
                await owner.jobs.events(database, wanted, 10)
            with pytest.raises(TransactionNotFound):
                await owner.jobs.errors(database, wanted, None, 10)
        assert (await owner.jobs.list("other", None, 10)).items == ()


async def test_jobs_are_listed_newest_first_in_pages(tmp_path: Path) -> None:
    async with owned(tmp_path) as owner:
        ids = [
            await owner.jobs.submit(submission(idempotency_key=str(n), view_id=(f"v{n}",)))
            for n in range(5)
        ]
        found, token = [], None
        while True:
            page = await owner.jobs.list(DATABASE, token, 2)
            found += [job.job_id for job in page.items]
            token = page.page_token
            if token is None:
                break
        assert found == ids[::-1]


# --- what is the same job -------------------------------------------------------------------------


async def test_the_same_request_is_the_same_job(tmp_path: Path) -> None:
    async with owned(tmp_path) as owner:
        first = await owner.jobs.submit(submission(idempotency_key="k"))
        await owner.until_over(first)
        assert await owner.jobs.submit(submission(idempotency_key="k")) == first
        assert await owner.jobs.submit(submission(idempotency_key="l")) != first


async def test_a_live_job_answers_for_the_same_refresh_until_the_source_moves(
    tmp_path: Path,
) -> None:
    async with owned(tmp_path, hang) as owner:
        first = await owner.jobs.submit(submission())
        await owner.until(first, lambda job: job.resolved is not None)
        assert await owner.jobs.submit(submission()) == first
        owner.views.version = 8
        second = await owner.jobs.submit(submission())
        assert second != first
        # It waits and has read nothing yet, so it will see whatever comes.
        owner.views.version = 9
        assert await owner.jobs.submit(submission()) == second


async def test_other_options_wait_for_the_job_of_the_same_view(tmp_path: Path) -> None:
    async with owned(tmp_path, wait_for_cancel, succeed) as owner:
        first = await owner.jobs.submit(submission())
        second = await owner.jobs.submit(submission(options=RefreshOptions(full=True)))
        job = await owner.until(second, lambda job: job.waiting_for is not None)
        assert job.state is JobState.PENDING and first in (job.waiting_for or "")
        assert len(owner.drivers.started) == 1
        await owner.jobs.cancel(DATABASE, first)
        assert (await owner.until_over(second)).state is JobState.DONE
        assert (await owner.jobs.describe(DATABASE, first)).state is JobState.CANCELLED


async def test_only_so_many_jobs_run_and_wait(tmp_path: Path) -> None:
    limits = {"running_max": 1, "queued_max": 1}
    async with owned(tmp_path, wait_for_cancel, succeed, jobs=limits) as owner:
        first = await owner.jobs.submit(submission())
        await owner.until_state(first, JobState.RUNNING)
        second = await owner.jobs.submit(submission(view_id=("w",)))
        job = await owner.until(second, lambda job: job.waiting_for is not None)
        assert "jobs.running_max" in (job.waiting_for or "")
        with pytest.raises(Throttling, match=r"jobs\.queued_max"):
            await owner.jobs.submit(submission(view_id=("x",)))
        await owner.jobs.cancel(DATABASE, first)
        assert (await owner.until_over(second)).state is JobState.DONE


async def test_one_view_does_not_take_up_the_queue(tmp_path: Path) -> None:
    limits = {"queued_per_view_max": 1}
    async with owned(tmp_path, wait_for_cancel, succeed, succeed, jobs=limits) as owner:
        first = await owner.jobs.submit(submission())
        await owner.until_state(first, JobState.RUNNING)
        second = await owner.jobs.submit(submission(options=RefreshOptions(full=True)))
        with pytest.raises(Throttling, match=r"jobs\.queued_per_view_max"):
            await owner.jobs.submit(submission(options=RefreshOptions(output_limit=1)))
        other = await owner.jobs.submit(submission(view_id=("w",)))
        await owner.jobs.cancel(DATABASE, first)
        for job_id in (second, other):
            assert (await owner.until_over(job_id)).state is JobState.DONE


async def test_a_job_runs_after_those_of_its_sources(tmp_path: Path) -> None:
    async with owned(tmp_path, wait_for_cancel, succeed) as owner:
        source = await owner.jobs.submit(submission(view_id=("s",)))
        view = await owner.jobs.submit(submission(after=(source,), trigger=Trigger.CASCADE))
        job = await owner.until(view, lambda job: job.waiting_for is not None)
        assert source in (job.waiting_for or "")
        await owner.jobs.cancel(DATABASE, source)
        job = await owner.until_over(view)
        assert job.state is JobState.FAILED and job.failure is not None
        assert source in job.failure.message and job.failure.retryable
        assert len(owner.drivers.started) == 1


# --- drivers that are lost ------------------------------------------------------------------------


async def test_a_driver_that_dies_is_replaced_and_finished_items_are_kept(tmp_path: Path) -> None:
    async with owned(tmp_path, die_after_one, succeed) as owner:
        job_id = await owner.jobs.submit(submission())
        job = await owner.until_over(job_id)
        assert (job.state, job.attempt) == (JobState.DONE, 2)
        second = owner.drivers.started[1]
        assert [status["id"] for status in second.task["done_items"]] == ["i1"]
        assert second.task["checkpoint_key"] == "key" and second.computed == [2]
        assert second.task["options"]["source_version"] == 7
        assert job.metric("items_done") == 2
        events = (await owner.jobs.events(DATABASE, job_id, 100)).items
        assert any("out of luck" in event.message for event in events)


async def test_items_of_another_plan_are_not_kept(tmp_path: Path) -> None:
    async def other_plan(driver: FakeDriver) -> Messages:
        yield planned(1, key="another")
        yield item(7)
        yield publish(driver.task["job_id"])

    async with owned(tmp_path, die_after_one, other_plan) as owner:
        job = await owner.until_over(await owner.jobs.submit(submission()))
        assert job.state is JobState.DONE and job.metric("items") == 1


async def test_drivers_that_die_again_and_again_fail_the_job(tmp_path: Path) -> None:
    async with owned(tmp_path, die_after_one, jobs={"attempts_max": 2}) as owner:
        job = await owner.until_over(await owner.jobs.submit(submission()))
        assert job.state is JobState.FAILED and job.failure is not None
        assert len(owner.drivers.started) == 2
        assert "2 attempts" in job.failure.message and "out of luck" in job.failure.message
        assert job.failure.retryable


@pytest.mark.parametrize("heartbeats", [False, True], ids=["silent", "with heartbeats"])
async def test_a_driver_that_makes_no_progress_is_replaced(
    tmp_path: Path, heartbeats: bool
) -> None:
    async def stuck(driver: FakeDriver) -> Messages:
        yield planned()
        yield item(1)
        while heartbeats:
            await asyncio.sleep(0.05)
            yield {"type": "heartbeat"}
        await asyncio.Event().wait()

    async with owned(tmp_path, stuck, succeed) as owner:
        job_id = await owner.jobs.submit(submission())
        job = await owner.until_over(job_id)
        assert (job.state, job.attempt) == (JobState.DONE, 2)
        assert owner.drivers.started[0].killed.is_set()
        assert owner.drivers.started[1].computed == [2]
        events = (await owner.jobs.events(DATABASE, job_id, 100)).items
        said = [event.message for event in events if event.kind == "stalled"]
        assert said and ("no progress for" in said[0]) is heartbeats


async def test_a_damaged_message_costs_the_driver_not_the_owner(tmp_path: Path) -> None:
    async def babble(driver: FakeDriver) -> Messages:
        yield {"type": "item", "id": "x"}

    async with owned(tmp_path, babble, succeed) as owner:
        job = await owner.until_over(await owner.jobs.submit(submission()))
        assert (job.state, job.attempt) == (JobState.DONE, 2)


async def test_a_failure_that_may_pass_is_tried_again(tmp_path: Path) -> None:
    async def unlucky(driver: FakeDriver) -> Messages:
        yield {
            "type": "failed",
            "phase": "plan",
            "message": "storage is away",
            "error_type": "ServiceUnavailable",
            "retryable": True,
            "item": None,
        }

    async with owned(tmp_path, unlucky, succeed) as owner:
        job = await owner.until_over(await owner.jobs.submit(submission()))
        assert (job.state, job.attempt) == (JobState.DONE, 2)


async def test_a_job_has_a_deadline(tmp_path: Path) -> None:
    limits = {"timeout_s": 0.3, "stall_timeout_s": 60}
    async with owned(tmp_path, hang, jobs=limits) as owner:
        job = await owner.until_over(await owner.jobs.submit(submission()))
        assert job.state is JobState.FAILED and job.failure is not None
        assert "longer than 0.3 s" in job.failure.message
        assert owner.drivers.started[0].killed.is_set()


# --- the view is not what it was ------------------------------------------------------------------


async def test_a_view_that_is_gone_fails_the_job(tmp_path: Path) -> None:
    views = FakeViews()
    views.find_error = TableNotFound("table v is not there")
    async with owned(tmp_path, fake_views=views) as owner:
        job = await owner.until_over(await owner.jobs.submit(submission()))
        assert job.failure is not None and job.failure.type == "TableNotFound"
        assert not job.failure.retryable and not owner.drivers.started


class Panic(BaseException):
    """What Lance's threads end with is no Exception."""


async def test_a_fault_that_nobody_knows_fails_the_job_and_holds_up_no_other(
    tmp_path: Path,
) -> None:
    views = FakeViews()
    views.find_error = Panic("unreachable")
    async with owned(tmp_path, fake_views=views) as owner:
        job = await owner.until_over(await owner.jobs.submit(submission()))
        assert job.failure is not None and job.failure.type == "InternalError"
        assert job.failure.retryable
        views.find_error = None
        job = await owner.until_over(await owner.jobs.submit(submission()))
        assert job.state is JobState.DONE


async def test_a_view_that_was_made_anew_is_not_refreshed_by_an_old_job(tmp_path: Path) -> None:
    views = FakeViews()
    views.location = TableLocation(views.location.uri, "life-2")
    async with owned(tmp_path, fake_views=views) as owner:
        job = await owner.until_over(await owner.jobs.submit(submission()))
        assert job.failure is not None and "made anew" in job.failure.message
        assert not owner.drivers.started


# --- publishing -----------------------------------------------------------------------------------


async def test_a_commit_in_doubt_is_asked_for_again(tmp_path: Path) -> None:
    views = FakeViews()
    views.publish_errors = [OutcomeUnknown("lost"), ServiceUnavailable("moving")]
    async with owned(tmp_path, fake_views=views) as owner:
        job = await owner.until_over(await owner.jobs.submit(submission()))
        assert job.state is JobState.DONE and job.attempt == 1
        assert views.calls == 3 and len(views.commits) == 1


@pytest.mark.parametrize("error", [ServiceUnavailable("away"), InternalError("the disk is full")])
async def test_a_result_is_kept_and_committed_when_jobs_cannot_be_stored_for_a_moment(
    tmp_path: Path, error: DestrierError
) -> None:
    async with owned(tmp_path, jobs={"flush_interval_s": 60}) as owner:
        owner.refuse_to_store(lambda batch: any(job.publish for job in batch.jobs), error, error)
        job = await owner.until_over(await owner.jobs.submit(submission()))
        assert job.state is JobState.DONE and job.attempt == 1
        assert owner.views.calls == 1


async def test_a_view_that_changed_meanwhile_is_planned_anew(tmp_path: Path) -> None:
    views = FakeViews()
    views.publish_errors = [ConcurrentModification("the view has a newer version")]
    async with owned(tmp_path, fake_views=views) as owner:
        job = await owner.until_over(await owner.jobs.submit(submission()))
        assert (job.state, job.attempt) == (JobState.DONE, 2)
        # By whatever the source has then, unless a version was asked for.
        assert owner.drivers.started[1].task["options"]["source_version"] is None


async def test_a_commit_that_is_refused_fails_the_job(tmp_path: Path) -> None:
    views = FakeViews()
    views.publish_errors = [InvalidTableState("staged files are gone")]
    async with owned(tmp_path, fake_views=views) as owner:
        job = await owner.until_over(await owner.jobs.submit(submission()))
        assert job.failure is not None and job.failure.phase is JobPhase.PUBLISH
        assert job.failure.message == "staged files are gone"


async def test_cancelling_loses_against_a_commit(tmp_path: Path) -> None:
    views = FakeViews()
    views.publish_gate = asyncio.Event()
    async with owned(tmp_path, fake_views=views) as owner:
        job_id = await owner.jobs.submit(submission())
        await owner.until(job_id, lambda job: job.phase is JobPhase.PUBLISH)
        job = await owner.jobs.cancel(DATABASE, job_id)
        assert job.state is JobState.RUNNING
        views.publish_gate.set()
        assert (await owner.until_over(job_id)).state is JobState.DONE
        events = (await owner.jobs.events(DATABASE, job_id, 100)).items
        assert any("too late to cancel" in event.message for event in events)


# --- cancelling and pausing -----------------------------------------------------------------------


@pytest.mark.parametrize("script", [wait_for_cancel, hang], ids=["obeys", "must be killed"])
async def test_a_cancelled_job_ends_and_commits_nothing(tmp_path: Path, script: Any) -> None:
    async with owned(tmp_path, script) as owner:
        job_id = await owner.jobs.submit(submission())
        await owner.until(job_id, lambda job: job.metric("items") == 1)
        job = await owner.jobs.cancel(DATABASE, job_id)
        assert job.state in (JobState.CANCELLING, JobState.CANCELLED)
        job = await owner.until_over(job_id)
        assert job.state is JobState.CANCELLED and job.failure is None
        driver = owner.drivers.started[0]
        assert driver.cancelled.is_set() and driver.killed.is_set()
        assert owner.views.calls == 0
        assert (await owner.jobs.cancel(DATABASE, job_id)).state is JobState.CANCELLED


async def test_a_paused_job_goes_on_from_its_items(tmp_path: Path) -> None:
    async with owned(tmp_path, wait_for_cancel, succeed) as owner:
        job_id = await owner.jobs.submit(submission())
        await owner.until(job_id, lambda job: job.metric("items") == 1)
        job = await owner.jobs.pause(DATABASE, job_id)
        assert job.pausing or job.state is JobState.PAUSED
        job = await owner.until_state(job_id, JobState.PAUSED)
        assert not job.pausing and job.waiting_for is not None
        await asyncio.sleep(0.05)
        assert len(owner.drivers.started) == 1
        resumed = await owner.jobs.resume(DATABASE, job_id)
        assert resumed.state is JobState.PENDING
        assert (await owner.until_over(job_id)).state is JobState.DONE
        assert owner.drivers.started[1].computed == [2]


async def test_a_paused_job_can_be_cancelled(tmp_path: Path) -> None:
    async with owned(tmp_path, wait_for_cancel) as owner:
        job_id = await owner.jobs.submit(submission())
        await owner.until_state(job_id, JobState.RUNNING)
        await owner.jobs.pause(DATABASE, job_id)
        await owner.until_state(job_id, JobState.PAUSED)
        assert (await owner.jobs.cancel(DATABASE, job_id)).state is JobState.CANCELLED


# --- failed items ---------------------------------------------------------------------------------


async def test_failed_items_alone_are_run_again(tmp_path: Path) -> None:
    async with owned(tmp_path, skip_one, succeed) as owner:
        first = await owner.jobs.submit(submission())
        job = await owner.until_over(first)
        assert job.result is not None and job.result.items_skipped == 1
        await owner.jobs.tidy()
        second = await owner.jobs.submit(submission(failed_only=True))
        job = await owner.until_over(second)
        assert job.state is JobState.DONE
        driver = owner.drivers.started[1]
        assert [status["id"] for status in driver.task["done_items"]] == ["i1"]
        assert driver.computed == [2]
        options = driver.task["options"]
        assert options["full"] is True and options["source_version"] == 7
        with pytest.raises(InvalidInput, match="failed_only"):
            await owner.jobs.submit(submission(failed_only=True))


# --- resources ------------------------------------------------------------------------------------


async def test_what_no_machine_has_is_refused_at_once(tmp_path: Path) -> None:
    async with owned(tmp_path, capacity=FakeCapacity({"CPU": 2.0})) as owner:
        asked = submission(resources=WorkerResources(1, 1), code_name="embed")
        with pytest.raises(InvalidInput, match=r"embed asks for 1 CPUs, 1 GPUs.*no GPU"):
            await owner.jobs.submit(asked)
        assert (await owner.jobs.list(DATABASE, None, 10)).items == ()


async def test_what_others_use_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.job_run._LOOK_S", 0.02)
    capacity = FakeCapacity({"CPU": 2.0}, free={"CPU": 0.0})
    async with owned(tmp_path, capacity=capacity) as owner:
        job_id = await owner.jobs.submit(submission(resources=WorkerResources(1)))
        job = await owner.until(job_id, lambda job: job.waiting_for is not None)
        assert (job.state, job.phase) == (JobState.PENDING, JobPhase.ADMISSION)
        assert "1 CPUs" in (job.waiting_for or "")
        capacity.now_free = capacity.total
        assert (await owner.until_over(job_id)).state is JobState.DONE
        assert owner.drivers.started[0].task["options"]["concurrency"] == 2
