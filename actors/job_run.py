"""One job on its way from the queue to its end: resources, attempts, the commit.

An attempt is one driver process. One that dies, or makes no progress, is replaced, and the next
goes on from the items that have ended. What an attempt computed is committed by the owner of the
view's table, which does so once per job: after a crash of this process it is simply asked again.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from actors.job_journal import JobEntry, Journal
from actors.job_listening import (
    Attempt,
    Computed,
    Failed,
    Finished,
    Lost,
    Outcome,
    Stopped,
    failure_of,
)
from actors.job_ports import Capacity, Drivers, FoundView, JobViews, PublishedView
from actors.jobs_model import Job, JobFailure, JobMetric, JobPhase, JobState
from cluster.errors import (
    PASSING,
    ConcurrentModification,
    DestrierError,
    ServiceUnavailable,
)
from cluster.identifiers import ObjectId, TableRef
from cluster.settings import Settings
from udtf.lance_errors import translate
from udtf.refresh_model import (
    ItemState,
    PublishRequest,
    RefreshOptions,
    RefreshResult,
    Runner,
)
from udtf.resources import admission, workers_that_fit

logger = logging.getLogger(__name__)

# Between looks at what the cluster has free, and between two drivers of a job.
_LOOK_S = 2.0
_WAIT_MAX_S = 10.0


@dataclass(frozen=True, slots=True)
class RunnerAddress:
    """Where drivers run their work items."""

    runner: Runner
    ray_address: str | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every job of an owner uses."""

    settings: Settings
    journal: Journal
    views: JobViews
    drivers: Drivers
    capacity: Capacity | None
    address: RunnerAddress


def table_of(job: Job) -> TableRef:
    """The view's table."""
    return TableRef(job.database, ObjectId(job.view_id))


