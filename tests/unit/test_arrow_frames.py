"""Arrow streams' framing and sizes, checked as bytes go by.

Streams are made by pyarrow; hostile ones by changing bytes of them, or with hand-written headers
where no writer would write them.
"""

import random
import struct
import time

import pyarrow as pa
import pytest

from actors.arrow_frames import ROW_BYTES_MIN, FrameScanner, check_stream
from cluster.errors import InvalidInput
from cluster.settings import LimitSettings
from tests.unit.arrow_streams import stream_of, stream_of_batches

LIMITS = LimitSettings()
END = b"\xff\xff\xff\xff\0\0\0\0"
ROWS = pa.table(
    {
        "number": range(10),
        "text": ["x" * 20 * i for i in range(10)],
        "word": pa.array(["a", None] * 5).dictionary_encode(),
        "view": pa.array(["q" * 20] * 10, pa.string_view()),
        "list": [[1, 2], None] * 5,
        "struct": [{"a": 1}] * 10,
    }
)
STREAMS = {
    "plain": stream_of(ROWS),
    "lz4": stream_of(ROWS, compression="lz4"),
    "zstd": stream_of(ROWS, compression="zstd"),
    "without markers": stream_of(ROWS, use_legacy_format=True),
    "schema only": stream_of(ROWS.slice(0, 0)),
    "delta dictionaries": stream_of_batches(
        pa.schema([("d", pa.dictionary(pa.int32(), pa.string()))]),
        pa.record_batch({"d": pa.array(["a", "b"]).dictionary_encode()}),
        pa.record_batch({"d": pa.array(["a", "b", "c"]).dictionary_encode()}),
        emit_dictionary_deltas=True,
    ),
}
every_stream = pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS.keys())


def refusal(body: bytes, limits: LimitSettings = LIMITS) -> str:
    """What the caller is told of `body`, which must be refused."""
    with pytest.raises(InvalidInput) as refused:
        check_stream(body, limits)
    return refused.value.message


@every_stream
def test_whole_streams_pass_in_parts_of_any_size(stream: bytes) -> None:
    whole = check_stream(stream, LIMITS)
    for size in (1, 3, 8, 61):
        scanner = FrameScanner(LIMITS)
        for start in range(0, len(stream), size):
            scanner.feed(memoryview(stream)[start : start + size])
        scanner.finish()
        assert scanner.decompressed_bytes == whole


@every_stream
def test_a_stream_that_is_cut_anywhere_is_refused(stream: bytes) -> None:
    for length in range(1, len(stream)):
        assert "ended before" in (text := refusal(stream[:length])) or "first message" in text


@every_stream
def test_bytes_after_the_end_are_refused(stream: bytes) -> None:
    assert "after Arrow's end-of-stream marker" in refusal(stream + b"\0")


def test_an_end_without_a_marker_is_named() -> None:
    # Arrow's own readers take such a stream for a whole one.
    cut = STREAMS["plain"].removesuffix(END)
    assert pa.ipc.open_stream(cut).read_all().num_rows == 10
    assert refusal(cut) == (
        "The body ended before Arrow's end-of-stream marker; send the whole stream."
    )


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "Request data (Arrow IPC stream) is required."),
        (b"ARROW1\0\0rest of a file", "send the stream format"),
        (b'{"rows": [1, 2]}', "not a valid Arrow IPC stream"),
        (b"abc", "not a valid Arrow IPC stream"),
        (b"\xff\xff\xff\xff", "not a valid Arrow IPC stream"),
        (b"\0\0\0\0", "it has no schema"),
        (END, "it has no schema"),
        (b"\xff\xff\xff\xff\xff\xff\xff\x7f", "length is out of range"),
        (b"\xff\xff\xff\xff\0\0\0\x80", "length is out of range"),
        (b"\xff\xff\xff\xff\x08\0\0\0" + b"\xff" * 8, "header is damaged"),
        (b"\xff\xff\xff\xff\x08\0\0\0" + b"\0" * 8, "not a schema"),
    ],
)
def test_what_is_no_stream_is_told_what_it_is(body: bytes, told: str) -> None:
    assert told in refusal(body)


