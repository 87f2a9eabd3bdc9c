"""The owner of a deployment's jobs: takes them in, runs a few at a time, remembers how they ended.

Plain asyncio, one per deployment, and the only writer of the system tables. A view has one job that
runs; others of it wait behind. Everything is in memory and in storage: an owner that dies is
started again, and its jobs go on from the items that had ended.
"""

import asyncio
import logging
import secrets
from contextlib import suppress
from dataclasses import replace

from actors.auto_refresh import AutoRefresh, SourceChanges
from actors.job_book import JobBook
from actors.job_journal import JobEntry, Journal
from actors.job_leftovers import Leftovers
from actors.job_run import JobRun, Surroundings, table_of
from actors.job_store import JobStore
from actors.job_submission import (
    admit,
    again,
    check_room,
    may_share,
    new_job,
)
from actors.jobs_model import (
    EventPage,
    Job,
    JobItemError,
    JobPage,
    JobPhase,
    JobState,
    StoredJob,
    Submission,
    Trigger,
    ViewHistory,
    WatchedView,
)
from actors.model import Page
from cluster.errors import (
    DestrierError,
    InvalidInput,
    ServiceUnavailable,
    TransactionNotFound,
)
from udtf.lance_errors import translate
from udtf.refresh_model import ItemState, ItemStatus

logger = logging.getLogger(__name__)

# How often what has become old is dropped from storage.
_TIDY_INTERVAL_S = 600.0
_TIDY_LOOK_S = 30.0
_PLACE_DIGITS_MAX = 18


