"""How user code is called, and what of what it gives is taken."""

import dataclasses
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from udtf.abi import PARENT, Source, caller
from udtf.output_fit import PIECE_BYTES_MAX, SchemaError, fit_array, fit_batch, make_array, pieces

INPUT = pa.schema([("n", pa.int64()), ("text", pa.string())])
OUTPUT = pa.schema([("doc", pa.string()), ("text", pa.string()), ("size", pa.int32())])


class Passage(NamedTuple):
    text: str
    size: int


@dataclasses.dataclass
class Record:
    size: int
    text: str


def batch(*numbers: int) -> pa.RecordBatch:
    texts = [str(number) for number in numbers]
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array(texts)], schema=INPUT)


def source(*batches: pa.RecordBatch) -> Source:
    return Source(iter(batches), INPUT)


def chunks(code: Any, *batches: pa.RecordBatch, abi: str = "row-chunker") -> list[dict[str, Any]]:
    found = caller(abi, code, INPUT, OUTPUT)(iter(batches))
    return [row for given in found for row in given.to_pylist()]


def test_source_is_read_whole_or_in_pieces() -> None:
    given = [batch(1, 2, 3), batch(4), batch(5, 6, 7, 8)]
    assert source(*given).to_arrow()["n"].to_pylist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [b.num_rows for b in source(*given).to_batches()] == [3, 1, 4]
    sizes = {
        size: [b["n"].to_pylist() for b in source(*given).to_batches(batch_size=size)]
        for size in (1, 3, 4, 8, 100)
    }
    whole = [1, 2, 3, 4, 5, 6, 7, 8]
    assert sizes == {
        size: [whole[start : start + size] for start in range(0, 8, size)] for size in sizes
    }
    assert source().to_arrow().schema == INPUT
    assert list(source().to_batches(5)) == []
    assert source().column_names == ["n", "text"]


def test_source_can_be_had_again_only_as_a_table() -> None:
    twice = source(batch(1), batch(2))
    assert twice.to_arrow() is twice.to_arrow()
    assert [b["n"].to_pylist() for b in twice.to_batches(2)] == [[1, 2]]
    once = source(batch(1))
    list(once.to_batches())
    with pytest.raises(RuntimeError, match="have been read"):
        once.to_arrow()
    with pytest.raises(ValueError, match="at least 1, not 0"):
        source().to_batches(0)


def test_partition_gives_batches_tables_or_a_list_in_any_order_of_columns() -> None:
    rows = pa.table({"size": pa.array([1], pa.int8()), "text": ["a"], "doc": ["d"]})
    gives: list[Callable[[Source], Any]] = [
        lambda source: rows,
        lambda source: rows.to_batches()[0],
        lambda source: [rows],
        lambda source: iter(rows.to_batches()),
        lambda source: pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches()),
    ]
    for give in gives:
        (found,) = caller("arrow-partition", give, INPUT, OUTPUT)(iter(()))
        assert found.schema == OUTPUT
        assert found.to_pylist() == [{"doc": "d", "text": "a", "size": 1}]


@pytest.mark.parametrize(
    "row",
    [
        {"text": "a", "size": 3},
        {"size": 3, "text": "a"},
        Passage("a", 3),
        ("a", 3),
        Record(3, "a"),
    ],
)
def test_chunk_may_be_a_dict_a_tuple_or_a_dataclass(row: Any) -> None:
    found = chunks(lambda n: [row] * n, batch(1, 0), batch(2))
    expected = {"text": "a", "size": 3}
    assert found == [expected | {PARENT: parent} for parent in (0, 2, 2)]


def test_chunker_gets_the_columns_that_it_names() -> None:
    class Both:
        def __call__(self, text: str, n: int = 5) -> Iterator[tuple[str, int]]:
            yield text, n

    def default(text: str, other: int = 7) -> Iterator[tuple[str, int]]:
        yield text, other

    def everything(**columns: Any) -> Iterator[tuple[str, int]]:
        yield "+".join(columns), columns["n"]

    def nothing() -> list[tuple[str, int]]:
        return [("x", 1)]

    for code, expected in (
        (Both(), ("4", 4)),
        (default, ("4", 7)),
        (everything, ("n+text", 4)),
        (nothing, ("x", 1)),
    ):
        (row,) = chunks(code, batch(4))
        assert (row["text"], row["size"]) == expected


