"""A database's catalog as a Ray actor, with the table actors that it starts and ends."""

import asyncio
import logging
from typing import Any

import ray

from actors.catalog import Catalog
from actors.table_actors import RayTableOwners
from cluster.clock import SystemClock
from cluster.naming import catalog_actor_name
from cluster.settings import Settings

logger = logging.getLogger(__name__)

OPTIONS: dict[str, Any] = {
    "num_cpus": 0,
    "lifetime": "detached",
    "get_if_exists": True,
    "max_restarts": -1,
    "max_task_retries": 0,
    "max_concurrency": 1_000,
}
# How often idle and hanging owners are looked for, unless they may be idle for less than that.
_LOOK_INTERVAL_S = 5.0


class CatalogProcess(Catalog):
    """The catalog with its table actors, as one Ray actor."""

    def __init__(self, database: str, settings: Settings) -> None:
        self._table_owners = RayTableOwners(database, settings)
        self._idle_s = settings.actors.idle_s
        super().__init__(database, settings, self._table_owners, SystemClock())
        self._looking: asyncio.Task[None] | None = None
        # Who changes names will soon change rows.
        ray.get_runtime_context().current_actor.look_after_owners.remote()

    async def look_after_owners(self) -> None:
        """Begin to watch the table actors, as long as this process lives."""
        self._looking = asyncio.create_task(self._look_forever())

    async def _look_forever(self) -> None:
        interval_s = min(_LOOK_INTERVAL_S, self._idle_s)
        while True:
            try:
                await self._table_owners.find()
                await self._table_owners.look()
            except Exception as error:  # noqa: BLE001 - the next look may find Ray well again
                logger.warning("table actors could not be looked after: %s", error)
            await asyncio.sleep(interval_s)


def start_catalog_actor(database: str, settings: Settings) -> Any:
    """The actor that owns a database's catalog, started if it is not there."""
    name = catalog_actor_name(database)
    options = {**OPTIONS, "name": name, "namespace": settings.ray.namespace}
    return ray.remote(**options)(CatalogProcess).remote(database, settings)
