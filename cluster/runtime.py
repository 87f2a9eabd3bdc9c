"""How a process becomes part of a Ray cluster: the only place that starts or joins one.

Ray and its workers read much from the environment, at import time: `prepare_environment` comes
before the first import of Ray, and every process that Ray starts inherits what it sets.
"""

import contextlib
import fcntl
import logging
import os
import random
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cluster.settings import Settings

logger = logging.getLogger(__name__)

_FOLDER_PREFIX = "destrier-"
_LOCK = "lock"
_RANDOM_CHARACTERS = 8
# Linux ends a socket's path at 107 characters, of which Ray's names in our folder take up to 68;
# HAProxy ends it at 97, of which 59 are not ours.
FOLDER_CHARACTERS_MAX = 36
# Often enough that an orderly end is not held up, and seldom enough to cost nothing.
_WATCH_S = 0.5
_LOOPBACK = "127.0.0.1"
# Between Ray's workers and Serve's replicas, and below what Linux hands out: it takes seconds until
# they are used.
_QUIET_PORTS = range(20_000, 30_000)

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Under `uv run` Ray would otherwise build an environment of its own for every worker.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    # Ten times a second by default, which is a third of what a server that does nothing computes.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    # Lines of the log are searched for by id; a summary of similar ones would hide them.
    "RAY_DEDUP_LOGS": "0",
    # 0 would move a replica's standard error, and with it this project's log, into a file.
    "RAY_SERVE_LOG_TO_STDERR": "1",
    "DAFT_PROGRESS_BAR": "0",
    # Daft would tell its makers of every import and every plan.
    "DAFT_ANALYTICS_ENABLED": "0",
    # Daft's own: it would ask Ray for the dashboard's address, by a name that warns.
    "RAY_DISABLE_DASHBOARD": "1",
    # Index statistics would otherwise read every centroid of a vector index.
    "LANCE_INCLUDE_VECTOR_CENTROIDS": "false",
}

# For a Ray started here: of no use to a cluster that others join.
_LOCAL_ENVIRONMENT = {
    # In spite of its name, what makes Ray take the loopback address for this node's: it then
    # listens on nothing else. Given that address in any other way, it looks for a public one.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    # Ray's own choice is 15: whatever else runs on the machine, the clients of a benchmark for one,
    # would go before replicas and owners, which here are the service itself.
    "RAY_worker_niceness": "0",
    # Where glibc's allocator arrives by itself, sooner or later: until then it takes the buffers of
    # a large insert from the system one by one and gives each back, 500,000 page faults per GiB.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}

# Ray Serve's HTTP through HAProxy: six times the requests per second of its default proxy.
_SERVE_INGRESS_ENVIRONMENT = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    # Half a minute by default, for load balancers to look away; HAProxy tries another replica.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
}


