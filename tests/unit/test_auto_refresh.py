"""When views are refreshed by themselves; the clock is the test's."""

import asyncio
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from actors import job_views
from actors.auto_refresh import AutoRefresh, SourceChange
from actors.jobs_model import Job, JobPhase, JobState, Submission, ViewHistory, WatchedView
from actors.model import TableLocation
from cluster.errors import ServiceUnavailable, TableNotFound
from cluster.settings import JobSettings
from tests.clients.manual_clock import ManualClock
from udtf.refresh_model import Watermark
from udtf.sources import version_timestamp

pytestmark = pytest.mark.anyio

VIEW = WatchedView("db", ("v",))
NO_CHANGE = SourceChange(0, 500)
ALL_CHANGED = SourceChange(500, 500)
LIMITS = JobSettings(
    auto_refresh_rows=100,
    auto_refresh_fraction=0.1,
    auto_refresh_staleness_s=3_600,
    auto_refresh_cooldown_s=300,
    auto_refresh_failures_max=5,
)


@dataclass
class World:
    """A view with a source, and what was submitted for it."""

    clock: ManualClock = field(default_factory=ManualClock)
    change: SourceChange | Exception = NO_CHANGE
    history: ViewHistory = field(default_factory=ViewHistory)
    submitted: list[str] = field(default_factory=list)
    looks: int = 0

    def __post_init__(self) -> None:
        self.auto = AutoRefresh(LIMITS, self, self.clock, self.submit)
        self.auto.watch(VIEW)

    async def since_refresh(self, view: WatchedView) -> SourceChange:
        self.looks += 1
        if isinstance(self.change, Exception):
            raise self.change
        return self.change

    async def submit(self, view: WatchedView, reason: str) -> None:
        self.submitted.append(reason)

    async def look(self) -> int:
        """How many refreshes this look starts."""
        before = len(self.submitted)
        await self.auto.look(lambda view: self.history)
        return len(self.submitted) - before

    def ended(self, state: JobState = JobState.DONE, **history: Any) -> None:
        """A refresh ended just now."""
        now_ms = int(self.clock.time() * 1000)
        submission = Submission("db", ("v",), TableLocation("/v"))
        job = Job("j", submission, state, JobPhase.DONE, now_ms, now_ms, ended_ms=now_ms)
        self.history = ViewHistory(recent=(job,), **history)


@pytest.mark.parametrize(
    ("changed", "rows", "due"),
    [
        (0, 500, False),
        (99, 500, False),
        (100, 500, True),
        # A tenth of a large source is more than the least number.
        (100, 5_000, False),
        (500, 5_000, True),
        # Everything was deleted.
        (400, 0, True),
    ],
)
async def test_enough_changed_rows_start_a_refresh(changed: int, rows: int, due: bool) -> None:
    world = World(change=SourceChange(changed, rows))
    assert await world.look() == due
    if due:
        assert world.submitted == [f"{changed} of {rows} source rows changed"]


async def test_any_change_starts_a_refresh_in_the_end() -> None:
    world = World(change=SourceChange(1, 500))
    assert await world.look() == 0
    world.clock.advance(3_599)
    assert await world.look() == 0
    world.clock.advance(1)
    assert await world.look() == 1
    # The next change has all its time again.
    world.ended()
    world.clock.advance(301)
    assert await world.look() == 0


async def test_a_source_that_has_not_changed_does_not_age() -> None:
    world = World(change=SourceChange(1, 500))
    await world.look()
    world.change = SourceChange(0, 500)
    world.clock.advance(4_000)
    assert await world.look() == 0
    world.change = SourceChange(1, 500)
    assert await world.look() == 0


async def test_nothing_starts_before_the_cooldown_is_over() -> None:
    world = World(change=SourceChange(500, 500))
    world.ended()
    world.clock.advance(299)
    assert await world.look() == 0
    world.clock.advance(1)
    assert await world.look() == 1


async def test_each_failure_in_a_row_doubles_the_cooldown() -> None:
    world = World(change=SourceChange(500, 500))
    world.ended(JobState.FAILED, failures_in_a_row=3)
    world.clock.advance(8 * 300 - 1)
    assert await world.look() == 0
    world.clock.advance(1)
    assert await world.look() == 1


async def test_a_suspended_view_is_left_alone() -> None:
    world = World(change=SourceChange(500, 500))
    world.ended(JobState.FAILED, failures_in_a_row=5, suspended=True)
    world.clock.advance(1e6)
    assert await world.look() == 0 and world.looks == 0


async def test_a_view_with_a_live_job_is_left_alone() -> None:
    world = World(change=SourceChange(500, 500))
    world.ended()
    live = world.history.recent[0]
    world.history = ViewHistory(live=live)
    assert await world.look() == 0


class Panic(BaseException):
    """What Lance's threads end with is no Exception."""


@pytest.mark.parametrize(
    "error",
    [TableNotFound("gone"), ServiceUnavailable("away"), RuntimeError("new"), Panic("unreachable")],
    ids=repr,
)
async def test_a_view_that_cannot_be_looked_at_does_not_keep_others(error: BaseException) -> None:
    world = World()
    other = WatchedView("db", ("w",))
    world.auto.watch(other)
    changes: dict[WatchedView, SourceChange | BaseException] = {
        VIEW: error,
        other: SourceChange(500, 500),
    }

    async def since_refresh(view: WatchedView) -> SourceChange:
        change = changes[view]
        if isinstance(change, BaseException):
            raise change
        return change

    world.since_refresh = since_refresh  # type: ignore[method-assign]
    assert await world.look() == 1


@pytest.mark.parametrize("way", ["restore", "older version", "made anew"])
def test_a_source_that_went_back_has_changed(tmp_path: Path, way: str) -> None:
    """Rows of an old version have old version numbers, and there are as many."""
    uri = str(tmp_path / "source.lance")
    source = lance.write_dataset(
        pa.table({"id": range(10), "n": [0] * 10}), uri, enable_stable_row_ids=True
    )
    source.update({"n": "1"})
    moment = version_timestamp(source)
    mark = Watermark(("s",), uri, None, 2, moment, "sha", None, None, None, "job", 0)
    assert job_views.change_since(mark, source, 2) == SourceChange(0, 10)
    source.update({"n": "2"}, where="id = -1")
    assert job_views.change_since(mark, lance.dataset(uri), 2) == SourceChange(0, 10)
    if way == "restore":
        lance.dataset(uri, version=1).restore()
        now = lance.dataset(uri)
    elif way == "older version":
        now = lance.dataset(uri, version=1)
    else:
        shutil.rmtree(uri)
        for mode in ("create", "append"):
            now = lance.write_dataset(
                pa.table({"id": range(5), "n": [0] * 5}), uri, mode=mode, enable_stable_row_ids=True
            )
    assert job_views.change_since(mark, now, 2) == SourceChange(10, 10)


async def test_looking_ends_when_its_task_is_cancelled() -> None:
    world = World()

    async def since_refresh(view: WatchedView) -> SourceChange:
        raise asyncio.CancelledError

    world.since_refresh = since_refresh  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await world.look()


async def test_a_forgotten_view_is_not_looked_at() -> None:
    world = World(change=SourceChange(500, 500))
    world.auto.forget(VIEW)
    assert await world.look() == 0 and world.looks == 0
