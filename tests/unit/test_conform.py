"""The fit of incoming rows to a table's schema, judged by what a real Lance table then holds."""

import json
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from actors import arrow_conversions
from actors.conform import conform_reader, conform_table, read_stream
from cluster.errors import InvalidInput
from tests.unit.arrow_streams import stream_of, stream_of_batches
from tests.unit.fitting import fitted, one, refusal, schema_of, stored

STRINGS = (pa.string(), pa.large_string(), pa.string_view())
BINARIES = (pa.binary(), pa.large_binary(), pa.binary_view())
COMPRESSIONS = pytest.mark.parametrize("compression", [None, "lz4", "zstd"])


# Columns


def test_columns_may_come_in_any_order_and_nullable_ones_be_left_out(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("text", pa.string()),
            ("vector", pa.list_(pa.float32(), 2)),
            ("struct", pa.struct([("a", pa.int64())])),
        ]
    )
    rows = pa.table({"text": ["a", None], "id": [1, 2]})
    assert stored(fitted(rows, schema), tmp_path) == [
        {"id": 1, "text": "a", "vector": None, "struct": None},
        {"id": 2, "text": None, "vector": None, "struct": None},
    ]


def test_a_missing_column_that_is_not_nullable_is_named() -> None:
    schema = pa.schema([("a", pa.int64()), pa.field("key", pa.int64(), nullable=False)])
    assert refusal(pa.table({"a": [1]}), schema) == (
        "Column 'key' is missing; the table's column is not nullable."
    )


def test_an_unknown_column_is_named_with_those_that_there_are() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    told = refusal(pa.table({"a": [1], "A": [1]}), schema)
    assert told == "Column 'A' is not in the table, which has 'a', 'b'."


def test_a_wide_table_s_columns_are_not_all_listed() -> None:
    schema = pa.schema([(f"column{i}", pa.int64()) for i in range(500)])
    told = refusal(pa.table({"x" * 5_000: [1]}), schema)
    assert "'column19' and 480 more" in told
    assert len(told) < 1_000


def test_a_column_that_comes_twice_is_named() -> None:
    rows = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    assert "Column 'a' occurs 2 times" in refusal(rows, pa.schema([("a", pa.int64())]))


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (pa.int32(), pa.int64()),
        (pa.int64(), pa.int32()),
        (pa.uint8(), pa.int8()),
        (pa.int64(), pa.float64()),
        (pa.float32(), pa.float64()),
        (pa.int64(), pa.string()),
        (pa.string(), pa.binary()),
        (pa.binary(3), pa.binary()),
        (pa.date32(), pa.date64()),
        (pa.timestamp("us"), pa.timestamp("ms")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "UTC")),
        (pa.duration("s"), pa.duration("ms")),
        (pa.decimal128(10, 2), pa.decimal128(12, 2)),
        (pa.decimal128(10, 2), pa.decimal256(10, 2)),
        (pa.list_(pa.float32()), pa.list_(pa.float32(), 2)),
        (pa.list_(pa.float32(), 3), pa.list_(pa.float32(), 2)),
        (pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int64())),
        (pa.dictionary(pa.int32(), pa.int64()), pa.string()),
        (pa.uuid(), pa.binary(16)),
        (pa.string(), pa.uuid()),
        (pa.large_binary(), pa.json_()),
    ],
)
def test_another_type_is_refused_with_both_types(sent: pa.DataType, kept: pa.DataType) -> None:
    told = refusal(one(pa.nulls(0, sent)), schema_of(kept))
    assert told == f"Column 'c' has type {sent} but the table's column has type {kept}."


def test_a_type_deep_inside_is_refused_with_its_path() -> None:
    sent = pa.list_(pa.struct([("a", pa.map_(pa.string(), pa.int32()))]))
    kept = pa.list_(pa.struct([("a", pa.map_(pa.string(), pa.int64()))]))
    assert refusal(one(pa.nulls(1, sent)), schema_of(kept)) == (
        "Column 'c'.'item'.'a'.'value' has type int32 but the table's column has type int64."
    )


# Layouts of the same values


@pytest.mark.parametrize("kept", STRINGS[:2], ids=str)
@pytest.mark.parametrize("sent", STRINGS, ids=str)
def test_strings_of_any_layout_fit(sent: pa.DataType, kept: pa.DataType, tmp_path: Path) -> None:
    values = ["", "é", None, "long enough not to be inside a view", "x"]
    rows = one(pa.array(["skipped", *values], sent).slice(1))
    assert stored(fitted(rows, schema_of(kept)), tmp_path) == [{"c": text} for text in values]


