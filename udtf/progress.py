"""How far a job is, as a bar on the terminal: items, rows, rows per second, workers, time left."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from udtf.view_jobs import JobStatus

# Until the number of items is known there is no bar to fill.
_PLANNED = "{desc}: {percentage:3.0f}%|{bar}| {n}/{total} items [{elapsed}<{remaining}{postfix}]"
_UNPLANNED = "{desc} [{elapsed}{postfix}]"
_STATES_SHOWN = frozenset({"PAUSED", "CANCELLING"})


class ProgressBar:
    """A bar that follows one job; without a bar it shows nothing."""

    def __init__(self, bar: Any = None, now_s: Any = time.monotonic) -> None:
        self._bar = bar
        self._now_s = now_s
        # Rows of items that an earlier attempt did are no rows of this second.
        self._first: tuple[float, int] | None = None

    def show(self, status: JobStatus) -> None:
        """Draw a new status."""
        bar = self._bar
        if bar is None:
            return
        total = status.total("items")
        bar.bar_format = _UNPLANNED if total is None else _PLANNED
        bar.total = total
        bar.n = status.count("items")
        bar.set_description_str(description(status), refresh=False)
        bar.set_postfix_str(self._postfix(status), refresh=False)
        bar.refresh()

    def _postfix(self, status: JobStatus) -> str:
        read, now_s = status.count("rows_read"), self._now_s()
        if self._first is None:
            self._first = (now_s, read)
        since_s, before = self._first
        parts = [f"{status.count('rows_written'):,} rows"]
        if read > before and now_s > since_s:
            parts.append(f"{(read - before) / (now_s - since_s):,.0f} source rows/s")
        workers = status.count("workers_active")
        if workers and not status.is_over:
            parts.append(f"{workers} workers")
        for name, word in (("items_skipped", "skipped"), ("items_failed", "failed")):
            if status.count(name):
                parts.append(f"{status.count(name)} {word}")
        return ", ".join(parts)


def description(status: JobStatus) -> str:
    """The phase, and what a job that does not get on waits for."""
    if status.is_over:
        return status.state.lower()
    finer = str(status.answer.get("state", ""))
    # Of a running job the phase says more.
    phase = finer.lower() if finer in _STATES_SHOWN else status.phase or status.state.lower()
    return phase if status.waiting_for is None else f"{phase}, waiting: {status.waiting_for}"


@contextmanager
def progress_bar(is_shown: bool, file: Any = None) -> Iterator[ProgressBar]:
    """A bar on `file` (the standard error), which stays there when it ends."""
    if not is_shown:
        yield ProgressBar()
        return
    with tqdm(total=None, file=file, dynamic_ncols=True, bar_format=_UNPLANNED) as bar:
        yield ProgressBar(bar)
