"""The one process of a deployment that holds Daft's runner, as a Ray actor.

Daft keeps its scheduler and its workers alive for the process that uses it first, so that process
is the same for every plan: the first costs 1 to 2 s, the next ones 30 to 60 ms. When it is killed
they end with it, whatever they are doing, which is how a plan is stopped that does not come back.
"""

import threading
from collections.abc import Sequence
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
}
# Calls beyond the plans that may run, each in a thread of its own: enough to refuse them at once.
_CALLS_REFUSED = 32


class PlanActor:
    """Runs the work items of plans."""

    def __init__(self, settings: Settings) -> None:
        runtime.use_daft_on_ray()
        self._room = threading.BoundedSemaphore(settings.engine.plans_max)

    def run(self, items: Sequence[WorkItem]) -> pa.Table:
        """Do the items, as daft_plans.run_items. Blocks; calls run in threads.

        Raises:
            Throttling: too many plans run already.
        """
        # Those who start the actor import this module, and need no Daft.
        from actors.daft_plans import run_items

        if not self._room.acquire(blocking=False):
            raise Throttling("too many distributed requests are running; slow down")
        try:
            return run_items(items)
        finally:
            self._room.release()


def start_plan_actor(settings: Settings) -> Any:
    """The plan actor of this deployment, started if it is not there."""
    options = {
        **OPTIONS,
        "name": PLAN_ACTOR,
        "namespace": settings.ray.namespace,
        "max_concurrency": settings.engine.plans_max + _CALLS_REFUSED,
    }
    return ray.remote(**options)(PlanActor).remote(settings)
