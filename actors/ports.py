"""The interfaces that HTTP sees and tests fake: what a server of tables can do.

Every method raises only errors of cluster.errors. A write's success means durable and visible to
every later read; any error but OutcomeUnknown means that nothing changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from actors.jobs_model import EventPage, Job, JobItemError, JobPage
from actors.model import (
    Assignment,
    Commit,
    Counted,
    CreatedTable,
    CreateMode,
    DroppedTable,
    IndexStats,
    InsertMode,
    NewTable,
    Page,
    Pin,
    RequestKey,
    ScanRequest,
    TableDescription,
    TableRecord,
    VersionRange,
    VersionRecord,
)
from actors.view_model import CreatedView, ViewDescription
from cluster.identifiers import ObjectId, TableRef
from cluster.settings import Engine
from udtf.refresh_model import RefreshOptions
from udtf.spec import ViewDefinition


class ArrowReader(Protocol):
    """An Arrow IPC stream that arrives while it is read: a blocking file, read by one thread.

    What a read raises is the outcome of the upload. The last bytes come only when the whole body
    has arrived and is valid.
    """

    @property
    def closed(self) -> bool:
        """Whether the file was closed."""
        ...

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes; empty at the end."""
        ...

    def readable(self) -> bool:
        """True."""
        ...

    def digest(self) -> str:
        """A hash of everything read, 32 hex digits; asked for at the end."""
        ...


class RowStream(Protocol):
    """The result of a scan: a schema, the version it was read at, and batches on demand.

    `batches` blocks and is iterated from one thread; closing the iterator ends the scan.
    """

    @property
    def schema(self) -> pa.Schema:
        """The columns of every batch."""
        ...

    @property
    def version(self) -> int:
        """The version that is read."""
        ...

    @property
    def rows_timeout_s(self) -> float | None:
        """Longest wait for rows, after which the scan is given up; None if it ends by itself."""
        ...

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, in order."""
        ...


class CatalogOperations(Protocol):
    """Namespaces and names of tables of one database."""

    async def create_namespace(
        self, namespace: ObjectId, mode: CreateMode, properties: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Create and return the namespace's properties."""
        ...

    async def list_namespaces(
        self, parent: ObjectId, page_token: str | None, limit: int | None
    ) -> Page[str]:
        """Names of the namespaces inside `parent`, sorted, after `page_token`."""
        ...

    async def describe_namespace(self, namespace: ObjectId) -> Mapping[str, str]:
        """The namespace's properties; NamespaceNotFound if it is not there."""
        ...

    async def drop_namespace(
        self, namespace: ObjectId, *, skip_missing: bool, cascade: bool
    ) -> Mapping[str, str]:
        """Drop and return its properties; `cascade` drops everything inside first."""
        ...

    async def declare_table(
        self, table: ObjectId, location: str | None, properties: Mapping[str, str]
    ) -> TableRecord:
        """Reserve a name; data come with the first insert."""
        ...

    async def register_table(
        self,
        table: ObjectId,
        location: str,
        properties: Mapping[str, str],
        *,
        overwrite: bool,
    ) -> TableRecord:
        """Give a name to a table that is in the database's folder already."""
        ...

    async def deregister_table(self, table: ObjectId) -> DroppedTable:
        """Forget the name, keep the data."""
        ...

    async def drop_table(self, table: ObjectId) -> DroppedTable:
        """Forget the name and delete the data."""
        ...

    async def find_table(self, table: ObjectId) -> TableRecord:
        """The record; TableNotFound if it is not there."""
        ...

    async def list_tables(
        self,
        namespace: ObjectId,
        page_token: str | None,
        limit: int | None,
        *,
        include_declared: bool,
    ) -> Page[str]:
        """Names of the tables directly inside `namespace`, sorted, after `page_token`."""
        ...

    async def list_all_tables(
        self, page_token: str | None, limit: int | None, *, include_declared: bool
    ) -> Page[str]:
        """Identifiers (names joined by `$`) of every table of the database, sorted."""
        ...