@pytest.mark.parametrize("kept", BINARIES[:2], ids=str)
@pytest.mark.parametrize("sent", BINARIES, ids=str)
def test_bytes_of_any_layout_fit(sent: pa.DataType, kept: pa.DataType, tmp_path: Path) -> None:
    values = [b"", b"\xff", None, b"long enough not to be inside a view"]
    rows = one(pa.array([b"skipped", *values], sent).slice(1))
    assert stored(fitted(rows, schema_of(kept)), tmp_path) == [{"c": data} for data in values]


@pytest.mark.parametrize("kept", [pa.list_(pa.string()), pa.large_list(pa.string())], ids=str)
@pytest.mark.parametrize(
    "sent",
    [
        pa.list_(pa.field("element", pa.large_string())),
        pa.large_list(pa.string_view()),
        pa.list_view(pa.string()),
        pa.large_list_view(pa.field("x", pa.string(), nullable=False)),
    ],
    ids=str,
)
def test_lists_of_any_layout_fit(sent: pa.DataType, kept: pa.DataType, tmp_path: Path) -> None:
    values = [["a", "b"], None, [], ["c"]]
    rows = one(pa.array([["skipped"], *values], sent).slice(1))
    assert stored(fitted(rows, schema_of(kept)), tmp_path) == [{"c": items} for items in values]


def test_list_views_in_any_order_fit_and_shared_items_are_refused() -> None:
    def views(offsets: list[int], sizes: list[int]) -> pa.Table:
        return one(
            pa.ListViewArray.from_arrays(
                pa.array(offsets, pa.int32()), pa.array(sizes, pa.int32()), pa.array([1, 2, 3])
            )
        )

    schema = schema_of(pa.list_(pa.int64()))
    assert fitted(views([1, 3, 0], [2, 0, 1]), schema)["c"].to_pylist() == [[2, 3], [], [1]]
    assert "share items" in refusal(views([0, 0], [3, 3]), schema)


def test_a_dictionary_fits_a_plain_column_and_the_reverse(tmp_path: Path) -> None:
    words = pa.array(["a", None, "b", "a"])
    plain, encoded = pa.string(), pa.dictionary(pa.int16(), pa.large_string())
    assert stored(fitted(one(words.dictionary_encode()), schema_of(plain)), tmp_path / "p") == [
        {"c": word} for word in words.to_pylist()
    ]
    assert stored(fitted(one(words), schema_of(encoded)), tmp_path / "d") == [
        {"c": word} for word in words.to_pylist()
    ]


@pytest.mark.parametrize(
    "values", [pa.array([1, None]), pa.array([1.5, 2]), pa.array([True]), pa.array([b"a"])], ids=str
)
def test_dictionaries_of_other_values_fit(values: pa.Array) -> None:
    sent = pa.DictionaryArray.from_arrays(pa.array([0, None, 0], pa.int8()), values)
    kept = pa.dictionary(pa.int32(), values.type)
    for type_ in (values.type, kept):
        found = fitted(one(sent), schema_of(type_))
        assert found["c"].to_pylist() == [values[0].as_py(), None, values[0].as_py()]


def test_more_words_than_indices_can_name_are_refused() -> None:
    words = one(pa.array([f"{i}" for i in range(200)]))
    told = refusal(words, schema_of(pa.dictionary(pa.int8(), pa.string())))
    assert told.startswith("Column 'c' has more distinct values than the int8 indices")


@COMPRESSIONS
@pytest.mark.parametrize("deltas", [False, True])
def test_dictionaries_that_change_between_batches_keep_their_words(
    deltas: bool, compression: str | None, tmp_path: Path
) -> None:
    schema = pa.schema([("c", pa.dictionary(pa.int32(), pa.string()))])
    words = [["a", "b", None], ["a", "b", "c"], ["d", "a"] if not deltas else ["a", "b", "c", "d"]]
    batches = [pa.record_batch({"c": pa.array(part).dictionary_encode()}) for part in words]
    body = stream_of_batches(
        schema, *batches, emit_dictionary_deltas=deltas, compression=compression
    )
    expected = [{"c": word} for part in words for word in part]
    for number, type_ in enumerate((pa.string(), pa.dictionary(pa.int32(), pa.string()))):
        rows = fitted(read_stream(body), schema_of(type_))
        assert stored(rows, tmp_path / str(number)) == expected


