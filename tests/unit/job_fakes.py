"""An owner of jobs over real tables in a temporary folder, with drivers and views that are played.

A test scripts each driver: what it says, when, and how it ends.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from actors.auto_refresh import SourceChange
from actors.job_journal import Journal
from actors.job_ports import FoundView, PublishedView
from actors.job_run import RunnerAddress, Surroundings
from actors.job_store import Batch, JobStore, jobs_storage
from actors.jobs import Jobs
from actors.jobs_model import Job, JobState, Submission, WatchedView
from actors.model import TableLocation
from actors.stored_json import to_json
from cluster.clock import Clock, SystemClock
from cluster.errors import DestrierError
from cluster.identifiers import TableRef
from cluster.settings import Settings
from udtf.refresh_model import (
    ItemError,
    ItemState,
    ItemStatus,
    PublishRequest,
    RefreshMode,
    RefreshSummary,
    Runner,
    SourceLocation,
    Watermark,
)

DATABASE = "db"
VIEW = ("v",)
LOCATION = TableLocation("/root/db/v.lance", "life-1")
QUICK = {
    "jobs": {
        "flush_interval_s": 0.02,
        "stall_timeout_s": 0.4,
        "auto_refresh_interval_s": 3_600,
    },
    "views": {"stopping_timeout_s": 0.3, "item_timeout_s": 0.4},
}

Script = Callable[["FakeDriver"], AsyncIterator[Mapping[str, Any]]]


def submission(**changes: Any) -> Submission:
    """A refresh of the tests' view."""
    values: dict[str, Any] = {"database": DATABASE, "view_id": VIEW, "view": LOCATION} | changes
    return Submission(**values)


def planned(items: int = 2, key: str = "key", version: int = 7) -> dict[str, Any]:
    """What a driver says when it has planned."""
    summary = RefreshSummary(RefreshMode.REBUILD, "the first refresh", version, items, 20, key)
    return {"type": "planned", **to_json(summary)}


def fragment(number: int) -> str:
    """What names a fragment that was written, with one file."""
    return json.dumps({"files": [{"path": f"f{number}"}]})


def item(number: int, state: ItemState = ItemState.DONE) -> dict[str, Any]:
    """What a driver says of an item that ended."""
    error = None if state is ItemState.DONE else ItemError("user", "ValueError", "bad row")
    files = (fragment(number),)
    status = ItemStatus(f"i{number}", state, 1, 10, 5, files, error, f"part {number}")
    return {"type": "item", **status.to_json()}


def publish(job_id: str, version: int = 7) -> dict[str, Any]:
    """What a driver says when all is computed."""
    mark = Watermark(("s",), "/s", None, version, 1, "d", None, None, None, job_id, 1)
    files = (fragment(1), fragment(2))
    request = PublishRequest(job_id, 1, RefreshMode.REBUILD, True, None, files, 10, mark)
    return {"type": "publish", "request": to_json(request), "summary": None}


async def succeed(driver: "FakeDriver") -> AsyncIterator[Mapping[str, Any]]:
    """A driver that does two items."""
    yield {"type": "phase", "phase": "plan"}
    yield planned()
    yield {"type": "phase", "phase": "compute"}
    done = {status["id"] for status in driver.task["done_items"]}
    for number in (1, 2):
        if f"i{number}" not in done:
            driver.computed.append(number)
            yield item(number)
    yield publish(driver.task["job_id"])


class FakeDriver:
    """Plays one script (job_ports.Driver)."""

    def __init__(self, task: Mapping[str, Any], script: Script) -> None:
        self.task = task
        self.cancelled = asyncio.Event()
        self.killed = asyncio.Event()
        self.computed: list[int] = []
        self._messages = script(self)

    async def next(self) -> Mapping[str, Any] | None:
        """The script's next message."""
        return await anext(self._messages, None)

    async def cancel(self) -> None:
        """The script may look."""
        self.cancelled.set()

    async def release(self) -> None:
        """The end."""
        await self.kill()

    async def kill(self) -> None:
        """The end."""
        self.killed.set()

    def ending(self) -> str:
        """How."""
        return "exit code 1; its last words: out of luck"


