"""A Ray of several nodes on this machine, each on cores of its own, and what their workers use.

Every node has a loopback address and a temporary folder of its own, so that it meets no other Ray
of this machine. Linux alone has so many loopback addresses, and lets processes choose their cores.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Self

import psutil  # type: ignore[import-untyped]

from benchmarks.processes import MB
from benchmarks.servers import inherited_environment

_OBJECT_STORE_BYTES = 256 << 20
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0
_POLL_S = 0.1
_HEAD = ("--head", "--port=0", "--include-dashboard=false")
_RAYLET = "raylet"
_DAFT_WORKER = "ray::RaySwordfishActor"
# Ray's own, which work whether or not anyone asks for anything.
_NOT_WORKERS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::ServeController")
_ENVIRONMENT = {
    # As Destrier's own Ray has it: else whoever measures would go before the workers.
    "RAY_worker_niceness": "0",
    # For half a minute nodes would look for others to take over what they do.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
}


@dataclass(frozen=True, slots=True)
class Node:
    """One node; `pid` is the process that started its others."""

    pid: int
    # By name Daft's worker is known while it does nothing: else it has that of its task.
    _daft_pids: set[int] = field(default_factory=set)

    def workers(self) -> list[psutil.Process]:
        """The processes that Ray has started on this node for whoever uses it."""
        raylets = [it for it in psutil.Process(self.pid).children() if it.name() == _RAYLET]
        found = []
        for process in [child for raylet in raylets for child in raylet.children()]:
            name = _name(process)
            if name.startswith("ray::") and not name.startswith(_NOT_WORKERS):
                found.append(process)
            if name.startswith(_DAFT_WORKER):
                self._daft_pids.add(process.pid)
        return found

    def is_daft(self, pid: int) -> bool:
        """Whether a worker is the one of Daft's that does work items."""
        return pid in self._daft_pids


@dataclass(frozen=True, slots=True)
class _Counters:
    """What one process has used since it began."""

    cpu_s: float
    read_mb: float


@dataclass(frozen=True, slots=True)
class RayNodes:
    """Nodes that run; `environment` is what a process joins them with."""

    nodes: Sequence[Node]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Used:
    """What the workers of one node used; Daft's is the one that does work items."""

    cpu_s: float
    daft_cpu_s: float
    daft_read_mb: float


class UseWatch:
    """What the workers of each node use while its block runs."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._before: list[dict[int, _Counters]] = []
        self.used: list[Used] = []

    def __enter__(self) -> Self:
        self._before = [_counters(node) for node in self._nodes]
        return self

    def __exit__(self, *_: object) -> None:
        after = [_counters(node) for node in self._nodes]
        self.used = [_used(*each) for each in zip(self._nodes, self._before, after, strict=True)]


@contextlib.contextmanager
def ray_nodes(count: int) -> Iterator[RayNodes]:
    """Nodes that share out this machine's cores, or each have one, if there are more nodes.

    Raises:
        RuntimeError: one did not start.
    """
    joining = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment = {**inherited_environment(), **joining, **_ENVIRONMENT}
    subnet = f"127.{1 + secrets.randbelow(254)}.{secrets.randbelow(256)}"
    started: list[subprocess.Popen[bytes]] = []
    # Ray's sockets are in there, and their paths may not be long.
    with tempfile.TemporaryDirectory(prefix="destrier-ray-", ignore_cleanup_errors=True) as name:
        folders = [Path(name) / str(number) for number in range(count)]
        shares = _shares(count)
        try:
            address = ""
            for number, (folder, cores) in enumerate(zip(folders, shares, strict=True)):
                place = [f"--address={address}"] if address else _HEAD
                host = f"{subnet}.{1 + number}"
                started.append(_start(place, host, folder, cores, environment))
                address = address or _address(started[0], folder)
            for process, folder in zip(started, folders, strict=True):
                _address(process, folder)
            nodes = [Node(process.pid) for process in started]
            yield RayNodes(nodes, {**joining, "DESTRIER_RAY_ADDRESS": address})
        finally:
            _stop(started)


def _shares(count: int) -> list[list[int]]:
    cores = sorted(os.sched_getaffinity(0))
    return [cores[number::count] or [cores[number % len(cores)]] for number in range(count)]


def _start(
    place: Sequence[str],
    host: str,
    folder: Path,
    cores: Sequence[int],
    environment: Mapping[str, str],
) -> "subprocess.Popen[bytes]":
    folder.mkdir()
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *place),
        *(f"--node-ip-address={host}", f"--temp-dir={folder}", f"--num-cpus={len(cores)}"),
        # Whichever are free.
        *("--min-worker-port=0", "--max-worker-port=0"),
        *(f"--object-store-memory={_OBJECT_STORE_BYTES}", "--disable-usage-stats"),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    # What it starts inherits them, and has started nothing yet.
    os.sched_setaffinity(process.pid, cores)
    return process


def _address(process: "subprocess.Popen[bytes]", folder: Path) -> str:
    """Where the cluster of a node answers, once the node runs."""
    written = folder / "ray_current_cluster"
    give_up_s = monotonic() + _START_TIMEOUT_S
    while process.poll() is None and monotonic() < give_up_s:
        if written.exists() and (address := written.read_text()):
            return address
        sleep(_POLL_S)
    raise RuntimeError(f"a node of Ray did not start:\n{(folder / 'log').read_text()}")


def _stop(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """End the nodes; the kernel ends what they have started with them."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _name(process: psutil.Process) -> str:
    """A process's name as Ray gives it; empty of one that has ended."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return "".join(process.cmdline()[:1])
    return ""


def _counters(node: Node) -> dict[int, _Counters]:
    """Of each worker of a node, so far."""
    found = {}
    for worker in node.workers():
        with contextlib.suppress(psutil.NoSuchProcess):
            times = worker.cpu_times()
            read_mb = worker.io_counters().read_chars / MB
            found[worker.pid] = _Counters(times.user + times.system, read_mb)
    return found


def _used(node: Node, before: dict[int, _Counters], after: dict[int, _Counters]) -> Used:
    """What those used that have not ended."""
    cpu_s = daft_cpu_s = daft_read_mb = 0.0
    for pid, now in after.items():
        then = before.get(pid, _Counters(0.0, 0.0))
        cpu_s += now.cpu_s - then.cpu_s
        if node.is_daft(pid):
            daft_cpu_s += now.cpu_s - then.cpu_s
            daft_read_mb += now.read_mb - then.read_mb
    return Used(cpu_s, daft_cpu_s, daft_read_mb)
