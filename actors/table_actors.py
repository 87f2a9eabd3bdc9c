"""The table actors of one database: found, started, counted, ended.

A replica asks for a table's owner once and calls it from then on. What is known here of which actor
owns which table is lost with the catalog's process; the next one asks the actors, whose names Ray
keeps.
"""

import asyncio
import uuid
from dataclasses import dataclass
from typing import Any, TypeAlias

import ray

from actors.model import TableLocation
from actors.table_actor import start_table_actor
from cluster.errors import ServiceUnavailable
from cluster.identifiers import TableRef
from cluster.naming import CATALOG_PREFIX, TABLE_PREFIX, table_actor_name
from cluster.settings import Settings

_CALL_TIMEOUT_S = 30.0

# A life of a table: its name and its folder.
_Life: TypeAlias = tuple[TableRef, str]


@dataclass(frozen=True, slots=True)
class _Owner:
    """An actor by its name, which says nothing of its table."""

    name: str
    actor: Any


class RayTableOwners:
    """The table actors of one database (catalog.TableOwners)."""

    def __init__(self, database: str, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        # Those that have answered that they hold the life; and how many are being asked to.
        self._owners: dict[_Life, _Owner] = {}
        self._starting = 0
        self._spare: _Owner | None = None
        self._used_s = 0.0
        self._finding: asyncio.Task[None] | None = None
        self._opening: dict[_Life, asyncio.Task[Any]] = {}

    async def open(self, table: TableRef, location: TableLocation) -> Any:
        """The table's actor.

        Raises:
            ServiceUnavailable: the most table actors are alive and none is idle.
        """
        await self.find()
        life = (table, location.uri)
        opening = self._opening.get(life)
        if opening is None:
            opening = self._opening[life] = asyncio.create_task(self._open(table, location))
            opening.add_done_callback(lambda _: self._opening.pop(life, None))
        return await asyncio.shield(opening)

    async def find(self) -> None:
        """Learn from the actors that a predecessor has started, and keep one ready; once."""
        if self._finding is None:
            self._finding = asyncio.create_task(self._find())
        try:
            await asyncio.shield(self._finding)
        except Exception:
            self._finding = None
            raise

    async def end(self, table: TableRef, location: TableLocation) -> None:
        """Let the actor finish its commits, refuse the rest, and end it."""
        await self.find()
        life = (table, location.uri)
        opening = self._opening.get(life)
        if opening is not None:
            # It holds nothing before that, so that it could not be told to leave it.
            await asyncio.wait([opening])
        await self._end(life)

    async def look(self) -> None:
        """End the owners that are idle, and those whose worker hangs: another one takes over."""
        for life, owner in list(self._owners.items()):
            if await self._ask(owner, owner.actor.call.remote("must_be_replaced")):
                self._kill(life)
            elif (await self._idle_s(owner) or 0) > self._settings.actors.idle_s:
                await self._end(life)
        now_s = asyncio.get_running_loop().time()
        if self._spare is not None and now_s - self._used_s > self._settings.actors.spare_s:
            ray.kill(self._spare.actor)
            self._spare = None

    async def _find(self) -> None:
        prefix = f"{TABLE_PREFIX}{self._database}/"
        names = [name for name in owner_names(self._settings) if name.startswith(prefix)]
        await asyncio.gather(*map(self._find_one, names))
        self._keep_spare()

    async def _find_one(self, name: str) -> None:
        try:
            actor = ray.get_actor(name, namespace=self._settings.ray.namespace)
        except ValueError:
            # It ended just now.
            return
        owner = _Owner(name, actor)
        try:
            held: tuple[TableRef, TableLocation] | None = await asyncio.wait_for(
                actor.held.remote(), _CALL_TIMEOUT_S
            )
        except (ray.exceptions.RayActorError, TimeoutError):
            # Of whom nothing can be learned may own nothing.
            ray.kill(actor)
            return
        if held is not None:
            self._owners[(held[0], held[1].uri)] = owner
        elif self._spare is None:
            self._spare = owner
        else:
            ray.kill(actor)

    async def _open(self, table: TableRef, location: TableLocation) -> Any:
        life = (table, location.uri)
        known = self._owners.get(life)
        if known is not None:
            if await self._holds(known, table, location):
                return known.actor
            self._kill(life)
        while len(self._owners) + self._starting >= self._settings.actors.live_max:
            await self._make_room()
        # Counted before anything is awaited, so that no more are begun than may live.
        self._starting += 1
        try:
            owner = self._owners[life] = await self._start_holding(table, location)
        finally:
            self._starting -= 1
        self._keep_spare()
        return owner.actor

    async def _start_holding(self, table: TableRef, location: TableLocation) -> _Owner:
        # The one that is ready may have died.
        for _ in range(2):
            owner = self._spare or self._start()
            self._spare = None
            if await self._holds(owner, table, location):
                return owner
            ray.kill(owner.actor)
        raise ServiceUnavailable(f"no owner of table {table.id} can be started; try again")

    def _start(self) -> _Owner:
        name = table_actor_name(self._database, uuid.uuid4().hex[:12])
        return _Owner(name, start_table_actor(name, self._settings))

    def _keep_spare(self) -> None:
        self._used_s = asyncio.get_running_loop().time()
        if self._spare is None and self._settings.actors.spare_s > 0:
            self._spare = self._start()

    async def _holds(self, owner: _Owner, table: TableRef, location: TableLocation) -> bool:
        try:
            answer = owner.actor.hold.remote(table, location)
            return bool(await asyncio.wait_for(answer, _CALL_TIMEOUT_S))
        except (ray.exceptions.RayActorError, TimeoutError):
            return False

    def _kill(self, life: _Life) -> None:
        owner = self._owners.pop(life, None)
        if owner is not None:
            ray.kill(owner.actor)

    async def _end(self, life: _Life) -> None:
        owner = self._owners.get(life)
        if owner is None:
            return
        # One that is dead or hangs cannot be asked; its successor reads the mark in the table's
        # folder.
        await self._ask(owner, owner.actor.retire.remote())
        if self._owners.get(life) is owner:
            self._kill(life)

    async def _make_room(self) -> None:
        idle: list[tuple[float, _Life]] = []
        for life, owner in list(self._owners.items()):
            idle_s = await self._idle_s(owner)
            if idle_s:
                idle.append((idle_s, life))
        if not idle:
            raise ServiceUnavailable(
                f"{len(self._owners) + self._starting} tables are being written to, the most that"
                " actors.live_max allows; try again"
            )
        await self._end(max(idle, key=lambda found: found[0])[1])

    async def _idle_s(self, owner: _Owner) -> float | None:
        idle_s: float | None = await self._ask(owner, owner.actor.call.remote("idle_s"))
        return idle_s

    async def _ask(self, owner: _Owner, answer: Any) -> Any:
        """The answer of an owner; None if it hangs, or is dead and then forgotten."""
        try:
            return await asyncio.wait_for(answer, _CALL_TIMEOUT_S)
        except ray.exceptions.RayActorError:
            for life, known in list(self._owners.items()):
                if known is owner:
                    self._kill(life)
            return None
        except TimeoutError:
            return None


def owner_names(settings: Settings) -> list[str]:
    """Names of the owners that are alive in the deployment's Ray namespace."""
    named: list[dict[str, str]] = ray.util.list_named_actors(all_namespaces=True)
    return [
        item["name"]
        for item in named
        if item["namespace"] == settings.ray.namespace
        and item["name"].startswith((TABLE_PREFIX, CATALOG_PREFIX))
    ]