def test_a_file_is_refused_and_the_stream_of_the_same_rows_is_not() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, ROWS.schema) as writer:
        writer.write_table(ROWS)
    assert "Arrow IPC file" in refusal(sink.getvalue().to_pybytes())


def schema_bytes(stream: bytes) -> int:
    """Where the second message begins: a schema has no body."""
    return 8 + int(struct.unpack_from("<i", stream, 4)[0])


def test_a_batch_before_the_schema_is_refused() -> None:
    stream = STREAMS["plain"]
    assert "first message is not a schema" in refusal(stream[schema_bytes(stream) :])


def test_a_second_schema_is_refused() -> None:
    stream = STREAMS["plain"]
    again = stream[: schema_bytes(stream)] * 2 + END
    assert "neither a record batch nor a dictionary" in refusal(again)


def test_too_many_batches_are_refused_and_as_many_as_allowed_are_not() -> None:
    batches = pa.ipc.open_stream(stream_of(ROWS.select(["number"]))).read_all()
    assert len(batches.to_batches()) == 4
    check_stream(stream_of(batches), LimitSettings(insert_batches_max=4))
    told = refusal(stream_of(batches), LimitSettings(insert_batches_max=3))
    assert told == "The body has more than 3 batches; send fewer, larger ones."


def test_a_long_body_is_refused_when_a_message_announces_it() -> None:
    stream = stream_of(pa.table({"a": range(10_000)}), rows_per_batch=10_000)
    check_stream(stream, LimitSettings(insert_body_bytes_max=len(stream)))
    limits = LimitSettings(insert_body_bytes_max=len(stream) - 1)
    assert f"more than {len(stream) - 1} bytes" in refusal(stream, limits)
    scanner = FrameScanner(LimitSettings(insert_body_bytes_max=80_000))
    with pytest.raises(InvalidInput, match="more than 80000 bytes"):
        scanner.feed(stream[: len(stream) - 79_000])


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_batches_are_measured_after_decompression(compression: str | None) -> None:
    zeros = pa.table({"a": pa.array([0] * 50_000, pa.int64())})
    stream = stream_of(zeros, rows_per_batch=25_000, compression=compression)
    assert check_stream(stream, LIMITS) == pytest.approx(400_000, rel=0.001)
    check_stream(stream, LimitSettings(insert_batch_bytes_max=200_500))
    told = refusal(stream, LimitSettings(insert_batch_bytes_max=199_000))
    assert told.startswith("A record batch has more than 199000 bytes")
    told = refusal(stream, LimitSettings(insert_decompressed_bytes_max=399_000))
    assert told.startswith("The body has more than 399000 bytes after decompression")


@pytest.mark.parametrize("declared", [100 << 30, (1 << 63) - 1])
def test_a_bomb_is_refused_by_what_it_declares(declared: int) -> None:
    stream = stream_of(pa.table({"a": [0] * 10_000}), 10_000, compression="zstd")
    assert len(stream) < 1000
    place = stream.index(struct.pack("<q", 80_000))
    bomb = stream[:place] + struct.pack("<q", declared) + stream[place + 8 :]
    assert "after decompression" in refusal(bomb)


def test_a_negative_size_of_a_buffer_is_refused_unless_it_means_stored_as_it_is() -> None:
    stream = stream_of(pa.table({"a": [0] * 10_000}), 10_000, compression="zstd")
    place = stream.index(struct.pack("<q", 80_000))
    assert check_stream(stream, LIMITS) == 80_000
    stored = stream[:place] + struct.pack("<q", -1) + stream[place + 8 :]
    # What counts then are the rows.
    assert check_stream(stored, LimitSettings(insert_batch_bytes_max=80_000)) == 80_000
    hostile = stream[:place] + struct.pack("<q", -2) + stream[place + 8 :]
    assert "negative size" in refusal(hostile)


def test_rows_without_bytes_count_too() -> None:
    nulls = stream_of(pa.table({"n": pa.nulls(1000)}), 1000)
    assert len(nulls) < 1000
    assert check_stream(nulls, LIMITS) == 1000 * ROW_BYTES_MIN
    assert "A record batch has more than 7999 bytes" in refusal(
        nulls, LimitSettings(insert_batch_bytes_max=7_999)
    )


