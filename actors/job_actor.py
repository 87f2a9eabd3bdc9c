"""The owner of jobs as a Ray actor; the only file that wraps it."""

from typing import Any

import ray

from cluster.naming import JOB_ACTOR
from cluster.settings import Settings

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


def start_job_actor(settings: Settings) -> Any:
    """The actor that owns the deployment's jobs, started if it is not there."""
    options = {**OPTIONS, "name": JOB_ACTOR, "namespace": settings.ray.namespace}
    return ray.remote(**options)(_process()).remote(settings)
