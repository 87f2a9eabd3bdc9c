"""The one object that HTTP holds: reads answered here, writes sent to their owners.

Built once per process: `Server.local` keeps every owner in the process, `Server.on_ray` has them as
actors of the cluster.
"""

import asyncio
from collections.abc import Mapping, Sequence

import pyarrow as pa

from actors.distributed import DistributedReads
from actors.job_events import select_events
from actors.job_store import JobStore, jobs_storage
from actors.jobs_model import EventPage, Job, JobItemError, JobPage
from actors.model import (
    Assignment,
    Commit,
    Counted,
    CreatedTable,
    CreateMode,
    DroppedTable,
    IndexStats,
    InsertItem,
    InsertMode,
    NewTable,
    Page,
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
from actors.view_catalog import ViewCatalog
from actors.view_model import CreatedView, ViewDescription
from actors.views import Views
from cluster.clock import Clock, SystemClock
from cluster.identifiers import ObjectId, TableRef
from cluster.settings import Engine, Settings
from udtf.refresh_model import RefreshOptions
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
        self._tables = Tables(
            owners, self._reads.find_table, self._reads.is_over, settings.actors, clock
        )
        self._uploads = Uploads(settings, self._reads, self._tables, owners)
        self._views = Views(settings, owners, self._reads, self._uploads)
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

    async def resume_jobs(self) -> None:
        """Let the jobs go on that an earlier server has left, and schedules; none costs nothing."""
        if await asyncio.to_thread(JobStore.is_there, jobs_storage(self._settings)):
            await self._owners.jobs().call("start")

    async def close(self) -> None:
        """Let go of what this process holds."""
        await self._owners.close()

    def catalog(self, database: str) -> CatalogOperations:
        """The catalog of a database."""
        return ViewCatalog(database, self._reads, self._owners.catalog(database), self._views)

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
        record = await self._tables.add_properties(table, properties)
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
        self,
        table: TableRef,
        branch: str | None,
        page_token: str | None,
        limit: int | None,
        *,
        descending: bool,
    ) -> Page[VersionRecord]:
        """Version records."""
        return await self._reads.list_versions(
            table, branch, page_token, limit, descending=descending
        )

    async def describe_version(
        self, table: TableRef, branch: str | None, version: int | None
    ) -> VersionRecord:
        """One version record."""
        return await self._reads.describe_version(table, branch, version)

    # --- views ------------------------------------------------------------------------------------

    async def create_view(
        self,
        view: TableRef,
        definition: ViewDefinition,
        key: RequestKey,
        *,
        with_data: bool = False,
        requested_by: str = "",
    ) -> CreatedView:
        """Create a materialized view."""
        return await self._views.create(
            view, definition, key, with_data=with_data, requested_by=requested_by
        )

    async def describe_view(self, view: TableRef) -> ViewDescription:
        """What a view is, how current, and how its refreshes went."""
        return await self._views.describe(view)

    async def list_views(
        self, database: str, namespace: ObjectId, page_token: str | None, limit: int | None
    ) -> Page[str]:
        """Names of the views directly inside `namespace`."""
        return await self._views.names(database, namespace, page_token, limit)

    async def drop_view(self, view: TableRef) -> DroppedTable:
        """End a view's jobs and its schedule, forget its name and delete its data."""
        return await self._views.drop(view)

    async def refresh_view(
        self,
        view: TableRef,
        options: RefreshOptions,
        *,
        cascade: bool = False,
        failed_only: bool = False,
        cluster: str | None = None,
        idempotency_key: str | None = None,
        requested_by: str = "",
    ) -> str:
        """Start a job that brings a view up to date; returns the job's id."""
        return await self._views.refresh(
            view,
            options,
            cascade=cascade,
            failed_only=failed_only,
            cluster=cluster,
            idempotency_key=idempotency_key,
            requested_by=requested_by,
        )

    # --- jobs -------------------------------------------------------------------------------------

    async def list_jobs(self, database: str, page_token: str | None, limit: int) -> JobPage:
        """Jobs of a database, newest first."""
        jobs: JobPage = await self._owners.jobs().call("list", database, page_token, limit)
        return jobs

    async def describe_job(self, database: str, job_id: str) -> Job:
        """The job as it is now."""
        return await self._job("describe", database, job_id)

    async def cancel_job(self, database: str, job_id: str) -> Job:
        """Ask a job to end."""
        return await self._job("cancel", database, job_id)

    async def pause_job(self, database: str, job_id: str) -> Job:
        """Stop a job; what is done is kept."""
        return await self._job("pause", database, job_id)

    async def resume_job(self, database: str, job_id: str) -> Job:
        """Let a paused job go on."""
        return await self._job("resume", database, job_id)

    async def _job(self, method: str, database: str, job_id: str) -> Job:
        job: Job = await self._owners.jobs().call(method, database, job_id)
        return job

    async def job_events(self, database: str, job_id: str, limit: int) -> EventPage:
        """The newest events of a job, oldest first."""
        events: EventPage = await self._owners.jobs().call("events", database, job_id, limit)
        return events

    async def select_events(self, events: pa.Table, predicate: str) -> pa.Table:
        """The events that `predicate` selects, within the deadline of reads."""
        limits = self._settings.limits
        return await self._reads.in_thread(select_events, events, predicate, limits)

    async def job_errors(
        self, database: str, job_id: str, page_token: str | None, limit: int
    ) -> Page[JobItemError]:
        """The work items of a job that failed or were skipped."""
        errors: Page[JobItemError] = await self._owners.jobs().call(
            "errors", database, job_id, page_token, limit
        )
        return errors
