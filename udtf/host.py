"""Does work items: reads their rows of the source, runs the view's code on them, writes what comes.

A host lives in a worker of Daft's and never runs user code itself: a child process does, which is
given rows and gives rows back. Whatever goes wrong with an item becomes its status, because an
exception would end the whole plan.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import lance
import pyarrow as pa

from cluster.errors import InvalidInput
from udtf.adjacent_rows import AdjacentRows
from udtf.code_errors import class_names
from udtf.code_process import CodeFailed, CodeProcess, CodeSpec
from udtf.error_actions import decide
from udtf.error_policy import ErrorAction
from udtf.items import WorkItem
from udtf.lance_errors import translate
from udtf.refresh_model import ItemError, ItemState, ItemStatus
from udtf.row_fitting import Misfit, Parents, code_rows, query_rows
from udtf.source_rows import SourceReader
from udtf.sources import reason_of
from udtf.spec import CHUNK_INDEX, SOURCE_ROW_ID, ViewKind
from udtf.view_files import ViewFolder, fragment_rows

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SourceVersion:
    """What every worker reads: one version of a table, as a source query sees it."""

    uri: str
    branch: str | None
    version: int
    columns: tuple[tuple[str, str], ...]
    filter: str | None
    limit: int | None
    batch_rows: int

    def reader(self, storage_options: dict[str, str] | None) -> SourceReader:
        """Open the version."""
        latest = lance.dataset(self.uri, storage_options=storage_options)
        dataset = latest.checkout_version((self.branch, self.version))
        return SourceReader(dataset, dict(self.columns), self.filter, self.limit, self.batch_rows)


@dataclass(frozen=True, slots=True)
class HostSpec:
    """What a worker needs to do the items of one refresh; picklable.

    `view_schema` is an Arrow IPC schema message of the rows that are written. `code` is None of a
    query view; else the code sees the columns `code_columns`. `error_handling` is canonical JSON,
    see error_policy.py.
    """

    kind: ViewKind
    folder: ViewFolder
    source: SourceVersion
    view_schema: bytes
    rows_per_fragment: int
    code: CodeSpec | None = None
    code_columns: tuple[str, ...] = ()
    error_handling: str | None = None


class ItemHost:
    """Does one item at a time; what it opens and starts is kept for the next."""

    def __init__(self, spec: HostSpec) -> None:
        self._spec = spec
        self._schema = pa.ipc.read_schema(pa.py_buffer(spec.view_schema))
        options = dict(spec.folder.storage_options) or None
        self._rows = AdjacentRows(partial(spec.source.reader, options))
        self._view: Any = None
        self._process: CodeProcess | None = None
        self._stopped = threading.Event()

    def run_each(self, items: Sequence[WorkItem]) -> Iterator[ItemStatus]:
        """Do items one after another, each when its status is asked for; see `run`."""
        self._rows.expect(items)
        return map(self.run, items)

    def run(self, item: WorkItem) -> ItemStatus:
        """Do an item, again if the view's policy says so. Blocks; never raises."""
        started_s = time.monotonic()
        attempts = 0
        while True:
            attempts += 1
            reading = _Reading()
            try:
                fragments = self._write(item, reading)
            except BaseException as failure:  # noqa: BLE001 - a panic of Lance's is no Exception
                # Whoever was given the rows may have made another exception of it.
                cause = reading.error or failure
                if not isinstance(cause, CodeFailed):
                    # Its process is in the middle of the item.
                    self.close()
                error, bases = _explained(cause)
            else:
                return self._status(item, started_s, attempts, reading.rows, fragments)
            action = decide(self._spec.error_handling, error, bases, attempts)
            if action.action is ErrorAction.RETRY and not self._stopped.wait(action.wait_s):
                continue
            state = ItemState.SKIPPED if action.action is ErrorAction.SKIP else ItemState.FAILED
            return self._status(item, started_s, attempts, reading.rows, (), state, error)

    def stop(self) -> None:
        """End what is running, from another thread: the item fails."""
        self._stopped.set()
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the child process."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _write(self, item: WorkItem, reading: "_Reading") -> tuple[str, ...]:
        spec = self._spec
        if self._view is None:
            self._view = spec.folder.open()
        if spec.kind is ViewKind.QUERY:
            rows = query_rows(reading.pass_on(self._read(item)), self._schema)
        elif spec.kind is ViewKind.UDTF:
            rows = code_rows(self._run_code(reading.pass_on(self._read(item))), self._schema)
        else:
            parents = Parents(self._schema)
            read = parents.remember(reading.pass_on(self._read(item)))
            rows = parents.chunk_rows(self._run_code(read))
        return spec.folder.write(self._view, self._schema, rows, spec.rows_per_fragment)

    def _read(self, item: WorkItem) -> Iterator[pa.RecordBatch]:
        spec = self._spec
        # Opened here, and not when the first row is asked for, from when on an item's time runs.
        outputs = self._rows.reader.columns
        names = list(spec.code_columns)
        if spec.kind is not ViewKind.UDTF:
            # What a query view shows, and a chunk inherits.
            lineage = (SOURCE_ROW_ID, CHUNK_INDEX)
            kept = [name for name in self._schema.names if name not in lineage]
            names += [name for name in kept if name in outputs and name not in names]
        return self._rows.read(item.rows, names)

    def _run_code(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert self._spec.code is not None
        if self._process is None:
            self._process = CodeProcess(self._spec.code)
        names = list(self._spec.code_columns)
        return self._process.run(batch.select(names) for batch in batches)

    def _status(
        self,
        item: WorkItem,
        started_s: float,
        attempts: int,
        rows_in: int,
        fragments: tuple[str, ...],
        state: ItemState = ItemState.DONE,
        error: ItemError | None = None,
    ) -> ItemStatus:
        return ItemStatus(
            id=item.id,
            state=state,
            attempts=attempts,
            rows_in=rows_in,
            rows_out=sum(map(fragment_rows, fragments)),
            fragments=fragments,
            error=error,
            label=item.label,
            duration_ms=round((time.monotonic() - started_s) * 1_000),
        )


class _Reading:
    """Counts the rows that are read of the source, and keeps the exception that ended them."""

    def __init__(self) -> None:
        self.rows = 0
        self.error: BaseException | None = None

    def pass_on(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                self.rows += batch.num_rows
                yield batch
        except GeneratorExit:
            raise
        except BaseException as error:
            self.error = error
            raise


def _explained(error: BaseException) -> tuple[ItemError, tuple[str, ...]]:
    """Why an item failed, and the names of the classes that the error is of."""
    if isinstance(error, CodeFailed):
        return error.error, error.bases
    if isinstance(error, Misfit):
        return ItemError("schema", "SchemaError", str(error)), ()
    # A panic of Lance's is no Exception.
    told = translate(error, context="expression") if isinstance(error, Exception) else None
    if isinstance(told, InvalidInput):
        # The source query's own, on some row: no other attempt does better.
        return ItemError("user", "InvalidInput", told.message), ("InvalidInput",)
    logger.warning("an item failed", exc_info=error)
    kind = type(error)
    return ItemError("system", kind.__name__, reason_of(error)), tuple(class_names(kind))
