"""The table's owner as a Ray actor; the only file that wraps it."""

from typing import Any

import ray

from actors.model import TableLocation
from actors.ray_plans import RayStaging
from actors.table import Table
from cluster.identifiers import TableRef
from cluster.naming import table_actor_name
from cluster.settings import Settings

OPTIONS: dict[str, Any] = {
    # Owners wait more than they work, and must be placed when every CPU is taken.
    "num_cpus": 0,
    # A table's owner outlives the replica that asked for it.
    "lifetime": "detached",
    "get_if_exists": True,
    # A process that dies is started again with the same arguments; what it knew is in storage.
    "max_restarts": -1,
    # Ray must not replay a commit: the caller does, with its request key.
    "max_task_retries": 0,
    # Calls that wait for a commit are many; the bound that matters is the table's own.
    "max_concurrency": 10_000,
}


def start_table_actor(table: TableRef, location: TableLocation, settings: Settings) -> Any:
    """The actor of this life of the table, started if it is not there."""
    name = table_actor_name(table, location.uri)
    options = {**OPTIONS, "name": name, "namespace": settings.ray.namespace}
    return ray.remote(**options)(Table).remote(table, location, settings, RayStaging(settings))