@COMPRESSIONS
def test_compressed_streams_read_as_others(compression: str | None) -> None:
    rows = pa.table({"a": range(1_000), "b": [f"{i}" for i in range(1_000)]})
    assert read_stream(stream_of(rows, 300, compression=compression)).equals(rows)


def test_structs_fit_by_name_at_any_depth(tmp_path: Path) -> None:
    kept = pa.struct(
        [
            pa.field("a", pa.int64(), nullable=False),
            ("b", pa.string()),
            ("deep", pa.list_(pa.struct([("x", pa.string()), ("y", pa.int64())]))),
        ]
    )
    sent = pa.struct(
        [("deep", pa.large_list(pa.struct([("x", pa.string_view())]))), ("a", pa.int64())]
    )
    values = [{"a": 1, "deep": [{"x": "p"}, None]}, None, {"a": 2, "deep": None}]
    assert stored(fitted(one(pa.array(values, sent)), schema_of(kept)), tmp_path) == [
        {"c": {"a": 1, "b": None, "deep": [{"x": "p", "y": None}, None]}},
        {"c": None},
        {"c": {"a": 2, "b": None, "deep": None}},
    ]


def test_maps_of_any_layout_fit(tmp_path: Path) -> None:
    kept = pa.map_(pa.string(), pa.struct([("a", pa.string()), ("b", pa.int64())]))
    key = pa.field("k", pa.large_string(), nullable=False)
    sent = pa.map_(key, pa.field("v", pa.struct([("a", pa.string_view())])), keys_sorted=True)
    values = [[("x", {"a": "1"}), ("y", None)], None, []]
    rows = one(pa.array([[("skipped", None)], *values], sent).slice(1))
    assert stored(fitted(rows, schema_of(kept)), tmp_path) == [
        {"c": [("x", {"a": "1", "b": None}), ("y", None)]},
        {"c": None},
        {"c": []},
    ]


def test_columns_of_nulls_without_a_type_fit_nullable_columns(tmp_path: Path) -> None:
    kept = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.string())), ("c", pa.null())])
    rows = pa.table({name: pa.nulls(2) for name in kept.names})
    assert stored(fitted(rows, kept), tmp_path) == [{"a": None, "b": None, "c": None}] * 2


def test_the_table_s_metadata_win() -> None:
    kept = pa.schema([pa.field("c", pa.int64(), metadata={"k": "table"})], metadata={"m": "table"})
    sent = pa.schema([pa.field("c", pa.int64(), metadata={"k": "rows"})], metadata={"m": "rows"})
    assert fitted(pa.table([[1]], schema=sent), kept).num_rows == 1


# Nulls


def nested_null(kind: str, value: int | None) -> pa.Array:
    """A value inside a struct, list, vector or map, whose field says that it may be null."""
    item = pa.array([1, value], pa.int64())
    if kind == "struct":
        return pa.StructArray.from_arrays([item], names=["a"])
    if kind == "list":
        return pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), item)
    if kind == "vector":
        return pa.FixedSizeListArray.from_arrays(item, 1)
    return pa.MapArray.from_arrays([0, 1, 2], pa.array(["k", "k"]), item)


NOT_NULL = pa.field("a", pa.int64(), nullable=False)


@pytest.mark.parametrize(
    ("kind", "kept", "path"),
    [
        ("struct", pa.struct([NOT_NULL]), "'c'.'a'"),
        ("list", pa.list_(NOT_NULL), "'c'.'a'"),
        ("vector", pa.list_(NOT_NULL, 1), "'c'.'a'"),
        ("map", pa.map_(pa.string(), NOT_NULL), "'c'.'value'"),
    ],
)
def test_nullability_may_differ_but_a_null_inside_is_refused(
    kind: str, kept: pa.DataType, path: str
) -> None:
    fitted(one(nested_null(kind, 2)), schema_of(kept))
    assert refusal(one(nested_null(kind, None)), schema_of(kept)) == (
        f"Column {path} contains 1 nulls but the table's column is not nullable."
    )


