"""One attempt of a job: what its driver says, and what to do when it says nothing.

A driver that is alive sends a heartbeat now and then; it gets on when it enters a phase or an item
ends. Without heartbeats for `jobs.stall_timeout_s` it is stuck itself; without getting on for that
long, and as long again as one item may take, what it waits for is gone: Daft waits for ever for a
worker that has died.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from actors.job_journal import JobEntry
from actors.job_ports import Driver, Drivers, FoundView
from actors.jobs_model import JobFailure, JobMetric, JobPhase
from actors.stored_json import from_json
from cluster.errors import PASSING, DestrierError, InternalError
from cluster.settings import Settings
from udtf.error_actions import WAIT_S_MAX
from udtf.refresh_model import (
    ItemState,
    ItemStatus,
    PublishRequest,
    RefreshMode,
    RefreshResult,
    RefreshSummary,
)
from udtf.view_record import read_view

logger = logging.getLogger(__name__)

# Of the time without progress after which a driver is replaced, the part after which a job says so.
_WARN_PART = 0.5
_PASSING = (*PASSING, InternalError)


@dataclass(frozen=True, slots=True)
class Computed:
    """Everything is computed and nothing committed yet."""

    request: PublishRequest
    summary: RefreshSummary | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The view is up to date."""

    result: RefreshResult


@dataclass(frozen=True, slots=True)
class Failed:
    """Another attempt would fail the same way."""

    failure: JobFailure


@dataclass(frozen=True, slots=True)
class Lost:
    """The attempt ended by no fault of the view's: another one may succeed."""

    phase: JobPhase
    reason: str
    type: str = "DriverLost"
    item: str | None = None


@dataclass(frozen=True, slots=True)
class Stopped:
    """The job was cancelled or paused."""


Outcome: TypeAlias = Computed | Finished | Failed | Lost | Stopped


def failure_of(phase: JobPhase, error: DestrierError) -> JobFailure:
    """What `error`, raised outside a driver, means for a job."""
    return JobFailure(phase, error.message, isinstance(error, _PASSING), type(error).__name__)


