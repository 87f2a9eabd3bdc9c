"""What HTTP tests put behind the app: a server of tables in memory, and callers by key."""

import asyncio
import io
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from actors.model import (
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
    TableLocation,
    TableRecord,
    VersionRange,
    VersionRecord,
)
from actors.ports import ArrowReader
from actors.version_records import page_of_records
from cluster.errors import (
    NamespaceAlreadyExists,
    NamespaceNotFound,
    TableAlreadyExists,
    TableIndexNotFound,
    TableNotFound,
    TableVersionNotFound,
    Unauthenticated,
)
from cluster.identifiers import ObjectId, TableRef
from serve_app.auth import Caller, Grant
from tests.http.fake_views import FakeViews

ROOT = ObjectId(())


def table_id(*names: str) -> ObjectId:
    """An identifier, shorter to write."""
    return ObjectId(names)


def arrow_stream(table: pa.Table) -> bytes:
    """`table` as an Arrow IPC stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


class FakeAuthenticator:
    """Knows `admin` and whatever keys a test adds; a bearer token is a key too."""

    def __init__(self) -> None:
        self.grants: dict[str, tuple[str, ...]] = {
            "admin": ("list+read+write+alter+drop+manage+execute_code:*",)
        }

    def add(self, key: str, *grants: str) -> None:
        """Let `key` have `grants`."""
        self.grants[key] = grants

    async def authenticate(self, authorization: str | None, api_key: str | None) -> Caller:
        key = (authorization or "").removeprefix("Bearer ") or api_key
        if key not in self.grants:
            raise Unauthenticated("no valid credential; send a key")
        return Caller(f"caller-{key}", tuple(Grant.parse(text) for text in self.grants[key]))


@dataclass
class FakeTable:
    """One table; every change makes a version."""

    record: TableRecord
    rows: pa.Table | None = None
    version: int = 0
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass
class FakeRows:
    """The result of a scan; `fails_after` batches it raises `failure`.

    Before batch `held_at` it waits until `goes_on` is set.
    """

    schema: pa.Schema
    version: int
    parts: Sequence[pa.RecordBatch]
    failure: Exception | None = None
    fails_after: int = 0
    is_closed: bool = False
    batches_read: int = 0
    rows_timeout_s: float | None = None
    held_at: int | None = None
    goes_on: threading.Event = field(default_factory=threading.Event)

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for position, part in enumerate(self.parts):
                if self.failure is not None and position == self.fails_after:
                    raise self.failure
                if position == self.held_at:
                    self.goes_on.wait()
                self.batches_read += 1
                yield part
            if self.failure is not None and self.fails_after >= len(self.parts):
                raise self.failure
        finally:
            self.is_closed = True


class FakeServer(FakeViews):
    """A server of tables that remembers how it was called.

    `calls` holds (method, arguments) in order; an entry of `failures` is raised by that method.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.failures: dict[str, Exception] = {}
        self.catalogs: dict[str, FakeCatalog] = {}
        self.scan_result: FakeRows | None = None
        self.indexes: dict[str, IndexStats] = {}
        self.versions: list[VersionRecord] = []

    def saw(self, method: str, *arguments: Any) -> None:
        """Remember a call and fail if the test wants it to."""
        self.calls.append((method, arguments))
        if method in self.failures:
            raise self.failures[method]

    @property
    def last(self) -> tuple[Any, ...]:
        """The arguments of the latest call."""
        return self.calls[-1][1]

    def called(self, method: str) -> tuple[Any, ...]:
        """The arguments of the only call of `method`."""
        (found,) = [arguments for name, arguments in self.calls if name == method]
        return found

    def catalog(self, database: str) -> "FakeCatalog":
        return self.catalogs.setdefault(database, FakeCatalog(self, database))

    def table(self, *names: str, database: str = "default") -> FakeTable:
        """A table that was made before."""
        return self.catalog(database).tables[ObjectId(names)]

    def add_table(self, *names: str, rows: pa.Table | None, database: str = "default") -> FakeTable:
        """Make a table; a declared one without rows."""
        made = FakeTable(
            _record(ObjectId(names), database, {}, rows is None), rows, int(bool(rows))
        )
        self.catalog(database).tables[ObjectId(names)] = made
        return made

    def _find(self, table: TableRef) -> FakeTable:
        found = self.catalog(table.database).tables.get(table.id)
        if found is None:
            raise TableNotFound(f"there is no table {table.id}")
        return found

    async def create_table(
        self,
        database: str,
        table: NewTable,
        mode: CreateMode,
        key: RequestKey,
        body: bytes | ArrowReader,
    ) -> CreatedTable:
        self.saw("create_table", database, table, mode, key, body)
        rows = await asyncio.to_thread(_read, body)
        known = self.catalog(database).tables
        if table.id in known and mode is CreateMode.CREATE:
            raise TableAlreadyExists(f"table {table.id} is there")
        record = _record(table.id, database, table.properties, False)
        known[table.id] = FakeTable(record, rows, 1)
        return CreatedTable(record, 1, "txn-create", True)

    async def describe_table(
        self, table: TableRef, pin: Pin, *, detailed: bool
    ) -> TableDescription:
        self.saw("describe_table", table, pin, detailed)
        found = self._find(table)
        if found.rows is None:
            return TableDescription(found.record)
        counts = (found.rows.num_rows, 1, 0, 1234) if detailed else (None, None, None, None)
        schema = found.rows.schema.serialize().to_pybytes()
        return TableDescription(found.record, found.version, schema, *counts)

    async def insert_rows(
        self, table: TableRef, branch: str | None, mode: InsertMode, key: RequestKey, body: bytes
    ) -> Commit:
        self.saw("insert_rows", table, branch, mode, key, body)
        return self._insert(table, _read(body))

    async def insert_stream(
        self,
        table: TableRef,
        branch: str | None,
        mode: InsertMode,
        request_id: str,
        body: ArrowReader,
    ) -> Commit:
        self.saw("insert_stream", table, branch, mode, request_id, body)
        return self._insert(table, await asyncio.to_thread(_read, body))

    def _insert(self, table: TableRef, rows: pa.Table) -> Commit:
        found = self._find(table)
        found.rows = rows if found.rows is None else pa.concat_tables([found.rows, rows])
        found.version += 1
        return Commit(found.version, "txn-insert", rows.num_rows)

    async def update_rows(self, *arguments: Any) -> tuple[Commit, Mapping[str, str]]:
        self.saw("update_rows", *arguments)
        found = self._find(arguments[0])
        found.version += 1
        return Commit(found.version, "txn-update", 2), found.record.properties

    async def delete_rows(self, *arguments: Any) -> Commit:
        self.saw("delete_rows", *arguments)
        found = self._find(arguments[0])
        found.version += 1
        return Commit(found.version, "txn-delete", 1)

    async def update_schema_metadata(
        self, table: TableRef, branch: str | None, key: RequestKey, metadata: Mapping[str, str]
    ) -> Mapping[str, str]:
        self.saw("update_schema_metadata", table, branch, key, metadata)
        found = self._find(table)
        found.metadata.update(metadata)
        return found.metadata

    async def count_rows(
        self, table: TableRef, pin: Pin, predicate: str | None, engine: str | None
    ) -> Counted:
        self.saw("count_rows", table, pin, predicate, engine)
        found = self._find(table)
        return Counted(0 if found.rows is None else found.rows.num_rows, found.version)

    async def scan(
        self, table: TableRef, pin: Pin, request: ScanRequest, engine: str | None
    ) -> FakeRows:
        self.saw("scan", table, pin, request, engine)
        found = self._find(table)
        if self.scan_result is not None:
            return self.scan_result
        assert found.rows is not None
        return FakeRows(found.rows.schema, found.version, found.rows.to_batches())

    async def describe_index_stats(self, table: TableRef, pin: Pin, index: str) -> IndexStats:
        self.saw("describe_index_stats", table, pin, index)
        if index not in self.indexes:
            raise TableIndexNotFound(f"there is no index {index!r}")
        return self.indexes[index]

    async def list_versions(
        self,
        table: TableRef,
        branch: str | None,
        page_token: str | None,
        limit: int | None,
        *,
        descending: bool,
    ) -> Page[VersionRecord]:
        self.saw("list_versions", table, branch, page_token, limit, descending)
        self._find(table)
        records = {record.version: record for record in self.versions}
        return page_of_records(
            sorted(records), records.get, page_token, limit, descending=descending
        )

    async def describe_version(
        self, table: TableRef, branch: str | None, version: int | None
    ) -> VersionRecord:
        self.saw("describe_version", table, branch, version)
        self._find(table)
        found = [record for record in self.versions if version in (None, record.version)]
        if not found:
            raise TableVersionNotFound(f"table {table.id} has no record of version {version}")
        return found[-1]

    async def delete_versions(
        self, table: TableRef, branch: str | None, ranges: Sequence[VersionRange]
    ) -> int:
        self.saw("delete_versions", table, branch, list(ranges))
        self._find(table)
        return len(self.versions)


