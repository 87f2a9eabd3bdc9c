"""Reads and row changes that the cluster does: for replicas, and for the owners of tables.

A plan changes nothing that anyone can see: what it writes is uncommitted. So one that failed is run
again, once, and one that does not come back is given up at its deadline, together with the plan
actor: Daft would wait for ever for a worker that dies of its work, or hangs in it.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import ray

from actors.distributed import ScanTarget
from actors.engines import is_distributed
from actors.model import Counted, ScanRequest
from actors.plan_actor import start_plan_actor
from actors.plan_runner import PlannedRows, PlanRunner
from actors.row_changes import RowWork
from actors.staging import StagedRewrite
from actors.work_items import WorkItem
from cluster.errors import DestrierError, ServiceUnavailable
from cluster.settings import Engine, Settings

logger = logging.getLogger(__name__)

# Nodes come and go in minutes; asking for them is a call to Ray's control plane.
_CLUSTER_REMEMBERED_S = 10


class RayStaging:
    """Stages row changes on the cluster (engines.DistributedStaging)."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._cluster = _Cluster()

    async def takes(self, engine: Engine | None, rows: int) -> bool:
        """Whether a change of a table of `rows` rows is to be staged here."""
        rows_min = self._settings.engine.distributed_write_rows
        return await self._cluster.takes(engine, self._settings, rows, rows_min)

    async def stage(
        self,
        uri: str,
        branch: str | None,
        version: int,
        work: RowWork,
        fragments: Sequence[int],
    ) -> StagedRewrite:
        """Stage `work` on the fragments of a version."""
        runner = await self._cluster.runner(self._settings)
        return await asyncio.to_thread(runner.stage, uri, branch, version, work, fragments)


class RayReads:
    """Reads on the cluster (distributed.DistributedReads)."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._cluster = _Cluster()

    async def takes(self, engine: Engine | None, rows: int) -> bool:
        """Whether a read of a table of `rows` rows is to be done here."""
        rows_min = self._settings.engine.distributed_scan_rows
        return await self._cluster.takes(engine, self._settings, rows, rows_min)

    async def count_rows(self, target: ScanTarget, predicate: str) -> Counted:
        """Count the rows that `predicate` selects."""
        runner = await self._cluster.runner(self._settings)
        count = await asyncio.to_thread(runner.count, target, predicate)
        return Counted(count, target.version)

    async def scan(self, target: ScanTarget, request: ScanRequest) -> PlannedRows:
        """Start a scan; its rows are read as they are asked for."""
        runner = await self._cluster.runner(self._settings)
        return await asyncio.to_thread(runner.scan, target, request)


@dataclass(slots=True)
class _Cluster:
    """What the cluster has to offer, as of a few seconds ago."""

    nodes: int = 0
    cpus: int = 0
    _asked_at_s: float | None = None

    async def takes(
        self, engine: Engine | None, settings: Settings, rows: int, rows_min: int
    ) -> bool:
        """As engines.is_distributed; Ray is asked only when the answer depends on it."""
        if rows >= rows_min:
            await self._ask()
        return is_distributed(engine, settings.engine, rows, rows_min, self.nodes)

    async def runner(self, settings: Settings) -> PlanRunner:
        """A planner for the workers that there are."""
        await self._ask()
        return PlanRunner(settings, _ActorRun(settings), max(1, self.cpus))

    async def _ask(self) -> None:
        now_s = time.monotonic()
        if self._asked_at_s is not None and now_s - self._asked_at_s < _CLUSTER_REMEMBERED_S:
            return
        nodes = [node for node in await asyncio.to_thread(ray.nodes) if node["Alive"]]
        self.nodes = len(nodes)
        self.cpus = sum(int(node["Resources"].get("CPU", 0)) for node in nodes)
        self._asked_at_s = now_s


@dataclass(frozen=True, slots=True)
class _ActorRun:
    """Has the plan actor run work items (plan_runner.RunItems)."""

    settings: Settings

    def __call__(self, items: Sequence[WorkItem]) -> pa.Table:
        """Run; a second time if the actor or Daft's workers fail. Blocks.

        Raises:
            ServiceUnavailable: the cluster failed, or the deadline passed.
        """
        give_up_s = time.monotonic() + self.settings.engine.plan_timeout_s
        try:
            return self._run(items, give_up_s)
        except _PlanFailed:
            logger.warning("a distributed plan failed and is run again", exc_info=True)
        try:
            return self._run(items, give_up_s)
        except _PlanFailed as error:
            raise ServiceUnavailable(
                "the cluster could not do this; nothing was changed, try again"
            ) from error

    def _run(self, items: Sequence[WorkItem], give_up_s: float) -> pa.Table:
        actor = start_plan_actor(self.settings)
        try:
            left_s = max(0.0, give_up_s - time.monotonic())
            answers: pa.Table = ray.get(actor.run.remote(items), timeout=left_s)
            return answers
        except ray.exceptions.GetTimeoutError:
            ray.kill(actor)
            timeout_s = self.settings.engine.plan_timeout_s
            raise ServiceUnavailable(
                f"the cluster was given up after {timeout_s:g} s and nothing was changed; use a"
                " simpler predicate or expression, or fewer rows"
            ) from None
        except ray.exceptions.RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, DestrierError):
                raise cause from None
            # Daft's scheduler may be what died, and the actor would never get another.
            ray.kill(actor)
            raise _PlanFailed("a plan failed") from error
        except ray.exceptions.RayError as error:
            raise _PlanFailed("the plan actor died") from error


class _PlanFailed(ServiceUnavailable):
    """A plan failed for a reason that is not in its work."""