class Attempt:
    """Runs one driver to its end."""

    def __init__(self, entry: JobEntry, settings: Settings, found: FoundView) -> None:
        self._entry = entry
        self._settings = settings
        self._found = found
        self._silence_s = settings.jobs.stall_timeout_s
        self._stall_s = self._silence_s + _longest_item_s(found, settings)
        self._workers: list[JobMetric] = []
        self._rows_told = 0
        self._told_at = 0.0
        self._heard_at = 0.0
        self._got_on_at = 0.0
        self._warned = False

    async def run(self, drivers: Drivers, task: Mapping[str, Any]) -> Outcome:
        """Start a driver and listen until it has done this task; it is gone when this returns, or
        waits for the next one."""
        try:
            driver = await drivers.start(task)
        except OSError as error:
            return Lost(self._entry.job.phase, f"no driver could be started: {error}")
        is_done = False
        try:
            outcome = await self._listen(driver)
            is_done = isinstance(outcome, (Computed, Finished))
            return outcome
        finally:
            # Nothing that works on the job is left when it is over, whoever ends this task.
            await asyncio.shield(driver.release() if is_done else driver.kill())

    async def _listen(self, driver: Driver) -> Outcome:
        loop = asyncio.get_running_loop()
        self._heard_at = self._got_on_at = self._told_at = loop.time()
        stop = asyncio.ensure_future(self._entry.stop.wait())
        message = asyncio.ensure_future(driver.next())
        stopped_by: float | None = None
        try:
            while True:
                waiting = {message} if stopped_by is not None else {message, stop}
                until = self._next_look() if stopped_by is None else stopped_by
                await asyncio.wait(
                    waiting, timeout=max(until - loop.time(), 0), return_when="FIRST_COMPLETED"
                )
                if message.done():
                    heard = message.result()
                    outcome = self._ended(driver) if heard is None else self._hear(heard)
                    if outcome is not None:
                        self._tell_progress(force=True)
                        return self._unless_stopped(outcome)
                    message = asyncio.ensure_future(driver.next())
                elif stopped_by is not None:
                    return Stopped()
                elif stop.done():
                    stopped_by = loop.time() + self._settings.views.stopping_timeout_s
                    await driver.cancel()
                else:
                    lost = self._look()
                    if lost is not None:
                        return lost
        finally:
            stop.cancel()
            message.cancel()

    def _unless_stopped(self, outcome: Outcome) -> Outcome:
        """A driver that was asked to end may end in any way; what it finished still counts."""
        if self._entry.stop.is_set() and not isinstance(outcome, (Computed, Finished)):
            return Stopped()
        return outcome

    # --- silence ----------------------------------------------------------------------------------

    def _next_look(self) -> float:
        stall_s = self._stall_s if self._warned else self._stall_s * _WARN_PART
        return min(self._heard_at + self._silence_s, self._got_on_at + stall_s)

    def _look(self) -> Lost | None:
        now = asyncio.get_running_loop().time()
        phase = self._entry.job.phase
        silent_s, still_s = now - self._heard_at, now - self._got_on_at
        if silent_s >= self._silence_s:
            self._entry.event("stalled", f"its driver said nothing for {silent_s:.0f} s")
            return Lost(phase, f"its driver said nothing for {silent_s:.0f} s", "Stalled")
        if still_s >= self._stall_s:
            self._entry.event("stalled", f"no progress for {still_s:.0f} s; its driver is replaced")
            return Lost(phase, f"no progress for {still_s:.0f} s", "Stalled")
        if still_s >= self._stall_s * _WARN_PART and not self._warned:
            self._warned = True
            self._entry.event("stalled", f"no progress for {still_s:.0f} s")
        return None

    def _ended(self, driver: Driver) -> Outcome:
        return Lost(self._entry.job.phase, f"its driver ended: {driver.ending()}")

    def _gets_on(self) -> None:
        self._got_on_at = asyncio.get_running_loop().time()
        self._warned = False

    # --- messages ---------------------------------------------------------------------------------

    def _hear(self, message: Mapping[str, Any]) -> Outcome | None:
        self._heard_at = asyncio.get_running_loop().time()
        try:
            return self._understand(message)
        except (KeyError, TypeError, ValueError) as error:
            logger.exception("job %s: a driver's message is damaged", self._entry.job.job_id)
            reason = f"its driver sent a damaged message ({type(error).__name__})"
            return Lost(self._entry.job.phase, reason)

    def _understand(self, message: Mapping[str, Any]) -> Outcome | None:
        entry = self._entry
        kind = message["type"]
        if kind == "heartbeat":
            entry.update(heartbeat_ms=int(message.get("at_ms") or 0) or entry.job.updated_ms)
        elif kind == "phase":
            entry.enter(JobPhase(message["phase"]))
            self._gets_on()
        elif kind == "planned":
            self._planned(from_json(RefreshSummary, message))
        elif kind == "item":
            self._item(ItemStatus.from_json(message))
        elif kind == "workers":
            self._workers = [
                JobMetric("workers_active", message["active"]),
                JobMetric("workers_pending", message["pending"]),
            ]
            entry.wait_for(message.get("waiting_for"))
            self._count()
        elif kind == "publish":
            summary = message.get("summary")
            return Computed(
                from_json(PublishRequest, message["request"]),
                None if summary is None else from_json(RefreshSummary, summary),
            )
        elif kind == "no_op":
            return self._no_op(from_json(RefreshSummary, message))
        elif kind == "failed":
            return self._failed(message)
        else:
            raise ValueError(f"unknown type {kind!r}")
        return None

    def _planned(self, summary: RefreshSummary) -> None:
        entry = self._entry
        entry.begin_plan(summary.checkpoint_key)
        entry.update(resolved=summary)
        self._rows_told = entry.job.metric("rows_written")
        self._count()
        self._gets_on()
        reused = f", {len(entry.items)} of them done already" if entry.items else ""
        entry.event(
            "planned",
            f"{summary.mode} of source version {summary.source_version}: {summary.reason};"
            f" {summary.items} items{reused}",
            mode=summary.mode.value,
            reason=summary.reason,
        )

    def _item(self, status: ItemStatus) -> None:
        entry = self._entry
        entry.add_item(status, entry.checkpoint_key or "")
        self._count()
        self._gets_on()
        if status.state is not ItemState.DONE:
            error = status.error
            said = "" if error is None else f": {error.type}: {error.message}"
            entry.event(
                "item", f"item {status.label or status.id} {status.state}{said}", item=status.id
            )
        self._tell_progress(force=False)

    def _count(self) -> None:
        entry = self._entry
        metrics = (*entry.counts.metrics(entry.job.resolved), *self._workers)
        entry.update(metrics=metrics)

    def _tell_progress(self, *, force: bool) -> None:
        """An event for what was done since the last one, at most one per interval."""
        entry = self._entry
        now = asyncio.get_running_loop().time()
        rows = entry.job.metric("rows_written")
        planned = entry.job.resolved
        if planned is None or not entry.items:
            return
        if not force and now - self._told_at < self._settings.jobs.flush_interval_s:
            return
        if force and rows == self._rows_told:
            return
        entry.event(
            "progress", f"{len(entry.items)} of {planned.items} items", rows - self._rows_told
        )
        self._rows_told, self._told_at = rows, now

    def _no_op(self, summary: RefreshSummary) -> Finished:
        self._entry.update(resolved=summary)
        result = RefreshResult(
            RefreshMode.NO_OP,
            0,
            summary.source_version,
            self._found.version,
            reason=summary.reason,
        )
        return Finished(result)

    def _failed(self, message: Mapping[str, Any]) -> Outcome:
        phase = JobPhase(message["phase"])
        failure = JobFailure(
            phase,
            message["message"],
            bool(message["retryable"]),
            message.get("error_type") or "",
            message.get("item"),
        )
        if failure.retryable:
            return Lost(phase, failure.message, failure.type, failure.item)
        return Failed(failure)


def _longest_item_s(found: FoundView, settings: Settings) -> float:
    """How long one item may take with all its attempts and the waits between them."""
    try:
        definition = read_view(found.metadata)
    except DestrierError:
        # The driver will say what is wrong with it.
        return settings.views.item_timeout_s
    udtf = None if definition is None else definition.udtf
    policy = json.loads(udtf.error_handling) if udtf is not None and udtf.error_handling else {}
    counts = [matcher.get("max_attempts", 1) for matcher in policy.get("matchers", ())]
    attempts = max(counts, default=1)
    return attempts * settings.views.item_timeout_s + (attempts - 1) * WAIT_S_MAX
