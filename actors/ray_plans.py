"""Reads and row changes that the cluster does: for replicas, and for the owners of tables.

A plan changes nothing that anyone can see: what it writes is uncommitted. So one that failed is run
again, once, and one that does not come back is given up at its deadline, together with the plan
actor: Daft would wait for ever for a worker that dies of its work, or hangs in it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

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

T = TypeVar("T")
logger = logging.getLogger(__name__)

# Nodes come and go in minutes; asking for them is a call to Ray's control plane.
_CLUSTER_REMEMBERED_S = 10
# Longest wait for that call: Ray's control plane may be down, and a request can do without.
_ASK_S = 2.0


class RayStaging:
    """Stages row changes on the cluster (engines.DistributedStaging)."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._cluster = _Cluster(settings)

    async def takes(self, engine: Engine | None, rows: int) -> bool:
        """Whether a change of a table of `rows` rows is to be staged here."""
        rows_min = self._settings.engine.distributed_write_rows
        return await self._cluster.takes(engine, rows, rows_min)

    async def stage(
        self,
        uri: str,
        branch: str | None,
        version: int,
        work: RowWork,
        fragments: Sequence[int],
    ) -> StagedRewrite:
        """Stage `work` on the fragments of a version."""
        runner = await self._cluster.runner()
        stage = partial(runner.stage, uri, branch, version, work, fragments)
        return await self._cluster.in_thread(stage)


class RayReads:
    """Reads on the cluster (distributed.DistributedReads)."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._cluster = _Cluster(settings)

    async def takes(self, engine: Engine | None, rows: int) -> bool:
        """Whether a read of a table of `rows` rows is to be done here."""
        rows_min = self._settings.engine.distributed_scan_rows
        return await self._cluster.takes(engine, rows, rows_min)

    async def count_rows(self, target: ScanTarget, predicate: str) -> Counted:
        """Count the rows that `predicate` selects."""
        runner = await self._cluster.runner()
        count = await self._cluster.in_thread(partial(runner.count, target, predicate))
        return Counted(count, target.version)

    async def scan(self, target: ScanTarget, request: ScanRequest) -> PlannedRows:
        """Start a scan; its rows are read as they are asked for."""
        runner = await self._cluster.runner()
        return await self._cluster.in_thread(partial(runner.scan, target, request))


@dataclass(slots=True)
class _Cluster:
    """What the cluster has to offer, as of a few seconds ago."""

    settings: Settings
    nodes: int = 0
    cpus: int = 0
    _asked_at_s: float | None = None
    # Made in the process that uses it: what stages is sent to the owners of tables.
    _threads: ThreadPoolExecutor | None = None

    async def takes(self, engine: Engine | None, rows: int, rows_min: int) -> bool:
        """As engines.is_distributed; Ray is asked only when the answer depends on it."""
        if rows >= rows_min:
            await self._ask()
        return is_distributed(engine, self.settings.engine, rows, rows_min, self.nodes)

    async def runner(self) -> PlanRunner:
        """A planner for the workers that there are."""
        await self._ask()
        return PlanRunner(self.settings, _ActorRun(self.settings), max(1, self.cpus))

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Wait for a plan in a thread that is there for plans."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.settings.engine.plans_max)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _ask(self) -> None:
        now_s = time.monotonic()
        if self._asked_at_s is not None and now_s - self._asked_at_s < _CLUSTER_REMEMBERED_S:
            return
        self._asked_at_s = now_s
        asking = asyncio.to_thread(ray.nodes)
        try:
            nodes = [node for node in await asyncio.wait_for(asking, _ASK_S) if node["Alive"]]
        except (TimeoutError, ray.exceptions.RayError):
            # What was known goes on to be true; before anything was, the process does the work.
            logger.warning("Ray does not say which nodes there are", exc_info=True)
            return
        self.nodes = len(nodes)
        self.cpus = sum(int(node["Resources"].get("CPU", 0)) for node in nodes)


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
        try:
            actor = start_plan_actor(self.settings)
        except ray.exceptions.RayError as error:
            raise _PlanFailed("the plan actor does not start") from error
        try:
            left_s = max(0.0, give_up_s - time.monotonic())
            # ray.get warns in an actor with an event loop, though this is another thread.
            answers: pa.Table = actor.run.remote(items).future().result(timeout=left_s)
            return answers
        except ray.exceptions.RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, DestrierError):
                raise cause from None
            # Daft's scheduler may be what died, and the actor would never get another.
            ray.kill(actor)
            raise _PlanFailed("a plan failed") from error
        except ray.exceptions.RayError as error:
            raise _PlanFailed("the plan actor died") from error
        except TimeoutError:
            ray.kill(actor)
            timeout_s = self.settings.engine.plan_timeout_s
            raise ServiceUnavailable(
                f"the cluster was given up after {timeout_s:g} s and nothing was changed; use a"
                " simpler predicate or expression, or fewer rows"
            ) from None


class _PlanFailed(ServiceUnavailable):
    """A plan failed for a reason that is not in its work."""
