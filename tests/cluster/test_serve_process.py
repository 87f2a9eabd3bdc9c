"""`destrier serve` as a process: from nothing to `ready` and back to nothing, whatever ends it.

These start a real Ray. Every start has a root, a port and a temporary folder of its own, so that
what is left behind can be told from what others run on this machine.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest

from tests.clients.running_server import RunningServer

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

DESTRIER = (sys.executable, "-m", "serve_app")

_START_TIMEOUT_S = 120
_STOP_TIMEOUT_S = 60


@dataclass
class Served:
    """A running server, all it printed, and every process it ever had when looked at."""

    process: subprocess.Popen[str]
    folder: Path
    lines: list[str] = field(default_factory=list)
    processes: list[psutil.Process] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.lines[-1].removeprefix("ready ")

    @property
    def key(self) -> str:
        return next(line.strip() for line in self.lines if line.startswith("  dk_"))

    def read_until_ready(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith("ready "):
                break
        else:
            pytest.fail(f"not ready:\n{self.said()}")
        self.remember_processes()

    def remember_processes(self) -> bool:
        self.processes = psutil.Process(self.process.pid).children(recursive=True)
        return bool(self.processes)

    def said(self) -> str:
        return "\n".join(self.lines) + "\n" + (self.folder / "stderr").read_text()

    def stop(self, *signals: signal.Signals) -> int:
        for number in signals:
            self.process.send_signal(number)
            time.sleep(0.2)
        return self.process.wait(_STOP_TIMEOUT_S)

    def assert_nothing_is_left(self) -> None:
        gone, alive = psutil.wait_procs(self.processes, timeout=10)
        assert not alive, [process.cmdline() for process in alive]
        assert gone
        assert not list((self.folder / "t").iterdir())


@contextmanager
def serving(folder: Path, *options: str, **environment: str) -> Iterator[Served]:
    """A server that was told to start; it is killed if the test leaves it."""
    (folder / "t").mkdir()
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "DESTRIER_"))}
    with (folder / "stderr").open("w") as errors:
        process = subprocess.Popen(
            [*DESTRIER, "serve", "--port", "0", "--root", str(folder / "root"), *options],
            env={**inherited, "TMPDIR": str(folder / "t"), **environment},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    served = Served(process, folder)
    try:
        yield served
    finally:
        if process.poll() is None:
            served.remember_processes()
            process.kill()
            process.wait()
        for child in served.processes:
            if child.is_running():
                child.kill()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: pytest's own would make Ray's socket paths too long."""
    with tempfile.TemporaryDirectory(prefix="d", dir="/tmp") as name:
        yield Path(name)


def test_server_answers_finishes_what_it_began_and_leaves_nothing_behind(
    folder: Path,
) -> None:
    with serving(folder) as served:
        started = time.monotonic()
        served.read_until_ready()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", served.url)
        assert time.monotonic() - started < _START_TIMEOUT_S

        for probe in ("healthz", "readyz", "metrics"):
            assert httpx.get(f"{served.url}/-/{probe}").status_code == 200
        listed = httpx.get(f"{served.url}/v1/table", headers={"x-api-key": served.key})
        assert (listed.status_code, listed.json()) == (200, {"tables": []})
        assert httpx.get(f"{served.url}/v1/table").status_code == 401
        assert open_to_others(served.processes) == set()

        answered = finish_while_it_stops(served)
        assert (answered.status_code, answered.json()["code"]) == (400, 13)
        assert served.process.wait(_STOP_TIMEOUT_S) == 0
        served.assert_nothing_is_left()
        assert served.key not in (folder / "stderr").read_text()


def open_to_others(processes: list[psutil.Process]) -> set[str]:
    """Processes that listen beyond loopback.

    Replicas are left out: Ray Serve gives each a port for calls between deployments that cannot be
    moved to loopback, and guards it with the cluster's token.
    """
    found: set[str] = set()
    for process in processes:
        name = name_of(process) or process.name()
        for connection in process.net_connections(kind="tcp"):
            is_listening = connection.status == psutil.CONN_LISTEN
            address = connection.laddr.ip.removeprefix("::ffff:")
            if is_listening and address not in ("127.0.0.1", "::1") and "ServeReplica" not in name:
                found.add(f"{name} {connection.laddr}")
    return found


