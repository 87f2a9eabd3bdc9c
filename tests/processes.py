"""The processes that a test has started, whatever servers of other tests run beside it."""

import contextlib

import psutil


class OwnProcesses:
    """What this process has started since, and all below it."""

    def __init__(self) -> None:
        self._others = set(psutil.Process().children())

    def alive(self) -> list[psutil.Process]:
        """Those that have not ended."""
        mine = [child for child in psutil.Process().children() if child not in self._others]
        found = list(mine)
        for root in mine:
            try:
                found += root.children(recursive=True)
            except psutil.NoSuchProcess:
                continue
        return [process for process in found if _is_alive(process)]

    def named(self, name: str) -> list[psutil.Process]:
        """Those whose command line holds `name`."""
        return [process for process in self.alive() if name in command_line(process)]

    def drivers(self) -> list[psutil.Process]:
        """Drivers of views, one that waits for a job included, without their guards."""
        me = psutil.Process().pid
        return [driver for driver in self.named("actors.view_driver") if driver.ppid() != me]

    def kill(self, name: str) -> None:
        """Kill those whose command line holds `name`."""
        for process in self.named(name):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def command_line(process: psutil.Process) -> str:
    """What the process was called with; nothing if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
