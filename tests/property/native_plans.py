"""Daft's native runner in the place of the cluster: the same plans, in this process."""

import asyncio
import os
from collections.abc import Sequence

from actors.distributed import ScanTarget
from actors.engines import is_distributed
from actors.model import Counted, ScanRequest
from actors.owners import LocalOwners
from actors.plan_runner import PlannedRows, PlanRunner
from actors.row_changes import RowWork
from actors.server import Server
from actors.staging import StagedRewrite
from cluster.clock import SystemClock
from cluster.settings import Engine, Settings

WORKERS = 2


class NativePlans:
    """Distributed reads and staging, with two workers that are threads."""

    def __init__(self, settings: Settings) -> None:
        # Daft tells its makers of every import and plan unless this is set before.
        os.environ.setdefault("DAFT_ANALYTICS_ENABLED", "0")
        from actors.daft_plans import run_items

        self._settings = settings
        self._runner = PlanRunner(settings, run_items, WORKERS)

    async def takes(self, engine: Engine | None, rows: int) -> bool:
        return is_distributed(engine, self._settings.engine, rows, 1 << 60, 1)

    async def stage(
        self,
        uri: str,
        branch: str | None,
        version: int,
        work: RowWork,
        fragments: Sequence[int],
    ) -> StagedRewrite:
        return await asyncio.to_thread(self._runner.stage, uri, branch, version, work, fragments)

    async def count_rows(self, target: ScanTarget, predicate: str) -> Counted:
        count = await asyncio.to_thread(self._runner.count, target, predicate)
        return Counted(count, target.version)

    async def scan(self, target: ScanTarget, request: ScanRequest) -> PlannedRows:
        return await asyncio.to_thread(self._runner.scan, target, request)


def native_server(settings: Settings) -> Server:
    """A server in this process, whose engine `daft` is the native runner."""
    clock = SystemClock()
    plans = NativePlans(settings)
    return Server(settings, LocalOwners(settings, clock, plans), clock, plans)
