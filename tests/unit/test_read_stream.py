"""Arrow streams that are hostile, lazy or odd, on their way to a table."""

from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from actors.conform import conform_reader, open_stream, read_stream
from cluster.errors import DestrierError, InvalidInput, TableSchemaValidationError
from tests.unit.arrow_streams import stream_of
from tests.unit.fitting import fitted, one, schema_of, stored


def test_a_reader_is_lazy_and_tells_its_errors() -> None:
    seen: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in (1, 2, None):
            seen.append(len(seen))
            yield pa.record_batch({"c": pa.array([number], pa.int64())})

    told: list[DestrierError] = []
    source = pa.RecordBatchReader.from_batches(schema_of(pa.int64()), batches())
    reader = conform_reader(source, schema_of(pa.int64(), nullable=False), on_error=told.append)
    assert seen == []
    assert reader.read_next_batch().to_pylist() == [{"c": 1}]
    assert seen == [0]
    assert reader.read_next_batch().to_pylist() == [{"c": 2}]
    with pytest.raises(TableSchemaValidationError, match="contains 1 nulls") as raised:
        reader.read_next_batch()
    assert told == [raised.value]


def test_an_error_in_a_reader_keeps_its_class_beside_lance(tmp_path: Path) -> None:
    told: list[DestrierError] = []
    rows = one(pa.array([1, None]))
    reader = conform_reader(
        rows.to_reader(), schema_of(pa.int64(), nullable=False), on_error=told.append
    )
    with pytest.raises(OSError, match="contains 1 nulls"):
        lance.write_dataset(reader, tmp_path / "t.lance")
    assert [type(error) for error in told] == [TableSchemaValidationError]
    assert not (tmp_path / "t.lance" / "_versions").exists()


@pytest.mark.parametrize("body", [b"", b"abc", b"ARROW1", stream_of(one(pa.array([1])))[:200]])
def test_what_is_no_stream_is_refused(body: bytes) -> None:
    for read in (read_stream, lambda body: open_stream(body).read_all()):
        with pytest.raises((InvalidInput, pa.ArrowInvalid)):
            read(body)
    with pytest.raises(InvalidInput, match="not a valid Arrow IPC stream"):
        read_stream(body)


def with_offsets(*offsets: int) -> bytes:
    """A stream of two strings `aa`, `bb` whose offsets are these."""
    stream = stream_of(one(pa.array(["aa", "bb"])))
    place = stream.index(bytes(pa.array([0, 2, 4], pa.int32()).buffers()[1])[:12])
    changed = bytes(pa.array(offsets, pa.int32()).buffers()[1])[:12]
    return stream[:place] + changed + stream[place + 12 :]


@pytest.mark.parametrize("offsets", [(0, 5, 4), (0, 2, 400), (-1, 2, 4), (0, 2, 2_000_000_000)])
def test_hostile_offsets_are_refused(offsets: tuple[int, int, int]) -> None:
    assert read_stream(with_offsets(0, 2, 4))["c"].to_pylist() == ["aa", "bb"]
    with pytest.raises(InvalidInput, match="not a valid Arrow IPC stream"):
        read_stream(with_offsets(*offsets))
    with pytest.raises(InvalidInput, match="not a valid Arrow IPC stream"):
        reader = open_stream(with_offsets(*offsets))
        conform_reader(reader, reader.schema).read_all()


def test_text_that_is_not_utf_8_is_refused() -> None:
    stream = stream_of(pa.table({"column": ["word"]}))
    for text in (b"word", b"column"):
        with pytest.raises(InvalidInput, match="not a valid Arrow IPC stream"):
            read_stream(stream.replace(text, b"\xff" + text[1:]))


def test_indices_that_a_dictionary_lacks_are_refused() -> None:
    encoded = pa.array(["a", "b"] * 50).dictionary_encode()
    stream = stream_of(one(encoded), 100)
    place = stream.index(bytes(encoded.indices.buffers()[1])[:400])
    with pytest.raises(InvalidInput, match="not a valid Arrow IPC stream"):
        read_stream(stream[:place] + b"\x02" + stream[place + 1 :])


def test_a_view_behind_a_null_is_not_followed() -> None:
    # A cast of pyarrow 25 follows it and ends the process.
    views = pa.array(["a"], pa.string_view()).buffers()[1].to_pybytes()[:16] + b"\xff" * 16
    array = pa.Array.from_buffers(pa.string_view(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(views)])
    array.validate(full=True)
    for rows in (one(array), one(array).slice(1)):
        assert (
            fitted(rows, schema_of(pa.string()))["c"].to_pylist() == array.to_pylist()[-len(rows) :]
        )


def test_offsets_of_an_empty_array_are_made_anew(tmp_path: Path) -> None:
    # Lance reads the first offset even if no string is there.
    empty = pa.Array.from_buffers(pa.string(), 0, [None, pa.py_buffer(b""), pa.py_buffer(b"")])
    lists = pa.ListArray.from_arrays(pa.array([0, 0], pa.int32()), empty)
    assert stored(fitted(one(lists), schema_of(lists.type)), tmp_path) == [{"c": []}]
    child = fitted(one(lists), schema_of(lists.type))["c"].chunk(0).values
    assert child.buffers()[1].size >= 4


def test_decimals_of_an_unaligned_body_are_stored(tmp_path: Path) -> None:
    # pylance panics on decimals that are not aligned as Rust wants them.
    rows = pa.table(
        {
            "a": pa.array([1], pa.int8()),
            "c": pa.array(
                [
                    1,
                ],
                pa.int64(),
            ).cast(pa.decimal128(19, 0)),
        }
    )
    for shift in range(8):
        body = memoryview(b"\0" * shift + stream_of(rows))[shift:]
        found = stored(fitted(read_stream(body), rows.schema), tmp_path / str(shift))
        assert found == rows.to_pylist()
