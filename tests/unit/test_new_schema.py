"""What a new table's schema may hold; what is accepted is written to a real table and read back."""

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from actors.conform import check_new_schema, conform_table
from actors.new_schema import DEPTH_MAX, RESERVED_NAMES
from cluster.errors import TableSchemaValidationError
from cluster.settings import LimitSettings
from tests.unit.fitting import schema_of, stored

LIMITS = LimitSettings()


def refusal(schema: pa.Schema, limits: LimitSettings = LIMITS) -> str:
    """What the caller is told of a schema that must be refused."""
    with pytest.raises(TableSchemaValidationError) as refused:
        check_new_schema(schema, limits)
    return refused.value.message


def named(*names: str) -> pa.Schema:
    return pa.schema([pa.field(name, pa.int64()) for name in names])


# Names


@pytest.mark.parametrize(
    "name", ["a", "A b", "é", "select", "*", "a/b", '"', "'", " ", "_id", "rowid", "x" * 1_000]
)
def test_names_that_lance_can_resolve_are_kept(name: str, tmp_path: Path) -> None:
    schema = check_new_schema(named(name, "other"), LIMITS)
    assert schema == named(name, "other")
    rows = pa.Table.from_arrays([pa.array([1]), pa.array([2])], schema=schema)
    assert stored(rows, tmp_path) == [{name: 1, "other": 2}]


def test_names_that_differ_in_case_are_two(tmp_path: Path) -> None:
    schema = check_new_schema(named("a", "A"), LIMITS)
    rows = pa.Table.from_arrays([pa.array([1]), pa.array([2])], schema=schema)
    assert stored(rows, tmp_path) == [{"a": 1, "A": 2}]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("a", "b", "a"), "Column 'a' occurs 2 times; names must differ."),
        (("a", ""), "The schema has a field without a name; name it."),
        (("a`b",), "Column 'a`b' must not have ` in its name; rename it."),
        (("a.b",), "Column 'a.b' must not have . in its name; rename it."),
        (("a\0b",), "The schema has a field whose name contains the character NUL; rename it."),
        ((), "The schema has no columns; a table needs one or more."),
    ],
)
def test_names_that_lance_cannot_resolve_are_refused(names: tuple[str, ...], told: str) -> None:
    assert refusal(named(*names)) == told


@pytest.mark.parametrize("name", [*sorted(RESERVED_NAMES), "_RowId"])
def test_names_of_lance_s_own_columns_are_refused(name: str) -> None:
    assert refusal(named("a", name)) == f"Column '{name}' has a name that is reserved; rename it."


def test_nested_names_may_hold_what_columns_may_not(tmp_path: Path) -> None:
    type_ = pa.struct([(name, pa.int64()) for name in ("a.b", "a`b", "_rowid", "A", "a")])
    schema = check_new_schema(schema_of(type_), LIMITS)
    values = {"a.b": 1, "a`b": 2, "_rowid": 3, "A": 4, "a": 5}
    assert stored(pa.table({"c": pa.array([values], type_)}, schema=schema), tmp_path) == [
        {"c": values}
    ]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("a", "a"), "Column 'c'.'a' occurs 2 times; names must differ."),
        (("",), "Column 'c' has a field without a name; name it."),
        (("\0",), "Column 'c' has a field whose name contains the character NUL; rename it."),
    ],
)
def test_nested_names_that_lance_cannot_read_are_refused(names: tuple[str, ...], told: str) -> None:
    assert refusal(schema_of(pa.struct([(name, pa.int64()) for name in names]))) == told


# Types

MICROSECOND = datetime.timedelta(microseconds=1)
KEPT: list[tuple[pa.DataType, Any]] = [
    (pa.null(), None),
    (pa.bool_(), True),
    *((type_, 7) for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    *((type_, 7) for type_ in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
    *((type_, 0.5) for type_ in (pa.float16(), pa.float32(), pa.float64())),
    (pa.string(), "é"),
    (pa.large_string(), "é"),
    (pa.binary(), b"\xff"),
    (pa.large_binary(), b"\xff"),
    (pa.binary(2), b"ab"),
    (pa.date32(), datetime.date(2026, 11, 27)),
    (pa.date64(), datetime.date(2026, 11, 27)),
    (pa.time32("s"), datetime.time(1, 2, 3)),
    (pa.time64("us"), datetime.time(1, 2, 3, 4)),
    (pa.timestamp("us"), datetime.datetime(2026, 11, 27, 1, 2, 3, 4)),
    (pa.timestamp("us", "UTC"), datetime.datetime(2026, 11, 27, tzinfo=datetime.UTC)),
    (pa.duration("us"), 7 * MICROSECOND),
    (pa.decimal128(30, 2), Decimal("12345678901234567890.25")),
    (pa.decimal256(60, 2), Decimal("1234567890123456789012345678901234567890.25")),
    (pa.decimal128(10, -2), Decimal("1.2E+3")),
    (pa.list_(pa.int64()), [1, None]),
    (pa.list_(pa.field("element", pa.string(), nullable=False)), ["a"]),
    (pa.large_list(pa.list_(pa.string())), [["a"], None, []]),
    (pa.list_(pa.float32(), 2), [1.0, None]),
    (pa.list_(pa.list_(pa.decimal128(9, 1), 1), 2), [[Decimal("1.5")], [None]]),
    (pa.list_(pa.list_(pa.float32(), 2)), [[1.0, 2.0]]),
    (pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))]), {"a": 1, "b": None}),
    (pa.list_(pa.struct([("a", pa.list_(pa.int64()))])), [{"a": [1]}, None]),
    (pa.map_(pa.string(), pa.int64()), [("k", 1), ("l", None)]),
    (pa.map_(pa.int64(), pa.map_(pa.string(), pa.list_(pa.string()))), [(1, [("k", ["v"])])]),
]


