"""Brings what user code gives into the view's output schema, or says which column does not fit.

Runs in the process of user code. A value is converted only to the same kind of thing: numbers to
wider or narrower ones that hold them, texts and lists to another layout. A text is never parsed.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

# One frame holds about so much; a larger batch is cut.
PIECE_BYTES_MAX = 64 << 20

_VALUE_CHARACTERS_MAX = 80


class SchemaError(Exception):
    """What the code gave does not fit; the message names the column, what is wanted and given."""


def fit_batch(
    batch: pa.RecordBatch, wanted: Sequence[pa.Field], *, all_columns: bool
) -> pa.RecordBatch:
    """The batch with the `wanted` columns in their order; unless `all_columns`, those it has.

    Raises:
        SchemaError: a column is missing, unknown, there twice, or does not fit.
    """
    given = batch.schema.names
    check_names(given, [field.name for field in wanted], all_columns=all_columns)
    fields = [field for field in wanted if field.name in given]
    arrays = [fit_array(batch.column(field.name), field) for field in fields]
    if not fields:
        raise SchemaError("a batch has no columns")
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def check_names(given: Sequence[str], wanted: Sequence[str], *, all_columns: bool) -> None:
    """Check that rows have columns of the output schema only, each once, and all if so asked."""
    unknown = [name for name in given if name not in wanted]
    missing = [name for name in wanted if name not in given] if all_columns else []
    if missing:
        raise SchemaError(
            f"the column {missing[0]!r} is missing; the code gave {_listed(given)} and"
            f" output_schema has {_listed(wanted)}"
        )
    if unknown:
        raise SchemaError(
            f"the column {unknown[0]!r} is not in output_schema, which has {_listed(wanted)}"
        )
    if len(set(given)) != len(given):
        twice = next(name for name in given if given.count(name) > 1)
        raise SchemaError(f"the column {twice!r} is given twice")


def fit_array(array: Any, field: pa.Field) -> pa.Array:
    """The column as `field` wants it.

    Raises:
        SchemaError: it is something else, a value does not fit, or it has nulls it may not have.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.type != field.type:
        if not _is_alike(array.type, field.type):
            raise SchemaError(
                f"the column {field.name!r} must be {field.type}, and the code gave {array.type}"
            )
        try:
            array = array.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise SchemaError(
                f"the column {field.name!r} must be {field.type}, and the code gave {array.type}"
                f" that does not fit: {_first_line(error)}"
            ) from None
    if not field.nullable and array.null_count:
        raise SchemaError(
            f"the column {field.name!r} has nulls, which output_schema does not allow"
        )
    return array


def make_array(values: Sequence[object], field: pa.Field) -> pa.Array:
    """The column that Python values make.

    Raises:
        SchemaError: a value does not fit; the message shows the first that does not.
    """
    natural = _natural(values) if _may_lose(field.type) else None
    if natural is not None and not _is_alike(natural.type, field.type):
        raise SchemaError(_misfit(values, field))
    try:
        array = pa.array(values, type=field.type) if natural is None else natural.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, TypeError) as error:
        raise SchemaError(_misfit(values, field, error)) from None
    except (ValueError, OverflowError) as error:
        raise SchemaError(_misfit(values, field, error)) from None
    return fit_array(array, field)


def _natural(values: Sequence[object]) -> pa.Array | None:
    """The values as what they are; None if Arrow cannot tell."""
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def _may_lose(kind: pa.DataType) -> bool:
    """Whether Arrow cuts values of other Python types to make one of this: 1.5 becomes 1."""
    if kind.num_fields:
        return any(_may_lose(kind.field(number).type) for number in range(kind.num_fields))
    return bool(pa.types.is_integer(kind) or pa.types.is_temporal(kind))


def pieces(batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
    """The batch in slices of about PIECE_BYTES_MAX each."""
    bytes_total = batch.nbytes
    if bytes_total <= PIECE_BYTES_MAX or batch.num_rows <= 1:
        return [batch]
    rows = max(1, batch.num_rows * PIECE_BYTES_MAX // bytes_total)
    return [batch.slice(start, rows) for start in range(0, batch.num_rows, rows)]


def _misfit(values: Sequence[object], field: pa.Field, error: Exception | None = None) -> str:
    """Find the value that cannot be converted, for the message."""
    may_lose = _may_lose(field.type)
    for value in values:
        natural = _natural([value]) if may_lose else None
        try:
            is_wrong = natural is not None and not _is_alike(natural.type, field.type)
            pa.array([value], type=field.type) if natural is None else natural.cast(field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            is_wrong = True
        if is_wrong:
            shown = f"{_shown(value)} ({type(value).__name__})"
            return f"the column {field.name!r} must be {field.type}, and the code gave {shown}"
    reason = "the code gave values of several types" if error is None else _first_line(error)
    return f"the column {field.name!r} must be {field.type}: {reason}"


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - it is the code's own class that makes the text
        return "a value"
    return text if len(text) <= _VALUE_CHARACTERS_MAX else text[:_VALUE_CHARACTERS_MAX] + "…"


def _is_alike(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type are the same kind of thing as those of the other."""
    if given.equals(wanted) or pa.types.is_null(given):
        return True
    if isinstance(given, pa.BaseExtensionType) or isinstance(wanted, pa.BaseExtensionType):
        return _is_alike(_storage(given), _storage(wanted))
    if pa.types.is_dictionary(given):
        return _is_alike(given.value_type, wanted)
    if pa.types.is_dictionary(wanted):
        return _is_alike(given, wanted.value_type)
    if _is_list(given) and _is_list(wanted):
        return _is_alike(given.value_type, wanted.value_type)
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        return _is_alike(given.key_type, wanted.key_type) and _is_alike(
            given.item_type, wanted.item_type
        )
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        return {f.name for f in given} == {f.name for f in wanted} and all(
            _is_alike(field.type, wanted.field(field.name).type) for field in given
        )
    if pa.types.is_integer(given) and pa.types.is_floating(wanted):
        return True
    return any(same(given) and same(wanted) for same in _FAMILIES) and _has_same_zone(given, wanted)


def _storage(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _is_list(kind: pa.DataType) -> bool:
    return any(
        same(kind)
        for same in (
            pa.types.is_list,
            pa.types.is_large_list,
            pa.types.is_fixed_size_list,
            pa.types.is_list_view,
            pa.types.is_large_list_view,
        )
    )


def _is_text(kind: pa.DataType) -> bool:
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(same(kind) for same in texts)


def _is_bytes(kind: pa.DataType) -> bool:
    kinds = (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    )
    return any(same(kind) for same in kinds)


_FAMILIES = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
    pa.types.is_duration,
    _is_text,
    _is_bytes,
)


def _has_same_zone(given: pa.DataType, wanted: pa.DataType) -> bool:
    """A time without a zone is no moment, so it cannot be given one."""
    if not pa.types.is_timestamp(given):
        return True
    return (given.tz is None) == (wanted.tz is None)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "no columns"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]