def test_one_dict_may_be_used_for_every_row() -> None:
    def code(n: int) -> Iterator[dict[str, Any]]:
        row: dict[str, Any] = {}
        for size in range(n):
            row["size"] = size
            yield row

    assert [row["size"] for row in chunks(code, batch(3, 2))] == [0, 1, 2, 0, 1]


def test_many_and_large_rows_come_in_several_batches() -> None:
    run = caller("row-chunker", lambda n: ({"size": i} for i in range(n)), INPUT, OUTPUT)
    found = list(run(iter([batch(20_000, 1)])))
    assert [b.num_rows for b in found] == [8_192, 8_192, 3_617]
    large = caller("row-chunker", lambda n: [{"text": "x" * (5 << 20)}] * n, INPUT, OUTPUT)
    assert [b.num_rows for b in large(iter([batch(5)]))] == [4, 1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"size": "x"}], r"'size' must be int32, and the code gave 'x' \(str\)"),
        ([{"size": 1}, {"size": 1.5}], r"must be int32, and the code gave 1.5 \(float\)"),
        ([{"size": 1 << 40}], "must be int32, and the code gave 1099511627776"),
        ([{"size": True}], r"must be int32, and the code gave True \(bool\)"),
        ([{"text": 5}], r"'text' must be string, and the code gave 5 \(int\)"),
        ([{"size": 1}, {"text": "a"}], "'size' is missing in a row"),
        ([{"size": 1}, {"size": 1, "text": "a"}], "'text' is not in output_schema"),
        ([{"other": 1}], "'other' is not in output_schema, which has 'doc', 'text', 'size'"),
        ([(1, 2, 3, 4)], "a tuple of 4 values .* 3 columns"),
        ([()], "a tuple of 0 values"),
        (["text"], "gave a str as a row"),
        ([None], "gave a NoneType as a row"),
        (None, "returned None; yield rows"),
        (7, "returned a int; yield rows"),
        ("text", "returned a single str"),
        (Passage("a", 1), "returned a single Passage"),
    ],
)
def test_row_that_does_not_fit_is_refused(rows: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        chunks(lambda n: rows, batch(1))


def test_batch_chunker_says_which_row_each_comes_from() -> None:
    def code(given: pa.RecordBatch) -> Iterator[Any]:
        yield pa.table({"parent": pa.array([1, 0], pa.uint8()), "text": ["b", "a"]})
        yield pa.record_batch({"text": [given["text"][0].as_py()], "parent": [0]})

    found = chunks(code, batch(1, 2), batch(3, 4), abi="arrow-batch-chunker")
    pairs = [(row["text"], row[PARENT]) for row in found]
    assert pairs == [("b", 1), ("a", 0), ("1", 0), ("b", 3), ("a", 2), ("3", 2)]


@pytest.mark.parametrize(
    "parents", [pa.array([2]), pa.array([-1]), pa.array([None], pa.int32()), pa.array(["0"])]
)
def test_parent_that_is_no_row_is_refused(parents: pa.Array) -> None:
    rows = pa.record_batch({"parent": parents, "size": [1]})
    with pytest.raises(SchemaError, match="'parent'"):
        chunks(lambda given: [rows], batch(1, 2), abi="arrow-batch-chunker")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (pa.array([1], pa.int64()), pa.int8()),
        (pa.array([1], pa.int8()), pa.float64()),
        (pa.array([0.5]), pa.float32()),
        (pa.array(["a"]), pa.large_string()),
        (pa.array(["a"]).dictionary_encode(), pa.string()),
        (pa.array(["a"]), pa.dictionary(pa.int32(), pa.string())),
        (pa.array([b"a"]), pa.large_binary()),
        (pa.array([None]), pa.list_(pa.int8())),
        (pa.array([[1.0, 2.0]]), pa.list_(pa.float32(), 2)),
        (pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)), pa.list_(pa.float32())),
        (pa.array([{"a": 1}]), pa.struct([("a", pa.int16())])),
        (pa.array([Decimal("1.50")]), pa.decimal128(20, 4)),
        (pa.array([1], pa.timestamp("ms")), pa.timestamp("us")),
        (pa.array([1], pa.timestamp("s", "UTC")), pa.timestamp("us", "Europe/Paris")),
    ],
)
def test_column_of_the_same_kind_of_thing_is_converted(
    given: pa.Array, wanted: pa.DataType
) -> None:
    found = fit_array(given, pa.field("c", wanted))
    assert found.type == wanted
    assert found.to_pylist() == given.cast(wanted).to_pylist()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (pa.array(["1"]), pa.int64()),
        (pa.array([1]), pa.string()),
        (pa.array([1.0]), pa.int64()),
        (pa.array([300]), pa.int8()),
        (pa.array([(1 << 53) + 1]), pa.float64()),
        (pa.array([True]), pa.int8()),
        (pa.array(["2024-01-01"]), pa.date32()),
        (pa.array([1], pa.timestamp("us")), pa.timestamp("us", "UTC")),
        (pa.array([1], pa.timestamp("us")), pa.timestamp("s")),
        (pa.array([[1.0]]), pa.list_(pa.float32(), 2)),
        (pa.array([[1]]), pa.int64()),
        (pa.array([{"a": 1}]), pa.struct([("b", pa.int64())])),
        (pa.array([b"a"]), pa.string()),
    ],
)
def test_column_of_another_kind_or_with_values_that_do_not_fit_is_refused(
    given: pa.Array, wanted: pa.DataType
) -> None:
    with pytest.raises(SchemaError, match=r"the column 'c' must be .*, and the code gave"):
        fit_array(given, pa.field("c", wanted))


