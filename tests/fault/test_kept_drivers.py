"""Drivers that go on to the next job, as processes: which is used, kept, replaced and ended."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.driver_process import DriverProcess, DriverProcesses
from actors.view_driver import WAITS_FOR_MORE, Owner
from tests.contract.domain import make_settings
from tests.processes import OwnProcesses

pytestmark = pytest.mark.anyio

MODULE = "tests.fault.test_kept_drivers"
WAIT_S = 20.0


def drive(descriptor: int) -> None:
    """A driver that answers each message with its own process id, and goes on if the job says."""
    said = Owner(os.fdopen(0, "rb"))
    while True:
        message, _ = said.next()
        more = message.get("attempt") == 1
        answer = {"type": message.get("type", "task"), "pid": os.getpid(), WAITS_FOR_MORE: more}
        os.write(descriptor, json.dumps(answer).encode() + b"\n")
        if not more and "type" not in message:
            time.sleep(600)


def job(number: int, *, goes_on: bool = True) -> dict[str, Any]:
    attempt = 1 if goes_on else 2
    names = ("view_uri", "runner", "ray_address", "ray_namespace")
    task: dict[str, Any] = dict.fromkeys(names, "")
    return {**task, "job_id": f"j{number}", "attempt": attempt, "options": {}, "view_metadata": {}}


@asynccontextmanager
async def drivers(tmp_path: Path, spare_driver_s: float = 60) -> AsyncIterator[DriverProcesses]:
    settings = make_settings(tmp_path, jobs={"spare_driver_s": spare_driver_s})
    found = DriverProcesses(settings, MODULE)
    try:
        yield found
    finally:
        await found.close()


async def done(found: DriverProcesses, number: int, **options: Any) -> tuple[DriverProcess, int]:
    """A driver that has done a job, and its process; it has not been released."""
    driver = await found.start(job(number, **options))
    while (answer := await driver.next()) is not None:
        if answer["type"] == "task":
            return driver, answer["pid"]
    raise AssertionError(driver.ending())


async def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_a_driver_that_waits_for_more_gets_the_next_job(
    tmp_path: Path, own: OwnProcesses
) -> None:
    async with drivers(tmp_path) as found:
        first, pid = await done(found, 1)
        await first.release()
        assert first.is_alive()
        await found.get_ready()
        second, again = await done(found, 2)
        assert again == pid and second is first
        # Two jobs at a time: the other one has a driver of its own.
        third, other = await done(found, 3)
        assert other != pid
        await second.release()
        await third.release()
        assert second.is_alive() and not third.is_alive()
        fourth, last = await done(found, 4)
        assert last == pid
        await fourth.kill()
    assert own.alive() == []


async def test_a_driver_that_does_not_wait_is_ended_and_another_made_ready(
    tmp_path: Path, own: OwnProcesses
) -> None:
    async with drivers(tmp_path) as found:
        driver, pid = await done(found, 1, goes_on=False)
        await driver.release()
        assert not driver.is_alive()
        await until(lambda: len(own.named(MODULE)) >= 1)
        second, other = await done(found, 2)
        assert other != pid
        await second.kill()
    assert own.alive() == []


async def test_a_driver_that_is_kept_in_vain_is_ended_and_not_replaced(
    tmp_path: Path, own: OwnProcesses
) -> None:
    async with drivers(tmp_path, spare_driver_s=0.3) as found:
        driver, _ = await done(found, 1)
        await driver.release()
        await until(lambda: not driver.is_alive())
        await asyncio.sleep(0.5)
        assert own.alive() == []


async def test_a_driver_that_died_while_it_waited_is_not_used(tmp_path: Path) -> None:
    async with drivers(tmp_path) as found:
        driver, pid = await done(found, 1)
        await driver.release()
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not driver.is_alive())
        second, other = await done(found, 2)
        assert other != pid
        await second.kill()


if __name__ == "__main__":
    drive(int(sys.argv[1]))
