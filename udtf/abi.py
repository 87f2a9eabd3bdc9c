"""How user code is called with rows, and what it may give back.

    arrow-partition      code(source) gives record batches or tables of the output schema
    row-chunker          code(column=value, ...) for each row gives rows: dicts, NamedTuples, tuples
                         or dataclasses
    arrow-batch-chunker  code(batch) gives record batches with a column `parent`, the number of the
                         row in the batch that each row comes from

Runs in the process of user code. Rows of chunkers get a last column `__parent`: the number of the
row in everything that was given. A chunk need not have every column of the output schema, for it
inherits others from its row.
"""

import copy
import dataclasses
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from udtf.output_fit import SchemaError, check_names, fit_array, fit_batch, make_array

PARENT = "__parent"
ARROW_PARTITION = "arrow-partition"
ROW_CHUNKER = "row-chunker"
ARROW_BATCH_CHUNKER = "arrow-batch-chunker"

Batches: TypeAlias = Iterator[pa.RecordBatch]
Caller: TypeAlias = Callable[[Batches], Batches]

_BATCH_PARENT = "parent"
_PARENT_FIELD = pa.field(PARENT, pa.int32(), nullable=False)
_PARENT_MAX = (1 << 31) - 1
# Rows that are kept as Python objects until they become a batch.
_ROWS_AT_ONCE = 8_192
_BYTES_AT_ONCE = 16 << 20
# So many rows are looked at together at most, which is faster, and fewer where they are large.
_ROOM_MAX = 64
_ROOM_PART = 8
_BYTES_PER_VALUE = 8


class Source:
    """The rows of one partition, read as they are asked for."""

    def __init__(self, batches: Batches, schema: pa.Schema) -> None:
        self._batches = batches
        self._table: pa.Table | None = None
        self._is_read = False
        self.schema = schema

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    def to_arrow(self) -> pa.Table:
        """All rows at once."""
        if self._table is None:
            batches = list(self._take())
            self._table = pa.Table.from_batches(batches, None if batches else self.schema)
        return self._table

    def to_pandas(self) -> Any:
        """All rows as a data frame."""
        return self.to_arrow().to_pandas()

    def to_batches(self, batch_size: int | None = None) -> Batches:
        """The rows piece by piece, once; each piece but the last has `batch_size` rows if given."""
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        batches = iter(self._table.to_batches()) if self._table is not None else self._take()
        return batches if batch_size is None else _resized(batches, batch_size)

    def _take(self) -> Batches:
        if self._is_read:
            raise RuntimeError(
                "the rows of source have been read; keep what to_arrow() gives to use them again"
            )
        self._is_read = True
        return self._batches


def caller(abi: str, code: Any, input_schema: pa.Schema, output_schema: pa.Schema) -> Caller:
    """A function from the rows of an item to what the code makes of them, checked.

    What it gives raises SchemaError for rows that do not fit, and whatever the code raises.
    """
    if abi == ARROW_PARTITION:
        return lambda batches: _run_partition(code, Source(batches, input_schema), output_schema)
    if abi == ROW_CHUNKER:
        names = _columns_taken(code, input_schema.names)
        return lambda batches: _run_rows(code, batches, names, list(output_schema))
    assert abi == ARROW_BATCH_CHUNKER
    return lambda batches: _run_batches(code, batches, list(output_schema))


def _run_partition(code: Any, source: Source, schema: pa.Schema) -> Batches:
    for batch in _given_batches(code(source)):
        yield fit_batch(batch, list(schema), all_columns=True)


def _run_batches(code: Any, batches: Batches, fields: Sequence[pa.Field]) -> Batches:
    before = 0
    for batch in batches:
        for given in _given_batches(code(batch)):
            if _BATCH_PARENT not in given.schema.names:
                raise SchemaError(
                    f"the column {_BATCH_PARENT!r} is missing: the number of the row, in the batch"
                    " that was given, that each row comes from"
                )
            parents = _fit_parents(given.column(_BATCH_PARENT), batch.num_rows)
            rows = given.drop_columns([_BATCH_PARENT])
            fitted = fit_batch(rows, fields, all_columns=False)
            yield fitted.append_column(_PARENT_FIELD, _shifted(parents, before))
        before += batch.num_rows