def finish_while_it_stops(served: Served) -> httpx.Response:
    """The answer to a request that the server was told to stop during."""
    headers = {"x-api-key": served.key, "content-type": "application/vnd.apache.arrow.stream"}

    def slow_upload() -> Iterator[bytes]:
        yield b""
        served.process.send_signal(signal.SIGTERM)
        time.sleep(1)
        yield b"not an Arrow stream"

    url = f"{served.url}/v1/table/t/create"
    return httpx.post(url, headers=headers, content=slow_upload(), timeout=30)


def test_killed_replica_is_replaced_while_the_other_answers(folder: Path) -> None:
    with serving(folder, DESTRIER_HTTP_REPLICAS="2") as served:
        served.read_until_ready()
        wait_for(lambda: len(replicas_that_answer(served)) == 2)
        before = replicas_that_answer(served)
        next(child for child in served.processes if "ServeReplica" in name_of(child)).kill()
        assert replicas_that_answer(served) <= before
        wait_for(lambda: len(replicas_that_answer(served)) == 2)
        assert len(replicas_that_answer(served) & before) == 1
        assert served.stop(signal.SIGTERM) == 0
        served.assert_nothing_is_left()


def replicas_that_answer(served: Served) -> set[str]:
    """Names of the replicas that a few connections reach.

    Connections that a process had taken when it was killed are reset; their clients try again.
    """
    texts = []
    for _ in range(16):
        with contextlib.suppress(httpx.TransportError):
            texts.append(httpx.get(f"{served.url}/-/metrics").text)
    return {name for text in texts for name in re.findall(r'in_flight{replica="(\w+)"}', text)}


def name_of(process: psutil.Process) -> str:
    return " ".join(process.cmdline())


@pytest.mark.parametrize("live_server", ["serve"], indirect=True)
def test_serve_ingress_answers_the_same_and_has_ports_of_its_own(
    live_server: RunningServer, folder: Path
) -> None:
    headers = {"x-api-key": live_server.admin_key, "x-request-id": "mine"}
    listed = httpx.get(f"{live_server.url}/v1/table/?limit=1", headers=headers)
    assert listed.status_code == 200
    assert listed.headers.get_list("x-request-id") == ["mine"]
    # The encoded slash of an identifier comes through HAProxy as it was sent.
    counted = httpx.post(
        f"{live_server.url}/v1/table/a%2Fb/count_rows/?delimiter=%2F", headers=headers
    )
    assert (counted.status_code, counted.json()["code"]) == (404, 4)
    assert "a$b" in counted.json()["detail"]
    # Another server starts beside it.
    with serving(folder, DESTRIER_HTTP_INGRESS="serve") as other:
        other.read_until_ready()
        assert httpx.get(f"{other.url}/-/healthz").status_code == 200
        private = next((folder / "t").glob("destrier-*"))
        assert private.stat().st_mode & 0o777 == 0o700
        assert other.stop(signal.SIGTERM) == 0
        other.assert_nothing_is_left()
    assert httpx.get(f"{live_server.url}/-/healthz").status_code == 200


# One handler has both; that SIGTERM comes to it is seen wherever a server is stopped.
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)]
)
def test_signal_within_the_start_ends_it_cleanly(folder: Path, number: signal.Signals) -> None:
    with serving(folder) as served:
        wait_for(served.remember_processes)
        assert served.stop(number) == 0
        served.assert_nothing_is_left()


@pytest.mark.soak
def test_second_signal_ends_the_process_at_once(folder: Path) -> None:
    with serving(folder) as served:
        served.read_until_ready()
        started = time.monotonic()
        assert served.stop(signal.SIGTERM, signal.SIGTERM) == 128 + signal.SIGTERM
        assert time.monotonic() - started < 2


@pytest.mark.soak
def test_end_of_ray_before_the_server_is_told_and_does_not_hang(folder: Path) -> None:
    with serving(folder) as served:
        served.read_until_ready()
        os.killpg(served.process.pid, signal.SIGTERM)
        assert served.process.wait(20) == 1
        assert "Ray ended before the server did" in served.said()
        served.assert_nothing_is_left()


def test_root_that_cannot_be_written_ends_the_start_with_a_sentence(folder: Path) -> None:
    with serving(folder, "--root", "/proc/nowhere") as served:
        assert served.process.wait(_START_TIMEOUT_S) == 1
        assert "destrier: " in served.said()
        assert "Traceback" not in served.said()
        assert not list((folder / "t").iterdir())


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
