"""Work items: what one worker of the cluster does of a plan, and how its answer travels.

All SQL is run by Lance, at the workers, so a plan's answers and errors are those of the table's own
process. An answer is a sequence of parts: tables of rows, or values, or at last an error, which
travels as a value because an exception would reach the caller as text. Every answer ends with a
mark, so that one that was cut off, or came twice because a worker died, is noticed.
"""

import logging
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from operator import itemgetter
from typing import Any, Protocol

import lance
import pyarrow as pa

from actors.lance_store import branch_uri
from actors.row_changes import RowWork, stage_fragments
from actors.staging import StagedRewrite
from actors.storage import Storage
from cluster.errors import DestrierError, InternalError, ServiceUnavailable
from udtf.lance_errors import translate

logger = logging.getLogger(__name__)

# One row per part of an answer: which item's, the how-manieth, what it is, and its bytes.
ANSWER_SCHEMA = pa.schema(
    [
        ("item", pa.int64()),
        ("part", pa.int64()),
        ("kind", pa.int64()),
        ("body", pa.large_binary()),
    ]
)

# Lance's batches are put together to parts of this size: each costs Daft a step of its own.
_PART_BYTES = 1 << 20
# Answers lie one behind the other in memory, wherever the one before ends.
_READ_OPTIONS = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.DataTypeSpecific)


class _Kind(IntEnum):
    ROWS = 0
    VALUE = 1
    ERROR = 2
    END = 3


@dataclass(frozen=True, slots=True)
class PlanTarget:
    """One version of a branch, which any process can open."""

    uri: str
    branch: str | None
    version: int
    storage: Storage

    def open(self) -> Any:
        """The dataset. Blocks.

        Raises:
            DestrierError: the version is not there, or storage failed.
        """
        try:
            dataset = lance.dataset(self.uri, storage_options=self.storage.lance_options)
            return dataset.checkout_version((self.branch, self.version))
        except BaseException as error:
            raise translate(error, context="version") from error


class WorkItem(Protocol):
    """A part of a plan; picklable, and done by one worker."""

    def perform(self) -> Iterator[Any]:
        """The parts of the answer: tables and picklable values. Blocks.

        Raises:
            DestrierError: becomes the last part.
        """
        ...


@dataclass(frozen=True, slots=True)
class StageItem:
    """Stage a row change on some fragments; the answer is one StagedRewrite."""

    target: PlanTarget
    work: RowWork
    fragments: tuple[int, ...]

    def perform(self) -> Iterator[StagedRewrite]:
        """Write the new rows and the marks of deleted ones; nothing is committed."""
        target = self.target
        base = branch_uri(target.uri, target.branch)
        yield stage_fragments(target.open(), base, self.work, self.fragments, target.storage)


@dataclass(frozen=True, slots=True)
class CountItem:
    """Count the rows of some fragments that a predicate selects: one int."""

    target: PlanTarget
    predicate: str
    fragments: tuple[int, ...]

    def perform(self) -> Iterator[int]:
        """Count."""
        dataset = self.target.open()
        chosen = [dataset.get_fragment(fragment) for fragment in self.fragments]
        try:
            scanner = dataset.scanner(
                columns=[], filter=self.predicate, fragments=chosen, with_row_id=True
            )
            count = int(scanner.count_rows())
        except BaseException as error:
            raise translate(error, context="predicate") from error
        yield count