def _run_rows(
    code: Any, batches: Batches, names: Sequence[str], fields: Sequence[pa.Field]
) -> Batches:
    made = _MadeRows(fields)
    new, parents = made.new, made.parents
    call = code if _takes_in_order(code, names) else _by_name(code, names)
    number = 0
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in names]
        rows = zip(*columns, strict=True) if names else ((),) * batch.num_rows
        for values in rows:
            given = call(*values)
            for row in given if type(given) is types.GeneratorType else _given_rows(given):
                # The code may change and give it again.
                new.append(row.copy() if type(row) is dict else copy.copy(row))
                parents.append(number)
                if len(new) >= made.room and made.add_new():
                    yield made.take()
            number += 1
    made.add_new()
    if parents:
        yield made.take()


class _MadeRows:
    """Rows that code gave as Python objects, until they become a batch.

    Whoever has a row appends it to `new`, and the number of its parent to `parents`. Of `room` rows
    in `new`, their sizes are to be looked at.
    """

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self._fields = {field.name: field for field in fields}
        self._names: tuple[str, ...] = ()
        self._columns: list[list[object]] = []
        self._bytes = 0
        self.room = 1
        self.new: list[object] = []
        self.parents: list[int] = []

    def add_new(self) -> bool:
        """Take over `new`; whether there are enough rows for a batch."""
        if self.new:
            for column, values in zip(self._columns_or_none(), self._values(), strict=True):
                column.extend(values)
                self._bytes += _sizes(values)
            self.new.clear()
            # Rows that are as large as those so far shall not go far beyond what is allowed.
            left = _BYTES_AT_ONCE - self._bytes
            rows = left * len(self.parents) // (_ROOM_PART * (self._bytes + 1))
            self.room = max(1, min(rows, _ROOM_MAX, _ROWS_AT_ONCE - len(self.parents)))
        return len(self.parents) >= _ROWS_AT_ONCE or self._bytes >= _BYTES_AT_ONCE

    def _columns_or_none(self) -> list[list[object]]:
        if not self._names:
            self._names = self._first_names()
            self._columns = [[] for _ in self._names]
        return self._columns

    def _first_names(self) -> tuple[str, ...]:
        names = self._parts(self.new[0])[0]
        check_names(list(map(str, names)), list(self._fields), all_columns=False)
        return names

    def _values(self) -> list[list[Any]]:
        """Each column's values in the new rows."""
        new: list[Any] = self.new
        # What most rows are is asked of many at once.
        if set(map(type, new)) == {dict} and set(map(len, new)) == {len(self._names)}:
            try:
                return [[row[name] for row in new] for name in self._names]
            except KeyError:
                # Said below, of the very row.
                pass
        rows = [self._in_order(*self._parts(row)) for row in new]
        return [list(values) for values in zip(*rows, strict=True)] or [[] for _ in self._names]

    def take(self) -> pa.RecordBatch:
        if self.parents[-1] > _PARENT_MAX:
            raise SchemaError("an item has more than 2^31 rows; make source_task_size smaller")
        arrays = [
            make_array(column, self._fields[name])
            for name, column in zip(self._names, self._columns, strict=True)
        ]
        fields = [self._fields[name] for name in self._names]
        arrays.append(pa.array(self.parents, pa.int32()))
        self._columns = [[] for _ in self._names]
        self._bytes = 0
        self.parents.clear()
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*fields, _PARENT_FIELD]))

    def _parts(self, row: object) -> tuple[tuple[str, ...], Sequence[Any]]:
        """A row's columns and values."""
        if isinstance(row, tuple):
            names = getattr(row, "_fields", None)
            return (self._last(len(row)) if names is None else names), row
        if isinstance(row, Mapping):
            return tuple(row), list(row.values())
        if dataclasses.is_dataclass(row) and not isinstance(row, type):
            fields = tuple(field.name for field in dataclasses.fields(row))
            return fields, [getattr(row, name) for name in fields]
        raise SchemaError(
            f"the code gave a {type(row).__name__} as a row; give a dict, NamedTuple, tuple or"
            " dataclass"
        )

    def _last(self, count: int) -> tuple[str, ...]:
        """The columns of a plain tuple: the last ones, before which stand those it inherits."""
        if not 0 < count <= len(self._fields):
            raise SchemaError(
                f"the code gave a tuple of {count} values as a row, and output_schema has"
                f" {len(self._fields)} columns"
            )
        return tuple(self._fields)[-count:]

    def _in_order(self, names: tuple[str, ...], values: Sequence[Any]) -> Sequence[Any]:
        if names == self._names:
            return values
        given = dict(zip(names, values, strict=True))
        for name in self._names:
            if name not in given:
                raise SchemaError(
                    f"the column {name!r} is missing in a row; give every row the same columns,"
                    " with None where there is no value"
                )
        check_names(list(map(str, names)), list(self._names), all_columns=False)
        return [given[name] for name in self._names]


