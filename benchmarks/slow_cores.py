"""A machine with twice as many cores, each of them slower, for the code of views.

A process that runs a view's code is stopped and continued by signals, so that it computes for a
fixed part of the time, whatever else runs. Half of the processes have their turn when the other
half has not: as many as the machine has cores may run at any time, and twice as many have a share.
What the server itself does is not held up, and has what is left.
"""

import contextlib
import itertools
import os
import signal
import time

import psutil  # type: ignore[import-untyped]

from benchmarks.processes import Beside
from udtf.child_pipes import PROGRAM

# Of the time, each process computes for this part; the two turns leave a fifth for the server.
SHARE = 0.4
_CYCLE_S = 0.05
# How long a process that begins may run freely.
_LOOK_S = 0.25


class SlowCores(Beside):
    """While its block runs, code of views computes for `SHARE` of the time."""

    def __init__(self) -> None:
        super().__init__()
        # The processes of each turn.
        self._turns: tuple[set[int], set[int]] = (set(), set())

    def _run(self) -> None:
        looked_s = 0.0
        try:
            for turn in itertools.cycle(self._turns):
                if time.monotonic() - looked_s > _LOOK_S:
                    self._look()
                    looked_s = time.monotonic()
                _signal(turn, signal.SIGCONT)
                is_over = self._ended.wait(SHARE * _CYCLE_S)
                _signal(turn, signal.SIGSTOP)
                if is_over or self._ended.wait((0.5 - SHARE) * _CYCLE_S):
                    return
        finally:
            _signal(set.union(*self._turns), signal.SIGCONT)

    def _look(self) -> None:
        running = _code_processes()
        for turn in self._turns:
            turn &= running
        for pid in running.difference(*self._turns):
            min(self._turns, key=len).add(pid)
            _signal({pid}, signal.SIGSTOP)


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _code_processes() -> set[int]:
    """Those that run code of views with this checkout's program, their guards left out."""
    found = set()
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(ProcessLookupError):
            is_ours = str(PROGRAM) in (process.info["cmdline"] or ())
            if is_ours and os.getsid(process.pid) == process.pid:
                found.add(process.pid)
    return found
