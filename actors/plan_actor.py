"""The one process of a deployment that holds Daft's runner, as a Ray actor.

Daft keeps its scheduler and its workers alive for the process that uses it first, so that process
is the same for every plan: the first costs 1 to 2 s, the next ones 30 to 60 ms. When it is killed
they end with it, whatever they are doing, which is how a plan is stopped that does not come back.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import ray

from actors.turns import Turns
from actors.work_items import WorkItem
from cluster import runtime
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
# Calls beyond the plans that may be there, each in a thread of its own: enough to refuse them.
_CALLS_REFUSED = 32
# Of a plan's deadline, the part that it may wait for its turn.
_WAIT_PART = 0.25


class PlanActor:
    """Runs the work items of plans."""

    def __init__(self, settings: Settings) -> None:
        runtime.use_daft_on_ray()
        self._turns = Turns(settings.engine.plans_max)
        self._wait_s = settings.engine.plan_timeout_s * _WAIT_PART

    def run(self, items: Sequence[WorkItem]) -> pa.Table:
        """Do the items, as daft_plans.run_items. Blocks; calls run in threads.

        Raises:
            Throttling: too many plans are there already.
        """
        # Those who start the actor import this module, and need no Daft.
        from actors.daft_plans import run_items

        workers = int(ray.cluster_resources().get("CPU", 0))  # type: ignore[no-untyped-call]
        with self._turns.take(len(items), workers, self._wait_s):
            return run_items(items)


def start_plan_actor(settings: Settings) -> Any:
    """The plan actor of this deployment, started if it is not there."""
    options = {
        **OPTIONS,
        "name": PLAN_ACTOR,
        "namespace": settings.ray.namespace,
        "max_concurrency": settings.engine.plans_max + _CALLS_REFUSED,
    }
    return ray.remote(**options)(PlanActor).remote(settings)
