"""What an owner of jobs knows of those before it, and of views."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from actors.job_store import Batch, JobStore, jobs_storage
from actors.jobs_model import JobPhase, JobState, Trigger, WatchedView
from cluster.errors import ServiceUnavailable, TransactionNotFound
from tests.unit.job_fakes import DATABASE, VIEW, FakeViews, owned, submission, succeed
from tests.unit.job_scripts import fail, hang, say_nothing, skip_one, wait_for_cancel
from udtf.refresh_model import RefreshOptions

pytestmark = pytest.mark.anyio


# --- the owner dies -------------------------------------------------------------------------------


async def test_the_next_owner_goes_on_where_the_last_one_was(tmp_path: Path) -> None:
    async with owned(tmp_path, hang) as owner:
        running = await owner.jobs.submit(submission())
        waiting = await owner.jobs.submit(submission(options=RefreshOptions(full=True)))
        await owner.until(running, lambda job: job.metric("items") == 1)
        # Not closed: killed. What it has not stored by now is lost.
        await owner.journal.flush()
        async with owned(tmp_path, succeed) as successor:
            await successor.jobs.start()
            job = await successor.until_over(running)
            assert (job.state, job.attempt) == (JobState.DONE, 2)
            assert successor.drivers.started[0].computed == [2]
            assert (await successor.until_over(waiting)).state is JobState.DONE
            events = (await successor.jobs.events(DATABASE, running, 100)).items
            assert [event.sequence for event in events] == list(range(1, len(events) + 1))


async def test_what_is_stored_of_jobs_can_be_apart_from_the_tables(tmp_path: Path) -> None:
    """Notes of progress competed with the data for one disk."""
    tables, elsewhere = tmp_path / "tables", {"root": str(tmp_path / "fast disk")}
    tables.mkdir()
    async with owned(tables, hang, jobs=elsewhere) as owner:
        job_id = await owner.jobs.submit(submission())
        await owner.until(job_id, lambda job: job.metric("items") == 1)
        await owner.journal.flush()
        async with owned(tables, succeed, jobs=elsewhere) as successor:
            assert JobStore.is_there(jobs_storage(successor.settings))
            await successor.jobs.start()
            assert (await successor.until_over(job_id)).state is JobState.DONE
            assert successor.drivers.started[0].computed == [2]
    assert not any(tables.iterdir())


async def test_the_next_owner_asks_for_a_commit_in_doubt_again(tmp_path: Path) -> None:
    views = FakeViews()
    views.publish_gate = asyncio.Event()
    async with owned(tmp_path, fake_views=views) as owner:
        job_id = await owner.jobs.submit(submission())
        await owner.until(job_id, lambda job: job.phase is JobPhase.PUBLISH)
        await owner.journal.flush()
        views.commits[job_id] = 42
        views.publish_gate = None
        async with owned(tmp_path, fake_views=views) as successor:
            job = await successor.until_over(job_id)
            assert job.state is JobState.DONE and job.result is not None
            assert job.result.version == 42 and not successor.drivers.started


async def test_a_job_that_was_being_cancelled_is_cancelled(tmp_path: Path) -> None:
    async with owned(tmp_path, hang) as owner:
        job_id = await owner.jobs.submit(submission())
        await owner.until_state(job_id, JobState.RUNNING)
        await owner.jobs.cancel(DATABASE, job_id)
        async with owned(tmp_path) as successor:
            job = await successor.until_over(job_id)
            assert job.state is JobState.CANCELLED and not successor.drivers.started


@pytest.mark.parametrize("is_asked_again", [True, False])
async def test_a_refresh_that_was_refused_never_runs(tmp_path: Path, is_asked_again: bool) -> None:
    wanted = submission(idempotency_key="k")
    async with owned(tmp_path, succeed) as owner:
        await owner.jobs.start()
        owner.refuse_to_store(lambda batch: bool(batch.jobs), ServiceUnavailable("disk full"))
        with pytest.raises(ServiceUnavailable):
            await owner.jobs.submit(wanted)
        (refused,) = (await owner.jobs.list(DATABASE, None, 10)).items
        assert refused.state is JobState.CANCELLED
        if is_asked_again:
            job = await owner.until_over(await owner.jobs.submit(wanted))
            assert job.job_id != refused.job_id and job.state is JobState.DONE
        assert len(owner.drivers.started) == is_asked_again
    async with owned(tmp_path, succeed) as successor:
        assert (await successor.until_over(refused.job_id)).state is JobState.CANCELLED
        again = await successor.jobs.submit(wanted)
        assert again == job.job_id if is_asked_again else again != refused.job_id
        assert (await successor.until_over(again)).state is JobState.DONE


async def test_a_refresh_whose_caller_went_away_before_it_was_stored_never_runs(
    tmp_path: Path,
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    async with owned(tmp_path, succeed) as owner:
        await owner.jobs.start()
        write = owner.store.write

        def slow(batch: Batch) -> None:
            begun.set()
            assert go_on.wait(20)
            write(batch)

        owner.store.write = slow  # type: ignore[method-assign]
        asking = asyncio.ensure_future(owner.jobs.submit(submission(idempotency_key="k")))
        assert await asyncio.to_thread(begun.wait, 20)
        asking.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await asking
        (refused,) = (await owner.jobs.list(DATABASE, None, 10)).items
        assert refused.state is JobState.CANCELLED
    async with owned(tmp_path, succeed) as successor:
        assert (await successor.until_over(refused.job_id)).state is JobState.CANCELLED
        assert not successor.drivers.started


async def test_failed_items_alone_are_run_again_by_the_next_owner_too(tmp_path: Path) -> None:
    async with owned(tmp_path, skip_one, say_nothing) as owner:
        await owner.until_over(await owner.jobs.submit(submission()))
        again = await owner.jobs.submit(submission(failed_only=True))
        await owner.until_state(again, JobState.RUNNING)
    async with owned(tmp_path, succeed) as successor:
        assert (await successor.until_over(again)).state is JobState.DONE
        (driver,) = successor.drivers.started
        assert driver.task["checkpoint_key"] == "key" and driver.computed == [2]


async def test_items_are_found_when_their_job_was_stored_without_the_key_of_its_plan(
    tmp_path: Path,
) -> None:
    """As those were that an earlier release stored."""
    async with owned(tmp_path, hang) as owner:
        job_id = await owner.jobs.submit(submission())
        await owner.until(job_id, lambda job: job.metric("items") == 1)
    store = JobStore(jobs_storage(owner.settings))
    (stored,) = store.load()
    store.write(Batch(jobs=[replace(stored, checkpoint_key=None)]))
    async with owned(tmp_path, succeed) as successor:
        assert (await successor.until_over(job_id)).state is JobState.DONE
        assert successor.drivers.started[0].computed == [2]


async def test_what_has_ended_is_known_to_the_next_owner(tmp_path: Path) -> None:
    async with owned(tmp_path, skip_one) as owner:
        job_id = await owner.jobs.submit(submission(idempotency_key="k"))
        before = await owner.until_over(job_id)
    async with owned(tmp_path) as successor:
        assert await successor.jobs.describe(DATABASE, job_id) == before
        assert await successor.jobs.submit(submission(idempotency_key="k")) == job_id
        assert len((await successor.jobs.errors(DATABASE, job_id, None, 10)).items) == 1


class Panic(BaseException):
    """What Lance's threads end with is no Exception."""


