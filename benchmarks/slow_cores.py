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
import threading
import time
from typing import Self

import psutil  # type: ignore[import-untyped]

from udtf.child_pipes import PROGRAM

# Of the time, each process computes for this part; the two turns leave a fifth for the server.
SHARE = 0.4
_CYCLE_S = 0.05
# How long a process that begins may run freely.
_LOOK_S = 0.25


class SlowCores:
    """While its block runs, code of views computes for `SHARE` of the time."""

    def __init__(self) -> None:
        self._turns: dict[int, int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._signal((0, 1), signal.SIGCONT)

    def _run(self) -> None:
        looked_s = 0.0
        for turn in itertools.cycle((0, 1)):
            if time.monotonic() - looked_s > _LOOK_S:
                self._look()
                looked_s = time.monotonic()
            self._signal((turn,), signal.SIGCONT)
            is_over = self._ended.wait(SHARE * _CYCLE_S)
            self._signal((turn,), signal.SIGSTOP)
            if is_over or self._ended.wait((0.5 - SHARE) * _CYCLE_S):
                return

    def _look(self) -> None:
        running = set(_code_processes())
        self._turns = {pid: turn for pid, turn in self._turns.items() if pid in running}
        for pid in running - self._turns.keys():
            given = list(self._turns.values())
            self._turns[pid] = min((0, 1), key=given.count)
            self._signal((self._turns[pid],), signal.SIGSTOP)

    def _signal(self, turns: tuple[int, ...], number: signal.Signals) -> None:
        for pid, turn in self._turns.items():
            if turn in turns:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)


def _code_processes() -> list[int]:
    """Those that run code of views with this checkout's program, their guards left out."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(ProcessLookupError):
            if str(PROGRAM) in (process.info["cmdline"] or ()) and os.getsid(process.pid) == (
                process.pid
            ):
                found.append(process.pid)
    return found
