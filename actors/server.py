"""The one object that HTTP holds: reads answered here, writes sent to their owners.

Built once per process: `Server.local` keeps every owner in the process, `Server.on_ray` has them as
actors of the cluster.
"""

from collections.abc import Mapping, Sequence

from actors.database import DatabaseCatalog
from actors.distributed import DistributedReads
from actors.model import (
    Assignment,
    Commit,
    Counted,
    CreatedTable,
    CreateMode,
    IndexStats,
    InsertItem,
    InsertMode,
    NewTable,
    Pin,
    RequestKey,
    ScanRequest,
    TableDescription,
    VersionRange,
    VersionRecord,
)
from actors.owners import LocalOwners, Owners
from actors.ports import ArrowReader, CatalogOperations, RowStream
from actors.reads import Reads
from actors.tables import Tables
from actors.uploads import Uploads
from cluster.clock import Clock, SystemClock
from cluster.identifiers import TableRef
from cluster.settings import Engine, Settings
from udtf.spec import ViewDefinition


class Server:
    """Everything that HTTP asks of the domain (ports.ServerOperations)."""

    def __init__(
        self,
        settings: Settings,
        owners: Owners,
        clock: Clock,
        distributed: DistributedReads | None = None,
    ) -> None:
        self._settings = settings
        self._owners = owners
        self._reads = Reads(settings, clock)
        self._tables = Tables(owners, self._reads.find_table, settings.actors, clock)
        self._uploads = Uploads(settings, self._reads, self._tables, owners)
        self._distributed = distributed

    @staticmethod
    def local(settings: Settings, clock: Clock | None = None) -> "Server":
        """A server whose owners live in this process; no Ray."""
        clock = clock or SystemClock()
        return Server(settings, LocalOwners(settings, clock), clock)

    @staticmethod
    def on_ray(settings: Settings) -> "Server":
        """A server whose owners are actors of the Ray cluster that this process is part of."""
        # The import makes this process part of a cluster's code; tests without Ray must not pay it.
        from actors.ray_owners import RayOwners
        from actors.ray_plans import RayReads

        clock = SystemClock()
        return Server(settings, RayOwners(settings), clock, RayReads(settings))

    def healthy(self) -> bool:
        """Whether this process can go on answering."""
        return self._reads.healthy()

    async def close(self) -> None:
        """Let go of what this process holds."""
        await self._owners.close()

    def catalog(self, database: str) -> CatalogOperations:
        """The catalog of a database."""
        return DatabaseCatalog(database, self._reads, self._owners.catalog(database))

    # --- making tables ----------------------------------------------------------------------------

    async def create_table(
        self,
        database: str,
        table: NewTable,
        mode: CreateMode,
        key: RequestKey,
        body: bytes | ArrowReader,
    ) -> CreatedTable:
        """Create from an Arrow stream."""
        return await self._uploads.create_table(database, table, mode, key, body)

    async def create_view(
        self, view: TableRef, definition: ViewDefinition, key: RequestKey
    ) -> Commit:
        """Create the table and the record of a view."""
        return await self._uploads.create_view(view, definition, key)

    # --- writes -----------------------------------------------------------------------------------

    async def insert_rows(
        self,
        table: TableRef,
        branch: str | None,
        mode: InsertMode,
        key: RequestKey,
        body: bytes,
    ) -> Commit:
        """Insert one small Arrow IPC stream."""
        if mode is InsertMode.APPEND:
            return await self._tables.append(table, InsertItem(key, body, branch))
        commit: Commit = await self._tables.call(table, "overwrite", branch, key, body)
        return commit

    async def insert_stream(
        self,
        table: TableRef,
        branch: str | None,
        mode: InsertMode,
        request_id: str,
        body: ArrowReader,
    ) -> Commit:
        """Insert an Arrow IPC stream of any size."""
        return await self._uploads.insert_stream(table, branch, mode, request_id, body)

    async def update_rows(
        self,
        table: TableRef,
        branch: str | None,
        key: RequestKey,
        assignments: Sequence[Assignment],
        predicate: str | None,
        properties: Mapping[str, str] | None,
        engine: Engine | None,
    ) -> tuple[Commit, Mapping[str, str]]:
        """Update rows, then add to the table's properties.

        The properties come second: a refused update changes nothing, and a repeated one, whose rows
        are done, still completes them.
        """
        commit: Commit = await self._tables.call(
            table, "update", branch, key, tuple(assignments), predicate, engine
        )
        if properties:
            catalog = self._owners.catalog(table.database)
            merged: Mapping[str, str] = await catalog.call(
                "merge_properties", table.id, dict(properties)
            )
            return commit, merged
        record = await self._reads.find_table(table)
        return commit, record.properties

    async def delete_rows(
        self,
        table: TableRef,
        branch: str | None,
        key: RequestKey,
        predicate: str,
        engine: Engine | None,
    ) -> Commit:
        """Delete rows."""
        commit: Commit = await self._tables.call(table, "delete", branch, key, predicate, engine)
        return commit

    async def update_schema_metadata(
        self, table: TableRef, branch: str | None, key: RequestKey, metadata: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Merge and return the whole map."""
        merged: Mapping[str, str] = await self._tables.call(
            table, "update_schema_metadata", branch, key, dict(metadata)
        )
        return merged

    async def delete_versions(
        self, table: TableRef, branch: str | None, ranges: Sequence[VersionRange]
    ) -> int:
        """Delete version records."""
        count: int = await self._tables.call(table, "delete_versions", branch, tuple(ranges))
        return count

    # --- reads ------------------------------------------------------------------------------------

    async def count_rows(
        self, table: TableRef, pin: Pin, predicate: str | None, engine: Engine | None
    ) -> Counted:
        """Count rows; without a predicate the count is in the manifest."""
        if predicate is not None and self._may_distribute(engine):
            assert self._distributed is not None
            target = await self._reads.pinned(table, pin)
            if await self._distributed.takes(engine, target.num_rows):
                return await self._distributed.count_rows(target, predicate)
        return await self._reads.count_rows(table, pin, predicate)

    async def scan(
        self, table: TableRef, pin: Pin, request: ScanRequest, engine: Engine | None
    ) -> RowStream:
        """Start a scan."""
        if self._may_distribute(engine):
            assert self._distributed is not None
            target = await self._reads.pinned(table, pin)
            if await self._distributed.takes(engine, target.num_rows):
                return await self._distributed.scan(target, request)
        return await self._reads.scan(table, pin, request)

    def _may_distribute(self, engine: Engine | None) -> bool:
        return self._distributed is not None and (engine or self._settings.engine.engine) != "lance"

    async def describe_table(
        self, table: TableRef, pin: Pin, *, detailed: bool
    ) -> TableDescription:
        """Location, version and schema; counts too if `detailed`."""
        return await self._reads.describe_table(table, pin, detailed=detailed)

    async def describe_index_stats(self, table: TableRef, pin: Pin, index: str) -> IndexStats:
        """Statistics of one index."""
        return await self._reads.describe_index_stats(table, pin, index)

    async def list_versions(
        self, table: TableRef, branch: str | None, *, descending: bool
    ) -> Sequence[VersionRecord]:
        """Version records."""
        records = await self._reads.list_versions(table, branch)
        return records[::-1] if descending else records
