"""Rows on their way into a table: streams become fragments here, whose metadata alone go to the
owner.

A stream is written as it arrives, with bounded memory, into files that no version names yet. The
owner commits them or, on any refusal, they are deleted again; after an unknown outcome they stay,
for they may have been committed.
"""

import asyncio
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from actors.conform import check_new_schema, conform_reader, open_stream
from actors.guards import refuse_reserved, refuse_view, without_reserved
from actors.lance_store import (
    branch_uri,
    delete_staged,
    fragments_from_json,
    fragments_to_json,
    write_first_fragments,
    write_new_fragments,
)
from actors.locations import new_location
from actors.model import (
    Commit,
    CreatedTable,
    CreateMode,
    InsertMode,
    NewTable,
    Pin,
    RequestKey,
    StagedFragments,
    TableRecord,
)
from actors.owners import Owners
from actors.ports import ArrowReader
from actors.reads import Reads
from actors.request_log import from_properties
from actors.storage import Storage
from actors.tables import Tables
from cluster.errors import (
    DestrierError,
    InvalidInput,
    NamespaceAlreadyExists,
    OutcomeUnknown,
    TableAlreadyExists,
    TableNotFound,
)
from cluster.identifiers import TableRef
from cluster.settings import LimitSettings, Settings
from udtf.history import read_transaction
from udtf.spec import ViewDefinition
from udtf.view_record import view_metadata, view_schema

T = TypeVar("T")
# Uploads that one replica writes at a time; more wait. Each holds a batch and Lance's write
# buffers.
_UPLOADS_MAX = 8