def test_dictionaries_that_are_kept_count_together_and_replaced_ones_do_not() -> None:
    schema = pa.schema([("d", pa.dictionary(pa.int32(), pa.string()))])
    batches = [
        pa.record_batch({"d": pa.array([f"{i}-{j}" * 50 for j in range(9)]).dictionary_encode()})
        for i in range(6)
    ]
    replacing = stream_of_batches(schema, *batches)
    check_stream(replacing, LimitSettings(insert_batch_bytes_max=2_500))
    values = [f"{i}" * 100 for i in range(54)]
    growing = [
        pa.record_batch({"d": pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), part)})
        for part in (pa.array(values[: 9 * (n + 1)]) for n in range(6))
    ]
    deltas = stream_of_batches(schema, *growing, emit_dictionary_deltas=True)
    assert pa.ipc.open_stream(deltas).read_all().num_rows == 6
    assert "dictionaries have more than 2500 bytes" in refusal(
        deltas, LimitSettings(insert_batch_bytes_max=2_500)
    )


def test_a_batch_with_more_columns_than_a_table_may_have_is_refused() -> None:
    stream = stream_of(ROWS)
    check_stream(stream, LimitSettings(columns_max=8))
    assert "more than 7 columns" in refusal(stream, LimitSettings(columns_max=7))


def test_buffers_outside_the_body_are_refused() -> None:
    stream = bytearray(stream_of(pa.table({"a": pa.array([1, 2, 3], pa.int64())})))
    # The batch's only buffer with bytes: offset 0, length 24.
    place = stream.rindex(struct.pack("<qq", 0, 24))
    for offset, length in ((8, 24), (0, 1 << 40), (-8, 24), (0, -1)):
        stream[place : place + 16] = struct.pack("<qq", offset, length)
        assert "outside its message's body" in refusal(bytes(stream))


def test_compression_as_before_arrow_1_is_refused() -> None:
    # A batch's custom metadata would tell a reader to decompress what the scanner takes as it is.
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"a": [1]})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch, {"ARROW:experimental_compression": "LZ4_FRAME"})
    assert "before Arrow 1.0" in refusal(sink.getvalue().to_pybytes())


def test_settled_bytes_never_reach_the_end_marker() -> None:
    for stream in STREAMS.values():
        marker = 4 if stream is STREAMS["without markers"] else 8
        scanner = FrameScanner(LIMITS)
        for place in range(len(stream)):
            scanner.feed(stream[place : place + 1])
            assert scanner.settled_bytes <= min(place + 1, len(stream) - marker)
        assert scanner.settled_bytes == len(stream) - marker


def test_mutated_streams_are_refused_or_understood_by_pyarrow_alone() -> None:
    seed = 20_261_127
    chance = random.Random(seed)
    passed = 0
    for _ in range(3_000):
        body = bytearray(chance.choice(list(STREAMS.values())))
        for _ in range(chance.choice((1, 1, 2, 5))):
            place = chance.randrange(len(body))
            kind = chance.randrange(4)
            if kind == 0:
                body[place] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
            elif kind == 1:
                body[place : place + 4] = chance.randbytes(4)
            elif kind == 2:
                del body[place : place + chance.choice((1, 4, 8, 16))]
            else:
                body[place:place] = chance.randbytes(chance.choice((1, 4, 8)))
        try:
            check_stream(bytes(body), LIMITS)
        except InvalidInput:
            continue
        passed += 1
        try:
            pa.ipc.open_stream(bytes(body)).read_all()
        except (pa.ArrowException, OSError):
            continue
    assert 300 < passed < 2_000


def test_work_is_in_proportion_to_messages_and_not_to_bytes() -> None:
    stream = stream_of(pa.table({"a": pa.array(range(2_000_000))}), 2_000_000)
    scanner = FrameScanner(LIMITS)
    started = time.perf_counter()
    scanner.feed(stream)
    scanner.finish()
    # 16 MB: to look at each byte in Python would take a second.
    assert time.perf_counter() - started < 0.1
