"""Both servers, each in processes of its own, on a free port and an empty folder."""

import multiprocessing
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.load import Address

_STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that answers; `pid` is the process that started the others."""

    name: str
    address: Address
    pid: int
    root: Path
    api_key: str


@contextmanager
def destrier(root: Path, environment: Mapping[str, str] | None = None) -> Iterator[RunningServer]:
    """Destrier with its defaults and with authentication on; its log is shown if anything fails.

    `environment` is what is not as by default.

    Raises:
        RuntimeError: it did not start.
    """
    key = secrets.token_urlsafe(24)
    command = [sys.executable, "-m", "serve_app", "serve", "--root", str(root), "--port", "0"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command,
            env={**inherited_environment(), **(environment or {}), "DESTRIER_ADMIN_KEY": key},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            url = _wait_until_ready(process)
            if url is None:
                raise RuntimeError("destrier did not start")
            split = urlsplit(url)
            assert split.hostname is not None and split.port is not None
            address = (split.hostname, split.port)
            yield RunningServer("destrier", address, process.pid, root, key)
        except BaseException:
            log.seek(0)
            print(f"destrier's log:\n{log.read()}", file=sys.stderr)
            raise
        finally:
            _stop(process)


def inherited_environment() -> dict[str, str]:
    """The environment without the settings of whoever measures, which are not the defaults."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DESTRIER_", "RAY_"))
    }


def _wait_until_ready(process: "subprocess.Popen[str]") -> str | None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ready "):
            return line.split()[1]
    return None


def _stop(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def peer(root: Path) -> Iterator[RunningServer]:
    """Lance's own server of the same API, which has no authentication."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve_peer, args=(str(root), there), daemon=True)
    process.start()
    try:
        port = here.recv()
        assert process.pid is not None
        yield RunningServer("peer", ("127.0.0.1", port), process.pid, root, "unused")
    finally:
        here.close()
        process.join(_STOP_TIMEOUT_S)
        process.kill()


def _serve_peer(root: str, parent: Connection) -> None:
    from lance.namespace import RestAdapter

    with RestAdapter("dir", {"root": root}, port=0) as adapter:
        parent.send(adapter.port)
        try:
            parent.recv()
        except EOFError:
            return
