"""A server as people start it: a process of its own, on a free port, with a root of its own."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ADMIN_KEY = "the-administrator-of-the-tests"
DATABASE_HEADER = "x-lancedb-database"

# Of tests for which the way in makes no difference.
direct_only = pytest.mark.parametrize("live_server", ["direct"], indirect=True)

_START_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 60
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class RunningServer:
    """Where the server answers and where its tables are."""

    url: str
    root: Path
    log: Path
    admin_key: str = ADMIN_KEY

    @property
    def port(self) -> int:
        """The TCP port."""
        return int(self.url.rpartition(":")[2])

    def make_key(self, name: str, *grants: str) -> str:
        """A new API key, made with the command that operators use."""
        options = [option for grant in grants for option in ("--grant", grant)]
        made = subprocess.run(
            [*_DESTRIER, "key", "create", "--name", name, "--root", self.root, *options],
            check=True,
            capture_output=True,
            text=True,
        )
        return made.stdout.strip()


_DESTRIER = (sys.executable, "-m", "serve_app")


@contextmanager
def running_server(folder: Path, **settings: str) -> Iterator[RunningServer]:
    """Start a server, wait until it is ready; at the end stop it and check that it stopped well.

    `settings` are environment variables without their prefix: `ACTORS_IDLE_S="5"`.
    """
    root, log = folder / "root", folder / "server.log"
    environment = {
        **os.environ,
        "DESTRIER_ADMIN_KEY": ADMIN_KEY,
        "DESTRIER_RAY_NAMESPACE": f"clients-{uuid.uuid4().hex[:12]}",
        **{f"DESTRIER_{name}": value for name, value in settings.items()},
    }
    with log.open("w") as output:
        process = subprocess.Popen(
            [*_DESTRIER, "serve", "--root", root, "--port", "0"],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A Ctrl-C meant for the tests ends the server through the fixture, not past it.
            start_new_session=True,
        )
    try:
        yield RunningServer(_wait_until_ready(process, log), root, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the server did not stop:\n{_tail(log)}") from None
    assert code == 0, f"the server ended with {code}:\n{_tail(log)}"


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    """The URL that the server says it is ready at."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith("ready http://"):
                return line.removeprefix("ready ").strip()
        time.sleep(_POLL_S)
    raise AssertionError(f"the server did not start:\n{_tail(log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text().splitlines()[-40:])
