"""The processes that a process has started, however deep, and their end."""

import contextlib
import os
import signal
from pathlib import Path

_PROC = Path("/proc")
# Of `/proc/<pid>/stat`, after the name in parentheses: state, then parent.
_PARENT_FIELD = 1


def descendants(pid: int) -> list[int]:
    """Ids of everything that `pid` started and that is alive, parents first."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            parent = _parent(int(entry.name))
            if parent is not None:
                children.setdefault(parent, []).append(int(entry.name))
    found = []
    waiting = [pid]
    while waiting:
        started = children.get(waiting.pop(0), [])
        found += started
        waiting += started
    return found


def kill_tree(pid: int, *, itself: bool = True) -> None:
    """Kill everything that `pid` started, and then it with its process group."""
    for child in descendants(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    if itself:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _parent(pid: int) -> int | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        # It ended since it was listed.
        return None
    state, parent = text.rpartition(")")[2].split()[: _PARENT_FIELD + 1]
    return None if state == "Z" else int(parent)
