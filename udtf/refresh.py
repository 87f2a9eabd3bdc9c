"""Refreshes a view: decides what is to be computed, has it computed, and says what to commit.

Runs in a driver process of its own, one per refresh. Nothing that it writes is seen by anyone until
the owner of the view's table commits what `run_refresh` returns.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from udtf.host import HostSpec
from udtf.items import WorkItem
from udtf.plan import free, nodes, run_items
from udtf.pool import Pool
from udtf.refresh_model import (
    ItemState,
    ItemStatus,
    PublishRequest,
    RefreshMode,
    RefreshSummary,
)
from udtf.refresh_plan import PlannedRefresh, RefreshTask, children_per_worker, plan_refresh
from udtf.resources import admission, workers_that_fit
from udtf.source_rows import joined
from udtf.sources import SqlChecker, plain_sql
from udtf.view_files import fragment_rows

__all__ = ["RefreshCancelled", "RefreshFailed", "RefreshTask", "Reporter", "run_refresh"]

# How often a refresh that waits for room asks whether there is any.
_ASK_S = 1.0


class Reporter(Protocol):
    """Who is told how a refresh is getting on, in the thread that runs it."""

    def phase(self, phase: str) -> None:
        """A phase has begun: `plan`, then `compute`."""
        ...

    def planned(self, summary: RefreshSummary) -> None:
        """What will be done; its mode is `no_op` if that is nothing."""
        ...

    def item(self, status: ItemStatus) -> None:
        """An item has ended, now or in an earlier attempt."""
        ...

    def workers(self, active: int, pending: int, waiting_for: str | None) -> None:
        """How many workers have done something, and how many are still to."""
        ...

    def is_cancelled(self) -> bool:
        """Whether the refresh is to stop; asked several times per second."""
        ...


class RefreshFailed(Exception):
    """A refresh cannot be completed; the view is as it was.

    `retryable` says whether the same again may help, `item` which work item failed.
    """

    def __init__(
        self, phase: str, message: str, error_type: str, *, retryable: bool, item: str | None = None
    ) -> None:
        super().__init__(message)
        self.phase = phase
        self.message = message
        self.error_type = error_type
        self.retryable = retryable
        self.item = item


class RefreshCancelled(Exception):
    """The refresh was stopped because its reporter said so; the view is as it was."""


def run_refresh(
    task: RefreshTask, report: Reporter, check: SqlChecker = plain_sql
) -> PublishRequest | None:
    """Compute what brings the view up to date, as uncommitted fragments; None if it is. Blocks.

    `check` makes the expressions of the source query safe.

    Raises:
        RefreshFailed: a work item failed; those that run are stopped.
        RefreshCancelled: the reporter said so.
        DestrierError: the view cannot be refreshed as it is defined, or not on these machines.
    """
    report.phase("plan")
    refresh = plan_refresh(task, check)
    report.planned(refresh.summary)
    if refresh.summary.mode is RefreshMode.NO_OP:
        return None
    report.phase("compute")
    statuses = _compute(task, refresh, report)
    fragments = _in_order(refresh, statuses, task.options.output_limit)
    evict = None
    if refresh.changes.changed is not None:
        gone = joined([refresh.changes.changed, refresh.changes.deleted])
        evict = refresh.host.folder.write_evictions(gone)
    if fragments:
        refresh.host.folder.flush_names()
    return PublishRequest(
        job_id=task.job_id,
        view_version=refresh.view_version,
        mode=refresh.summary.mode,
        replace_all=refresh.summary.mode is RefreshMode.REBUILD,
        evict=evict,
        fragments=tuple(fragments),
        rows_written=sum(map(fragment_rows, fragments)),
        watermark=replace(refresh.watermark, refreshed_at_ms=time.time_ns() // 1_000_000),
    )


def _compute(task: RefreshTask, refresh: PlannedRefresh, report: Reporter) -> dict[str, ItemStatus]:
    """Have every item done that no earlier attempt has done; the statuses by item."""
    statuses = _reusable(task, refresh)
    for status in statuses.values():
        report.item(status)
    left = [item for item in refresh.items if item.id not in statuses]
    failed: list[ItemStatus] = []
    cap = _Cap(refresh.items, task.options.output_limit, statuses)

    def note(status: ItemStatus) -> None:
        report.item(status)
        statuses[status.id] = status
        if status.state is ItemState.FAILED:
            failed.append(status)

    if left and not cap.is_reached():
        pool = _placed(_pool(task, len(left), refresh), task, report)
        report.workers(0, pool.workers, None)
        run_items(
            left,
            refresh.host,
            pool,
            note,
            lambda active: report.workers(active, max(0, pool.workers - active), None),
            lambda: bool(failed) or report.is_cancelled() or cap.is_reached(),
        )
    if failed:
        raise _failure(failed[0])
    if report.is_cancelled():
        raise RefreshCancelled("the refresh was cancelled")
    missing = [item for item in refresh.items if item.id not in statuses]
    if missing and not cap.is_reached():
        raise RefreshFailed(
            "compute",
            f"{len(missing)} work items have no outcome; a worker was lost",
            "WorkerLost",
            retryable=True,
        )
    return statuses


def _reusable(task: RefreshTask, refresh: PlannedRefresh) -> dict[str, ItemStatus]:
    """What earlier attempts have done of these very items, and is still there."""
    if task.checkpoint_key != refresh.summary.checkpoint_key:
        return {}
    wanted = {item.id for item in refresh.items}
    ended = (ItemState.DONE, ItemState.SKIPPED)
    return {
        status.id: status
        for status in task.done_items
        if status.id in wanted
        and status.state in ended
        and not refresh.host.folder.missing(status.fragments)
    }


def _pool(task: RefreshTask, items: int, refresh: PlannedRefresh) -> Pool:
    children = children_per_worker(task)
    wanted = task.options.concurrency or task.settings.views.concurrency
    wanted = min(wanted, -(-items // children))
    name = ".".join(task.view_id)
    workers = admission(refresh.resources, wanted, nodes(task.runner), name)
    return Pool(
        task.runner, workers, refresh.resources, children, task.settings.views.daft_items_min
    )


def _placed(pool: Pool, task: RefreshTask, report: Reporter) -> Pool:
    """The pool, with as many workers as there is room for now; waits until there is for one.

    Daft would wait for all of them, for two minutes, and do nothing meanwhile.
    """
    give_up_s = time.monotonic() + task.settings.jobs.resources_timeout_s
    while not (fitting := workers_that_fit(pool.resources, pool.workers, free(pool.runner))):
        reason = f"each worker needs {pool.resources}, which other work uses now"
        if report.is_cancelled():
            raise RefreshCancelled("the refresh was cancelled")
        if time.monotonic() > give_up_s:
            raise RefreshFailed("admission", reason, "ResourcesUnavailable", retryable=True)
        report.workers(0, pool.workers, reason)
        time.sleep(_ASK_S)
    return replace(pool, workers=fitting)


def _failure(status: ItemStatus) -> RefreshFailed:
    error = status.error
    assert error is not None
    return RefreshFailed(
        "compute",
        f"{status.label}: {error.type}: {error.message}",
        error.type,
        retryable=error.kind == "system",
        item=status.id,
    )


class _Cap:
    """Whether the first items together have as many rows as are wanted."""

    def __init__(
        self, items: Sequence[WorkItem], rows: int | None, statuses: Mapping[str, ItemStatus]
    ) -> None:
        self._items = items
        self._left = rows
        self._statuses = statuses
        self._next = 0

    def is_reached(self) -> bool:
        if self._left is None:
            return False
        while self._left > 0 and self._next < len(self._items):
            status = self._statuses.get(self._items[self._next].id)
            if status is None:
                return False
            self._left -= status.rows_out
            self._next += 1
        return self._left <= 0


def _in_order(
    refresh: PlannedRefresh, statuses: Mapping[str, ItemStatus], rows_max: int | None
) -> list[str]:
    """Fragments in the order of their items, up to `rows_max` rows in all."""
    ordered = [
        fragment
        for item in refresh.items
        if item.id in statuses
        for fragment in statuses[item.id].fragments
    ]
    if rows_max is None:
        return ordered
    kept: list[str] = []
    for fragment in ordered:
        rows = fragment_rows(fragment)
        if rows <= rows_max:
            kept.append(fragment)
        elif rows_max:
            kept += _shortened(refresh.host, fragment, rows_max)
        rows_max -= min(rows, rows_max)
    return kept


def _shortened(host: HostSpec, fragment: str, rows: int) -> tuple[str, ...]:
    """A fragment like `fragment` with its first rows only."""
    schema = pa.ipc.read_schema(pa.py_buffer(host.view_schema))
    batches = host.folder.read(fragment, rows, schema)
    return host.folder.write(host.folder.open(), schema, batches, host.rows_per_fragment)
