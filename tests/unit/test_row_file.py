"""Files of rows whose dictionaries differ from batch to batch."""

import io
from collections.abc import Callable, Sequence
from contextlib import closing

import pyarrow as pa
import pytest

from cluster.errors import InvalidInput
from serve_app.row_file import RowFileWriter

WORD = pa.dictionary(pa.int32(), pa.string())
PARTS = (["a", "b", None, "a"], [], ["c", "a"], [None], ["d", "c", "e"])


def written(batches: Sequence[pa.RecordBatch], bytes_max: int = 1 << 20) -> pa.Table:
    """What a reader finds in the file of `batches`."""
    sink = io.BytesIO()
    with closing(RowFileWriter(sink, batches[0].schema, bytes_max)) as writer:
        for batch in batches:
            writer.write(batch)
    return pa.ipc.open_file(sink.getvalue()).read_all()


def encoded(values: Sequence[object], type_: pa.DataType = WORD) -> pa.Array:
    """The values, in a dictionary that has just them."""
    plain = pa.array(values, type_.value_type).dictionary_encode()
    return pa.DictionaryArray.from_arrays(plain.indices.cast(type_.index_type), plain.dictionary)


def each_in_a_list(words: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(list(range(len(words) + 1)), words)


def each_in_a_map(words: pa.Array) -> pa.Array:
    keys = pa.array(["key"] * len(words))
    return pa.MapArray.from_arrays(list(range(len(words) + 1)), keys, words)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda words: words,
        each_in_a_list,
        each_in_a_map,
        lambda words: pa.FixedSizeListArray.from_arrays(words, 1),
        lambda words: pa.StructArray.from_arrays([words, each_in_a_list(words)], ["x", "y"]),
    ],
    ids=["flat", "list", "map", "fixed list", "struct"],
)
def test_dictionaries_that_change_give_their_values_and_keep_their_type(
    wrap: Callable[[pa.Array], pa.Array],
) -> None:
    batches = [pa.record_batch({"c": wrap(encoded(part))}) for part in PARTS]
    found = written(batches)
    assert found.schema == batches[0].schema
    assert found.to_pylist() == [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize(
    "type_",
    [
        pa.dictionary(pa.int64(), pa.large_string()),
        pa.dictionary(pa.uint32(), pa.binary()),
        pa.dictionary(pa.int32(), pa.int8()),
        pa.dictionary(pa.int32(), pa.float64()),
        pa.dictionary(pa.int32(), pa.bool_()),
    ],
    ids=str,
)
def test_dictionaries_of_every_type_give_their_values(type_: pa.DictionaryType) -> None:
    one, other = pa.array([0, 1]), pa.array([1, 0])
    batches = [
        pa.record_batch({"c": encoded(part.cast(type_.value_type).to_pylist(), type_)})
        for part in (one.cast(pa.string()), other.cast(pa.string()))
    ]
    found = written(batches)
    assert found.schema.field("c").type == type_
    assert found.to_pylist() == [row for batch in batches for row in batch.to_pylist()]


def test_a_dictionary_may_have_a_value_twice() -> None:
    """Lance joins dictionaries of one fragment by putting them behind one another."""
    twice = pa.DictionaryArray.from_arrays(pa.array([0, 2, 1], pa.int32()), ["a", "b", "a"])
    batches = [pa.record_batch({"c": column}) for column in (twice, encoded(["c", "b"]), twice)]
    assert written(batches)["c"].to_pylist() == ["a", "a", "b", "c", "b", "a", "a", "b"]


TINY = pa.dictionary(pa.int8(), pa.int64())


def half(value: float) -> pa.Array:
    """A dictionary of one half-precision number."""
    return pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([value], pa.float16()))


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param([encoded(range(100), TINY), encoded(range(99, 199), TINY)], id="too many"),
        pytest.param([half(1.5), half(2.5)], id="values that Arrow cannot compare"),
    ],
)
def test_dictionaries_that_cannot_be_joined_are_refused(columns: list[pa.Array]) -> None:
    with pytest.raises(InvalidInput, match=r"cannot be joined.*arrow_cast"):
        written([pa.record_batch({"c": column}) for column in columns])


def test_dictionaries_have_a_size_that_they_may_reach_together() -> None:
    batches = [pa.record_batch({"c": encoded([str(i) * 100, "x"])}) for i in range(10)]
    assert written(batches, 1_100).num_rows == 20
    with pytest.raises(InvalidInput, match="more than 900 bytes"):
        written(batches, 900)
    # A value that is there already takes no room.
    assert written(batches[:2] * 50, 300).num_rows == 200