def prepare_environment(settings: Settings) -> None:
    """Set what Ray, Daft and Lance read from the environment; what the operator has set stays."""
    wanted = dict(_ENVIRONMENT)
    if settings.ray.address is None:
        wanted |= _LOCAL_ENVIRONMENT
        if "RAY_AUTH_TOKEN_PATH" not in os.environ:
            # Ray's own choice is a file in the home folder that everyone may read.
            wanted["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    if settings.http.ingress == "serve":
        wanted |= _SERVE_INGRESS_ENVIRONMENT
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


class Cluster:
    """The Ray that this process is part of; `folder` holds its files if it was started here."""

    def __init__(self, folder: Path | None, end_timeout_s: float) -> None:
        self._folder = folder
        self._end_timeout_s = end_timeout_s
        self._address: str | None = None
        self._ends_by: float | None = None
        self._has_left = threading.Event()

    def joined(self) -> None:
        """Note where the cluster answers, now that this process is part of it."""
        import ray

        self._address = ray.get_runtime_context().gcs_address

    def limit_end(self) -> None:
        """End this process if the cluster dies before it is left, or if the end takes too long.

        A signal to the whole process group ends Ray too, and Ray's own calls would then wait for a
        minute and end the process without a word.
        """
        if self._ends_by is None:
            self._ends_by = time.monotonic() + self._end_timeout_s
            threading.Thread(target=self._watch_end, args=(self._ends_by,), daemon=True).start()

    def leave(self) -> None:
        """Disconnect; a Ray started here ends."""
        import ray

        self.limit_end()
        self._address = None
        ray.shutdown()
        self._has_left.set()

    def _watch_end(self, ends_by: float) -> None:
        while time.monotonic() < ends_by:
            if self._has_left.wait(_WATCH_S):
                return
            address = self._address
            if address is not None and not _answers(address):
                self._abandon("Ray ended before the server did")
        self._abandon(f"the end took longer than {self._end_timeout_s:.0f} s")

    def _abandon(self, reason: str) -> None:
        logger.error("%s; requests may have been cut off", reason)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(1)


def _answers(address: str) -> bool:
    """Whether anything listens on a `host:port`; a slow answer is one."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _WATCH_S).close()
    except TimeoutError:
        return True
    except OSError:
        return False
    return True


@contextlib.contextmanager
def ray_cluster(
    settings: Settings,
    while_starting: Callable[[], None] = lambda: None,
    end_timeout_s: float = 60,
) -> Iterator[Cluster]:
    """Start a Ray on this machine, or join the one of `settings.ray.address`, and leave it again.

    A Ray started here listens on loopback alone, keeps its files in a temporary folder and ends,
    with everything that runs in it, when the block does; if that takes over `end_timeout_s`, this
    process ends without it. `while_starting` is called when Ray is imported and before it starts:
    start a thread there for what can be done meanwhile.
    """
    prepare_environment(settings)
    with temporary_folder(settings) as folder:
        import ray

        # Ray looks for SIGTERM's handler in the main thread alone, and says so of any other.
        logging.getLogger("ray._private.worker").setLevel(logging.ERROR)
        while_starting()
        cluster = Cluster(folder, end_timeout_s)
        try:
            if folder is None:
                ray.init(
                    address=settings.ray.address,
                    namespace=settings.ray.namespace,
                    runtime_env={"env_vars": dict(_ENVIRONMENT)},
                    logging_level=logging.WARNING,
                )
            else:
                ray.init(
                    address="local",
                    namespace=settings.ray.namespace,
                    include_dashboard=settings.ray.dashboard,
                    dashboard_host=_LOOPBACK,
                    object_store_memory=settings.ray.object_store_bytes,
                    logging_level=logging.WARNING,
                    # Ray opens its folder to every user, so it gets one inside ours.
                    _temp_dir=str(folder / "ray"),
                )
            cluster.joined()
            yield cluster
        finally:
            cluster.leave()


def end_actors(namespace: str) -> None:
    """End every named actor of `namespace`, detached ones too."""
    import ray
    from ray.util import list_named_actors

    # Twice, because a catalog may start a table's actor until it is ended itself.
    for _ in range(2):
        for actor in list_named_actors(all_namespaces=True):
            if actor["namespace"] == namespace:
                # It may have ended by itself since it was listed.
                with contextlib.suppress(ValueError):
                    ray.kill(ray.get_actor(actor["name"], namespace))


def use_daft_on_ray() -> None:
    """Make Daft run its plans on the cluster that this process is part of."""
    import daft

    daft.set_runner_ray(noop_if_initialized=True)


@contextlib.contextmanager
def temporary_folder(settings: Settings) -> Iterator[Path | None]:
    """A short-named folder for a Ray started here; None when a cluster is joined."""
    if settings.ray.address is not None:
        yield None
        return
    parent = Path(tempfile.gettempdir())
    if len(str(parent / _FOLDER_PREFIX)) + _RANDOM_CHARACTERS > FOLDER_CHARACTERS_MAX:
        parent = Path("/tmp")  # noqa: S108 - mkdtemp makes a private folder in it
    _remove_ownerless_folders(parent)
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX, dir=parent))
    if settings.http.ingress == "serve":
        _set_haproxy_apart(folder)
    # The lock is held for as long as this process lives, however it ends.
    with (folder / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_ownerless_folders(parent: Path) -> None:
    """Remove what processes that were killed have left behind."""
    for folder in parent.glob(f"{_FOLDER_PREFIX}*"):
        # Another user's, or one that goes away or is being made at this moment.
        with contextlib.suppress(OSError), (folder / _LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def _set_haproxy_apart(folder: Path) -> None:
    """Give HAProxy files and ports of its own: its usual ones are the same for every Serve.

    Its administration socket, which anyone may use, is in a folder that only we may. Ray adds 57
    characters to the folder, and HAProxy ends a socket's path at 97: hence the names.
    """
    wanted = {
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "a"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "m"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder / ""),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
    }
    names = ("RAY_SERVE_HAPROXY_METRICS_PORT", "RAY_SERVE_HAPROXY_STATS_PORT")
    wanted |= dict(zip(names, map(str, _free_ports(len(names))), strict=True))
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


def _free_ports(count: int) -> list[int]:
    """Ports that are free, and that nobody is given who asks the system, or Ray, for any."""
    found: list[int] = []
    for port in random.SystemRandom().sample(_QUIET_PORTS, len(_QUIET_PORTS)):
        if len(found) == count:
            break
        with contextlib.suppress(OSError):
            socket.create_server(("", port)).close()
            found.append(port)
    return found
