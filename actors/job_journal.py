"""What is to be stored about jobs, gathered and written in batches; and each job's own record.

A batch is written at least every `jobs.flush_interval_s`, and at once when someone waits for it.
What could not be written is kept and written with the next batch.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from actors.job_store import Batch, JobStore, StoredItem
from actors.jobs_model import (
    Job,
    JobEvent,
    JobMetric,
    JobPhase,
    JobState,
    StoredJob,
    WatchedView,
)
from actors.lanes import Lane
from cluster.clock import Clock
from cluster.errors import DestrierError, ServiceUnavailable
from cluster.settings import JobSettings
from udtf.refresh_model import ItemState, ItemStatus, PublishRequest, RefreshSummary

logger = logging.getLogger(__name__)

T = TypeVar("T")

_STATE_COUNTS = {
    ItemState.DONE: "items_done",
    ItemState.FAILED: "items_failed",
    ItemState.SKIPPED: "items_skipped",
}
_COUNTED = (
    "items",
    *_STATE_COUNTS.values(),
    "rows_read",
    "rows_written",
    "fragments_written",
    "retries",
    "items_ms",
)

# So many items are not left waiting for the interval: they are a megabyte or two in memory.
_ITEMS_AT_ONCE = 1_024
# Storage that takes longer is as good as gone.
_STORE_TIMEOUT_S = 120.0


class Journal:
    """Everything about jobs that is not stored yet, and the one thread that stores it."""

    def __init__(self, store: JobStore, clock: Clock, limits: JobSettings) -> None:
        self.clock = clock
        self.limits = limits
        self._store = store
        self._lane = Lane("job store", _STORE_TIMEOUT_S, _is_late)
        self._jobs: dict[str, StoredJob] = {}
        self._events: list[JobEvent] = []
        self._items: list[StoredItem] = []
        self._watched: dict[WatchedView, bool] = {}
        self._writing = asyncio.Lock()
        self._dirty = asyncio.Event()
        self._hurry = asyncio.Event()

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return int(self.clock.time() * 1000)

    def put_job(self, stored: StoredJob) -> None:
        """Store this newest state of a job."""
        self._jobs[stored.job.job_id] = stored
        self._dirty.set()

    def put_event(self, event: JobEvent) -> None:
        """Store an event."""
        self._events.append(event)
        self._dirty.set()

    def put_item(self, item: StoredItem) -> None:
        """Store an item that ended."""
        self._items.append(item)
        self._dirty.set()
        if len(self._items) >= _ITEMS_AT_ONCE:
            self._hurry.set()

    def put_watched(self, view: WatchedView, *, on: bool) -> None:
        """Store whether a view is refreshed by itself."""
        self._watched[view] = on
        self._dirty.set()

    async def flush(self) -> None:
        """Store all that is there; when this returns it is durable.

        Raises:
            DestrierError: storage failed; it is kept for the next time.
        """
        async with self._writing:
            batch = Batch(
                tuple(self._jobs.values()), self._events, self._items, dict(self._watched)
            )
            self._jobs, self._events, self._items, self._watched = {}, [], [], {}
            self._dirty.clear()
            self._hurry.clear()
            if not batch:
                return
            try:
                await self._lane.run(self._store.write, batch)
            except (DestrierError, asyncio.CancelledError):
                # Whoever flushes next waits for it; what is written twice counts once.
                self._put_back(batch)
                raise

    def _put_back(self, batch: Batch) -> None:
        self._jobs = {stored.job.job_id: stored for stored in batch.jobs} | self._jobs
        self._events = [*batch.events, *self._events]
        self._items = [*batch.items, *self._items]
        self._watched = {**batch.watched, **self._watched}
        self._dirty.set()

    async def run(self) -> None:
        """Store for ever."""
        while True:
            await self._dirty.wait()
            await _wait_at_most(self._hurry, self.limits.flush_interval_s)
            try:
                await self.flush()
            except DestrierError as error:
                logger.warning("jobs cannot be stored now: %s", error)
                await asyncio.sleep(self.limits.flush_interval_s)

    async def ask(self, question: Callable[..., T], *arguments: Any) -> T:
        """Call a method of the store, with all that is known written."""
        await self.flush()
        return await self._lane.run(question, *arguments)


class JobEntry:
    """One job in its owner's memory; every change of it is stored.

    `items` are those of the plan `checkpoint_key` that have ended. `stop` is set when someone wants
    the job to end or to pause.
    """

    def __init__(self, stored: StoredJob, journal: Journal, events: int = 0) -> None:
        self.stored = stored
        self.items: dict[str, ItemStatus] = {}
        self.counts = ItemCounts()
        self.stop = asyncio.Event()
        self._journal = journal
        self._events = events

    @property
    def job(self) -> Job:
        """The job as it is now."""
        return self.stored.job

    @property
    def checkpoint_key(self) -> str | None:
        """The plan that its items are of."""
        planned = self.job.resolved
        # Records of before have no key of their own.
        return self.stored.checkpoint_key or (None if planned is None else planned.checkpoint_key)

    def update(self, **changes: Any) -> None:
        """Change fields of the job."""
        changes.setdefault("updated_ms", self._journal.now_ms())
        self._put(replace(self.stored, job=replace(self.job, **changes)))

    def keep_publish(self, request: PublishRequest | None) -> None:
        """Remember what is to be committed."""
        self._put(replace(self.stored, publish=request))

    def forget(self) -> None:
        """The view is gone: the job is no part of another view's history."""
        self._put(replace(self.stored, forgotten=True))

    def clear(self) -> None:
        """What the job wrote in vain is deleted."""
        if not self.stored.is_cleared:
            self._put(replace(self.stored, is_cleared=True))

    def _put(self, stored: StoredJob) -> None:
        self.stored = stored
        self._journal.put_job(stored)

    def event(self, kind: str, message: str, rows: int | None = None, **details: Any) -> None:
        """Note that something happened; beyond the most that are kept only states are."""
        if self._events >= self._journal.limits.events_kept_max and kind != "state":
            return
        self._events += 1
        job = self.job
        at_ms = self._journal.now_ms()
        self._journal.put_event(
            JobEvent(
                job.job_id,
                self._events,
                at_ms,
                kind,
                job.state,
                job.phase,
                job.attempt,
                message,
                rows,
                details,
            )
        )

    def move(self, state: JobState, message: str, **changes: Any) -> None:
        """Go to another state and say why."""
        if state.is_over:
            changes = {"ended_ms": self._journal.now_ms(), "waiting_for": None} | changes
            changes["pausing"] = False
        self.update(state=state, **changes)
        self.event("state", message)

    def enter(self, phase: JobPhase) -> None:
        """Go to another phase."""
        if phase is not self.job.phase:
            self.update(phase=phase, waiting_for=None)
            self.event("phase", f"phase {phase}")

    def wait_for(self, reason: str | None) -> None:
        """Say what the job waits for; None when it gets on."""
        if reason != self.job.waiting_for:
            self.update(waiting_for=reason)
            if reason is not None:
                self.event("waiting", f"waits for {reason}")

    def add_item(self, status: ItemStatus, checkpoint_key: str) -> None:
        """Keep an item that ended."""
        self._count(status)
        self._journal.put_item(StoredItem(self.job.job_id, checkpoint_key, status))

    def begin_plan(self, checkpoint_key: str) -> None:
        """Items of another plan are of no use."""
        if checkpoint_key != self.checkpoint_key:
            self.reuse_items((), checkpoint_key)

    def reuse_items(self, items: Iterable[ItemStatus], checkpoint_key: str) -> None:
        """Go on from items that ended earlier."""
        self.items.clear()
        self.counts = ItemCounts()
        if checkpoint_key != self.stored.checkpoint_key:
            self._put(replace(self.stored, checkpoint_key=checkpoint_key))
        for status in items:
            self._count(status)

    def _count(self, status: ItemStatus) -> None:
        before = self.items.get(status.id)
        if before is not None:
            self.counts.add(before, -1)
        self.items[status.id] = status
        self.counts.add(status)


class ItemCounts:
    """Counts over items, kept up as they end."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(_COUNTED, 0)

    def add(self, status: ItemStatus, sign: int = 1) -> None:
        """Count an item; with `sign` -1 no longer."""
        for name, count in (
            ("items", 1),
            (_STATE_COUNTS[status.state], 1),
            ("rows_read", status.rows_in),
            ("rows_written", status.rows_out),
            ("fragments_written", len(status.fragments)),
            ("retries", status.attempts - 1),
            ("items_ms", status.duration_ms),
        ):
            self._counts[name] += sign * count

    def metrics(self, planned: RefreshSummary | None) -> list[JobMetric]:
        """As a job shows them."""
        items = None if planned is None else planned.items
        totals = {"items": items, "items_done": items}
        totals["rows_read"] = None if planned is None else planned.rows
        return [JobMetric(name, n, totals.get(name)) for name, n in self._counts.items()]


async def _wait_at_most(event: asyncio.Event, seconds: float) -> None:
    try:
        # Not wait_for, see lanes.py.
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


def _is_late(deadline_s: float) -> DestrierError:
    return ServiceUnavailable(f"the tables of jobs did not answer within {deadline_s:g} s")
