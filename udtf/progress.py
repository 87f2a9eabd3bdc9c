"""How far a job is: items, rows, rows per second, workers, time left.

On a terminal it is a bar; elsewhere (a log, a pipe) a line when the phase changes, and now and then
between.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

from tqdm import tqdm

from udtf.view_jobs import JobStatus

# Until the number of items is known there is no bar to fill.
_PLANNED = "{desc}: {percentage:3.0f}%|{bar}| {n}/{total} items [{elapsed}<{remaining}{postfix}]"
_UNPLANNED = "{desc} [{elapsed}{postfix}]"
_STATES_SHOWN = frozenset({"PAUSED", "CANCELLING"})
# Between two lines of the same phase.
_LINE_INTERVAL_S = 5.0

_Clock = Callable[[], float]


class Progress(Protocol):
    """Shows how one job gets on."""

    def show(self, status: JobStatus) -> None:
        """Show a new status."""
        ...


class ProgressBar:
    """A bar of tqdm's that follows one job."""

    def __init__(self, bar: Any, now_s: _Clock = time.monotonic) -> None:
        self._bar = bar
        self._pace = _Pace(now_s)

    def show(self, status: JobStatus) -> None:
        """Draw a new status."""
        bar = self._bar
        total = status.total("items")
        bar.bar_format = _UNPLANNED if total is None else _PLANNED
        bar.total = total
        bar.n = status.count("items")
        bar.set_description_str(description(status), refresh=False)
        bar.set_postfix_str(_counts(status, self._pace.of(status)), refresh=False)
        bar.refresh()


class ProgressLines:
    """A line for each phase, and at most one in five seconds as long as something changes."""

    def __init__(self, file: TextIO, now_s: _Clock = time.monotonic) -> None:
        self._file = file
        self._now_s = now_s
        self._pace = _Pace(now_s)
        self._phase: tuple[str, str] | None = None
        self._line = ""
        self._written_s = 0.0

    def show(self, status: JobStatus) -> None:
        """Write a line, if it is time."""
        pace = self._pace.of(status)
        phase, now_s = (status.state, status.phase), self._now_s()
        if phase == self._phase and now_s - self._written_s < _LINE_INTERVAL_S:
            return
        total = status.total("items")
        done = [] if total is None else [f"{status.count('items')}/{total} items"]
        line = f"{description(status)}: {', '.join([*done, _counts(status, pace)])}"
        if phase != self._phase or line != self._line:
            self._file.write(f"{line}\n")
            self._file.flush()
            self._phase, self._line, self._written_s = phase, line, now_s


class _Nothing:
    """Shows nothing."""

    def show(self, status: JobStatus) -> None:
        """Nothing."""


class _Pace:
    """Source rows per second since the first status: an earlier attempt may have read its rows."""

    def __init__(self, now_s: _Clock) -> None:
        self._now_s = now_s
        self._first: tuple[float, int] | None = None

    def of(self, status: JobStatus) -> float | None:
        """Up to this status; None as long as there is none."""
        read, now_s = status.count("rows_read"), self._now_s()
        if self._first is None:
            self._first = (now_s, read)
        since_s, before = self._first
        return (read - before) / (now_s - since_s) if read > before and now_s > since_s else None


def _counts(status: JobStatus, pace: float | None) -> str:
    parts = [f"{status.count('rows_written'):,} rows"]
    if pace is not None:
        parts.append(f"{pace:,.0f} source rows/s")
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
def progress_on(is_shown: bool, file: TextIO | None = None) -> Iterator[Progress]:
    """What shows a job's progress on `file` (the standard error); it stays there when it ends."""
    file = sys.stderr if file is None else file
    if not is_shown:
        yield _Nothing()
    elif not file.isatty():
        yield ProgressLines(file)
    else:
        with tqdm(total=None, file=file, dynamic_ncols=True, bar_format=_UNPLANNED) as bar:
            yield ProgressBar(bar)