def test_nulls_in_a_column_are_counted_where_none_are_allowed(tmp_path: Path) -> None:
    schema = schema_of(pa.int64(), nullable=False)
    assert stored(fitted(one(pa.array([1, 2])), schema), tmp_path) == [{"c": 1}, {"c": 2}]
    assert "Column 'c' contains 2 nulls" in refusal(one(pa.array([None, 1, None])), schema)


def test_a_null_named_by_a_dictionary_is_a_null() -> None:
    encoded = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int32()), ["a", None])
    kept = pa.dictionary(pa.int32(), pa.string())
    assert fitted(one(encoded), schema_of(kept))["c"].null_count == 2
    assert "contains 2 nulls" in refusal(one(encoded), schema_of(kept, nullable=False))


def test_a_child_may_be_null_where_its_struct_is(tmp_path: Path) -> None:
    inner = pa.struct([NOT_NULL])
    kept = pa.struct([pa.field("s", inner, nullable=False)])
    rows = pa.array([{"s": {"a": 1}}, None], pa.struct([("s", pa.struct([("a", pa.int64())]))]))
    assert stored(fitted(one(rows), schema_of(kept)), tmp_path) == [
        {"c": {"s": {"a": 1}}},
        {"c": None},
    ]


def test_null_vectors_keep_their_places(tmp_path: Path) -> None:
    kept = pa.list_(pa.field("item", pa.float32(), nullable=False), 2)
    values = [None, [1, 2], None, None, [3, 4]]
    rows = one(pa.array([[9, 9], *values], pa.list_(pa.float32(), 2)).slice(1))
    found = fitted(rows, schema_of(kept))
    assert found["c"].to_pylist() == values


# Extension types


def test_extension_types_fit_themselves_and_their_storage(tmp_path: Path) -> None:
    tensor = pa.fixed_shape_tensor(pa.float32(), [2])
    schema = pa.schema([("json", pa.json_()), ("tensor", tensor), ("uuid", pa.uuid())])
    plain = pa.table(
        {
            "json": pa.array(['{"a": [1, 2.5, null]}', None]),
            "tensor": pa.array([[1, 2], None], pa.list_(pa.float32(), 2)),
            "uuid": pa.array([b"u" * 16, None], pa.binary(16)),
        }
    )
    fits = fitted(plain, schema)
    assert fitted(fits, schema).equals(fits)
    found = stored(fits, tmp_path)
    assert json.loads(found[0]["json"]) == {"a": [1, 2.5, None]}
    assert found[0]["uuid"].bytes == b"u" * 16
    assert list(found[1].values()) == [None] * 3


@pytest.mark.parametrize("texts", STRINGS, ids=str)
def test_json_of_any_string_layout_fits(texts: pa.DataType) -> None:
    values = pa.ExtensionArray.from_storage(pa.json_(texts), pa.array(["1", None], texts))
    assert fitted(one(values), schema_of(pa.json_())).schema.field("c").type == pa.json_()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1,]",
        "NaN",
        "-Infinity",
        "1e400",
        "1" * 400,
        "{'a': 1}",
        '{"a": 1, "a": 2}',
        "1 2",
        "[" * 501 + "]" * 501,
        '{"a":' * 501 + "1" + "}" * 501,
        "[" * 100_000 + "]" * 100_000,
    ],
    ids=lambda text: text[:12],
)
def test_json_that_lance_would_change_or_crash_on_is_refused(text: str) -> None:
    rows = one(pa.array(["1", text]))
    assert "holds a text that is not JSON" in refusal(rows, schema_of(pa.json_()))


@pytest.mark.parametrize(
    "text",
    [
        '{"":{"a":[]}}',
        '"\\ud83d\\ude00"',
        " 1 ",
        "-0.5e10",
        "[" * 500 + "]" * 500,
        '"' + "[" * 999 + '"',
    ],
    ids=lambda text: text[:12],
)
def test_json_that_lance_keeps_is_taken(text: str, tmp_path: Path) -> None:
    (row,) = stored(fitted(one(pa.array([text])), schema_of(pa.json_())), tmp_path)
    assert json.loads(row["c"]) == json.loads(text)


def test_blobs_are_taken_by_value_only(tmp_path: Path) -> None:
    schema = pa.schema([lance.blob_field("c")])
    fits = fitted(one(lance.blob_array([b"bytes", None])), schema)
    dataset = lance.write_dataset(fits, tmp_path / "blobs.lance")
    assert dataset.take_blobs("c", indices=[0])[0].read() == b"bytes"
    elsewhere = lance.blob_array([lance.Blob.from_uri("file:///etc/hostname")])
    assert "refers to blobs elsewhere" in refusal(one(elsewhere), schema)
    storage = schema.field("c").type.storage_type
    empty = pa.array([dict.fromkeys(("data", "uri", "position", "size"))], storage)
    assert "holds a blob without `data`" in refusal(one(empty), schema)


