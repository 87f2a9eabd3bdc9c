"""The fit of incoming rows to a table: reading Arrow streams and giving rows the table's schema.

Rows may come with their columns in any order and nullable ones left out, and in any Arrow layout
of the column's type (large or view strings, dictionaries, lists with other item names). A value is
never changed: int32 is not taken for int64, nor a timestamp in another unit or zone.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from actors.arrow_conversions import (
    NULLS_BYTES_MAX,
    FieldPlan,
    Growth,
    TooLarge,
    plan_fields,
    value_bytes,
)
from actors.arrow_types import decode_texts
from actors.column_text import TYPE_CHARACTERS_MAX, shorten
from actors.new_schema import check_new_schema
from actors.ports import ArrowReader
from cluster.errors import DestrierError, InvalidInput, TableSchemaValidationError
from cluster.settings import LimitSettings

__all__ = ["check_new_schema", "conform_reader", "conform_table", "open_stream", "read_stream"]

DEFAULT_LIMITS = LimitSettings()
# Lance's decoders expect what Rust aligns; misaligned decimals end its thread with a panic.
READ_OPTIONS = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.At64Byte)


def read_stream(body: bytes) -> pa.Table:
    """The rows of a whole Arrow IPC stream, checked to the last offset, index and character.

    InvalidInput if pyarrow cannot read it or what it says of itself is untrue: hostile offsets
    would end the process later, inside Lance.
    """
    with refusing_invalid_arrow():
        reader = _open(body)
        batches = list(reader)
        for batch in batches:
            batch.validate(full=True)
        return pa.Table.from_batches(batches, schema=reader.schema)


def open_stream(body: bytes | ArrowReader) -> pa.RecordBatchReader:
    """A reader of an Arrow IPC stream as it arrives; blocks. InvalidInput if it has no schema."""
    with refusing_invalid_arrow():
        return _open(body)


def _open(source: bytes | ArrowReader) -> pa.RecordBatchReader:
    reader = pa.ipc.open_stream(source, options=READ_OPTIONS)
    decode_texts(list(reader.schema))
    return reader


@contextmanager
def refusing_invalid_arrow() -> Iterator[None]:
    """Turn everything that reading a hostile stream raises into InvalidInput."""
    try:
        yield
    except (DestrierError, MemoryError):
        raise
    # Anything: extension types that are registered parse what the stream says with their own code.
    except Exception as error:
        text = next(iter(str(error).splitlines()), "")
        raise InvalidInput(
            "The request body is not a valid Arrow IPC stream:"
            f" {shorten(text, TYPE_CHARACTERS_MAX)}"
        ) from error


def conform_table(
    table: pa.Table,
    schema: pa.Schema,
    *,
    expanded_bytes_max: int = DEFAULT_LIMITS.insert_batch_bytes_max,
) -> pa.Table:
    """`table` with exactly `schema`.

    TableSchemaValidationError names the column that does not fit. InvalidInput if values that are
    stored once and referred to often would take more than `expanded_bytes_max` written out.
    """
    fit = _Fit(table.schema, schema, expanded_bytes_max)
    pieces = [piece for batch in table.to_batches() for piece in fit.pieces(batch)]
    return pa.Table.from_batches(pieces, schema=schema)


def conform_reader(
    reader: pa.RecordBatchReader,
    schema: pa.Schema,
    *,
    expanded_bytes_max: int = DEFAULT_LIMITS.insert_decompressed_bytes_max,
    on_error: Callable[[DestrierError], None] | None = None,
) -> pa.RecordBatchReader:
    """The rows of `reader` with exactly `schema`, batch by batch, each checked as in read_stream.

    What depends on the schema alone is raised here; the rest is raised where a batch is read, and
    given to `on_error` first, for an error loses its type on its way through Lance.
    """
    with refusing_invalid_arrow():
        fit = _Fit(reader.schema, schema, expanded_bytes_max)

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            with refusing_invalid_arrow():
                for batch in reader:
                    batch.validate(full=True)
                    yield from fit.pieces(batch)
        except DestrierError as error:
            if on_error is not None:
                on_error(error)
            raise

    return pa.RecordBatchReader.from_batches(schema, batches())


class _Fit:
    """How batches of one schema become batches of another."""

    def __init__(self, source: pa.Schema, target: pa.Schema, expanded_bytes_max: int) -> None:
        self._target = target
        self._growth = Growth(expanded_bytes_max)
        self._plans = plan_fields(list(source), list(target), None, self._growth)
        self._row_nulls_bytes = sum(
            value_bytes(plan.field.type) for plan in self._plans if plan.index is None
        )
        self._nulls: dict[pa.DataType, pa.Array] = {}

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The batch in the target's schema, in as many pieces as its arrays can hold."""
        waiting = [batch]
        while waiting:
            rows = waiting.pop()
            spent_before = self._growth.spent
            try:
                piece = self._convert(rows)
            except TooLarge as error:
                self._growth.spent = spent_before
                half = rows.num_rows // 2
                if half == 0:
                    raise TableSchemaValidationError(
                        f"Column {error} has a row of more than 2 GiB; split it."
                    ) from None
                waiting += [rows[half:], rows[:half]]
            except pa.ArrowMemoryError:
                raise
            except pa.ArrowException as error:
                raise InvalidInput(
                    "The request's Arrow data cannot be converted:"
                    f" {shorten(str(error), TYPE_CHARACTERS_MAX)}"
                ) from error
            else:
                yield piece

    def _convert(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        count = rows.num_rows
        if count > 1 and count * self._row_nulls_bytes > NULLS_BYTES_MAX:
            raise TooLarge("")
        columns = rows.columns
        arrays = [self._make(plan, columns, count) for plan in self._plans]
        return pa.RecordBatch.from_arrays(arrays, schema=self._target)

    def _make(self, plan: FieldPlan, columns: Sequence[pa.Array], count: int) -> pa.Array:
        if plan.index is None:
            return self._take_nulls(plan, count)
        array = plan.make(columns, count)
        if columns[plan.index].offset > 0:
            # Lance panics on structs in sliced structs and loses count of nulls in others; in a
            # copy everything starts at 0.
            array = pa.concat_arrays([array, array[:0]])
        return array

    def _take_nulls(self, plan: FieldPlan, count: int) -> pa.Array:
        """Nulls of a column that the input lacks; the columns and pieces of one type share them."""
        nulls = self._nulls.get(plan.field.type)
        if nulls is None or len(nulls) < count:
            nulls = self._nulls[plan.field.type] = plan.make((), count)
        return nulls[:count]