class Jobs:
    """Every job of every database (job_ports.JobOperations)."""

    def __init__(
        self,
        store: JobStore,
        journal: Journal,
        around: Surroundings,
        changes: SourceChanges,
    ) -> None:
        self._store = store
        self._journal = journal
        self._around = around
        self._limits = around.settings.jobs
        self._book = JobBook()
        self._runs: dict[str, JobRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._clearing: set[asyncio.Task[bool]] = set()
        self._background: list[asyncio.Task[None]] = []
        self._starting = asyncio.Lock()
        self._submitting = asyncio.Lock()
        self._started = False
        self._changed: asyncio.Future[None] | None = None
        self._leftovers = Leftovers(journal, store, around.views)
        self._auto = AutoRefresh(self._limits, changes, journal.clock, self._submit_by_itself)

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read what is stored and go on with it; every other method does so first."""
        async with self._starting:
            if self._started:
                return
            # The last start may have failed half-way.
            self._book = JobBook()
            for stored in await self._journal.ask(self._store.load):
                await self._take_up(stored)
            for view in await self._journal.ask(self._store.load_watched):
                self._auto.watch(view)
            self._started = True
            for work in (self._journal.run(), self._tidy_forever(), self._auto_forever()):
                self._background.append(asyncio.ensure_future(work))
            for entry in self._book:
                self._go_on(entry)

    async def _take_up(self, stored: StoredJob) -> None:
        job_id = stored.job.job_id
        if stored.job.state.is_over:
            self._book.add(JobEntry(stored, self._journal))
            return
        newest = await self._journal.ask(self._store.events, job_id, 1)
        entry = JobEntry(stored, self._journal, newest[-1].sequence if newest else 0)
        key = entry.checkpoint_key
        if key is not None:
            entry.reuse_items(await self._journal.ask(self._store.items, job_id, key), key)
        self._book.add(entry)

    def _go_on(self, entry: JobEntry) -> None:
        """What to do with a job that was found in storage; its driver ended with its owner."""
        state, publishing = entry.job.state, entry.stored.publish is not None
        if state.is_over or (state is JobState.PAUSED and not publishing):
            return
        if state is JobState.CANCELLING and not publishing:
            entry.move(JobState.CANCELLED, "cancelled; nothing was committed")
        elif entry.job.pausing and not publishing:
            entry.move(JobState.PAUSED, "paused", pausing=False)
        else:
            if state is not JobState.PENDING:
                entry.event("attempt", "the server was started again; the job goes on")
            self._run(entry)

    async def close(self) -> None:
        """End every driver and store what is known; jobs go on when the next owner starts."""
        tasks = [*self._background, *self._tasks.values(), *self._clearing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._background.clear()
        await self._around.drivers.close()
        if self._started:
            with suppress(DestrierError):
                await self._journal.flush()

    # --- asking for work --------------------------------------------------------------------------

    async def submit(self, submission: Submission) -> str:
        """Queue a refresh; see job_ports.JobOperations."""
        await self.start()
        await admit(submission, self._around.capacity, self._around.settings)
        # What is looked for is not to be made meanwhile.
        async with self._submitting:
            found = self._book.with_key(submission) or await self._shared(submission)
            return found or await self._new(submission)

    async def _new(self, submission: Submission) -> str:
        check_room(submission, self._book, self._limits)
        items: list[ItemStatus] = []
        key = None
        if submission.failed_only:
            previous = self._book.last_with_items(submission.database, submission.view_id)
            submission, items, key = await again(submission, previous, self._journal, self._store)
        job = new_job(submission, self._new_id(), self._journal.now_ms())
        entry = JobEntry(StoredJob(job), self._journal)
        entry.update(state=JobState.PENDING)
        entry.event("submitted", f"a refresh was asked for ({submission.trigger})")
        if key is not None:
            entry.reuse_items((), key)
            for status in items:
                entry.add_item(status, key)
        try:
            # Whoever has the id may rely on the job.
            await self._journal.flush()
        except (DestrierError, asyncio.CancelledError):
            # The journal stores it all the same, later. Nobody was promised it: it is never to
            # run, nor to be the answer to the same request.
            entry.update(submission=replace(job.submission, idempotency_key=None))
            entry.move(JobState.CANCELLED, "the refresh was refused: it could not be stored")
            self._book.add(entry)
            raise
        self._book.add(entry)
        self._run(entry)
        return job.job_id

    async def _shared(self, submission: Submission) -> str | None:
        """A live job that does what is asked for, as things stand."""
        for entry in self._book.of_view(submission.database, submission.view_id):
            if not entry.job.state.is_over and may_share(entry.job, submission):
                planned = entry.job.resolved
                if planned is None or submission.options.source_version is not None:
                    return entry.job.job_id
                if planned.source_version == await self._source_version(entry.job):
                    return entry.job.job_id
        return None

    async def _source_version(self, job: Job) -> int | None:
        try:
            return await self._around.views.source_version(table_of(job))
        except DestrierError:
            # Whatever is wrong, the new job's driver finds it and says it.
            return None

    def _new_id(self) -> str:
        """Ids sort by the time they were made."""
        last = self._book.newest_id()
        made = f"{self._journal.now_ms():012x}{secrets.token_hex(10)}"
        return made if made > last else f"{int(last[:16], 16) + 1:016x}{secrets.token_hex(8)}"

    # --- running ----------------------------------------------------------------------------------

    def _run(self, entry: JobEntry) -> None:
        entry.stop.clear()
        run = JobRun(entry, self._around, self._why_wait, self._next_change, self._tell_change)
        job_id = entry.job.job_id
        self._runs[job_id] = run
        self._tasks[job_id] = asyncio.ensure_future(self._run_to_end(run, entry))

    async def _run_to_end(self, run: JobRun, entry: JobEntry) -> None:
        job_id = entry.job.job_id
        try:
            await run.run()
            self._plan_others_anew(entry)
        finally:
            self._runs.pop(job_id, None)
            self._tasks.pop(job_id, None)
            self._tell_change()
        # The end of a job is stored at once; the journal tries again if storage is away.
        with suppress(DestrierError):
            await self._journal.flush()
        await self._around.drivers.get_ready()
        if entry.job.state is JobState.CANCELLED:
            # Of one that failed, the items can be gone on from.
            clearing = asyncio.ensure_future(self._leftovers.discard(entry, self._book))
            self._clearing.add(clearing)
            clearing.add_done_callback(self._clearing.discard)

    def _why_wait(self, entry: JobEntry) -> str | None:
        """What a job has to wait for before it may start a driver; None when it is its turn."""
        job = entry.job
        for job_id in job.submission.after:
            before = self._book.find(job_id)
            if before is None or not before.job.state.is_over:
                continue
            if before.job.state is not JobState.DONE:
                raise ServiceUnavailable(
                    f"view {'$'.join(before.job.view_id)}, which this view reads, could not be"
                    f" refreshed: job {job_id} is {before.job.state}"
                )
        for job_id in job.submission.after:
            before = self._book.find(job_id)
            if before is not None and not before.job.state.is_over:
                return f"job {job_id}, which refreshes its source"
        is_older = True
        for other in self._book.of_view(job.database, job.view_id):
            if other is entry:
                is_older = False
                continue
            # A newer one may have begun while this one was paused.
            run = self._runs.get(other.job.job_id)
            is_at_work = run is not None and run.is_at_work
            is_idle = other.job.state.is_over or other.job.state is JobState.PAUSED
            if is_at_work or (is_older and not is_idle):
                return f"job {other.job.job_id} of the same view"
        running = sum(run.has_turn for run in self._runs.values())
        if running >= self._limits.running_max:
            return f"other jobs: {running} run, the most that jobs.running_max allows"
        return None

    def _plan_others_anew(self, entry: JobEntry) -> None:
        """A job of the view is done: others of it that were planned for another version of the
        source, by themselves, would turn the view back."""
        job = entry.job
        if job.state is not JobState.DONE or job.result is None:
            return
        shown = job.result.source_version
        for other in self._book.of_view(job.database, job.view_id):
            planned = other.job.resolved
            if planned is None or planned.source_version == shown:
                continue
            is_to_go_on = not other.job.state.is_over and other.stored.publish is None
            if is_to_go_on and other.job.submission.options.source_version is None:
                # The key of its items still says which plan they are of.
                other.update(resolved=None)
                other.event("attempt", f"planned anew: job {job.job_id} refreshed the view")

    def _next_change(self) -> "asyncio.Future[None]":
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    def _tell_change(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    # --- looking and steering ---------------------------------------------------------------------

    async def describe(self, database: str, job_id: str) -> Job:
        """The job as it is now."""
        return (await self._find(database, job_id)).job

    async def list(self, database: str, page_token: str | None, limit: int) -> JobPage:
        """Jobs, newest first."""
        await self.start()
        return self._book.page(database, page_token, limit)

    async def cancel(self, database: str, job_id: str) -> Job:
        """Ask the job to end; see job_ports.JobOperations."""
        entry = await self._find(database, job_id)
        self._cancel(entry)
        with suppress(DestrierError):
            await self._journal.flush()
        return entry.job

    def _cancel(self, entry: JobEntry) -> None:
        state = entry.job.state
        if state.is_over or state is JobState.CANCELLING:
            return
        if entry.job.phase is JobPhase.PUBLISH:
            entry.event("state", "too late to cancel: the result is being committed")
            return
        if entry.job.job_id in self._tasks:
            entry.move(JobState.CANCELLING, "someone cancelled the job")
            entry.stop.set()
        else:
            entry.move(JobState.CANCELLED, "cancelled; nothing was committed")

    async def pause(self, database: str, job_id: str) -> Job:
        """Stop now and keep what is done; see job_ports.JobOperations."""
        entry = await self._find(database, job_id)
        may_pause = entry.job.state in (JobState.PENDING, JobState.RUNNING)
        if may_pause and entry.job.phase is not JobPhase.PUBLISH:
            entry.update(pausing=True)
            entry.event("state", "someone paused the job")
            entry.stop.set()
            with suppress(DestrierError):
                await self._journal.flush()
        return entry.job

    async def resume(self, database: str, job_id: str) -> Job:
        """Let a paused job go on; see job_ports.JobOperations."""
        entry = await self._find(database, job_id)
        if entry.job.state is JobState.PAUSED and job_id not in self._tasks:
            # The time that it was paused does not count, nor do its drivers so far.
            entry.move(
                JobState.PENDING,
                "resumed",
                phase=JobPhase.QUEUED,
                started_ms=None,
                attempt=0,
                waiting_for=None,
            )
            with suppress(DestrierError):
                await self._journal.flush()
            self._run(entry)
        return entry.job

    async def events(self, database: str, job_id: str, limit: int) -> EventPage:
        """The newest events, oldest first."""
        await self._find(database, job_id)
        return Page(tuple(await self._journal.ask(self._store.events, job_id, limit)))

    async def errors(
        self, database: str, job_id: str, page_token: str | None, limit: int
    ) -> Page[JobItemError]:
        """The items that failed or were skipped, in the order they ended."""
        await self._find(database, job_id)
        items = await self._journal.ask(self._store.items, job_id)
        failed = [item for item in items if item.state is not ItemState.DONE and item.error]
        start = _place(page_token)
        errors = tuple(
            JobItemError(
                job_id, item.id, item.label, item.state, item.attempts, item.rows_in, item.error
            )
            for item in failed[start : start + limit]
            if item.error is not None
        )
        more = start + limit < len(failed)
        return Page(errors, str(start + limit) if more else None)

    async def _find(self, database: str, job_id: str) -> JobEntry:
        await self.start()
        entry = self._book.find(job_id)
        if entry is None or entry.job.database != database:
            raise TransactionNotFound(f"there is no job {job_id!r}")
        return entry

    # --- views ------------------------------------------------------------------------------------

    async def view_history(self, database: str, view_id: tuple[str, ...]) -> ViewHistory:
        """The refreshes of a view."""
        await self.start()
        return self._history(WatchedView(database, view_id))

    def _history(self, view: WatchedView) -> ViewHistory:
        failures_max = self._limits.auto_refresh_failures_max
        return self._book.history(
            view.database, view.view_id, failures_max if view in self._auto.watched else None
        )

    async def forget_view(self, database: str, view_id: tuple[str, ...]) -> None:
        """Cancel the view's jobs and drop its schedule; no driver of it is left then."""
        await self.start()
        view = WatchedView(database, view_id)
        if view in self._auto.watched:
            self._auto.forget(view)
            self._journal.put_watched(view, on=False)
        entries = self._book.of_view(database, view_id)
        for entry in entries:
            self._cancel(entry)
        tasks = [task for e in entries if (task := self._tasks.get(e.job.job_id)) is not None]
        if tasks:
            await asyncio.wait(tasks)
        for entry in entries:
            entry.forget()
            self._book.forget(entry)
        await self._journal.flush()

    async def watch(self, view: WatchedView) -> None:
        """Refresh the view by itself from now on."""
        await self.start()
        if view not in self._auto.watched:
            self._auto.watch(view)
            self._journal.put_watched(view, on=True)
            await self._journal.flush()

    async def _submit_by_itself(self, view: WatchedView, reason: str) -> None:
        table = view.table
        submission = await self._around.views.submission(table)
        job_id = await self.submit(replace(submission, trigger=Trigger.AUTO))
        entry = self._book.find(job_id)
        if entry is not None:
            entry.event("submitted", f"refreshed by itself: {reason}")

    async def _auto_forever(self) -> None:
        while True:
            await asyncio.sleep(self._limits.auto_refresh_interval_s)
            await self._auto.look(self._history)

    # --- tidying ----------------------------------------------------------------------------------

    async def _tidy_forever(self) -> None:
        waited_s = 0.0
        while True:
            await asyncio.sleep(_TIDY_LOOK_S)
            waited_s += _TIDY_LOOK_S
            if waited_s < _TIDY_INTERVAL_S and not self._store.needs_compaction():
                continue
            waited_s = 0.0
            try:
                await self.tidy()
            except BaseException as error:
                # A panic of Lance's is no Exception; the end of this task is raised as it is.
                fault = translate(error, context="read")
                logger.warning("jobs cannot be tidied now: %s", fault, exc_info=True)

    async def tidy(self) -> None:
        """Drop jobs that ended long ago, items that no job will use again, and old versions.

        Raises:
            DestrierError: storage failed; nothing that counts is lost.
        """
        spent = self._book.spent()
        for entry in filter(None, map(self._book.find, spent)):
            await self._leftovers.discard(entry, self._book)
        oldest_ms = self._journal.now_ms() - int(self._limits.kept_s * 1000)
        old = [
            entry
            for entry in self._book
            if entry.job.state.is_over
            and (entry.job.ended_ms or 0) < oldest_ms
            and await self._leftovers.discard(entry, self._book, again=True)
        ]
        await self._journal.ask(self._store.forget, [entry.job.job_id for entry in old])
        for entry in old:
            self._book.drop(entry)
        await self._journal.ask(self._store.forget_done_items, spent)
        await self._journal.ask(self._store.compact)


def _place(page_token: str | None) -> int:
    """The number of the first item of a page."""
    if not page_token:
        return 0
    if not (page_token.isdecimal() and len(page_token) <= _PLACE_DIGITS_MAX):
        raise InvalidInput(
            "page_token is none that this listing gave; send the page_token of the page before, or"
            " none"
        )
    return int(page_token)