class FakeCatalog:
    """Namespaces and tables of one database, in sorted dictionaries."""

    def __init__(self, server: FakeServer, database: str) -> None:
        self._server = server
        self._database = database
        self.namespaces: dict[ObjectId, dict[str, str]] = {}
        self.tables: dict[ObjectId, FakeTable] = {}

    async def create_namespace(
        self, namespace: ObjectId, mode: CreateMode, properties: Mapping[str, str]
    ) -> Mapping[str, str]:
        self._server.saw("create_namespace", namespace, mode, properties)
        if namespace in self.namespaces and mode is CreateMode.CREATE:
            raise NamespaceAlreadyExists(f"there is a namespace {namespace}")
        return self.namespaces.setdefault(namespace, dict(properties))

    async def list_namespaces(
        self, parent: ObjectId, page_token: str | None, limit: int | None
    ) -> Page[str]:
        self._server.saw("list_namespaces", parent, page_token, limit)
        return _page(
            [item.name for item in self.namespaces if item.parent == parent], page_token, limit
        )

    async def describe_namespace(self, namespace: ObjectId) -> Mapping[str, str]:
        self._server.saw("describe_namespace", namespace)
        if namespace not in self.namespaces:
            raise NamespaceNotFound(f"there is no namespace {namespace}")
        return self.namespaces[namespace]

    async def drop_namespace(
        self, namespace: ObjectId, *, skip_missing: bool, cascade: bool
    ) -> Mapping[str, str]:
        self._server.saw("drop_namespace", namespace, skip_missing, cascade)
        if namespace not in self.namespaces and not skip_missing:
            raise NamespaceNotFound(f"there is no namespace {namespace}")
        return self.namespaces.pop(namespace, {})

    async def declare_table(
        self, table: ObjectId, location: str | None, properties: Mapping[str, str]
    ) -> TableRecord:
        self._server.saw("declare_table", table, location, properties)
        record = _record(table, self._database, properties, True)
        self.tables[table] = FakeTable(record)
        return record

    async def register_table(
        self, table: ObjectId, location: str, properties: Mapping[str, str], *, overwrite: bool
    ) -> TableRecord:
        self._server.saw("register_table", table, location, properties, overwrite)
        return _record(table, self._database, properties, False)

    async def deregister_table(self, table: ObjectId) -> DroppedTable:
        self._server.saw("deregister_table", table)
        return self._forget(table)

    async def drop_table(self, table: ObjectId) -> DroppedTable:
        self._server.saw("drop_table", table)
        return self._forget(table)

    def _forget(self, table: ObjectId) -> DroppedTable:
        if table not in self.tables:
            raise TableNotFound(f"there is no table {table}")
        record = self.tables.pop(table).record
        return DroppedTable(table, record.location.uri, record.properties)

    async def find_table(self, table: ObjectId) -> TableRecord:
        self._server.saw("find_table", table)
        if table not in self.tables:
            raise TableNotFound(f"there is no table {table}")
        return self.tables[table].record

    async def list_tables(
        self,
        namespace: ObjectId,
        page_token: str | None,
        limit: int | None,
        *,
        include_declared: bool,
    ) -> Page[str]:
        self._server.saw("list_tables", namespace, page_token, limit, include_declared)
        names = [item.name for item in self._listed(include_declared) if item.parent == namespace]
        return _page(names, page_token, limit)

    async def list_all_tables(
        self, page_token: str | None, limit: int | None, *, include_declared: bool
    ) -> Page[str]:
        self._server.saw("list_all_tables", page_token, limit, include_declared)
        return _page([str(item) for item in self._listed(include_declared)], page_token, limit)

    def _listed(self, include_declared: bool) -> list[ObjectId]:
        return [
            name
            for name, table in self.tables.items()
            if include_declared or not table.record.is_only_declared
        ]


def _record(
    table: ObjectId, database: str, properties: Mapping[str, str], is_only_declared: bool
) -> TableRecord:
    location = TableLocation(f"/data/{database}/{table.stored}.lance")
    return TableRecord(table, location, dict(properties), is_only_declared)


def _read(body: bytes | ArrowReader) -> pa.Table:
    return pa.ipc.open_stream(body).read_all()


def _page(names: Sequence[str], page_token: str | None, limit: int | None) -> Page[str]:
    rest = sorted(name for name in names if page_token is None or name > page_token)
    shown = rest if limit is None else rest[:limit]
    return Page(tuple(shown), shown[-1] if len(shown) < len(rest) else None)