# --- views ----------------------------------------------------------------------------------------


async def test_the_history_of_a_view_tells_its_last_successes_and_failures(tmp_path: Path) -> None:
    limits = {"auto_refresh_failures_max": 2}
    async with owned(tmp_path, succeed, fail, fail, jobs=limits) as owner:
        await owner.jobs.watch(WatchedView(DATABASE, VIEW))
        ids = []
        for number in range(3):
            ids.append(await owner.jobs.submit(submission(idempotency_key=str(number))))
            await owner.until_over(ids[-1])
        history = await owner.jobs.view_history(DATABASE, VIEW)
        assert [job.job_id for job in history.recent] == ids[::-1]
        assert history.last_success is not None and history.last_success.job_id == ids[0]
        assert history.last_failure is not None and history.last_failure.job_id == ids[2]
        assert history.failures_in_a_row == 2 and history.suspended and history.live is None
        assert (await owner.jobs.view_history(DATABASE, ("w",))).recent == ()


async def test_a_view_that_is_dropped_takes_its_jobs_with_it(tmp_path: Path) -> None:
    async with owned(tmp_path, wait_for_cancel) as owner:
        await owner.jobs.watch(WatchedView(DATABASE, VIEW))
        running = await owner.jobs.submit(submission(idempotency_key="k"))
        await owner.until_state(running, JobState.RUNNING)
        waiting = await owner.jobs.submit(submission(options=RefreshOptions(full=True)))
        await owner.jobs.forget_view(DATABASE, VIEW)
        for job_id in (running, waiting):
            job = await owner.jobs.describe(DATABASE, job_id)
            assert job.state is JobState.CANCELLED
        assert all(driver.killed.is_set() for driver in owner.drivers.started)
        assert (await owner.jobs.view_history(DATABASE, VIEW)).recent == ()
        assert await owner.jobs.submit(submission(idempotency_key="k")) != running
    async with owned(tmp_path) as successor:
        recent = (await successor.jobs.view_history(DATABASE, VIEW)).recent
        assert running not in [job.job_id for job in recent]
        assert await asyncio.to_thread(successor.store.load_watched) == []


async def test_a_watched_view_is_refreshed_by_itself(tmp_path: Path) -> None:
    limits = {"auto_refresh_interval_s": 0.05, "auto_refresh_rows": 10}
    async with owned(tmp_path, succeed, jobs=limits) as owner:
        await owner.jobs.watch(WatchedView(DATABASE, VIEW))
        owner.views.change = type(owner.views.change)(50, 100)
        for _ in range(500):
            jobs = (await owner.jobs.list(DATABASE, None, 10)).items
            if jobs:
                break
            await asyncio.sleep(0.01)
        assert jobs[0].submission.trigger is Trigger.AUTO
        await owner.until_over(jobs[0].job_id)
        # The cooldown lets no second one start.
        await asyncio.sleep(0.15)
        assert len((await owner.jobs.list(DATABASE, None, 10)).items) == 1


async def test_tidying_goes_on_after_a_fault_that_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.jobs._TIDY_LOOK_S", 0.01)
    monkeypatch.setattr("actors.jobs._TIDY_INTERVAL_S", 0.01)
    tidied = asyncio.Event()
    faults: list[BaseException] = [RuntimeError("new"), Panic("unreachable")]

    async def tidy() -> None:
        if faults:
            raise faults.pop()
        tidied.set()

    async with owned(tmp_path) as owner:
        monkeypatch.setattr(owner.jobs, "tidy", tidy)
        await owner.jobs.start()
        async with asyncio.timeout(20):
            await tidied.wait()


async def test_old_jobs_are_dropped(tmp_path: Path) -> None:
    async with owned(tmp_path, jobs={"kept_s": 0.05}) as owner:
        job_id = await owner.jobs.submit(submission())
        await owner.until_over(job_id)
        await asyncio.sleep(0.1)
        await owner.jobs.tidy()
        with pytest.raises(TransactionNotFound):
            await owner.jobs.describe(DATABASE, job_id)
        assert await asyncio.to_thread(owner.store.events, job_id, 10) == []
