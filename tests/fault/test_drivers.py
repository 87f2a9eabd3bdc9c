"""Real driver processes, killed, stopped and left without an owner.

After each fault the job is done from the items that had ended, it is committed once, and no process
is left.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from actors.jobs_model import JobState
from tests.fault.jobs_owner import scripted
from tests.unit.job_fakes import DATABASE, Owned, submission

pytestmark = pytest.mark.anyio

GONE_S = 10.0
SECRET = "secret-of-the-storage"


def script_in(folder: Path, **script: Any) -> str:
    """A script for a driver."""
    return json.dumps({"folder": str(folder), "items": 4, **script})


def computed(folder: Path) -> list[str]:
    """Which attempt did which item, in order."""
    path = folder / "computed"
    return path.read_text().split() if path.exists() else []


def left_over(folder: Path) -> list[int]:
    """Processes of drivers that are there."""
    pids = [int(text) for text in (folder / "pids").read_text().split()]
    return [pid for pid in pids if is_alive(pid)]


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def until(reached: Callable[[], bool], seconds: float = GONE_S) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "never reached"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def owner_of(tmp_path: Path, script: str, **changes: Any) -> AsyncIterator[Owned]:
    owner = scripted(tmp_path / "root", script, **changes)
    try:
        yield owner
    finally:
        await owner.jobs.close()


async def test_a_driver_does_its_job_and_is_gone(tmp_path: Path) -> None:
    async with owner_of(tmp_path, script_in(tmp_path)) as owner:
        job = await owner.until_over(await owner.jobs.submit(submission()))
        assert job.state is JobState.DONE, job.failure
        assert job.metric("items_done") == 4 and job.attempt == 1
        assert computed(tmp_path) == ["1:0", "1:1", "1:2", "1:3"]
        assert left_over(tmp_path) == []


@pytest.mark.parametrize("kind", ["die", "exit"])
@pytest.mark.parametrize("moment", ["environment", "plan", "compute", "end"])
async def test_a_driver_that_dies_is_replaced(tmp_path: Path, moment: str, kind: str) -> None:
    script = script_in(tmp_path, faults={f"1:{moment}": kind})
    async with owner_of(tmp_path, script) as owner:
        job_id = await owner.jobs.submit(submission())
        job = await owner.until_over(job_id)
        assert job.state is JobState.DONE, job.failure
        assert job.attempt == 2 and job.metric("items_done") == 4
        # No item was done twice.
        assert sorted(line.partition(":")[2] for line in computed(tmp_path)) == list("0123")
        assert list(owner.views.commits) == [job_id]
        await until(lambda: left_over(tmp_path) == [])
        events = (await owner.jobs.events(DATABASE, job_id, 100)).items
        why = "killed by signal 9" if kind == "die" else "exit code 3"
        assert any(why in event.message for event in events)


@pytest.mark.parametrize("kind", ["hang", "stop"])
@pytest.mark.parametrize("moment", [pytest.param("plan", marks=pytest.mark.soak), "compute"])
async def test_a_driver_that_makes_no_progress_is_replaced(
    tmp_path: Path, moment: str, kind: str
) -> None:
    script = script_in(tmp_path, faults={f"1:{moment}": kind})
    # Heartbeats come every two seconds.
    times = {"jobs": {"stall_timeout_s": 4}, "views": {"item_timeout_s": 0.5}}
    async with owner_of(tmp_path, script, **times) as owner:
        job_id = await owner.jobs.submit(submission())
        await until(lambda: (tmp_path / "pids").exists())
        job = await owner.until(job_id, lambda job: job.state.is_over, 40)
        assert job.state is JobState.DONE, job.failure
        assert job.attempt == 2 and job.metric("items_done") == 4
        assert left_over(tmp_path) == []


@pytest.mark.parametrize("deaf", [False, True], ids=["obeys", "is deaf"])
async def test_a_cancelled_driver_is_gone_when_its_job_is_over(tmp_path: Path, deaf: bool) -> None:
    script = script_in(tmp_path, item_s=0.05, items=2_000, deaf=deaf)
    async with owner_of(tmp_path, script) as owner:
        job_id = await owner.jobs.submit(submission())
        await owner.until(job_id, lambda job: job.metric("items") > 0)
        assert len(left_over(tmp_path)) == 2
        await owner.jobs.cancel(DATABASE, job_id)
        assert (await owner.until_over(job_id)).state is JobState.CANCELLED
        assert left_over(tmp_path) == [] and not owner.views.commits


async def test_a_paused_job_goes_on_from_its_items(tmp_path: Path) -> None:
    script = script_in(tmp_path, item_s=0.05, items=20)
    async with owner_of(tmp_path, script) as owner:
        job_id = await owner.jobs.submit(submission())
        await owner.until(job_id, lambda job: job.metric("items") >= 2)
        await owner.jobs.pause(DATABASE, job_id)
        await owner.until_state(job_id, JobState.PAUSED)
        assert left_over(tmp_path) == []
        await owner.jobs.resume(DATABASE, job_id)
        job = await owner.until_over(job_id)
        assert job.state is JobState.DONE and job.metric("items_done") == 20
        # The item that was being done when the job was paused may have been for nothing.
        assert 20 <= len(computed(tmp_path)) <= 21


async def test_what_a_driver_prints_disturbs_nothing(tmp_path: Path) -> None:
    script = script_in(tmp_path, faults={"1:plan": "babble"})
    async with owner_of(tmp_path, script) as owner:
        job = await owner.until_over(await owner.jobs.submit(submission()))
        assert job.state is JobState.DONE and job.attempt == 1


async def test_no_driver_outlives_its_owner_and_the_next_owner_goes_on(tmp_path: Path) -> None:
    script = script_in(tmp_path, item_s=0.05, items=60)
    command = [sys.executable, "-m", "tests.fault.jobs_owner", str(tmp_path / "root"), script]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        job_id = process.stdout.readline().strip()
        await until(lambda: len(computed(tmp_path)) >= 10)
        assert len(left_over(tmp_path)) == 2
    finally:
        process.kill()
        process.stdout.close()
        process.wait()
    await until(lambda: left_over(tmp_path) == [])
    done_first = len(computed(tmp_path))
    async with owner_of(tmp_path, script) as owner:
        job = await owner.until(job_id, lambda job: job.state.is_over, 40)
        assert job.state is JobState.DONE, job.failure
        assert job.attempt == 2 and job.metric("items_done") == 60
        # What the first owner had not stored yet, at most the last interval, is done again.
        again = len(computed(tmp_path)) - 60
        assert 0 <= again < done_first
        assert list(owner.views.commits) == [job_id]
    assert left_over(tmp_path) == []


async def test_secrets_are_in_no_command_line_environment_or_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESTRIER_ADMIN_KEY", SECRET)
    script = script_in(tmp_path, item_s=0.05, items=2_000)
    storage = {"root": str(tmp_path / "root"), "options": {"aws_secret_access_key": SECRET}}
    async with owner_of(tmp_path, script, storage=storage) as owner:
        job_id = await owner.jobs.submit(submission())
        await owner.until(job_id, lambda job: job.metric("items") > 0)
        driver = psutil.Process(left_over(tmp_path)[0])
        assert SECRET not in " ".join(driver.cmdline())
        assert SECRET not in driver.environ().values()
        await owner.jobs.cancel(DATABASE, job_id)
        await owner.until_over(job_id)
    for folder, _, names in os.walk(tmp_path / "root"):
        for name in names:
            assert SECRET.encode() not in (Path(folder) / name).read_bytes()
