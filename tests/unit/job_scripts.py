"""What drivers in tests of jobs say and do."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from tests.unit.job_fakes import FakeDriver, item, planned, publish
from udtf.refresh_model import ItemState

Messages = AsyncIterator[Mapping[str, Any]]


async def die_before_all(driver: FakeDriver) -> Messages:
    yield planned()


async def die_after_one(driver: FakeDriver) -> Messages:
    yield planned()
    yield item(1)


async def hang(driver: FakeDriver) -> Messages:
    yield planned()
    yield item(1)
    await asyncio.Event().wait()


async def say_nothing(driver: FakeDriver) -> Messages:
    await asyncio.Event().wait()
    yield {}


async def wait_for_cancel(driver: FakeDriver) -> Messages:
    yield planned()
    yield item(1)
    await driver.cancelled.wait()


async def skip_one(driver: FakeDriver) -> Messages:
    yield planned()
    yield item(1)
    yield item(2, ItemState.SKIPPED)
    yield publish(driver.task["job_id"])


async def fail(driver: FakeDriver) -> Messages:
    yield {"type": "phase", "phase": "compute"}
    yield planned()
    yield item(1)
    yield item(2, ItemState.FAILED)
    yield {
        "type": "failed",
        "phase": "compute",
        "message": "part 2: ValueError: bad row",
        "error_type": "ValueError",
        "retryable": False,
        "item": "i2",
    }
