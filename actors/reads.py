"""Reads, in the process that was asked: no actor, no copy of the table's state but the one just
proved.

Cheap answers are given on the event loop; everything that may block runs in a thread with a
deadline. Lance cannot be interrupted, so a read past its deadline keeps its thread: a process with
too many of those says that it must be replaced. The rows of a scan are read in a thread of whoever
asked; one that waits for Lance past the deadline counts too.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from actors.catalog_view import CatalogSnapshot, CatalogView
from actors.distributed import ScanTarget
from actors.field_paths import format_field_path, parse_field_path, resolve_field_path
from actors.freshness import TableCounts, TableHandles, TableState
from actors.incarnation import is_over
from actors.model import (
    Counted,
    IndexStats,
    Page,
    Pin,
    ScanRequest,
    TableDescription,
    TableLocation,
    TableRecord,
    VersionRecord,
)
from actors.sql import Expression, prepare_expression, prepare_predicate
from actors.storage import Storage
from actors.version_records import VersionRecords
from cluster.clock import Clock
from cluster.errors import (
    DestrierError,
    InvalidInput,
    ServiceUnavailable,
    TableColumnNotFound,
    TableNotFound,
    TableTagNotFound,
    TableVersionNotFound,
)
from cluster.identifiers import ObjectId, TableRef
from cluster.settings import Settings
from udtf.lance_errors import translate

T = TypeVar("T")
_THREADS = 16
# A batch costs Lance as much as thousands of comparisons of numbers: a count of a million rows took
# two thirds of the time with the most rows named here. The least is Lance's own choice. It reads
# some tens of batches ahead, so that a count takes some tens of these bytes.
_BATCH_ROWS_MIN, _BATCH_ROWS_MAX = 8_192, 65_536
_BATCH_BYTES = 1 << 20
# A batch of a scan's result is held whole on its way to the client, and Lance reads some ahead.
# Batches of narrow rows have less: for those Lance's choice of rows holds.
_RESULT_BATCH_BYTES = 8 << 20
# Lance reads these by rows only, and warns of each batch of "2.0" whose bytes are to be bounded.
_FORMATS_READ_BY_ROWS = ("0.1", "2.0")


class LanceRows:
    """A scan's result, read from Lance as it is asked for (ports.RowStream)."""

    def __init__(self, scanner: Any, version: int, waits: "LanceWaits") -> None:
        self.schema: pa.Schema = scanner.projected_schema
        self.version = version
        self.rows_timeout_s: float | None = waits.deadline_s
        self._scanner = scanner
        self._waits = waits

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, in order.

        Raises:
            DestrierError: translated; an expression may fail on a row.
        """
        waits = self._waits
        waits.begin(self)
        try:
            for batch in self._scanner.to_batches():
                waits.end(self)
                yield batch
                waits.begin(self)
        except BaseException as error:
            raise translate(error, context="expression") from error
        finally:
            waits.end(self)


class LanceWaits:
    """Since when each scan has waited for Lance to bring rows.

    Asked for every batch, so without a lock: each call does one thing to the dictionary.
    """

    def __init__(self, clock: Clock, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._clock = clock
        self._since_s: dict[LanceRows, float] = {}

    def begin(self, rows: LanceRows) -> None:
        """`rows` asks Lance for a batch."""
        self._since_s[rows] = self._clock.monotonic()

    def end(self, rows: LanceRows) -> None:
        """`rows` waits no more."""
        self._since_s.pop(rows, None)

    def overdue(self) -> int:
        """How many waits are past the deadline: nobody wants their rows any more."""
        given_up_s = self._clock.monotonic() - self.deadline_s
        return sum(since_s <= given_up_s for since_s in list(self._since_s.values()))


class Reads:
    """What a replica answers by itself."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._storage = Storage.of(settings.storage)
        interval_s = settings.storage.full_refresh_interval_s
        self._handles = TableHandles(self._storage, clock, interval_s)
        self._catalogs: dict[str, CatalogView] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="read")
        self._stuck = 0
        self._scan_waits = LanceWaits(clock, settings.engine.read_timeout_s)

    def healthy(self) -> bool:
        """Whether enough threads are left to answer."""
        stuck = self._stuck + self._scan_waits.overdue()
        return stuck <= self._settings.engine.stuck_threads_max

    # --- the catalog ------------------------------------------------------------------------------

    def catalog_view(self, database: str) -> CatalogView:
        """The reader of a database's catalog."""
        view = self._catalogs.get(database)
        if view is None:
            view = self._catalogs[database] = CatalogView(
                self._storage.database_uri(database),
                self._storage,
                self._clock,
                self._settings.storage.full_refresh_interval_s,
            )
        return view

    async def catalog(self, database: str) -> CatalogSnapshot:
        """The current catalog."""
        view = self.catalog_view(database)
        found = view.cached()
        return found if found is not None else await self.in_thread(view.snapshot)

    async def find_table(self, table: TableRef) -> TableRecord:
        """The record of a table.

        Raises:
            TableNotFound: no such table.
        """
        if table.id.is_root:
            raise InvalidInput("the identifier names the root namespace; name a table")
        snapshot = await self.catalog(table.database)
        view = self.catalog_view(table.database)
        if self._storage.is_local:
            return view.find_table(table.id, snapshot)
        return await self.in_thread(view.find_table, table.id, snapshot)

    async def is_over(self, location: TableLocation) -> bool:
        """Whether this life of a table was dropped; one that was deregistered is not over."""
        return await self.in_thread(is_over, location.uri, location.incarnation, self._storage)

    async def list_declared(self, database: str, names: list[ObjectId]) -> set[ObjectId]:
        """Those of `names` that have no data yet."""
        snapshot = await self.catalog(database)
        view = self.catalog_view(database)
        rows = [(name, snapshot.tables[name]) for name in names if name in snapshot.tables]

        def declared() -> set[ObjectId]:
            return {name for name, row in rows if view.is_declared(row)}

        return await self.in_thread(declared)

    # --- one table --------------------------------------------------------------------------------

    async def count_rows(self, table: TableRef, pin: Pin, predicate: str | None) -> Counted:
        """Count rows."""
        record = await self.find_table(table)
        state = self._cached_state(record, pin)
        if state is not None and predicate is None:
            return Counted(int(state.dataset.count_rows()), state.version)
        return await self.in_thread(self._count, record, pin, predicate)

    def _count(self, record: TableRecord, pin: Pin, predicate: str | None) -> Counted:
        dataset = self.open(record, pin)
        version = int(dataset.version)
        if predicate is None:
            return Counted(int(dataset.count_rows()), version)
        prepared = prepare_predicate(predicate, dataset.schema, self._settings.limits)
        try:
            # Lance's own count_rows takes two to three times as long without an index.
            scanner = dataset.scanner(
                columns=[],
                with_row_address=True,
                filter=prepared.sql,
                batch_size=_batch_rows(dataset.schema, prepared),
                scan_in_order=False,
            )
            return Counted(int(scanner.count_rows()), version)
        except BaseException as error:
            raise translate(error, context="predicate") from error

    async def scan(self, table: TableRef, pin: Pin, request: ScanRequest) -> LanceRows:
        """Start a scan."""
        record = await self.find_table(table)
        return await self.in_thread(self._scan, record, pin, request)

    def _scan(self, record: TableRecord, pin: Pin, request: ScanRequest) -> LanceRows:
        dataset = self.open(record, pin)
        checked = check_scan(request, dataset.schema, self._settings)
        try:
            scanner = dataset.scanner(
                columns=dict(checked.columns) if checked.columns is not None else None,
                filter=checked.filter,
                limit=checked.limit,
                offset=checked.offset,
                with_row_id=checked.with_row_id,
                **_batch_bound(dataset),
            )
            return LanceRows(scanner, int(dataset.version), self._scan_waits)
        except BaseException as error:
            raise translate(error, context="expression") from error

    async def pinned(self, table: TableRef, pin: Pin) -> ScanTarget:
        """The version that a read is to see, for readers elsewhere."""
        record = await self.find_table(table)
        state = self._cached_state(record, pin)
        if state is not None:
            return _target(record, pin, state.dataset)
        return await self.in_thread(lambda: _target(record, pin, self.open(record, pin)))

    async def describe_table(
        self, table: TableRef, pin: Pin, *, detailed: bool
    ) -> TableDescription:
        """Location, version and schema; counts too if `detailed`."""
        record = await self.find_table(table)
        return await self.in_thread(self._describe, record, pin, detailed)

    def _describe(self, record: TableRecord, pin: Pin, detailed: bool) -> TableDescription:
        if record.is_only_declared:
            if pin.version is not None or pin.tag is not None or pin.branch is not None:
                raise TableVersionNotFound(f"table {record.id} is declared and has no versions")
            return TableDescription(record)
        dataset = self.open(record, pin)
        schema = bytes(dataset.schema.serialize())
        version = int(dataset.version)
        if not detailed:
            return TableDescription(record, version, schema)
        state = self._cached_state(record, pin)
        if state is not None and state.dataset is dataset:
            counts = state.counts
        else:
            counts = TableCounts.of(dataset)
        return TableDescription(
            record=record,
            version=version,
            schema_ipc=schema,
            num_rows=counts.rows,
            num_fragments=counts.fragments,
            num_deleted_rows=counts.deleted_rows,
            total_bytes=counts.bytes,
        )

    async def describe_index_stats(self, table: TableRef, pin: Pin, index: str) -> IndexStats:
        """Statistics of one index."""
        record = await self.find_table(table)
        return await self.in_thread(self._index_stats, record, pin, index)

    def _index_stats(self, record: TableRecord, pin: Pin, index: str) -> IndexStats:
        dataset = self.open(record, pin)
        try:
            stats = dataset.stats.index_stats(index)
        except BaseException as error:
            raise translate(error, context="index") from error
        details = stats.get("indices") or [{}]
        return IndexStats(
            index_type=stats["index_type"],
            distance_type=details[0].get("metric_type"),
            num_indexed_rows=int(stats["num_indexed_rows"]),
            num_unindexed_rows=int(stats["num_unindexed_rows"]),
            num_indices=int(stats["num_indices"]),
        )

    async def list_versions(
        self,
        table: TableRef,
        branch: str | None,
        page_token: str | None,
        limit: int | None,
        *,
        descending: bool,
    ) -> Page[VersionRecord]:
        """Version records of a branch."""
        record = await self.find_table(table)

        def read() -> Page[VersionRecord]:
            self._handles.get(record.location.uri, branch).latest()
            records = VersionRecords(record.location.uri, branch, self._storage)
            return records.page(page_token, limit, descending=descending)

        return await self.in_thread(read)

    async def describe_version(
        self, table: TableRef, branch: str | None, version: int | None
    ) -> VersionRecord:
        """One version record of a branch.

        Raises:
            TableVersionNotFound: no record of the version.
        """
        record = await self.find_table(table)

        def read() -> VersionRecord | None:
            latest = self._handles.get(record.location.uri, branch).latest().version
            records = VersionRecords(record.location.uri, branch, self._storage)
            return records.newest(latest) if version is None else records.find(version)

        found = await self.in_thread(read)
        if found is None:
            what = "version records" if version is None else f"record of version {version}"
            raise TableVersionNotFound(f"table {table.id} has no {what}")
        return found

    # --- states -----------------------------------------------------------------------------------

    def _cached_state(self, record: TableRecord, pin: Pin) -> TableState | None:
        if pin.version is not None or pin.tag is not None:
            return None
        state = self._handles.get(record.location.uri, pin.branch).cached()
        return state if state is not None and state.version >= (pin.version_min or 0) else None

    def open(self, record: TableRecord, pin: Pin) -> Any:
        """The dataset that a read is to see. Blocks.

        Raises:
            TableNotFound: the table has no data, or is gone.
            TableVersionNotFound: no record of the version.
            ServiceUnavailable: `pin.version_min` has not come yet.
        """
        if pin.tag is not None:
            return self._open_tag(record, pin)
        handle = self._handles.get(record.location.uri, pin.branch)
        if pin.version is None:
            state = handle.latest()
            if state.version < (pin.version_min or 0):
                raise ServiceUnavailable(
                    f"table {record.id} is at version {state.version}, not yet at {pin.version_min}"
                )
            return state.dataset
        records = VersionRecords(record.location.uri, pin.branch, self._storage)
        if pin.version < 1 or records.is_deleted(pin.version):
            raise TableVersionNotFound(f"table {record.id} has no version {pin.version}")
        try:
            return handle.at(pin.version)
        except TableNotFound:
            raise
        except DestrierError as error:
            if isinstance(error, TableVersionNotFound):
                raise TableVersionNotFound(
                    f"table {record.id} has no version {pin.version}"
                ) from error
            raise

    def _open_tag(self, record: TableRecord, pin: Pin) -> Any:
        dataset = self._handles.get(record.location.uri, None).latest().dataset
        try:
            if pin.tag not in dataset.tags.list():
                raise TableTagNotFound(f"table {record.id} has no tag {pin.tag!r}")
            return dataset.checkout_version(pin.tag)
        except DestrierError:
            raise
        except BaseException as error:
            raise translate(error, context="version") from error

    async def in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run blocking work with the deadline of reads.

        Raises:
            ServiceUnavailable: the deadline passed; the thread is lost until the work ends.
        """
        call = asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *arguments))
        deadline_s = self._settings.engine.read_timeout_s
        try:
            return await asyncio.wait_for(asyncio.shield(call), timeout=deadline_s)
        except TimeoutError:
            self._stuck += 1
            call.add_done_callback(self._unstuck)
            raise ServiceUnavailable(
                f"the read was given up after {deadline_s:g} s; use a simpler predicate or"
                " expression, or fewer rows"
            ) from None

    def _unstuck(self, call: "asyncio.Future[Any]") -> None:
        self._stuck -= 1
        if not call.cancelled():
            call.exception()


def _target(record: TableRecord, pin: Pin, dataset: Any) -> ScanTarget:
    rows = int(dataset.count_rows())
    return ScanTarget(record.location.uri, pin.branch, int(dataset.version), rows)


def _batch_bound(dataset: Any) -> dict[str, int]:
    """What bounds the bytes of a batch of a scan's result, for Lance's scanner."""
    version = dataset.data_storage_version
    bound: dict[str, int] = {}
    if version != "2.0":
        bound["batch_size_bytes"] = _RESULT_BATCH_BYTES
    if version in _FORMATS_READ_BY_ROWS:
        counts = TableCounts.of(dataset)
        rows = _RESULT_BATCH_BYTES * counts.rows // max(counts.bytes, 1)
        bound["batch_size"] = min(max(rows, 1), _BATCH_ROWS_MIN)
    return bound


def _batch_rows(schema: pa.Schema, predicate: Expression) -> int | None:
    """Rows to read at a time for a predicate; None, Lance's choice, where a row may be of any
    size."""
    types = [schema.field(name).type for name in predicate.columns]
    if predicate.makes_values or not all(pa.types.is_primitive(it) for it in types):
        return None
    row_bits: int = max(1, sum(it.bit_width for it in types))
    return min(max(8 * _BATCH_BYTES // row_bits, _BATCH_ROWS_MIN), _BATCH_ROWS_MAX)


def check_scan(request: ScanRequest, schema: pa.Schema, settings: Settings) -> ScanRequest:
    """The request with its SQL checked and its columns resolved.

    Raises:
        InvalidInput: a predicate, column or expression that the table cannot run.
    """
    limits = settings.limits
    predicate = request.filter
    if request.columns is not None:
        columns = [
            (name, prepare_expression(text, schema, limits).sql) for name, text in request.columns
        ]
    else:
        every = dict.fromkeys(schema.names)
        names = every if request.names is None else request.names
        columns = [
            (name, format_field_path((name,)) if name in every else _path_of(name, schema))
            for name in names
        ]
    return ScanRequest(
        filter=None if predicate is None else prepare_predicate(predicate, schema, limits).sql,
        columns=tuple(columns),
        limit=request.limit,
        offset=request.offset,
        with_row_id=request.with_row_id,
    )


def _path_of(name: str, schema: pa.Schema) -> str:
    """The exact path of the field that a name in a list of columns means."""
    try:
        return format_field_path(resolve_field_path(parse_field_path(name), schema))
    except (InvalidInput, TableColumnNotFound) as error:
        raise InvalidInput(
            f"columns: {error.message}; a list holds names of columns, and SQL stands in a map from"
            " output names to expressions"
        ) from error
