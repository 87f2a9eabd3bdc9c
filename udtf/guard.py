"""The guard of a process that runs user code: no process of the code's outlives its worker.

The program of the child forks before anything is loaded. One half, the guard, waits until the
code's process ends or the worker closes its end of a socket, as the kernel does for a worker that
dies. Then the guard kills everything that the code has started, also what has moved to a session of
its own: orphans become children of the guard. It tells its own id first and, in the end, how the
process ended.
"""

import contextlib
import os
import select
import shutil
import signal
import socket
import struct
import time
from pathlib import Path

from cluster import process_tree

NUMBER = struct.Struct("<i")

_KILLING_S = 10.0
_POLL_S = 0.005


def fork_guarded(lifeline: int, pipes: tuple[int, int], folder: str) -> None:
    """Fork; returns in the half that is to run the code, in a session of its own.

    The other half guards it, removes `folder` when it has ended, and never returns; it is no child
    of the worker's. Must be called before there are threads.
    """
    # Ray kills the children of a worker that ends, before they could do anything about it.
    if os.fork() != 0:
        os._exit(0)
    process_tree.adopt_orphans()
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        os.setsid()
        process_tree.get_signal_when_parent_ends(signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)
        os.close(lifeline)
        return
    try:
        _guard(child, socket.socket(fileno=lifeline), pipes, folder)
    finally:
        os._exit(0)


def _guard(child: int, lifeline: socket.socket, pipes: tuple[int, int], folder: str) -> None:
    # Open here they would hide that the code's process has closed them.
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    for descriptor in pipes:
        os.close(descriptor)
    os.chdir("/")
    _tell(lifeline, os.getpid())
    ended = os.pidfd_open(child)
    waiting = select.poll()
    waiting.register(ended, select.POLLIN)
    waiting.register(lifeline, select.POLLIN)
    waiting.poll()
    status = _kill_all(child)
    shutil.rmtree(folder, onerror=_make_writable)
    _tell(lifeline, status)


def _tell(lifeline: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):
        lifeline.send(NUMBER.pack(number))


def _kill_all(child: int) -> int:
    """Kill the child and everything that it started; how the child ended, as `wait` says it."""
    ended = 0
    deadline = time.monotonic() + _KILLING_S
    while time.monotonic() < deadline:
        for pid in process_tree.descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
            while pid:
                ended = status if pid == child else ended
                pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        time.sleep(_POLL_S)
    return ended


def _make_writable(function: object, path: str, error: object) -> None:
    """Remove what the code has protected; what still stays is left."""
    with contextlib.suppress(OSError):
        Path(path).parent.chmod(0o700)
        Path(path).chmod(0o700)
        if Path(path).is_dir() and not Path(path).is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            Path(path).unlink()
