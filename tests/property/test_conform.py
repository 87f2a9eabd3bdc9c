"""Values survive any change of Arrow layout on their way into a table, and nothing hostile does.

A table's type is drawn, then another layout of it in which the same values are sent.
"""

import datetime
import decimal
import tempfile
from typing import Any

import lance
import pyarrow as pa
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pyarrow import types

from actors.arrow_frames import check_stream
from actors.conform import check_new_schema, conform_table, read_stream
from cluster.errors import InvalidInput, TableSchemaValidationError
from cluster.settings import LimitSettings
from tests.unit.arrow_streams import stream_of

LIMITS = LimitSettings()
RELAXED = settings(
    deadline=None, max_examples=150, suppress_health_check=list(HealthCheck), print_blob=True
)
# Names that Lance takes inside structs only, too.
NAMES = ["a", "A", "b.c", "d`e", "_rowid"]
TEXT = st.sampled_from(["", "a", "é", "x" * 20])
BYTES = st.sampled_from([b"", b"\xff", b"x" * 20])

LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.null(): st.none(),
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): TEXT,
    pa.large_string(): TEXT,
    pa.binary(): BYTES,
    pa.large_binary(): BYTES,
    pa.binary(2): st.binary(min_size=2, max_size=2),
    pa.date32(): st.dates(),
    pa.time64("us"): st.times(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("ms", "UTC"): st.just(datetime.datetime(2026, 11, 27, tzinfo=datetime.UTC)),
    pa.duration("s"): st.integers(0, 10**6).map(lambda n: datetime.timedelta(seconds=n)),
    pa.decimal128(20, 3): st.integers(-(10**9), 10**9).map(lambda n: decimal.Decimal(n).scaleb(-3)),
    pa.decimal256(50, 3): st.integers(0, 10**40).map(
        lambda n: decimal.Context(prec=60).scaleb(decimal.Decimal(n), -3)
    ),
    pa.dictionary(pa.int32(), pa.string()): TEXT,
    pa.dictionary(pa.int64(), pa.int64()): st.integers(0, 5),
}


@st.composite
def fields(draw: st.DrawFn, name: str, depth: int) -> pa.Field:
    """A field of a type that a table can have."""
    type_ = draw(kept_types(depth))
    return pa.field(name, type_, nullable=types.is_null(type_) or draw(st.booleans()))


@st.composite
def kept_types(draw: st.DrawFn, depth: int = 3) -> pa.DataType:
    """A type that a table can have."""
    kind = draw(st.sampled_from(["leaf", "leaf", "list", "large", "vector", "struct", "map"]))
    if kind == "leaf" or depth == 0:
        return draw(st.sampled_from(list(LEAVES)))
    if kind == "struct":
        names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
        return pa.struct([draw(fields(name, depth - 1)) for name in names])
    if kind == "map":
        return pa.map_(draw(st.sampled_from([pa.string(), pa.int8()])), draw(fields("value", 1)))
    if kind == "vector":
        item = draw(st.sampled_from([pa.int8(), pa.float32(), pa.bool_(), pa.decimal128(20, 3)]))
        return pa.list_(item, draw(st.integers(1, 3)))
    item_field = draw(fields(draw(st.sampled_from(["item", "element"])), depth - 1))
    return pa.list_(item_field) if kind == "list" else pa.large_list(item_field)


@st.composite
def layouts(draw: st.DrawFn, type_: pa.DataType) -> pa.DataType:
    """Another type for the same values."""

    def other(field: pa.Field, name: str | None = None) -> pa.Field:
        return pa.field(name or field.name, draw(layouts(field.type)))

    if types.is_dictionary(type_):
        plain = draw(layouts(type_.value_type))
        return draw(st.sampled_from([type_, plain, pa.dictionary(pa.int8(), type_.value_type)]))
    if types.is_string(type_) or types.is_large_string(type_):
        encoded = pa.dictionary(pa.int16(), pa.string())
        return draw(st.sampled_from([pa.string(), pa.large_string(), pa.string_view(), encoded]))
    if types.is_binary(type_) or types.is_large_binary(type_):
        return draw(st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()]))
    if types.is_struct(type_):
        return pa.struct(draw(st.permutations([other(field) for field in type_])))
    if types.is_map(type_):
        key = pa.field("k", draw(layouts(type_.key_type)), nullable=False)
        return pa.map_(key, other(type_.item_field, "v"), keys_sorted=draw(st.booleans()))
    if types.is_fixed_size_list(type_):
        return pa.list_(other(type_.value_field, "x"), type_.list_size)
    if types.is_list(type_) or types.is_large_list(type_):
        make = draw(st.sampled_from([pa.list_, pa.large_list, pa.list_view, pa.large_list_view]))
        return make(other(type_.value_field, "x"))
    return type_