@pytest.mark.parametrize(("type_", "value"), KEPT, ids=lambda value: str(value)[:40])
def test_a_type_that_lance_keeps_makes_the_round_trip(
    type_: pa.DataType, value: Any, tmp_path: Path
) -> None:
    schema = check_new_schema(schema_of(type_), LIMITS)
    assert schema == schema_of(type_)
    rows = pa.table({"c": pa.array([value, None], type_)}, schema=schema)
    assert stored(conform_table(rows, schema), tmp_path) == [{"c": value}, {"c": None}]


DICTIONARY = pa.dictionary(pa.int32(), pa.string())
CHANGED = [
    (pa.string_view(), pa.string()),
    (pa.binary_view(), pa.binary()),
    (pa.list_view(pa.string_view()), pa.list_(pa.string())),
    (pa.large_list_view(pa.int64()), pa.large_list(pa.int64())),
    (pa.struct([("a", pa.string_view())]), pa.struct([("a", pa.string())])),
    (pa.map_(pa.string_view(), pa.binary_view(), True), pa.map_(pa.string(), pa.binary())),
    (pa.list_(pa.field("item", pa.int8(), nullable=False), 2), pa.list_(pa.int8(), 2)),
    (pa.json_(pa.large_string()), pa.json_()),
    (pa.dictionary(pa.int8(), pa.string()), DICTIONARY),
    (pa.dictionary(pa.uint16(), pa.string_view()), DICTIONARY),
    (pa.dictionary(pa.int32(), pa.string(), ordered=True), DICTIONARY),
    (pa.list_(pa.dictionary(pa.int16(), pa.string())), pa.list_(DICTIONARY)),
    (pa.dictionary(pa.uint32(), pa.string()), pa.dictionary(pa.uint32(), pa.string())),
]


@pytest.mark.parametrize(("sent", "kept"), CHANGED, ids=str)
def test_a_layout_that_lance_lacks_becomes_one_that_it_has(
    sent: pa.DataType, kept: pa.DataType, tmp_path: Path
) -> None:
    schema = check_new_schema(schema_of(sent), LIMITS)
    assert schema == schema_of(kept)
    rows = pa.table({"c": pa.nulls(2, sent)})
    assert stored(conform_table(rows, schema), tmp_path) == [{"c": None}] * 2


@pytest.mark.parametrize("values", [pa.int8(), pa.uint64(), pa.float32(), pa.bool_(), pa.binary()])
def test_dictionaries_of_values_that_lance_can_encode_are_kept(
    values: pa.DataType, tmp_path: Path
) -> None:
    schema = check_new_schema(schema_of(pa.dictionary(pa.int32(), values)), LIMITS)
    value = {pa.bool_(): True, pa.binary(): b"x"}.get(values, 1)
    rows = conform_table(pa.table({"c": pa.array([value, None, value], values)}), schema)
    assert stored(rows, tmp_path) == [{"c": value}, {"c": None}, {"c": value}]


def test_narrow_indices_would_be_written_and_not_be_readable(tmp_path: Path) -> None:
    def batches(type_: pa.DataType) -> pa.RecordBatchReader:
        parts = [
            pa.record_batch({"c": pa.array([f"{i}-{j}" for j in range(10)]).cast(type_)})
            for i in range(20)
        ]
        return pa.RecordBatchReader.from_batches(parts[0].schema, parts)

    narrow = pa.dictionary(pa.int8(), pa.string())
    # If this stops failing, Lance has been mended and indices need not be widened.
    with pytest.raises((OSError, ValueError), match="corrupt"):
        lance.write_dataset(batches(narrow), tmp_path / "narrow.lance").to_table()
    (wide,) = (field.type for field in check_new_schema(schema_of(narrow), LIMITS))
    dataset = lance.write_dataset(batches(wide), tmp_path / "wide.lance")
    assert dataset.to_table()["c"].to_pylist() == [f"{i}-{j}" for i in range(20) for j in range(10)]


