"""The one process of a deployment that holds Daft's runner, as a Ray actor.

Daft keeps its scheduler and its workers alive for the process that uses it first, so that process
is the same for every plan: the first costs 1 to 2 s, the next ones 30 to 60 ms. When it is killed
they end with it, whatever they are doing, which is how a plan is stopped that does not come back.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import ray

from actors.work_items import WorkItem
from cluster import runtime
from cluster.errors import Throttling
from cluster.naming import PLAN_ACTOR
from cluster.settings import Settings

OPTIONS: dict[str, Any] = {
    # It waits for Daft's workers; they do the work.
    "num_cpus": 0,
    # Every replica and table actor uses it; none owns it.
    "lifetime": "detached",
    "get_if_exists": True,
    # Whoever needs it next starts it; a plan that kills its process must not do so without end.
    "max_restarts": 0,
    "max_task_retries": 0,
    # Its own bound is on plans that run; those beyond it are refused, not queued.
    "max_concurrency": 10_000,
}


class PlanActor:
    """Runs the work items of plans."""

    def __init__(self, settings: Settings) -> None:
        runtime.use_daft_on_ray()
        self._plans_max = settings.engine.plans_max
        self._running = 0
        self._threads = ThreadPoolExecutor(self._plans_max, thread_name_prefix="plan")

    async def run(self, items: Sequence[WorkItem]) -> pa.Table:
        """Do the items, as daft_plans.run_items.

        Raises:
            Throttling: too many plans run already.
        """
        if self._running >= self._plans_max:
            raise Throttling("too many distributed requests are running; slow down")
        self._running += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, _run_items, items
            )
        finally:
            self._running -= 1


def start_plan_actor(settings: Settings) -> Any:
    """The plan actor of this deployment, started if it is not there."""
    options = {**OPTIONS, "name": PLAN_ACTOR, "namespace": settings.ray.namespace}
    return ray.remote(**options)(PlanActor).remote(settings)


def _run_items(items: Sequence[WorkItem]) -> pa.Table:
    # Those who start the actor import this module, and need no Daft.
    from actors.daft_plans import run_items

    return run_items(items)
