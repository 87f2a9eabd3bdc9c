"""Whole trees of processes, for those that stand guard over one. Linux only; standard library only.

The program of user code imports this before anything else is loaded.
"""

import ctypes
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of whatever is below this process and loses its own."""
    _control(_PR_SET_CHILD_SUBREAPER, 1)


def get_signal_when_parent_ends(number: int) -> None:
    """Be sent a signal when the thread that started this process ends; not inherited."""
    _control(_PR_SET_PDEATHSIG, number)


def descendants(pid: int) -> list[int]:
    """Ids of everything below `pid` that is alive, parents first."""
    children: dict[int, list[int]] = {}
    ended = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (found := _state_and_parent(entry)):
            state, parent = found
            children.setdefault(parent, []).append(int(entry.name))
            # Whose main thread has ended may have children yet: its other threads' end is to come.
            if state == "Z":
                ended.add(int(entry.name))
    below: list[int] = []
    waiting = [pid]
    while waiting:
        started = children.get(waiting.pop(0), [])
        below += started
        waiting += started
    return [child for child in below if child not in ended]


def _state_and_parent(entry: Path) -> tuple[str, int] | None:
    try:
        # A process chooses its name, in bytes of any kind.
        text = (entry / "stat").read_text(errors="replace")
    except OSError:
        # It ended since it was listed.
        return None
    # After the name, which may hold anything, in parentheses.
    state, parent = text.rpartition(")")[2].split()[:2]
    return state, int(parent)


def _control(option: int, value: int) -> None:
    libc: Any = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")
