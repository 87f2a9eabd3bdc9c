"""Processes of a server: which they are, the processor time they use, their peak memory."""

import contextlib
import resource
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

import psutil  # type: ignore[import-untyped]

SAMPLE_INTERVAL_S = 0.02
MB = 1e6
_PAGE_BYTES = resource.getpagesize()


class Beside:
    """Runs `_run` in a thread while its block runs; it is to return when `_ended` is set."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        raise NotImplementedError


class MemoryWatch(Beside):
    """Samples the resident memory of some processes while its block runs.

    Resident memory counts shared pages too, so its growth is never less than what a process takes
    for itself.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        super().__init__()
        self._first = {pid: _resident_bytes(pid) for pid in pids}
        self._peak = dict(self._first)

    def growth_bytes(self) -> dict[int, int]:
        """For each process, by how much its memory exceeded that at the start, at most."""
        return {pid: self._peak[pid] - first for pid, first in self._first.items()}

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_INTERVAL_S):
            for pid, peak in self._peak.items():
                self._peak[pid] = max(peak, _resident_bytes(pid))


def process_tree(pid: int) -> dict[int, str]:
    """The process and all that it started, with their names as Ray gives them."""
    root = psutil.Process(pid)
    found = {}
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            found[process.pid] = " ".join(process.cmdline()[:1]) or process.name()
    return found


def replicas(pid: int) -> list[int]:
    """The processes of the server that answer HTTP."""
    return [member for member, name in process_tree(pid).items() if "ServeReplica" in name]


def cpu_seconds(pid: int) -> float:
    """Processor time that the process and all that it started have used so far."""
    return _total(pid, lambda process: sum(process.cpu_times()[:2]))


def memory_bytes(pid: int) -> float:
    """Memory of the process and all that it started; what they share counts once."""
    return _total(pid, lambda process: process.memory_full_info().pss)


def _total(pid: int, of: Callable[[psutil.Process], float]) -> float:
    """The sum over the process and all that it started; those that have ended count nothing."""
    total = 0.0
    for member in process_tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += of(psutil.Process(member))
    return total


def _resident_bytes(pid: int) -> int:
    """0 for a process that has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * _PAGE_BYTES
