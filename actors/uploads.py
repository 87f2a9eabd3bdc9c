"""Rows on their way into a table: streams become fragments here, whose metadata alone go to the
owner.

A stream is written as it arrives, with bounded memory, into files that no version names yet. The
owner commits them or, on any refusal, they are deleted again; after an unknown outcome they stay,
for they may have been committed. The answer may be that of another upload of the same request: then
they stay if the version that it names has them.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from actors.conform import check_new_schema, conform_reader, open_stream
from actors.creation import find_creation
from actors.guards import refuse_reserved, refuse_view, without_reserved
from actors.lance_store import (
    branch_uri,
    delete_staged,
    file_name,
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
from actors.storage import Storage
from actors.tables import Tables
from cluster.errors import (
    DestrierError,
    InternalError,
    InvalidInput,
    NamespaceAlreadyExists,
    OutcomeUnknown,
    TableAlreadyExists,
    TableNotFound,
)
from cluster.identifiers import TableRef
from cluster.settings import LimitSettings, Settings
from udtf.spec import ViewDefinition
from udtf.view_record import view_metadata, view_schema

logger = logging.getLogger(__name__)

T = TypeVar("T")
# Uploads that one replica writes at a time; more wait. Each holds a batch and Lance's write
# buffers.
_UPLOADS_MAX = 8
# Of a body that is read for its digest alone.
_PIECE_BYTES = 1 << 20


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
            cleanup.is_needed = False
            if commit.repeated:
                # By another upload of the same request, or by this one, of which an owner was lost.
                await cleanup.compare(record, Pin(branch=branch, version=commit.version))
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
        if existing is None:
            try:
                return await self._create_new(ref, table, key, body)
            except TableAlreadyExists:
                # Another request came first, or this one did, sent twice at once.
                existing = await self._find(ref)
                if existing is None:
                    raise
                if mode is CreateMode.OVERWRITE and not isinstance(body, bytes):
                    # The stream has been read: its rows are not there to replace others.
                    mode = CreateMode.CREATE
        return await self._create_existing(ref, existing, table, mode, key, body)

    async def _create_new(
        self, ref: TableRef, table: NewTable, key: RequestKey, body: bytes | ArrowReader
    ) -> CreatedTable:
        """Create a table whose name was free.

        Raises:
            TableAlreadyExists: it is taken by now; any part of the body may have been read.
        """
        catalog = self._owners.catalog(ref.database)
        location = new_location(table.id)
        uri = f"{self._storage.database_uri(ref.database)}/{location}"
        if await self._reads.in_thread(self._storage.exists, uri):
            # A declared table is found before: this is a table being made, or what is left of one.
            await catalog.call("make_way", table.id)
        staged = await self._in_thread(self._stage_create, uri, table, body)
        if not isinstance(body, bytes):
            key = RequestKey(key.id, body.digest())
        async with _Cleanup(self, uri, staged) as cleanup:
            created: CreatedTable = await catalog.call("create_table", table, location, staged, key)
            # Else an earlier try's files, in their own folder, are the table.
            cleanup.is_needed = created.record.location.uri != uri
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
        if await self._is_made_by(existing, key):
            if not isinstance(body, bytes):
                key = RequestKey(key.id, await self._in_thread(_digest, body))
            return await self._finish_creation(ref, table, key)
        if mode is CreateMode.CREATE:
            raise TableAlreadyExists(f"table {table.id} already exists")
        if mode is CreateMode.EXIST_OK:
            return await self._described(ref, created=False)
        if isinstance(body, bytes):
            commit: Commit = await self._tables.call(ref, "overwrite", None, key, body)
        else:
            commit = await self.insert_stream(ref, None, InsertMode.OVERWRITE, key.id, body)
        record = await self._tables.add_properties(ref, table.properties)
        return CreatedTable(record, commit.version, commit.transaction_id, created=True)

    async def _is_made_by(self, record: TableRecord, key: RequestKey) -> bool:
        """Whether a request of this id made the table."""
        uri = record.location.uri
        return await self._in_thread(find_creation, uri, key.id, self._storage) is not None

    async def _finish_creation(
        self, ref: TableRef, table: NewTable, key: RequestKey
    ) -> CreatedTable:
        """The answer to the request that made the table; what the table still lacks, it gets.

        Raises:
            InvalidInput: the request had another body.
            OutcomeUnknown: it could not be completed.
        """
        made: CreatedTable | None = await self._owners.catalog(ref.database).call(
            "finish_creation", table, key
        )
        if made is None:
            raise OutcomeUnknown(
                f"table {ref.id} was there and is being replaced; send the same request again with"
                " the same x-request-id"
            )
        return made

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
        if not await self._is_made_by(existing, key):
            raise TableAlreadyExists(f"table {table.id} already exists")
        return await self._finish_creation(table, NewTable(table.id), key)

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

    async def names_any(self, record: TableRecord, pin: Pin, staged: StagedFragments) -> bool:
        """Whether a version names files that were staged; also if that cannot be told."""
        return await self._in_thread(self._names_any, record, pin, staged)

    def _names_any(self, record: TableRecord, pin: Pin, staged: StagedFragments) -> bool:
        ours = {
            file_name(file) for item in fragments_from_json(staged.fragments) for file in item.files
        }
        if not ours:
            return True
        try:
            return any(
                file_name(file) in ours
                for fragment in self._reads.open(record, pin).get_fragments()
                for file in fragment.data_files()
            )
        except Exception as error:  # noqa: BLE001 - untyped; a file kept in vain costs space only
            logger.warning("files of an upload stay in table %s: %s", record.id, error)
            return True

    async def delete_staged(self, base_uri: str, staged: StagedFragments) -> None:
        """Delete files that were surely not committed; what cannot be deleted costs space only."""
        fragments = fragments_from_json(staged.fragments)
        try:
            await self._in_thread(delete_staged, base_uri, fragments, self._storage)
        except OSError as error:
            logger.warning("files of an upload stay in %s: %s", base_uri, error)


class _Cleanup:
    """Deletes staged files when the block shows that they were not committed."""

    def __init__(self, uploads: Uploads, base_uri: str, staged: StagedFragments) -> None:
        self._uploads = uploads
        self._base_uri = base_uri
        self._staged = staged
        self.is_needed = True

    async def compare(self, record: TableRecord, pin: Pin) -> None:
        """Keep the files if the version of the answer names them: it may be another upload's."""
        self.is_needed = not await self._uploads.names_any(record, pin, self._staged)

    async def __aenter__(self) -> "_Cleanup":
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # A fault of ours says nothing of how far the owner came.
        sure = error is None or (
            isinstance(error, DestrierError)
            and not isinstance(error, (OutcomeUnknown, InternalError))
        )
        if sure and self.is_needed:
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


def _digest(body: ArrowReader) -> str:
    """The digest of a body whose rows, or what is left of them, are of no use. Blocks."""
    while body.read(_PIECE_BYTES):
        pass
    return body.digest()