class Uploads:
    """Streams in, tables and versions out."""

    def __init__(self, settings: Settings, reads: Reads, tables: Tables, owners: Owners) -> None:
        self._settings = settings
        self._storage = Storage.of(settings.storage)
        self._reads = reads
        self._tables = tables
        self._owners = owners
        self._threads = ThreadPoolExecutor(_UPLOADS_MAX, thread_name_prefix="upload")

    async def insert_stream(
        self,
        table: TableRef,
        branch: str | None,
        mode: InsertMode,
        request_id: str,
        body: ArrowReader,
    ) -> Commit:
        """Insert an Arrow IPC stream of any size."""
        record = await self._reads.find_table(table)
        overwrite = mode is InsertMode.OVERWRITE
        staged, _ = await asyncio.gather(
            self._in_thread(self._stage_insert, record, branch, overwrite, body),
            self._tables.prepare(table),
        )
        key = RequestKey(request_id, body.digest())
        base = branch_uri(record.location.uri, branch)
        async with _Cleanup(self, base, staged) as cleanup:
            commit: Commit = await self._tables.call(
                table, "commit_fragments", branch, key, staged, overwrite=overwrite
            )
            cleanup.keep = not commit.repeated
            return commit

    def _stage_insert(
        self, record: TableRecord, branch: str | None, overwrite: bool, body: ArrowReader
    ) -> StagedFragments:
        uri = record.location.uri
        dataset = self._existing(record, branch)
        reader = open_stream(body)
        if dataset is None:
            schema = without_reserved(check_new_schema(reader.schema, self._settings.limits))
        else:
            refuse_view(dataset.schema, record.id)
            schema = dataset.schema
            if overwrite:
                schema = without_reserved(check_new_schema(reader.schema, self._settings.limits))
        rows = _Incoming(reader, schema, self._settings.limits)

        def write(rows: pa.RecordBatchReader) -> list[Any]:
            if dataset is None:
                return write_first_fragments(rows, uri, schema, self._storage)
            return write_new_fragments(
                rows, dataset, uri, branch, self._storage, overwrite=overwrite
            )

        fragments = rows.pass_to(write)
        return StagedFragments(fragments_to_json(fragments), bytes(schema.serialize()), rows.count)

    def _existing(self, record: TableRecord, branch: str | None) -> Any | None:
        try:
            return self._reads.open(record, Pin(branch=branch))
        except TableNotFound:
            if branch is None and record.is_only_declared:
                return None
            raise

    async def create_table(
        self,
        database: str,
        table: NewTable,
        mode: CreateMode,
        key: RequestKey,
        body: bytes | ArrowReader,
    ) -> CreatedTable:
        """Create from an Arrow stream; the name is taken last, when the rows are safe."""
        ref = TableRef(database, table.id)
        if table.id.is_root:
            raise InvalidInput("the identifier names the root namespace; name a table")
        snapshot = await self._reads.catalog(database)
        snapshot.check_namespace(table.id.parent)
        if table.id in snapshot.namespaces:
            raise NamespaceAlreadyExists(f"{table.id} is a namespace")
        existing = await self._find(ref)
        if existing is not None:
            return await self._create_existing(ref, existing, table, mode, key, body)
        location = new_location(table.id)
        uri = f"{self._storage.database_uri(database)}/{location}"
        if await self._reads.in_thread(self._storage.exists, uri):
            # A declared table is found above: this is a table being made, or what is left of one.
            await self._owners.catalog(database).call("make_way", table.id)
        staged = await self._in_thread(self._stage_create, uri, table, body)
        if not isinstance(body, bytes):
            key = RequestKey(key.id, body.digest())
        async with _Cleanup(self, uri, staged) as cleanup:
            try:
                created: CreatedTable = await self._owners.catalog(database).call(
                    "create_table", table, location, staged, key
                )
            except TableAlreadyExists:
                if mode is not CreateMode.EXIST_OK:
                    raise
                return await self._described(ref, created=False)
            cleanup.keep = created.created
            return created

    async def _create_existing(
        self,
        ref: TableRef,
        existing: TableRecord,
        table: NewTable,
        mode: CreateMode,
        key: RequestKey,
        body: bytes | ArrowReader,
    ) -> CreatedTable:
        repeated = await self._in_thread(self._find_creation, existing, key)
        if repeated is not None:
            return repeated
        if mode is CreateMode.CREATE:
            raise TableAlreadyExists(f"table {table.id} already exists")
        if mode is CreateMode.EXIST_OK:
            return await self._described(ref, created=False)
        if isinstance(body, bytes):
            commit: Commit = await self._tables.call(ref, "overwrite", None, key, body)
        else:
            commit = await self.insert_stream(ref, None, InsertMode.OVERWRITE, key.id, body)
        if table.properties:
            await self._owners.catalog(ref.database).call(
                "merge_properties", table.id, dict(table.properties)
            )
        record = await self._reads.find_table(ref)
        return CreatedTable(record, commit.version, commit.transaction_id, created=True)

    def _find_creation(self, record: TableRecord, key: RequestKey) -> CreatedTable | None:
        """The answer to the request that made the table, if this is that request again."""
        if record.is_only_declared:
            return None
        try:
            dataset = self._reads.open(record, Pin())
            oldest = read_transaction(dataset, 1)
        except Exception:  # noqa: BLE001 - pylance raises untyped errors: version 1 is cleaned up
            return None
        made_by = [] if oldest is None else from_properties(oldest.transaction_properties)
        if oldest is None or all(done.key.id != key.id for done in made_by):
            return None
        return CreatedTable(record, 1, oldest.uuid, created=True)

    async def _described(self, ref: TableRef, *, created: bool) -> CreatedTable:
        description = await self._reads.describe_table(ref, Pin(), detailed=False)
        return CreatedTable(description.record, description.version or 0, None, created)

    async def _find(self, ref: TableRef) -> TableRecord | None:
        try:
            return await self._reads.find_table(ref)
        except TableNotFound:
            return None

    def _stage_create(
        self, uri: str, table: NewTable, body: bytes | ArrowReader
    ) -> StagedFragments:
        reader = open_stream(body)
        schema = without_reserved(check_new_schema(reader.schema, self._settings.limits))
        refuse_reserved(table.schema_metadata)
        if table.schema_metadata:
            metadata = {**(schema.metadata or {}), **_encoded(table.schema_metadata)}
            schema = schema.with_metadata(metadata)
        rows = _Incoming(reader, schema, self._settings.limits)
        try:
            fragments = rows.pass_to(
                lambda rows: write_first_fragments(rows, uri, schema, self._storage)
            )
        except BaseException:
            delete_staged(uri, [], self._storage)
            raise
        return StagedFragments(fragments_to_json(fragments), bytes(schema.serialize()), rows.count)

    async def find_created(self, table: TableRef, key: RequestKey) -> CreatedTable | None:
        """The answer to a request that made the table before; None if the name is free.

        Raises:
            TableAlreadyExists: another request made it.
        """
        existing = await self._find(table)
        if existing is None:
            return None
        made = await self._in_thread(self._find_creation, existing, key)
        if made is None:
            raise TableAlreadyExists(f"table {table.id} already exists")
        return made

    async def create_view(
        self, view: TableRef, definition: ViewDefinition, key: RequestKey
    ) -> CreatedTable:
        """Create the table and the record of a view."""
        schema = view_schema(definition)
        metadata = _encoded(view_metadata(definition, uuid.uuid4().hex))
        schema = schema.with_metadata({**(schema.metadata or {}), **metadata})
        staged = StagedFragments((), bytes(schema.serialize()), 0)
        table = NewTable(view.id, stable_row_ids=True)
        created: CreatedTable = await self._owners.catalog(view.database).call(
            "create_table", table, new_location(view.id), staged, key
        )
        return created

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Blocking work that lasts as long as its upload; a cancelled one ends when its reader
        fails."""
        call = asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *arguments))
        return await call

    async def delete_staged(self, base_uri: str, staged: StagedFragments) -> None:
        """Delete files that were surely not committed."""
        fragments = fragments_from_json(staged.fragments)
        await self._in_thread(delete_staged, base_uri, fragments, self._storage)


class _Cleanup:
    """Deletes staged files when the block shows that they were not committed."""

    def __init__(self, uploads: Uploads, base_uri: str, staged: StagedFragments) -> None:
        self._uploads = uploads
        self._base_uri = base_uri
        self._staged = staged
        self.keep = False

    async def __aenter__(self) -> "_Cleanup":
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        sure = error is None or (
            isinstance(error, DestrierError) and not isinstance(error, OutcomeUnknown)
        )
        if sure and not self.keep:
            await self._uploads.delete_staged(self._base_uri, self._staged)


class _Incoming:
    """Rows of a stream, made to fit a schema and counted as they go by."""

    def __init__(
        self, reader: pa.RecordBatchReader, schema: pa.Schema, limits: LimitSettings
    ) -> None:
        self.count = 0
        self._failure: DestrierError | None = None
        self._rows = conform_reader(
            reader,
            schema,
            expanded_bytes_max=limits.insert_decompressed_bytes_max,
            on_error=self._fail,
        )

    def pass_to(self, write: Callable[[pa.RecordBatchReader], list[Any]]) -> list[Any]:
        """Let `write` read the rows; an error in them comes back as itself, not as Lance's."""
        reader = pa.RecordBatchReader.from_batches(self._rows.schema, self._counted())
        try:
            return write(reader)
        except DestrierError:
            if self._failure is not None:
                raise self._failure from None
            raise

    def _counted(self) -> Iterator[pa.RecordBatch]:
        for batch in self._rows:
            self.count += batch.num_rows
            yield batch

    def _fail(self, error: DestrierError) -> None:
        self._failure = error


def _encoded(metadata: Mapping[str, str]) -> dict[bytes, bytes]:
    return {key.encode(): value.encode() for key, value in metadata.items()}
