"""Rows of a view: their schema, and the source rows that they come from."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from udtf.abi import PARENT
from udtf.row_fitting import Misfit, Parents, code_rows, fitted, query_rows
from udtf.source_rows import ROW_ID
from udtf.spec import CHUNK_INDEX, SOURCE_ROW_ID

CHUNKS = pa.schema(
    [
        ("doc", pa.string()),
        ("text", pa.string()),
        pa.field(SOURCE_ROW_ID, pa.uint64(), nullable=False),
        pa.field(CHUNK_INDEX, pa.int32(), nullable=False),
    ]
)


def batch(columns: dict[str, Any], **types: pa.DataType) -> pa.RecordBatch:
    arrays = {name: pa.array(values, types.get(name)) for name, values in columns.items()}
    return pa.RecordBatch.from_pydict(arrays)


def source(row_ids: list[int], docs: list[str]) -> pa.RecordBatch:
    return batch({"doc": docs, "text": ["whole"] * len(docs), ROW_ID: row_ids}, _rowid=pa.uint64())


def test_columns_are_converted_without_loss_or_refused() -> None:
    schema = pa.schema([("n", pa.int64()), ("s", pa.large_string())])
    rows = fitted({"s": pa.array(["a"]), "n": pa.array([1], pa.int8()), "x": pa.array([0])}, schema)
    assert rows.schema == schema
    assert rows.to_pylist() == [{"n": 1, "s": "a"}]
    narrow = pa.schema([("n", pa.int8())])
    for array in (pa.array([300]), pa.array([1.5]), pa.array([[1]])):
        with pytest.raises(Misfit, match=r"the column 'n' is .* and does not fit int8"):
            fitted({"n": array}, narrow)
    with pytest.raises(Misfit, match="the column 'n' is missing"):
        fitted({"m": pa.array([1])}, narrow)


def test_null_is_refused_where_the_view_has_none() -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    with pytest.raises(Misfit, match="the column 'n' has nulls"):
        list(code_rows([batch({"n": [1, None]})], schema))


def test_a_row_of_a_query_view_names_its_source_row() -> None:
    schema = pa.schema([("doc", pa.string()), pa.field(SOURCE_ROW_ID, pa.uint64(), nullable=False)])
    (rows,) = query_rows([source([7, 5], ["a", "b"])], schema)
    assert rows.to_pylist() == [
        {"doc": "a", SOURCE_ROW_ID: 7},
        {"doc": "b", SOURCE_ROW_ID: 5},
    ]


def test_chunks_inherit_and_are_numbered_within_their_row() -> None:
    parents = Parents(CHUNKS)
    read = parents.remember(iter([source([70, 50], ["a", "b"]), source([60], ["c"])]))

    def code() -> Iterator[pa.RecordBatch]:
        next(read)
        yield batch({"text": ["b1", "a1", "b2"], PARENT: [1, 0, 1]}, __parent=pa.int32())
        yield batch({"text": [], PARENT: []}, text=pa.string(), __parent=pa.int32())
        next(read)
        yield batch({"text": ["c1", "b3", "a2"], PARENT: [2, 1, 0]}, __parent=pa.int32())

    rows = pa.Table.from_batches(parents.chunk_rows(code()), CHUNKS).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("b", "b1", 50, 0),
        ("a", "a1", 70, 0),
        ("b", "b2", 50, 1),
        ("c", "c1", 60, 0),
        ("b", "b3", 50, 2),
        ("a", "a2", 70, 1),
    ]


@pytest.mark.parametrize(
    ("parent", "problem"),
    [
        (pa.array([2], pa.int32()), "from a row that was not given"),
        (pa.array([-1], pa.int32()), "from a row that was not given"),
        (pa.array([None], pa.int32()), "do not say which rows"),
        (pa.array([0.0]), "do not say which rows"),
        (None, "do not say which rows"),
    ],
)
def test_chunks_of_no_row_are_refused(parent: pa.Array | None, problem: str) -> None:
    parents = Parents(CHUNKS)
    list(parents.remember([source([7, 5], ["a", "b"])]))
    columns = {"text": pa.array(["t"])} | ({} if parent is None else {PARENT: parent})
    with pytest.raises(Misfit, match=problem):
        list(parents.chunk_rows([pa.RecordBatch.from_pydict(columns)]))
