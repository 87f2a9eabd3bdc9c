"""How a process reaches the owner of a table or a catalog, wherever that runs.

An owner may leave while it is called: idle ones do, a drop ends them, a machine dies. Every write
carries a request key, so the caller asks the catalog for the owner again and sends the same call:
it is carried out once. What it must never do is reach the next life of the name: the location says
which life is meant.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from actors.catalog import Catalog, TableOwners
from actors.engines import DistributedStaging
from actors.model import TableLocation, TableRecord
from actors.table import Table
from cluster.clock import Clock
from cluster.identifiers import TableRef
from cluster.settings import Settings

if TYPE_CHECKING:
    from actors.jobs import Jobs


class Owner(Protocol):
    """One owner, as its callers see it."""

    async def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a method of Table or Catalog.

        Raises:
            OwnerGone: nothing was done.
            OwnerLost: the outcome is unknown.
            DestrierError: the method's own.
        """
        ...


class Owners(Protocol):
    """The way to every owner of a deployment."""

    def catalog(self, database: str) -> Owner:
        """The owner of a database's catalog."""
        ...

    async def open_table(self, table: TableRef) -> tuple[TableRecord, Owner]:
        """The record and the owner of a table, started if need be.

        Raises:
            TableNotFound: no such table.
        """
        ...

    def jobs(self) -> Owner:
        """The owner of the deployment's jobs (job_ports.JobOperations); started by its first
        call."""
        ...

    async def close(self) -> None:
        """Let go of what this process holds."""
        ...


class LocalOwner:
    """An owner in this process."""

    def __init__(self, owner: "Table | Catalog | Jobs") -> None:
        self._owner = owner

    async def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Call the method itself."""
        return await getattr(self._owner, method)(*arguments, **keywords)


class _LocalTables:
    """Tables in this process (catalog.TableOwners)."""

    def __init__(
        self, settings: Settings, clock: Clock, staging: DistributedStaging | None
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._staging = staging
        self._tables: dict[TableRef, tuple[TableLocation, Table]] = {}

    async def open(self, table: TableRef, location: TableLocation) -> LocalOwner:
        """The table's owner; a new one if the name has a new location."""
        found = self._tables.get(table)
        if found is None or found[0].uri != location.uri:
            owner = Table(table, location, self._settings, self._staging, self._clock)
            found = (location, owner)
            self._tables[table] = found
        return LocalOwner(found[1])

    async def end(self, table: TableRef, location: TableLocation) -> None:
        """Retire the owner if there is one."""
        found = self._tables.pop(table, None)
        if found is not None:
            await found[1].retire()

    async def close(self) -> None:
        """Retire every owner."""
        for table, (location, _) in list(self._tables.items()):
            await self.end(table, location)


class LocalOwners:
    """Every owner in this process: for tests, and for looking at a folder without a cluster."""

    def __init__(
        self, settings: Settings, clock: Clock, staging: DistributedStaging | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._tables = _LocalTables(settings, clock, staging)
        self._catalogs: dict[str, Catalog] = {}
        self._jobs: Jobs | None = None

    def catalog(self, database: str) -> Owner:
        """The owner of a database's catalog."""
        return LocalOwner(self._catalog(database))

    def _catalog(self, database: str) -> Catalog:
        catalog = self._catalogs.get(database)
        if catalog is None:
            owners: TableOwners = self._tables
            catalog = Catalog(database, self._settings, owners, self._clock)
            self._catalogs[database] = catalog
        return catalog

    async def open_table(self, table: TableRef) -> tuple[TableRecord, Owner]:
        """The record and the owner of a table."""
        return await self._catalog(table.database).open_table(table.id)

    def jobs(self) -> Owner:
        """The owner of jobs; refreshes run in processes of their own, without Ray."""
        if self._jobs is None:
            # Jobs reach tables through owners, so that module imports this one.
            from actors.local_jobs import local_jobs

            self._jobs = local_jobs(self._settings, self, self._clock)
        return LocalOwner(self._jobs)

    async def close(self) -> None:
        """End what runs and retire every table."""
        if self._jobs is not None:
            await self._jobs.close()
        await self._tables.close()


async def wait_a_little(attempt: int) -> None:
    """Between two calls of an owner that is being restarted (0.7 to 1.4 s)."""
    await asyncio.sleep(min(0.05 * 2 ** min(attempt, 5), 1.0))