@pytest.mark.parametrize(
    ("values", "wanted", "expected"),
    [
        ([1, None], pa.int8(), [1, None]),
        ([None], pa.int64(), [None]),
        ([(1 << 64) - 1], pa.uint64(), [(1 << 64) - 1]),
        ([1, 2.5], pa.float32(), [1.0, 2.5]),
        ([np.int16(3)], pa.int64(), [3]),
        ([np.array([1.0, 2.0])], pa.list_(pa.float32(), 2), [[1.0, 2.0]]),
        ([[1, 2]], pa.list_(pa.int32()), [[1, 2]]),
        ([{"a": 1}, {"a": None}], pa.struct([("a", pa.int16())]), [{"a": 1}, {"a": None}]),
        ([[("k", 1)]], pa.map_(pa.string(), pa.int64()), [[("k", 1)]]),
        ([datetime(2024, 1, 2, 3)], pa.timestamp("ms"), [datetime(2024, 1, 2, 3)]),
        ([date(2024, 1, 2)], pa.date32(), [date(2024, 1, 2)]),
    ],
)
def test_python_values_become_a_column(
    values: list[Any], wanted: pa.DataType, expected: list[Any]
) -> None:
    assert make_array(values, pa.field("c", wanted)).to_pylist() == expected


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (1.5, pa.int64()),
        ([1, 2.5], pa.list_(pa.int64())),
        ({"a": 1.5}, pa.struct([("a", pa.int64())])),
        ({"a": 1, "b": 2}, pa.struct([("a", pa.int64())])),
        (datetime(2024, 1, 2, 3), pa.date32()),
        (datetime(2024, 1, 2, microsecond=5), pa.timestamp("s")),
        (datetime(2024, 1, 2, tzinfo=UTC), pa.timestamp("us")),
        ("2024-01-02", pa.timestamp("us")),
        (Decimal("1.55"), pa.decimal128(5, 1)),
    ],
)
def test_python_value_is_never_cut(value: Any, wanted: pa.DataType) -> None:
    with pytest.raises(SchemaError, match=r"the column 'c' must be .*, and the code gave"):
        make_array([value], pa.field("c", wanted))


def test_null_is_refused_where_the_schema_has_none() -> None:
    field = pa.field("c", pa.int64(), nullable=False)
    for make in (lambda: fit_array(pa.array([1, None]), field), lambda: make_array([None], field)):
        with pytest.raises(SchemaError, match="'c' has nulls"):
            make()


def test_columns_given_twice_are_refused() -> None:
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(SchemaError, match="'a' is given twice"):
        fit_batch(twice, [pa.field("a", pa.int64())], all_columns=True)


def test_large_batches_are_cut() -> None:
    rows = 3 * PIECE_BYTES_MAX // 8
    large = pa.record_batch({"n": pa.array(range(rows))})
    cut = pieces(large)
    assert [piece.num_rows for piece in cut] == [rows // 3] * 3
    assert pa.Table.from_batches(cut).equals(pa.Table.from_batches([large]))
    assert pieces(large.slice(0, 1)) == [large.slice(0, 1)]
