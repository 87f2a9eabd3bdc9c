"""A process that stands guard over another: whatever that one starts ends with it.

A process that is killed cannot clean up after itself, and what it started may have left its group.
So a guarded process has a parent, forked at its start, that adopts whatever is orphaned below it
and kills that when the guarded one has ended, when it is told to (SIGTERM), or when its own parent
dies. Linux only, as Ray's shared memory is.
"""

import contextlib
import os
import signal
import time

from cluster import process_tree

_POLL_S = 0.01
_WAITED_FOR = (signal.SIGTERM, signal.SIGCHLD)


def stand_guard(descriptors: tuple[int, ...]) -> None:
    """Fork: returns in the child, which is guarded; the parent ends as the child does.

    To be called before anything starts a thread. The guard closes its copies of `descriptors`.
    """
    process_tree.adopt_orphans()
    # Both are waited for, so that neither comes at a wrong moment.
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    process_tree.get_signal_when_parent_ends(signal.SIGTERM)
    guarded = os.fork()
    if guarded == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED_FOR)
        process_tree.get_signal_when_parent_ends(signal.SIGKILL)
        return
    for descriptor in descriptors:
        os.close(descriptor)
    status = _wait_for(guarded)
    _kill_all()
    if not os.WIFSIGNALED(status):
        os._exit(os.waitstatus_to_exitcode(status))
    number = os.WTERMSIG(status)
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)


def end_guarded(guard: int) -> None:
    """Tell a guard to end everything; it is gone soon after."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(guard, signal.SIGTERM)
        # One that was stopped hears nothing.
        os.kill(guard, signal.SIGCONT)


def _wait_for(guarded: int) -> int:
    """The status with which the guarded process ended, or SIGTERM's if the guard is told to end."""
    while signal.sigwait(_WAITED_FOR) != signal.SIGTERM:
        # Orphans that have ended are buried on the way.
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == guarded:
                    return found[1]
    return int(signal.SIGTERM)


def _kill_all() -> None:
    while alive := process_tree.descendants(os.getpid()):
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_POLL_S)