class ServerOperations(Protocol):
    """Everything that HTTP asks of the domain. `engine` None takes the setting."""

    def catalog(self, database: str) -> CatalogOperations:
        """The catalog of a database; a database exists from its first change."""
        ...

    async def create_table(
        self,
        database: str,
        table: NewTable,
        mode: CreateMode,
        key: RequestKey,
        body: bytes | ArrowReader,
    ) -> CreatedTable:
        """Create from an Arrow IPC stream; of a reader's request only the key's id counts."""
        ...

    async def describe_table(
        self, table: TableRef, pin: Pin, *, detailed: bool
    ) -> TableDescription:
        """Location, version and schema; counts too if `detailed`."""
        ...

    async def insert_rows(
        self,
        table: TableRef,
        branch: str | None,
        mode: InsertMode,
        key: RequestKey,
        body: bytes,
    ) -> Commit:
        """Insert one small Arrow IPC stream; appends share commits."""
        ...

    async def insert_stream(
        self,
        table: TableRef,
        branch: str | None,
        mode: InsertMode,
        request_id: str,
        body: ArrowReader,
    ) -> Commit:
        """Insert an Arrow IPC stream of any size from a blocking reader.

        The reader is read from one other thread; an error it raises is the insert's outcome and
        nothing changes. `request_id` is a RequestKey's id; the digest is that of the bytes read.
        """
        ...

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
        """Update; returns the commit and the table's properties after it."""
        ...

    async def delete_rows(
        self,
        table: TableRef,
        branch: str | None,
        key: RequestKey,
        predicate: str,
        engine: Engine | None,
    ) -> Commit:
        """Delete the rows that `predicate` selects."""
        ...

    async def update_schema_metadata(
        self, table: TableRef, branch: str | None, key: RequestKey, metadata: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Merge and return the whole map."""
        ...

    async def count_rows(
        self, table: TableRef, pin: Pin, predicate: str | None, engine: Engine | None
    ) -> Counted:
        """Count rows."""
        ...

    async def scan(
        self, table: TableRef, pin: Pin, request: ScanRequest, engine: Engine | None
    ) -> RowStream:
        """Start a scan; errors in the request are raised here, before the first batch."""
        ...

    async def describe_index_stats(self, table: TableRef, pin: Pin, index: str) -> IndexStats:
        """Statistics of one index."""
        ...

    async def list_versions(
        self,
        table: TableRef,
        branch: str | None,
        page_token: str | None,
        limit: int | None,
        *,
        descending: bool,
    ) -> Page[VersionRecord]:
        """Version records after `page_token`, oldest first unless `descending`.

        Raises:
            InvalidInput: a token that no page of a version listing has.
        """
        ...

    async def describe_version(
        self, table: TableRef, branch: str | None, version: int | None
    ) -> VersionRecord:
        """One version record, the newest if `version` is None.

        Raises:
            TableVersionNotFound: no record of the version.
        """
        ...

    async def delete_versions(
        self, table: TableRef, branch: str | None, ranges: Sequence[VersionRange]
    ) -> int:
        """Delete version records; returns how many."""
        ...

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
        """Create a materialized view; `with_data` starts the refresh that fills it.

        Raises:
            TableNotFound: the source is not there.
            InvalidInput: the source query does not fit the source or the output schema.
        """
        ...

    async def describe_view(self, view: TableRef) -> ViewDescription:
        """What a view is, how current, and how its refreshes went.

        Raises:
            InvalidTableState: the table is no view.
        """
        ...

    async def list_views(
        self, database: str, namespace: ObjectId, page_token: str | None, limit: int | None
    ) -> Page[str]:
        """Names of the views directly inside `namespace`, sorted, after `page_token`."""
        ...

    async def drop_view(self, view: TableRef) -> DroppedTable:
        """End a view's jobs and its schedule, forget its name and delete its data."""
        ...

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
        """Start a job that brings a view up to date; returns the job's id.

        `cascade` brings the views that it reads up to date first. `cluster`, if given, must be
        this deployment's.
        """
        ...

    # --- jobs -------------------------------------------------------------------------------------

    async def list_jobs(self, database: str, page_token: str | None, limit: int) -> JobPage:
        """Jobs of a database, newest first, older than `page_token`, the id of one."""
        ...

    async def describe_job(self, database: str, job_id: str) -> Job:
        """The job as it is now; TransactionNotFound if the database has none of this id."""
        ...

    async def cancel_job(self, database: str, job_id: str) -> Job:
        """Ask a job to end; one that is being published, or is over, stays as it is."""
        ...

    async def pause_job(self, database: str, job_id: str) -> Job:
        """Stop a job now; items that are done are kept, those being done are done again."""
        ...

    async def resume_job(self, database: str, job_id: str) -> Job:
        """Let a paused job go on."""
        ...

    async def job_events(self, database: str, job_id: str, limit: int) -> EventPage:
        """The newest `limit` events of a job, oldest first."""
        ...

    async def select_events(self, events: pa.Table, predicate: str) -> pa.Table:
        """Those of `events` (job_events.event_table) that an SQL predicate selects."""
        ...

    async def job_errors(
        self, database: str, job_id: str, page_token: str | None, limit: int
    ) -> Page[JobItemError]:
        """The work items of a job that failed or were skipped."""
        ...