def values_of(field: pa.Field) -> st.SearchStrategy[Any]:
    """Values of a field of a kept type."""
    found = _values_of_type(field.type)
    return st.none() | found if field.nullable else found


def _values_of_type(type_: pa.DataType) -> st.SearchStrategy[Any]:
    if type_ in LEAVES:
        return LEAVES[type_]
    if types.is_struct(type_):
        return st.fixed_dictionaries({field.name: values_of(field) for field in type_})
    if types.is_map(type_):
        keys = TEXT if types.is_string(type_.key_type) else st.integers(0, 9)
        entries = st.dictionaries(keys, values_of(type_.item_field), max_size=3)
        return entries.map(lambda found: list(found.items()))
    size = type_.list_size if types.is_fixed_size_list(type_) else None
    return st.lists(values_of(type_.value_field), min_size=size or 0, max_size=size or 3)


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, pa.Table]:
    """Rows in a table's own layout, and the same rows as they are sent."""
    kept = draw(fields("c", 3))
    values = draw(st.lists(values_of(kept), min_size=1, max_size=6))
    sent = pa.array(values, draw(layouts(kept.type)))
    # For a null struct pyarrow 25 makes an index into a dictionary that may be empty.
    assume(is_valid(sent))
    return pa.table([pa.array(values, kept.type)], schema=pa.schema([kept])), pa.table({"c": sent})


def is_valid(array: pa.Array) -> bool:
    """Whether pyarrow made the array as it says arrays are."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


@RELAXED
@given(tables(), st.sampled_from([None, "lz4", "zstd"]), st.integers(1, 4), st.booleans())
def test_values_are_the_same_in_every_layout(
    rows: tuple[pa.Table, pa.Table], compression: str | None, size: int, is_sliced: bool
) -> None:
    expected, sent = rows
    schema = check_new_schema(expected.schema, LIMITS)
    assert schema == expected.schema
    body = stream_of(sent, size, compression=compression)
    check_stream(body, LIMITS)
    read = read_stream(body)
    if is_sliced:
        expected, read = expected.slice(1), read.slice(1)
    found = conform_table(read, schema)
    assert found.schema == schema
    found.validate(full=True)
    assert found.to_pylist() == expected.to_pylist()
    with tempfile.TemporaryDirectory() as folder:
        dataset = lance.write_dataset(found, folder)
        assert dataset.schema == schema
        dataset = lance.write_dataset(conform_table(read, dataset.schema), folder, mode="append")
        assert dataset.to_table().to_pylist() == expected.to_pylist() * 2


@RELAXED
@given(tables(), tables())
def test_rows_of_another_table_fit_or_are_refused(
    rows: tuple[pa.Table, pa.Table], others: tuple[pa.Table, pa.Table]
) -> None:
    schema = others[0].schema
    try:
        found = conform_table(rows[1], schema)
    except TableSchemaValidationError as error:
        assert "'c'" in error.message
        return
    assert found.schema == schema
    found.validate(full=True)


@RELAXED
@given(
    tables(),
    st.sampled_from([None, "lz4"]),
    st.lists(
        st.tuples(st.floats(0, 0.999), st.sampled_from([0, 1, 2, 127, 128, 255])),
        min_size=1,
        max_size=3,
    ),
)
def test_changed_bytes_are_refused_or_make_a_table_that_can_be_read(
    rows: tuple[pa.Table, pa.Table], compression: str | None, changes: list[tuple[float, int]]
) -> None:
    body = bytearray(stream_of(rows[1], 3, compression=compression))
    for place, byte in changes:
        body[int(place * len(body))] = byte
    try:
        check_stream(bytes(body), LIMITS)
        read = read_stream(bytes(body))
        found = conform_table(read, check_new_schema(read.schema, LIMITS))
    except (InvalidInput, TableSchemaValidationError):
        return
    with tempfile.TemporaryDirectory() as folder:
        dataset = lance.write_dataset(found, folder)
        # Not compared: a changed byte may have made a number NaN.
        read_back = dataset.to_table()
        read_back.validate(full=True)
        assert read_back.num_rows == found.num_rows