def _sizes(values: Sequence[Any]) -> int:
    """About how many bytes the values of a column have together."""
    # Most columns are of one type, and are asked at once.
    kinds = set(map(type, values))
    if kinds <= {str} or kinds <= {bytes}:
        return sum(map(len, values))
    return sum(map(_size, values))


def _size(value: object) -> int:
    """About how many bytes a value has, where they can be many."""
    kind = type(value)
    if kind is str or kind is bytes:
        return len(value)  # type: ignore[arg-type]
    if kind is list or kind is tuple:
        return len(value) * _BYTES_PER_VALUE  # type: ignore[arg-type]
    return 0


def _given_batches(result: object) -> Batches:
    """The batches of what code returned or yields."""
    if isinstance(result, (pa.RecordBatch, pa.Table)):
        result = [result]
    for item in _iterated(result, "pyarrow record batches or tables"):
        if isinstance(item, pa.RecordBatch):
            yield item
        elif isinstance(item, pa.Table):
            yield from item.to_batches()
        else:
            raise SchemaError(
                f"the code gave a {type(item).__name__}; give pyarrow record batches or tables"
            )


def _given_rows(result: object) -> Iterable[object]:
    if isinstance(result, (types.GeneratorType, list)):
        return result
    if isinstance(result, (Mapping, str, bytes)) or _is_row(result):
        raise SchemaError(
            f"the code returned a single {type(result).__name__}; yield rows, or return a list"
        )
    return _iterated(result, "rows")


def _is_row(result: object) -> bool:
    return hasattr(result, "_fields") or (
        dataclasses.is_dataclass(result) and not isinstance(result, type)
    )


def _iterated(result: object, wanted: str) -> Iterable[object]:
    if result is None:
        raise SchemaError(f"the code returned None; yield {wanted}, or return a list of them")
    if not isinstance(result, Iterable):
        raise SchemaError(
            f"the code returned a {type(result).__name__}; yield {wanted}, or return a list of them"
        )
    return result


def _parameters(code: Any) -> list[inspect.Parameter] | None:
    """The parameters of a function; None if it cannot be asked."""
    try:
        return list(inspect.signature(code).parameters.values())
    except (TypeError, ValueError):
        return None


def _columns_taken(code: Any, columns: Sequence[str]) -> Sequence[str]:
    """The columns that a function takes; one that cannot be asked is given all."""
    parameters = _parameters(code)
    if parameters is None:
        return list(columns)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return list(columns)
    named = {parameter.name for parameter in parameters}
    return [name for name in columns if name in named]


def _takes_in_order(code: Any, columns: Sequence[str]) -> bool:
    """Whether the first parameters of a function are the columns: by place is a faster call."""
    first = (_parameters(code) or [])[: len(columns)]
    plain = all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in first)
    return plain and [parameter.name for parameter in first] == list(columns)


def _by_name(code: Any, columns: Sequence[str]) -> Callable[..., Any]:
    return lambda *values: code(**dict(zip(columns, values, strict=True)))


def _fit_parents(column: pa.Array, rows: int) -> pa.Array:
    if not pa.types.is_integer(column.type) or column.null_count:
        raise SchemaError(
            f"the column {_BATCH_PARENT!r} must hold whole numbers without nulls, and the code gave"
            f" {column.type}"
        )
    wrong = [number for number in column.to_pylist() if not 0 <= number < rows]
    if wrong:
        raise SchemaError(
            f"the column {_BATCH_PARENT!r} has {wrong[0]}, but the batch that was given has the"
            f" rows 0 to {rows - 1}"
        )
    return column


def _shifted(parents: pa.Array, before: int) -> pa.Array:
    numbers = parents.cast(pa.int64()).to_numpy(zero_copy_only=False) + before
    return fit_array(pa.array(numbers), _PARENT_FIELD)


def _resized(batches: Batches, rows: int) -> Batches:
    """The same rows in batches of `rows`, the last one smaller."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count < rows:
            continue
        joined = pa.concat_batches(waiting)
        full = count - count % rows
        for start in range(0, full, rows):
            yield joined.slice(start, rows)
        waiting = [joined.slice(full)] if count > full else []
        count -= full
    if count:
        yield pa.concat_batches(waiting)
