"""Brings rows into the schema of their view, and tells which source rows they come from."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from udtf.abi import PARENT
from udtf.source_rows import ROW_ID
from udtf.spec import CHUNK_INDEX, SOURCE_ROW_ID


class Misfit(Exception):
    """Rows do not fit their view; the message says which column and why."""


def fitted(columns: dict[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    """The columns as a batch of `schema`; what is not in it is left out.

    Raises:
        Misfit: a column is missing, cannot be converted without loss, or has nulls it may not have.
    """
    arrays = []
    for field in schema:
        if field.name not in columns:
            raise Misfit(f"the column {field.name!r} is missing")
        array = columns[field.name]
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        if array.type != field.type:
            array = _converted(array, field)
        if not field.nullable and array.null_count:
            raise Misfit(f"the column {field.name!r} has nulls, which output_schema does not allow")
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _converted(array: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return array.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Misfit(
            f"the column {field.name!r} is {array.type} and does not fit {field.type}: {error}"
        ) from None


def query_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows of a query view: what was read, and the id of the row that it was read from."""
    for batch in batches:
        columns = _columns(batch)
        yield fitted(columns | {SOURCE_ROW_ID: columns[ROW_ID]}, schema)


def code_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows of a UDTF view: what its code returned."""
    for batch in batches:
        yield fitted(_columns(batch), schema)


class Parents:
    """The source rows of one item of a chunker view, and what their chunks have from them.

    Chunks may come while rows are still being read, of earlier rows only and in any order.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._read: list[pa.RecordBatch] = []
        self._known = pa.table({})
        self._chunks: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def remember(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass on what is read of the source."""
        for batch in batches:
            self._read.append(batch)
            yield batch

    def chunk_rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows of the view: chunks with what they inherit, their row's id and their number in it.

        Raises:
            Misfit: as `fitted`, or a chunk is of no row.
        """
        for batch in batches:
            if not batch.num_rows:
                continue
            columns = _columns(batch)
            parents = self._numbers(columns.pop(PARENT, None))
            lineage: dict[str, Any] = {CHUNK_INDEX: pa.array(self._count(parents), pa.int32())}
            origin = self._known.take(pa.array(parents))
            lineage[SOURCE_ROW_ID] = origin.column(ROW_ID)
            for name in self._schema.names:
                if name not in columns and name not in lineage and name in origin.column_names:
                    columns[name] = origin.column(name)
            yield fitted(columns | lineage, self._schema)

    def _numbers(self, column: pa.Array | None) -> npt.NDArray[np.int64]:
        known = sum(batch.num_rows for batch in self._read)
        if known != self._known.num_rows:
            self._known = pa.Table.from_batches(list(self._read))
            more = np.zeros(self._known.num_rows - len(self._chunks), np.int64)
            self._chunks = np.concatenate([self._chunks, more])
        if column is None or column.null_count or not pa.types.is_integer(column.type):
            raise Misfit("the chunks do not say which rows they come from")
        numbers: npt.NDArray[np.int64] = column.to_numpy().astype(np.int64)
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < self._known.num_rows):
            raise Misfit("a chunk says that it comes from a row that was not given")
        return numbers

    def _count(self, parents: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Number the chunks of each row from 0, across batches."""
        order = np.argsort(parents, kind="stable")
        ordered = parents[order]
        rows, starts, counts = np.unique(ordered, return_index=True, return_counts=True)
        within = np.arange(len(ordered)) - np.repeat(starts, counts)
        numbers = np.empty(len(ordered), np.int64)
        numbers[order] = within + self._chunks[ordered]
        self._chunks[rows] += counts
        return numbers


def _columns(batch: pa.RecordBatch) -> dict[str, Any]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))