class FakeDrivers:
    """Starts the scripts in order, the last one again and again (job_ports.Drivers)."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts) or [succeed]
        self.started: list[FakeDriver] = []

    async def start(self, task: Mapping[str, Any]) -> FakeDriver:
        """The next script."""
        # As a driver process gets it.
        plain: Mapping[str, Any] = to_json(task)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        driver = FakeDriver(plain, script)
        self.started.append(driver)
        return driver

    async def get_ready(self) -> None:
        """None is kept."""

    async def close(self) -> None:
        """Nothing is kept."""


class FakeViews:
    """One view with a source (job_ports.JobViews, auto_refresh.SourceChanges)."""

    def __init__(self, metadata: Mapping[str, str] | None = None) -> None:
        self.metadata = metadata or {}
        self.location = LOCATION
        self.version = 7
        self.change = SourceChange(0, 100)
        self.find_error: BaseException | None = None
        self.publish_errors: list[DestrierError] = []
        self.discard_errors: list[DestrierError] = []
        self.discarded: list[tuple[str, tuple[str, ...]]] = []
        self.publish_gate: asyncio.Event | None = None
        self.commits: dict[str, int] = {}
        self.calls = 0

    async def find(self, view: TableRef) -> FoundView:
        """The view."""
        if self.find_error is not None:
            raise self.find_error
        return FoundView(self.location, self.metadata, SourceLocation(("s",), "/s"), 3)

    async def source_version(self, view: TableRef) -> int:
        """Its source's."""
        return self.version

    async def submission(self, view: TableRef) -> Submission:
        """A refresh."""
        return submission(database=view.database, view_id=view.id.parts)

    async def since_refresh(self, view: WatchedView) -> SourceChange:
        """What the test says."""
        return self.change

    async def publish(
        self, view: TableRef, location: TableLocation, request: PublishRequest
    ) -> PublishedView:
        """Commit once per job."""
        self.calls += 1
        if self.publish_gate is not None:
            await self.publish_gate.wait()
        if self.publish_errors:
            raise self.publish_errors.pop(0)
        version = self.commits.setdefault(request.job_id, 10 + len(self.commits))
        return PublishedView(version, 4)

    async def discard(self, submission: Submission, job_id: str, kept: Sequence[str]) -> int:
        """Note it."""
        if self.discard_errors:
            raise self.discard_errors.pop(0)
        self.discarded.append((job_id, tuple(kept)))
        return 1


class FakeCapacity:
    """Nodes as a test wants them (job_ports.Capacity)."""

    def __init__(self, total: Mapping[str, float], free: Mapping[str, float] | None = None) -> None:
        self.total = total
        self.now_free = total if free is None else free

    async def totals(self) -> Sequence[Mapping[str, float]]:
        """One node."""
        return [self.total]

    async def free(self) -> Sequence[Mapping[str, float]]:
        """What it has left."""
        return [self.now_free]


def quick_settings(root: Path, **changes: dict[str, Any]) -> Settings:
    """Settings over a folder with short times, and what a test wants otherwise."""
    sections: dict[str, dict[str, Any]] = {**QUICK, "storage": {"root": str(root)}}
    for section, values in changes.items():
        sections[section] = {**sections.get(section, {}), **values}
    return Settings.model_validate(sections)


class Owned:
    """An owner of jobs and what it uses."""

    def __init__(
        self,
        root: Path,
        drivers: Any,
        fake_views: FakeViews | None = None,
        capacity: FakeCapacity | None = None,
        clock: Clock | None = None,
        **changes: Any,
    ) -> None:
        self.settings = quick_settings(root, **changes)
        self.drivers = drivers
        self.views = fake_views or FakeViews()
        self.store = JobStore(jobs_storage(self.settings))
        self.journal = Journal(self.store, clock or SystemClock(), self.settings.jobs)
        around = Surroundings(
            self.settings,
            self.journal,
            self.views,
            drivers,
            capacity,
            RunnerAddress(Runner.NATIVE),
        )
        self.jobs = Jobs(self.store, self.journal, around, self.views)

    def refuse_to_store(self, which: Callable[[Batch], bool], *errors: DestrierError) -> None:
        """Have the tables of jobs refuse the batches that a test picks, one for each error."""
        write, left = self.store.write, list(errors)

        def refusing(batch: Batch) -> None:
            if left and which(batch):
                raise left.pop(0)
            write(batch)

        self.store.write = refusing  # type: ignore[method-assign]

    async def until(self, job_id: str, reached: Callable[[Job], bool], seconds: float = 20) -> Job:
        """Wait until the job is as wanted."""
        for _ in range(int(seconds * 100)):
            job = await self.jobs.describe(DATABASE, job_id)
            if reached(job):
                return job
            await asyncio.sleep(0.01)
        raise AssertionError(f"never reached: {job}")

    async def until_over(self, job_id: str) -> Job:
        """Wait for the job's end."""
        return await self.until(job_id, lambda job: job.state.is_over)

    async def until_state(self, job_id: str, state: JobState) -> Job:
        """Wait for a state."""
        return await self.until(job_id, lambda job: job.state is state)


@asynccontextmanager
async def owned(root: Path, *scripts: Script, **options: Any) -> AsyncIterator[Owned]:
    """An owner that is closed in the end."""
    owner = Owned(root, FakeDrivers(*scripts), **options)
    try:
        yield owner
    finally:
        await owner.jobs.close()
