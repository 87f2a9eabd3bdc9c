"""A running server with views, what of it tests look at and kill, and what must be left in the end.

Two things go on beside every test: a writer and reader of a table that no view reads, which must be
answered rightly all the time; and a look at every process that the server has, so that those which
have left its tree are known.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyarrow as pa
import pytest
from ray._private.state import GlobalState
from ray._raylet import GcsClientOptions

from cluster.naming import JOB_ACTOR, TABLE_PREFIX
from tests.clients.plain_http import Database
from tests.clients.running_server import RunningServer, running_server
from tests.fault.troubled_code import LEFT_BEHIND
from udtf import ViewClient
from udtf.child_loop import PROCESS_NAME
from udtf.view_jobs import JobStatus, RefreshJob

DATABASE = "views"
WAIT_S = 60.0
SETTLED_S = 15.0
# Workers, and what plans for Daft's, which a driver that waits for a job has one of each.
_WORKERS = ("UDFActor", "PlanWorker", "ray::_do_items")
_PLANNERS = ("RaySwordfishActor", "FlotillaRunner")
# Begins the names of the folders of processes that run code.
_CODE = "destrier-code-"
_DRIVER = "actors.view_driver"
_LOOK_S = 0.2
_ASK_S = 0.25
_ANSWER_S_MAX = 20.0

SETTINGS = {
    "VIEWS_ITEM_TIMEOUT_S": "6",
    "VIEWS_STOPPING_TIMEOUT_S": "3",
    "VIEWS_ENVIRONMENT_VARIABLES": "MODE",
    "JOBS_FLUSH_INTERVAL_S": "0.2",
    "JOBS_STALL_TIMEOUT_S": "8",
}


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def title(process: psutil.Process) -> str:
    """What the process calls itself; nothing if it has ended."""
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""


def name(process: psutil.Process) -> str:
    """What the process is called in lists; nothing if it has ended."""
    try:
        return str(process.name())
    except psutil.Error:
        return ""


def until(reached: Callable[[], Any], seconds: float = WAIT_S) -> Any:
    """What `reached` returns once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := reached()):
        assert time.monotonic() < deadline, "never reached"
        time.sleep(0.01)
    return found