# Sizes


@pytest.fixture
def _small_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays reach as far with 32-bit offsets as if these had 7 bits."""
    monkeypatch.setattr(arrow_conversions, "OFFSET_MAX", 100)


@pytest.mark.usefixtures("_small_arrays")
@pytest.mark.parametrize(
    "values",
    [
        pa.array(["x" * i for i in range(40)], pa.large_string()),
        pa.array(["x" * i for i in range(40)], pa.string_view()),
        pa.array(["x" * i for i in range(40)]).dictionary_encode(),
        pa.array([["x" * i] * 3 for i in range(30)], pa.large_list(pa.large_string())),
        pa.array([[i] * i for i in range(40)], pa.large_list(pa.int64())),
        pa.array([{"a": "x" * i} for i in range(40)], pa.struct([("a", pa.large_string())])),
    ],
    ids=lambda values: str(values.type),
)
def test_rows_beyond_32_bit_offsets_become_several_batches(values: pa.Array) -> None:
    type_: pa.DataType = pa.string()
    if pa.types.is_large_list(values.type):
        is_text = pa.types.is_large_string(values.type.value_type)
        type_ = pa.list_(pa.string() if is_text else pa.int64())
    elif pa.types.is_struct(values.type):
        type_ = pa.struct([("a", pa.string())])
    found = fitted(one(values), schema_of(type_))
    assert found["c"].num_chunks > 1
    assert found["c"].to_pylist() == values.to_pylist()


@pytest.mark.usefixtures("_small_arrays")
def test_a_row_beyond_32_bit_offsets_is_refused() -> None:
    rows = one(pa.array(["a", "x" * 101], pa.large_string()))
    assert refusal(rows, schema_of(pa.string())) == (
        "Column 'c' has a row of more than 2 GiB; split it."
    )


def test_a_slice_far_into_a_large_array_fits_small_offsets() -> None:
    text = pa.array(["x" * 1_000, "y", "z"], pa.large_string()).slice(1)
    table = conform_table(one(text), schema_of(pa.string()))
    offsets = table["c"].chunk(0).buffers()[1]
    assert pa.Array.from_buffers(pa.int32(), 3, [None, offsets]).to_pylist() == [0, 1, 2]


def test_nulls_of_a_missing_column_are_shared_and_made_in_pieces() -> None:
    schema = pa.schema([("a", pa.int8()), ("vector", pa.list_(pa.float32(), 1_000))])
    rows = pa.table({"a": pa.array([1] * 100_000, pa.int8())})
    before = pa.total_allocated_bytes()
    table = conform_table(rows, schema)
    # Written out they would take 400 MB.
    assert pa.total_allocated_bytes() - before <= 70 << 20
    assert table["vector"].null_count == 100_000
    assert all(len(part) <= 17_000 for part in table["vector"].chunks)


LONG = "x" * 10_000
VIEW = bytes(pa.array([LONG], pa.string_view()).buffers()[1])[:16]
BOMBS = {
    "dictionary": pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int8()), [LONG]),
    "views": pa.Array.from_buffers(
        pa.string_view(), 100_000, [None, pa.py_buffer(VIEW * 100_000), pa.py_buffer(LONG.encode())]
    ),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_values_that_are_repeated_by_reference_do_not_grow_without_bounds(bomb: pa.Array) -> None:
    bomb.validate(full=True)
    rows, schema = one(bomb), schema_of(pa.string())
    before = pa.total_allocated_bytes()
    told = "Column 'c' repeats values by reference and would take more than 1000000 bytes"
    with pytest.raises(InvalidInput, match=told):
        conform_table(rows, schema, expanded_bytes_max=1_000_000)
    with pytest.raises(InvalidInput, match=told):
        conform_reader(rows.to_reader(), schema, expanded_bytes_max=1_000_000).read_all()
    assert pa.total_allocated_bytes() - before < 10 << 20
    few = conform_table(rows.slice(0, 100), schema, expanded_bytes_max=1_000_000)
    assert few["c"].to_pylist() == [LONG] * 100