class JobRun:
    """Takes one job to its end.

    `why_wait` says what the job has to wait for before it may use a driver, `changed` gives what is
    set when that is to be asked again, and `tell_change` has the other jobs ask.
    """

    def __init__(
        self,
        entry: JobEntry,
        around: Surroundings,
        why_wait: Callable[[JobEntry], str | None],
        changed: Callable[[], "asyncio.Future[None]"],
        tell_change: Callable[[], None],
    ) -> None:
        self._entry = entry
        self._around = around
        self._limits = around.settings.jobs
        self._why_wait = why_wait
        self._changed = changed
        self._tell_change = tell_change
        # Counted by the owner against jobs.running_max.
        self.has_turn = False

    @property
    def is_at_work(self) -> bool:
        """Whether it may use a driver, or what it computed is being committed."""
        return self.has_turn or self._entry.stored.publish is not None

    async def run(self) -> None:
        """Run until the job is over, paused, or this task is cancelled (the owner closes)."""
        entry = self._entry
        try:
            outcome = await self._computed()
            if isinstance(outcome, Computed):
                outcome = await self._published(outcome)
            self._end(outcome)
        except DestrierError as error:
            self._fail(failure_of(entry.job.phase, error))
        except BaseException as error:
            # A panic of Lance's is no Exception; the end of this task is raised as it is.
            fault = translate(error, context="refresh")
            logger.exception("job %s failed", entry.job.job_id)
            self._fail(replace(failure_of(entry.job.phase, fault), retryable=True))
        finally:
            self.has_turn = False

    async def _computed(self) -> Outcome:
        if self._entry.stored.publish is not None:
            return Computed(self._entry.stored.publish)
        try:
            async with asyncio.timeout(self._left_s()):
                return await self._attempts()
        except TimeoutError:
            message = f"the job took longer than {self._limits.timeout_s:g} s"
            return Failed(JobFailure(self._entry.job.phase, message, True, "TimeoutError"))

    def _left_s(self) -> float:
        started_ms = self._entry.job.started_ms
        used_ms = 0 if started_ms is None else self._around.journal.now_ms() - started_ms
        return max(self._limits.timeout_s - used_ms / 1000, 0.01)

    # --- computing --------------------------------------------------------------------------------

    async def _attempts(self) -> Outcome:
        entry = self._entry
        lost = Lost(entry.job.phase, "its drivers were lost")
        while True:
            if entry.job.attempt >= self._limits.attempts_max:
                message = f"given up after {entry.job.attempt} attempts: {lost.reason}"
                return Failed(JobFailure(lost.phase, message, True, lost.type, lost.item))
            found = await self._ready()
            if isinstance(found, Stopped):
                return found
            outcome = await self._attempt(*found)
            self._give_turn()
            if not isinstance(outcome, Lost):
                return outcome
            lost = outcome
            entry.event("attempt", f"attempt {entry.job.attempt} was lost: {lost.reason}")
            if await self._stopped_within(min(2.0 ** (entry.job.attempt - 1), _WAIT_MAX_S)):
                return Stopped()

    async def _ready(self) -> tuple[FoundView, RefreshOptions] | Stopped:
        """Wait for the job's turn and for room on the machines."""
        entry = self._entry
        waited_s = 0.0
        while True:
            if not await self._turn():
                return Stopped()
            entry.enter(JobPhase.ADMISSION)
            found = await self._find()
            workers, reason = await self._room()
            if reason is None:
                entry.wait_for(None)
                options = entry.job.submission.options
                if workers is not None:
                    options = replace(options, concurrency=workers)
                return found, options
            self._give_turn()
            entry.wait_for(reason)
            if waited_s >= self._limits.resources_timeout_s:
                raise ServiceUnavailable(
                    f"waited {waited_s:g} s for {reason}; refresh again when others are done"
                )
            if await self._stopped_within(_LOOK_S):
                return Stopped()
            waited_s += _LOOK_S

    async def _turn(self) -> bool:
        entry = self._entry
        while not entry.stop.is_set():
            # Taken before it is marked: whoever is told of the change later sees this one.
            changed = self._changed()
            reason = self._why_wait(entry)
            if reason is None:
                self.has_turn = True
                return True
            entry.wait_for(reason)
            stop = asyncio.ensure_future(entry.stop.wait())
            try:
                either: set[asyncio.Future[Any]] = {stop, changed}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                stop.cancel()
        return False

    def _give_turn(self) -> None:
        self.has_turn = False
        self._tell_change()

    async def _stopped_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._entry.stop.wait()
        return self._entry.stop.is_set()

    async def _find(self) -> FoundView:
        job = self._entry.job
        found = await self._around.views.find(table_of(job))
        meant = job.submission.view
        if found.location.uri != meant.uri or (
            meant.incarnation is not None and found.location.incarnation != meant.incarnation
        ):
            raise ConcurrentModification(
                f"view {table_of(job).id} was dropped and made anew after this refresh was asked"
                " for; refresh again"
            )
        return found

    async def _room(self) -> tuple[int | None, str | None]:
        """How many workers fit, None where they ask for nothing; or what is waited for."""
        submission = self._entry.job.submission
        capacity, asked = self._around.capacity, submission.resources
        if capacity is None or asked is None:
            return None, None
        wanted = submission.options.concurrency or self._around.settings.views.concurrency
        nodes = await capacity.totals()
        free = await capacity.free()
        if nodes is None or free is None:
            return None, None
        workers = admission(asked, wanted, nodes, submission.code_name or "the view")
        if workers_that_fit(asked, 1, free) < 1:
            return None, f"{asked}, which other work on the cluster uses"
        return workers, None

    async def _attempt(self, found: FoundView, options: RefreshOptions) -> Outcome:
        entry = self._entry
        now_ms = self._around.journal.now_ms()
        entry.update(
            attempt=entry.job.attempt + 1,
            started_ms=entry.job.started_ms or now_ms,
            heartbeat_ms=now_ms,
            phase=JobPhase.ENVIRONMENT,
        )
        entry.move(JobState.RUNNING, f"attempt {entry.job.attempt} began")
        attempt = Attempt(entry, self._around.settings, found)
        return await attempt.run(self._around.drivers, self._task(found, options))

    def _task(self, found: FoundView, options: RefreshOptions) -> dict[str, Any]:
        job = self._entry.job
        resolved = job.resolved
        if resolved is not None and found.source.version is None and found.source.tag is None:
            # What has been computed so far is of this version.
            options = replace(options, source_version=resolved.source_version)
        return {
            "job_id": job.job_id,
            "attempt": job.attempt,
            "database": job.database,
            "view_id": job.view_id,
            "view_uri": found.location.uri,
            "view_metadata": found.metadata,
            "source": found.source,
            "options": options,
            "runner": self._around.address.runner,
            "ray_address": self._around.address.ray_address,
            "ray_namespace": self._around.settings.ray.namespace,
            "checkpoint_key": self._entry.checkpoint_key,
            "done_items": [
                status.to_json()
                for status in self._entry.items.values()
                if status.state is not ItemState.FAILED
            ],
        }

    # --- publishing -------------------------------------------------------------------------------

    async def _published(self, computed: Computed) -> Outcome:
        entry = self._entry
        request = computed.request
        if entry.job.state is JobState.CANCELLING:
            return Stopped()
        if computed.summary is not None:
            entry.update(resolved=computed.summary)
        entry.keep_publish(request)
        entry.enter(JobPhase.PUBLISH)
        try:
            published = await self._publish(request)
        except ConcurrentModification as error:
            return await self._once_more(error)
        entry.event("published", f"committed version {published.version} of the view")
        return Finished(self._result(request, published))

    async def _publish(self, request: PublishRequest) -> PublishedView:
        entry = self._entry
        wait_s = 0.1
        while True:
            is_stored = False
            try:
                # From here on the commit may happen, so it must be known what was to be committed.
                await self._around.journal.flush()
                is_stored = True
                return await self._around.views.publish(
                    table_of(entry.job), entry.job.submission.view, request
                )
            except DestrierError as error:
                # The commit is made once however often it is asked for, and may have been made.
                # Whatever keeps jobs from being stored says nothing about it.
                if is_stored and not isinstance(error, PASSING):
                    raise
                whom = "the owner of the view's table" if is_stored else "the tables of jobs"
                entry.wait_for(f"{whom}: {error.message}")
                if self._left_s() <= wait_s:
                    raise
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _WAIT_MAX_S)

    async def _once_more(self, error: DestrierError) -> Outcome:
        """Something else changed the view since the refresh was planned: plan it anew."""
        entry = self._entry
        entry.keep_publish(None)
        # It is at work no more.
        self._tell_change()
        if entry.job.submission.options.source_version is None:
            # The view may show a newer version of the source by now.
            entry.update(resolved=None)
        entry.event("attempt", f"attempt {entry.job.attempt} was in vain: {error.message}")
        if entry.job.attempt >= self._limits.attempts_max:
            return Failed(replace(failure_of(JobPhase.PUBLISH, error), retryable=True))
        outcome = await self._computed()
        return await self._published(outcome) if isinstance(outcome, Computed) else outcome

    def _result(self, request: PublishRequest, published: PublishedView) -> RefreshResult:
        job = self._entry.job
        return RefreshResult(
            mode=request.mode,
            rows_written=request.rows_written,
            source_version=request.watermark.source_version,
            version=published.version,
            rows_read=job.metric("rows_read"),
            rows_evicted=published.rows_evicted,
            items=job.metric("items"),
            items_skipped=job.metric("items_skipped"),
            reason="" if job.resolved is None else job.resolved.reason,
        )

    # --- ending -----------------------------------------------------------------------------------

    def _end(self, outcome: Outcome) -> None:
        entry = self._entry
        if isinstance(outcome, Finished):
            result = outcome.result
            counts = [
                *entry.counts.metrics(entry.job.resolved),
                JobMetric("rows_evicted", result.rows_evicted),
                JobMetric("rows_committed", result.rows_written),
            ]
            entry.keep_publish(None)
            skipped = f", {result.items_skipped} items skipped" if result.items_skipped else ""
            entry.move(
                JobState.DONE,
                f"{result.mode}: {result.rows_written} rows written{skipped}; {result.reason}",
                phase=JobPhase.DONE,
                result=result,
                metrics=tuple(counts),
            )
        elif isinstance(outcome, Stopped):
            if entry.job.state is JobState.CANCELLING or not entry.job.pausing:
                entry.move(JobState.CANCELLED, "cancelled; nothing was committed")
            else:
                entry.move(
                    JobState.PAUSED,
                    f"paused; {len(entry.items)} items are kept",
                    pausing=False,
                    waiting_for="someone to resume it",
                )
        elif isinstance(outcome, Failed):
            self._fail(outcome.failure)
        else:
            raise AssertionError(f"a job cannot end with {outcome}")

    def _fail(self, failure: JobFailure) -> None:
        entry = self._entry
        if entry.job.state is JobState.CANCELLING and failure.phase is not JobPhase.PUBLISH:
            entry.move(JobState.CANCELLED, "cancelled; nothing was committed")
            return
        entry.keep_publish(None)
        entry.move(JobState.FAILED, failure.message, failure=failure)