@dataclass(frozen=True, slots=True)
class ReadItem:
    """Read `rows` of the rows that a scan selects in some fragments, from the `offset`th on.

    The answer is tables, and then whether the fragments' rows ended. It stops early, after about
    `bytes_max` bytes of rows, so that wide rows do not fill the memory of those who pass them on.
    """

    target: PlanTarget
    columns: tuple[tuple[str, str], ...]
    predicate: str | None
    with_row_id: bool
    fragments: tuple[int, ...]
    offset: int
    rows: int
    bytes_max: int

    def perform(self) -> Iterator[pa.Table | bool]:
        """Read."""
        dataset = self.target.open()
        chosen = [dataset.get_fragment(fragment) for fragment in self.fragments]
        try:
            scanner = dataset.scanner(
                columns=dict(self.columns),
                filter=self.predicate,
                offset=self.offset,
                limit=self.rows,
                with_row_id=self.with_row_id,
                fragments=chosen,
                batch_size_bytes=self.bytes_max,
            )
            batches = scanner.to_batches()
        except BaseException as error:
            raise translate(error, context="expression") from error
        rows = size = 0
        batch = _next(batches)
        while batch is not None and size < self.bytes_max:
            part: list[pa.RecordBatch] = []
            enough = min(size + _PART_BYTES, self.bytes_max)
            while batch is not None and size < enough:
                part.append(batch)
                rows += batch.num_rows
                size += batch.nbytes
                batch = _next(batches)
            yield pa.Table.from_batches(part)
        yield batch is None and rows < self.rows


def _next(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    try:
        return next(batches, None)
    except BaseException as error:
        raise translate(error, context="expression") from error


def answer(number: int, item: WorkItem) -> Iterator[pa.RecordBatch]:
    """Do an item: rows of ANSWER_SCHEMA, the last one an end mark. Blocks, raises nothing."""
    part = 0
    try:
        for value in item.perform():
            if isinstance(value, pa.Table):
                yield _row(number, part, _Kind.ROWS, _to_ipc(value))
            else:
                yield _row(number, part, _Kind.VALUE, _pickled(value))
            part += 1
    except Exception as error:  # noqa: BLE001 - an exception would reach the caller as text
        yield _row(number, part, _Kind.ERROR, _pickled(_shown(error)))
        part += 1
    yield _row(number, part, _Kind.END, pa.py_buffer(b""))


def _shown(error: Exception) -> DestrierError:
    """The error that the caller may see; what it does not tell is logged here."""
    if isinstance(error, DestrierError) and not isinstance(error, InternalError):
        return error
    logger.error("a work item failed", exc_info=error)
    return error if isinstance(error, DestrierError) else InternalError("a worker failed")


def read_answers(table: pa.Table, items: int) -> list[list[Any]]:
    """The parts of each item's answer, in the items' order; an error is a part, the last one.

    Raises:
        ServiceUnavailable: an answer is not whole.
    """
    rows = [table.column(name).to_pylist() for name in ("item", "part", "kind")]
    bodies = list(table.column("body"))
    answers: list[list[Any]] = [[] for _ in range(items)]
    ended: set[int] = set()
    for row, (number, part, kind) in sorted(enumerate(zip(*rows, strict=True)), key=itemgetter(1)):
        if number in ended or part != len(answers[number]):
            raise _incomplete()
        if kind == _Kind.END:
            ended.add(number)
        else:
            answers[number].append(_from_body(kind, bodies[row].as_buffer()))
    if len(ended) != items:
        raise _incomplete()
    return answers


def _incomplete() -> ServiceUnavailable:
    return ServiceUnavailable("a worker's answer is not whole; nothing was changed, try again")


def _row(number: int, part: int, kind: _Kind, body: pa.Buffer) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([number], pa.int64()),
            pa.array([part], pa.int64()),
            pa.array([int(kind)], pa.int64()),
            _binary(body),
        ],
        schema=ANSWER_SCHEMA,
    )


def _binary(body: pa.Buffer) -> pa.Array:
    """An array of one value, which is not copied."""
    offsets = pa.array([0, body.size], pa.int64()).buffers()[1]
    return pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, body])


def _to_ipc(rows: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def _pickled(value: Any) -> pa.Buffer:
    return pa.py_buffer(pickle.dumps(value))


def _from_body(kind: int, body: pa.Buffer) -> Any:
    if kind == _Kind.ROWS:
        return pa.ipc.open_stream(body, options=_READ_OPTIONS).read_all()
    return pickle.loads(body)  # noqa: S301 - written by answer(), in a process of this deployment