class Processes:
    """Every process that was below this one at some time since the block began."""

    def __init__(self) -> None:
        self._seen: set[psutil.Process] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_forever)

    def __enter__(self) -> "Processes":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def below(self) -> list[psutil.Process]:
        """Those that are below this one now."""
        found = psutil.Process().children(recursive=True)
        self._seen |= set(found)
        return [process for process in found if is_alive(process)]

    def named(self, *names: str) -> list[psutil.Process]:
        """Those whose titles hold one of the names."""
        found = [(process, title(process)) for process in self.below()]
        return [process for process, text in found if any(name in text for name in names)]

    def drivers(self) -> list[psutil.Process]:
        """Drivers, one that waits for a job included, without their guards."""
        found = self.named(_DRIVER)
        ids = {process.pid for process in found}
        return [process for process in found if process.ppid() in ids]

    def escaped(self) -> list[psutil.Process]:
        """Those that live and are below this one no more."""
        below = set(self.below())
        self._seen = {process for process in self._seen if is_alive(process)}
        return [process for process in self._seen - below if is_alive(process)]

    def _look_forever(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self.below()


def left_behind() -> list[int]:
    """Processes that the code of views has started, anywhere on this machine."""
    since = psutil.Process().create_time()
    found = [process for process in psutil.process_iter() if LEFT_BEHIND in title(process)]
    return [process.pid for process in found if process.create_time() >= since]


class Bystander:
    """Writes into a table and reads it back, all the time; `check` says whether that went well."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._row = pa.table({"n": [0]})
        self._rows = 0
        self._slowest_s = 0.0
        self._wrong: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask_forever)
        database.create("bystander", self._row)

    def __enter__(self) -> "Bystander":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def check(self) -> None:
        """Assert that every answer since the last check was right and in time."""
        before = self._rows
        until(lambda: self._rows > before or self._wrong, _ANSWER_S_MAX)
        assert self._wrong == []
        assert self._slowest_s < _ANSWER_S_MAX

    def _ask_forever(self) -> None:
        while not self._ended.wait(_ASK_S):
            started = time.monotonic()
            try:
                self._database.insert("bystander", self._row)
                counted = self._database.count("bystander")
            except (AssertionError, httpx.HTTPError) as error:
                self._wrong.append(repr(error))
                continue
            self._rows += 1
            if counted != self._rows + 1:
                self._wrong.append(f"{counted} rows instead of {self._rows + 1}")
            self._slowest_s = max(self._slowest_s, time.monotonic() - started)


class Cluster:
    """What the server's Ray says of itself, asked from outside."""

    def __init__(self, processes: Processes) -> None:
        (raylet,) = processes.named("/raylet/raylet ")
        option = "--gcs-address="
        address = next(a for a in raylet.cmdline() if a.startswith(option)).removeprefix(option)
        options = GcsClientOptions.create(
            address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=True
        )
        self._state: Any = GlobalState()
        self._state._initialize_global_state(options)

    def used(self) -> Mapping[str, float]:
        """Resources that someone has, by name."""
        total, free = self._state.cluster_resources(), self._state.available_resources()
        used = {name: total[name] - free.get(name, 0.0) for name in ("CPU", "memory")}
        return {name: amount for name, amount in used.items() if amount > 0}

    def process_of(self, prefix: str) -> psutil.Process:
        """The process of the living actor whose name begins so."""

        def look() -> psutil.Process | None:
            for actor in self._state.actor_table(None, None, "ALIVE").values():
                if actor["Name"].startswith(prefix) and actor["Pid"]:
                    return psutil.Process(actor["Pid"])
            return None

        found: psutil.Process = until(look)
        return found

    def table_owners(self) -> list[psutil.Process]:
        """The processes of the owners of all tables, and of one that waits for a table."""
        prefix = f"{TABLE_PREFIX}{DATABASE}/"
        return [
            psutil.Process(actor["Pid"])
            for actor in self._state.actor_table(None, None, "ALIVE").values()
            if actor["Name"].startswith(prefix) and actor["Pid"]
        ]

    def jobs_owner(self) -> psutil.Process:
        """The process of the owner of jobs."""
        return self.process_of(JOB_ACTOR)


class ServedViews:
    """A server's views as their client sees them, and what is behind them."""

    def __init__(
        self, server: RunningServer, processes: Processes, database: Database, temporary: Path
    ) -> None:
        self.server = server
        self.processes = processes
        self.database = database
        self._temporary = temporary
        self.cluster = Cluster(processes)
        self.views = ViewClient(server.url, api_key=server.admin_key, database=DATABASE)

    def shown(self, view: str) -> list[int]:
        """The column `out` of a view, in order."""
        rows: list[int] = self.views.rows(view)["out"].to_pylist()
        return sorted(rows)

    def over(self, job: RefreshJob, seconds: float = WAIT_S) -> JobStatus:
        """The job once it is over."""

        def look() -> JobStatus | None:
            status = job.status()
            return status if status.is_over else None

        status: JobStatus = until(look, seconds)
        return status

    def done(self, job: RefreshJob) -> JobStatus:
        """The job, which must have been done."""
        status = self.over(job)
        assert status.state == "DONE", status.answer
        return status

    def until_items(self, job: RefreshJob, count: int) -> JobStatus:
        """The job once so many items are done, before it is over."""

        def look() -> JobStatus | None:
            status = job.status()
            assert not status.is_over, status.answer
            return status if status.count("items_done") >= count else None

        status: JobStatus = until(look)
        return status

    def until_phase(self, job: RefreshJob, *phases: str) -> JobStatus:
        """The job once it is in one of the phases."""

        def look() -> JobStatus | None:
            status = job.status()
            assert not status.is_over, status.answer
            return status if status.phase in phases else None

        status: JobStatus = until(look)
        return status

    def events(self, job: RefreshJob, kind: str) -> list[str]:
        """What the events of a kind say, oldest first."""
        answer = self.database.post(
            "jobs/query_events", {"job_id": job.job_id, "filter": f"kind = '{kind}'"}
        )
        messages: list[str] = pa.ipc.open_stream(answer.content).read_all()["message"].to_pylist()
        return messages

    def check_settled(self) -> None:
        """Assert that nothing of a refresh is left soon, but a driver that waits for the next."""
        deadline = time.monotonic() + SETTLED_S
        while left := self._left():
            assert time.monotonic() < deadline, left
            time.sleep(0.1)

    def _left(self) -> dict[str, Any]:
        workers = self.processes.named(*_WORKERS)
        planners = [p for name in _PLANNERS for p in self.processes.named(name)[1:]]
        drivers = self.processes.drivers()
        # Of processes that wait for code there is one for each worker of such a driver.
        code = [p for p in psutil.process_iter() if f"{self._temporary}/{_CODE}" in title(p)]
        titles = " ".join(map(title, code))
        folders = list(self._temporary.glob(f"{_CODE}*"))
        left = {
            "workers": [title(process) for process in workers + planners],
            "drivers": [process.pid for process in drivers[1:]],
            "code": [title(process) for process in code if name(process) == PROCESS_NAME],
            "of code": left_behind(),
            # A guard leaves its worker as soon as it stands.
            "escaped": [title(p) for p in self.processes.escaped() if p not in code],
            "folders": [str(folder) for folder in folders if str(folder) not in titles],
            "used": self.cluster.used(),
        }
        return {kind: found for kind, found in left.items() if found}


@contextmanager
def serving_views(
    folder: Path, processes: Processes, temporary: Path, **settings: str
) -> Iterator[ServedViews]:
    """A running server, whose processes make temporary folders in `temporary`, and a client."""
    with (
        _temporary_files_in(temporary),
        running_server(folder, **{**SETTINGS, **settings}) as server,
        Database(server, DATABASE) as database,
    ):
        served = ServedViews(server, processes, database, temporary)
        try:
            yield served
        finally:
            served.views.close()


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        yield
