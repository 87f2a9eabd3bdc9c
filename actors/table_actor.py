"""The table's owner as a Ray actor; the only file that wraps it.

A process takes a second to start: Ray's own half of it, Lance and what comes with it the other. So
it may be started before it is known whose owner it becomes; from then on it is that table's alone.
"""

import inspect
from typing import Any

import ray

from actors.direct_calls import CallServer, Door
from actors.model import TableLocation
from actors.owner_errors import OwnerGone
from actors.ray_plans import RayStaging
from actors.table import Table
from cluster.identifiers import TableRef
from cluster.settings import Settings

OPTIONS: dict[str, Any] = {
    # Owners wait more than they work, and must be placed when every CPU is taken.
    "num_cpus": 0,
    # A table's owner outlives the replica that asked for it.
    "lifetime": "detached",
    # The catalog gives the table of one that died to another: what it knew is in storage.
    "max_restarts": 0,
    # Ray must not replay a commit: the caller does, with its request key.
    "max_task_retries": 0,
    # Calls that wait for a commit are many; the bound that matters is the table's own.
    "max_concurrency": 10_000,
}


class TableProcess:
    """At most one table, in an actor; `call` is the way to its methods."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._held: tuple[TableRef, TableLocation] | None = None
        self._table: Table | None = None
        self._direct = CallServer(self.call)

    async def hold(self, table: TableRef, location: TableLocation) -> bool:
        """Own this life of the table from now on; False if it is another's owner."""
        if self._held is None:
            self._held = (table, location)
            self._table = Table(table, location, self._settings, RayStaging(self._settings))
        return self._held[0] == table and self._held[1].uri == location.uri

    async def held(self) -> tuple[TableRef, TableLocation] | None:
        """Which life of which table it owns; None of one that waits for a table."""
        return self._held

    async def retire(self) -> None:
        """Finish what is being committed, refuse the rest, and be called no more past Ray."""
        if self._table is not None:
            await self._table.retire()
        await self._direct.leave()

    async def door(self) -> Door | None:
        """Where `call` can be called past Ray, by processes on the same machine."""
        return await self._direct.door()

    async def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a method of Table.

        Raises:
            OwnerGone: it owns no table yet.
        """
        if self._table is None:
            raise OwnerGone("this process owns no table yet")
        answer = getattr(self._table, method)(*arguments, **keywords)
        return await answer if inspect.isawaitable(answer) else answer


def start_table_actor(name: str, settings: Settings) -> Any:
    """A new actor that waits for a table."""
    options = {**OPTIONS, "name": name, "namespace": settings.ray.namespace}
    return ray.remote(**options)(TableProcess).remote(settings)
