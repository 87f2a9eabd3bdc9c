"""Calls of owners that are Ray actors: the only place that turns Ray's errors into ours."""

import asyncio
from typing import Any

import ray

from actors.catalog_actor import start_catalog_actor
from actors.direct_calls import CallClient, Door
from actors.job_actor import start_job_actor
from actors.model import TableRecord
from actors.owner_errors import OwnerGone, OwnerLost
from actors.owners import Owner, wait_a_little
from cluster.errors import DestrierError, InternalError
from cluster.identifiers import TableRef
from cluster.settings import Settings

# Tries of a call whose actor is being restarted, about 10 s in all.
_TRIES = 12


class RayOwner:
    """One actor, as its callers see it (owners.Owner)."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Call the actor; a DestrierError arrives as itself, without the remote traceback."""
        try:
            return await getattr(self._actor, method).remote(*arguments, **keywords)
        except ray.exceptions.RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, DestrierError):
                raise cause from None
            raise InternalError("an owner failed") from error
        except ray.exceptions.ActorUnavailableError as error:
            raise OwnerLost("the owner is being restarted") from error
        except ray.exceptions.RayActorError as error:
            raise OwnerLost("the owner died") from error


class RayOwners:
    """Every owner is an actor of the cluster (owners.Owners)."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._clients = _Clients()

    def catalog(self, database: str) -> Owner:
        """The owner of a database's catalog; started by the first call."""
        return _CatalogOwner(database, self._settings)

    async def open_table(self, table: TableRef) -> tuple[TableRecord, Owner]:
        """The record and the owner of a table."""
        record, actor = await self.catalog(table.database).call("open_table", table.id)
        return record, _TableOwner(actor, self._clients)

    def jobs(self) -> Owner:
        """The owner of jobs; started by the first call."""
        return _JobsOwner(self._settings)

    async def close(self) -> None:
        """Let go of connections to table actors, which outlive replicas."""
        await self._clients.close()


class _CatalogOwner:
    def __init__(self, database: str, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    async def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Call the catalog; one that was lost before it could have acted is called again.

        Opening a table changes nothing, so it is repeated whenever the actor dies under it.
        """
        repeatable = method == "open_table"
        for attempt in range(_TRIES):
            actor = start_catalog_actor(self._database, self._settings)
            try:
                return await RayOwner(actor).call(method, *arguments, **keywords)
            except (OwnerGone, OwnerLost):
                if not repeatable or attempt == _TRIES - 1:
                    raise
                await wait_a_little(attempt)
        raise AssertionError("the last try raises")


class _TableOwner:
    """A table's actor, called past Ray where that is possible."""

    def __init__(self, actor: Any, clients: "_Clients") -> None:
        self._owner = RayOwner(actor)
        self._clients = clients
        self._door: Door | None = None
        self._is_asked = False

    async def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a method of the table.

        Raises:
            OwnerGone: it has ended, as idle ones do, and did nothing.
            OwnerLost: it ended with the call.
        """
        if not self._is_asked:
            try:
                self._door = await self._owner.call("door")
            except OwnerLost as error:
                raise OwnerGone("the owner has ended") from error
            self._is_asked = True
        client = await self._client()
        if client is None:
            # Of an owner that ended, Ray cannot tell whether it was with the call or before.
            return await self._owner.call("call", method, *arguments, **keywords)
        return await client.call(method, *arguments, **keywords)

    async def _client(self) -> CallClient | None:
        """The connection past Ray; None where there can be none."""
        if self._door is None or not self._door.is_here:
            return None
        try:
            return await self._clients.of(self._door)
        except OSError:
            # From now on by Ray, which needs no new connection.
            self._door = None
            return None


class _Clients:
    """The connections of this process to table actors; each ends with its actor at the latest."""

    def __init__(self) -> None:
        self._clients: dict[Door, asyncio.Task[CallClient]] = {}

    async def of(self, door: Door) -> CallClient:
        """The connection to a door.

        Raises:
            OwnerGone: nobody is there any more.
            OSError: no connection can be made.
        """
        client = self._clients.get(door)
        if client is None or _is_over(client):
            self._clients = {at: it for at, it in self._clients.items() if not _is_over(it)}
            client = self._clients[door] = asyncio.create_task(CallClient.connect(door))
        # Others wait for it too.
        return await asyncio.shield(client)

    async def close(self) -> None:
        """End them all."""
        for client in self._clients.values():
            client.cancel()
        found = await asyncio.gather(*self._clients.values(), return_exceptions=True)
        for connected in found:
            if isinstance(connected, CallClient):
                await connected.close()
        self._clients.clear()


def _is_over(client: "asyncio.Task[CallClient]") -> bool:
    """Whether connecting has failed, or the connection has ended."""
    if not client.done():
        return False
    return client.cancelled() or client.exception() is not None or client.result().is_over


class _JobsOwner:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Call the owner of jobs, again if it dies under it: every call of it may be repeated."""
        for attempt in range(_TRIES):
            actor = start_job_actor(self._settings)
            try:
                return await RayOwner(actor).call("call", method, *arguments, **keywords)
            except (OwnerGone, OwnerLost):
                if attempt == _TRIES - 1:
                    raise
                await wait_a_little(attempt)
        raise AssertionError("the last try raises")
