"""A database's catalog as a Ray actor, with the table actors that it starts and ends."""

import asyncio
from typing import Any

import ray

from actors.catalog import Catalog
from actors.model import TableLocation, TableRecord
from actors.table_actor import start_table_actor
from cluster.clock import SystemClock
from cluster.errors import ServiceUnavailable
from cluster.identifiers import ObjectId, TableRef
from cluster.naming import (
    CATALOG_PREFIX,
    TABLE_PREFIX,
    catalog_actor_name,
    table_actor_name,
)
from cluster.settings import Settings

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
_CALL_TIMEOUT_S = 30.0


class RayTableOwners:
    """The table actors of one database (catalog.TableOwners): started, counted, ended.

    Ray's list of named actors is the truth, so a restarted catalog knows the actors of its
    predecessor.
    """

    def __init__(self, database: str, settings: Settings) -> None:
        self._prefix = f"{TABLE_PREFIX}{database}/"
        self._settings = settings
        self._actors: dict[str, Any] = {}
        self._opening = asyncio.Lock()

    async def open(self, table: TableRef, location: TableLocation) -> Any:
        """The table's actor.

        Raises:
            ServiceUnavailable: the most table actors are alive and none is idle.
        """
        name = table_actor_name(table, location.uri)
        async with self._opening:
            if name not in self._actors:
                alive = self._names()
                if name not in alive and len(alive) >= self._settings.actors.live_max:
                    await self._make_room(alive)
                self._actors[name] = start_table_actor(table, location, self._settings)
            return self._actors[name]

    async def end(self, table: TableRef, location: TableLocation) -> None:
        """Let the actor finish its commits, refuse the rest, and end it."""
        await self._end(table_actor_name(table, location.uri))

    async def look(self) -> None:
        """End the owners that are idle, and replace those whose worker hangs."""
        for name in self._names():
            actor = self._find(name)
            if actor is None:
                continue
            if await self._ask(actor.must_be_replaced):
                ray.kill(actor, no_restart=False)
            elif (await self._ask(actor.idle_s) or 0) > self._settings.actors.idle_s:
                await self._end(name)

    async def _end(self, name: str) -> None:
        actor = self._find(name)
        self._actors.pop(name, None)
        if actor is None:
            return
        # One that is dead or hangs cannot be asked; its successor reads the mark in the table's
        # folder.
        await self._ask(actor.retire)
        ray.kill(actor, no_restart=True)

    async def _make_room(self, alive: list[str]) -> None:
        idle: list[tuple[float, str]] = []
        for name in alive:
            actor = self._find(name)
            idle_s = None if actor is None else await self._ask(actor.idle_s)
            if idle_s:
                idle.append((idle_s, name))
        if not idle:
            raise ServiceUnavailable(
                f"{len(alive)} tables are being written to, the most that actors.live_max allows;"
                " try again"
            )
        await self._end(max(idle)[1])

    async def _ask(self, method: Any) -> Any:
        """The answer of an owner; None if it is dead or hangs."""
        try:
            return await asyncio.wait_for(method.remote(), _CALL_TIMEOUT_S)
        except (ray.exceptions.RayActorError, TimeoutError):
            return None

    def _find(self, name: str) -> Any | None:
        if name in self._actors:
            return self._actors[name]
        try:
            return ray.get_actor(name, namespace=self._settings.ray.namespace)
        except ValueError:
            return None

    def _names(self) -> list[str]:
        return [name for name in owner_names(self._settings) if name.startswith(self._prefix)]


class CatalogProcess(Catalog):
    """The catalog with its table actors, as one Ray actor."""

    def __init__(self, database: str, settings: Settings) -> None:
        self._table_owners = RayTableOwners(database, settings)
        self._idle_s = settings.actors.idle_s
        super().__init__(database, settings, self._table_owners, SystemClock())
        self._watch: asyncio.Task[None] | None = None

    async def open_table(self, table: ObjectId) -> tuple[TableRecord, Any]:
        """The record of a table and its actor."""
        if self._watch is None:
            self._watch = asyncio.ensure_future(self._look_forever())
        return await super().open_table(table)

    async def _look_forever(self) -> None:
        interval_s = min(_LOOK_INTERVAL_S, self._idle_s)
        while True:
            await asyncio.sleep(interval_s)
            await self._table_owners.look()


def start_catalog_actor(database: str, settings: Settings) -> Any:
    """The actor that owns a database's catalog, started if it is not there."""
    name = catalog_actor_name(database)
    options = {**OPTIONS, "name": name, "namespace": settings.ray.namespace}
    return ray.remote(**options)(CatalogProcess).remote(database, settings)


def owner_names(settings: Settings) -> list[str]:
    """Names of the owners that are alive in the deployment's Ray namespace."""
    named: list[dict[str, str]] = ray.util.list_named_actors(all_namespaces=True)
    return [
        item["name"]
        for item in named
        if item["namespace"] == settings.ray.namespace
        and item["name"].startswith((TABLE_PREFIX, CATALOG_PREFIX))
    ]
