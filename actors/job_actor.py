"""The owner of jobs as a Ray actor; the only file that wraps it."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from actors.job_run import RunnerAddress
from cluster.clock import SystemClock
from cluster.naming import JOB_ACTOR
from cluster.settings import Settings
from udtf.refresh_model import Runner

OPTIONS: dict[str, Any] = {
    # It waits for its drivers, and must be placed when every CPU is taken.
    "num_cpus": 0,
    "lifetime": "detached",
    "get_if_exists": True,
    # What it knows is in storage; the drivers of one that died end with it.
    "max_restarts": -1,
    "max_task_retries": 0,
    "max_concurrency": 1_000,
}


class RayCapacity:
    """What the nodes of the cluster have (job_ports.Capacity)."""

    async def totals(self) -> Sequence[Mapping[str, float]]:
        """Resources of each node that is alive."""
        nodes: list[dict[str, Any]] = await asyncio.to_thread(ray.nodes)
        return [node["Resources"] for node in nodes if node["Alive"]]

    async def free(self) -> Sequence[Mapping[str, float]]:
        """What of them is free now."""
        by_node: Mapping[str, Mapping[str, float]] = await asyncio.to_thread(
            ray._private.state.available_resources_per_node
        )
        return list(by_node.values())


class JobProcess:
    """Jobs, in an actor; `call` is the way to its methods."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._jobs: Any = None
        # Jobs go on when their owner is started again, whether or not someone asks for them.
        ray.get_runtime_context().current_actor.call.remote("start")

    async def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a method of Jobs."""
        if self._jobs is None:
            # Owners of tables are reached through the module that starts this actor.
            from actors.local_jobs import make_jobs
            from actors.ray_owners import RayOwners

            address = RunnerAddress(Runner.RAY, ray.get_runtime_context().gcs_address)
            self._jobs = make_jobs(
                self._settings, RayOwners(self._settings), SystemClock(), address, RayCapacity()
            )
        return await getattr(self._jobs, method)(*arguments, **keywords)


def start_job_actor(settings: Settings) -> Any:
    """The actor that owns the deployment's jobs, started if it is not there."""
    options = {**OPTIONS, "name": JOB_ACTOR, "namespace": settings.ray.namespace}
    return ray.remote(**options)(JobProcess).remote(settings)