REFUSED = [
    pa.month_day_nano_interval(),
    pa.decimal32(5, 2),
    pa.decimal64(10, 2),
    pa.run_end_encoded(pa.int32(), pa.int64()),
    pa.sparse_union([pa.field("a", pa.int64())]),
    pa.dense_union([pa.field("a", pa.int64())]),
    pa.dictionary(pa.int32(), pa.date32()),
    pa.dictionary(pa.int32(), pa.timestamp("us")),
    pa.dictionary(pa.int32(), pa.decimal128(10, 2)),
    pa.list_(pa.float32(), 0),
    pa.list_(pa.string(), 2),
    pa.list_(pa.list_(pa.int64()), 2),
    pa.list_(pa.map_(pa.string(), pa.int64()), 2),
    pa.list_(pa.struct([("a", pa.int64())]), 2),
    pa.list_(pa.dictionary(pa.int32(), pa.string()), 2),
    pa.list_(pa.uuid(), 2),
]


@pytest.mark.parametrize("type_", REFUSED, ids=str)
def test_a_type_that_lance_cannot_keep_is_refused_with_its_name(type_: pa.DataType) -> None:
    assert refusal(schema_of(type_)) == (
        f"Column 'c' has type {type_}, which a table cannot store."
    )
    nested = schema_of(pa.struct([("deep", pa.list_(pa.field("x", type_)))]))
    assert f"Column 'c'.'deep'.'x' has type {type_}, which" in refusal(nested)


def test_a_struct_without_fields_is_refused() -> None:
    assert refusal(schema_of(pa.struct([]))) == "Column 'c' is a struct without fields; add one."


@pytest.mark.parametrize(
    "extension", [pa.uuid(), pa.bool8(), pa.fixed_shape_tensor(pa.int8(), [2])]
)
@pytest.mark.parametrize("nest", [lambda type_: type_, pa.list_, lambda t: pa.struct([("a", t)])])
def test_extension_types_are_kept(extension: pa.DataType, nest: Any, tmp_path: Path) -> None:
    type_ = nest(extension)
    schema = check_new_schema(schema_of(type_), LIMITS)
    assert schema == schema_of(type_)
    assert stored(pa.table({"c": pa.nulls(2, type_)}), tmp_path) == [{"c": None}] * 2


def test_lance_s_own_form_of_json_is_refused() -> None:
    raw = pa.field("c", pa.large_binary(), metadata={"ARROW:extension:name": "lance.json"})
    assert "send arrow.json" in refusal(pa.schema([raw]))


# Sizes and metadata


def test_fields_are_counted_with_nested_ones() -> None:
    schema = schema_of(pa.struct([("a", pa.list_(pa.int64())), ("b", pa.int64())]))
    check_new_schema(schema, LimitSettings(columns_max=4))
    assert refusal(schema, LimitSettings(columns_max=3)) == (
        "The schema has more than 3 fields, nested ones counted."
    )


def test_types_as_deep_as_can_be_read_are_kept_and_deeper_ones_refused(tmp_path: Path) -> None:
    type_, value = pa.int64(), 1
    for _ in range(DEPTH_MAX - 1):
        type_, value = pa.struct([("a", type_)]), {"a": value}
    schema = check_new_schema(schema_of(type_), LIMITS)
    rows = conform_table(pa.table({"c": pa.array([value], type_)}), schema)
    assert stored(rows, tmp_path) == [{"c": value}]
    assert f"more than {DEPTH_MAX} levels" in refusal(schema_of(pa.list_(type_)))


def test_metadata_are_kept(tmp_path: Path) -> None:
    field = pa.field("c", pa.int64(), metadata={"unit": "m"})
    schema = check_new_schema(pa.schema([field], metadata={"owner": "é"}), LIMITS)
    assert schema.equals(pa.schema([field], metadata={"owner": "é"}), check_metadata=True)
    dataset = lance.write_dataset(schema.empty_table(), tmp_path / "t.lance")
    assert dataset.schema.metadata == {b"owner": "é".encode()}
    assert dataset.schema.field("c").metadata == {b"unit": b"m"}


def test_metadata_beyond_the_limits_or_not_utf_8_are_refused() -> None:
    many = pa.schema([("c", pa.int64())], metadata={"a": "1", "b": "2"})
    check_new_schema(many, LimitSettings(metadata_entries_max=2, metadata_bytes_max=4))
    assert "more than 1 metadata entries" in refusal(many, LimitSettings(metadata_entries_max=1))
    assert "more than 3 bytes" in refusal(many, LimitSettings(metadata_bytes_max=3))
    bytes_ = {b"\xff": b"a"}
    assert "The schema has metadata that are not UTF-8" in refusal(many.with_metadata(bytes_))
    deep = schema_of(pa.struct([pa.field("a", pa.int64(), metadata=bytes_)]))
    assert "Column 'c'.'a' has metadata that are not UTF-8" in refusal(deep)
