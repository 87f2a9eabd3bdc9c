"""Checks an Arrow IPC stream's framing and sizes while its bytes go by, before anything decodes it.

A stream is a sequence of messages: a length, a flatbuffer that describes the message, and a body.
The scanner reads the lengths, the few fields of the flatbuffers that tell sizes and, of compressed
bodies, the eight bytes before each buffer that tell what it grows to; the rest is skipped. Its work
is in proportion to messages and buffers, not to bytes.

pyarrow has no public parser of message headers, so flatbuffers are read here, each access checked
against the buffer's end: https://flatbuffers.dev/internals. Message.fbs of the Arrow project
numbers the fields.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

from cluster.errors import InvalidInput
from cluster.settings import LimitSettings

METADATA_BYTES_MAX = 64 << 20
"""Bytes of one message's flatbuffer; a schema of 10,000 columns takes about 2 MiB."""
ROW_BYTES_MIN = 8
"""What a row counts at least: a column of nulls takes no bytes, yet its rows are work."""

_CONTINUATION = b"\xff\xff\xff\xff"
# Arrow before 1.0 named a batch's compression in its custom metadata, and pyarrow still honours it.
_OLD_COMPRESSION = b"ARROW:experimental_compression"
_UINT8, _UINT16, _UINT32 = struct.Struct("<B"), struct.Struct("<H"), struct.Struct("<I")
_INT32, _INT64, _PAIR = struct.Struct("<i"), struct.Struct("<q"), struct.Struct("<qq")
_SCHEMA, _DICTIONARY_BATCH, _RECORD_BATCH = 1, 2, 3

Piece = bytes | bytearray | memoryview


def check_stream(body: bytes, limits: LimitSettings) -> int:
    """Check a whole stream as FrameScanner does; returns its bytes after decompression."""
    scanner = FrameScanner(limits)
    scanner.feed(body)
    scanner.finish()
    return scanner.decompressed_bytes


class FrameScanner:
    """Follows the messages of one Arrow IPC stream.

    `feed` takes the bytes in order, in parts of any size; `finish` says that there are no more.
    Both raise InvalidInput for what is not one whole stream within `limits`, and then the scanner
    is of no more use.
    """

    def __init__(self, limits: LimitSettings) -> None:
        self._limits = limits
        self._position = 0
        self._message_start = 0
        # `_step` takes the next `_missing` bytes: whole, or not at all if they are skipped.
        self._missing = 0
        self._step: Callable[[Piece], None] = self._read_prefix
        self._skips = False
        self._partial = bytearray()
        self._has_schema = False
        self._is_ended = False
        self._batches = 0
        self._batch: _Batch | None = None
        self._body_bytes = 0
        self._body_position = 0
        self._buffers: Iterator[tuple[int, int]] = iter(())
        self._grown_bytes = 0
        self._dictionary_bytes: dict[int, int] = {}
        self._dictionary_bytes_held = 0
        self.decompressed_bytes = 0
        """Bytes of the batches so far, after decompression."""
        self._expect_message()

    @property
    def settled_bytes(self) -> int:
        """How many of the bytes fed surely come before the end-of-stream marker."""
        is_between = self._is_ended or self._step in (self._read_prefix, self._read_length)
        return self._message_start if is_between else self._position

    def feed(self, data: bytes | memoryview) -> None:
        """Check the next bytes."""
        view = memoryview(data)
        if self._position + len(view) > self._limits.insert_body_bytes_max:
            self._refuse_length()
        start = 0
        while start < len(view):
            if self._is_ended:
                raise InvalidInput("The body goes on after Arrow's end-of-stream marker.")
            end = min(start + self._missing, len(view))
            self._missing -= end - start
            self._position += end - start
            piece: Piece = b""
            if not self._skips:
                piece = view[start:end]
                if self._missing or self._partial:
                    self._partial += piece
                    piece = self._partial
            if self._missing == 0:
                self._partial = bytearray()
                self._step(piece)
            start = end

    def finish(self) -> None:
        """Check that the stream is whole."""
        if self._position == 0:
            raise InvalidInput("Request data (Arrow IPC stream) is required.")
        if not self._has_schema:
            _refuse("it ends within its first message")
        if not self._is_ended:
            raise InvalidInput(
                "The body ended before Arrow's end-of-stream marker; send the whole stream."
            )

    def _expect(self, size: int, step: Callable[[Piece], None], *, skips: bool = False) -> None:
        self._missing, self._step, self._skips = size, step, skips

    def _expect_message(self) -> None:
        self._message_start = self._position
        self._expect(_INT32.size, self._read_prefix)

    def _read_prefix(self, piece: Piece) -> None:
        if piece == _CONTINUATION:
            self._expect(_INT32.size, self._read_length)
        elif piece == b"ARRO" and not self._has_schema:
            raise InvalidInput(
                "The body is an Arrow IPC file (it begins with ARROW1); send the stream format."
            )
        else:
            # Arrow before 0.15 had no such marker: this is the length.
            self._read_length(piece)

    def _read_length(self, piece: Piece) -> None:
        size = _INT32.unpack(piece)[0]
        if not 0 <= size <= METADATA_BYTES_MAX:
            _refuse("a message's length is out of range")
        if size > 0:
            self._expect(size, self._read_metadata)
        elif self._has_schema:
            self._is_ended = True
        else:
            _refuse("it has no schema")

    def _read_metadata(self, piece: Piece) -> None:
        metadata = bytes(piece)
        message = _Table.root(metadata)
        kind = message.scalar(1, _UINT8)
        body_bytes = message.scalar(3, _INT64)
        if body_bytes < 0:
            _refuse("a message's body length is negative")
        if self._position + body_bytes > self._limits.insert_body_bytes_max:
            self._refuse_length()
        self._body_bytes, self._body_position = body_bytes, 0
        self._batch, self._buffers, self._grown_bytes = None, iter(()), 0
        if not self._has_schema:
            if kind != _SCHEMA:
                _refuse("its first message is not a schema")
            self._has_schema = True
        elif kind in (_RECORD_BATCH, _DICTIONARY_BATCH):
            self._batch = self._read_batch(message.table(2), kind, metadata)
            self._buffers = iter(self._batch.compressed_buffers)
            self._grow(0)
        else:
            _refuse("a message is neither a record batch nor a dictionary")
        self._expect_buffer()

    def _read_batch(self, header: "_Table", kind: int, metadata: bytes) -> "_Batch":
        self._batches += 1
        if self._batches > self._limits.insert_batches_max:
            raise InvalidInput(
                f"The body has more than {self._limits.insert_batches_max} batches; send fewer,"
                " larger ones."
            )
        if _OLD_COMPRESSION in metadata:
            _refuse("it is compressed as before Arrow 1.0; write it with a newer version")
        if kind == _RECORD_BATCH:
            return _Batch.of(header, self._body_bytes, self._limits.columns_max)
        batch = _Batch.of(header.table(1), self._body_bytes, self._limits.columns_max)
        return replace(
            batch, dictionary=header.scalar(0, _INT64), is_delta=header.scalar(2, _UINT8) != 0
        )

    def _expect_buffer(self) -> None:
        """Skip to where the next compressed buffer tells its size, or to the body's end."""
        buffer = next(self._buffers, None)
        offset, length = (self._body_bytes, 0) if buffer is None else buffer
        gap, self._body_position = offset - self._body_position, offset

        def arrive(_: Piece) -> None:
            if buffer is None:
                self._end_message()
            else:
                self._expect(_INT64.size, read_size)

        def read_size(piece: Piece) -> None:
            self._body_position += _INT64.size
            size = _INT64.unpack(piece)[0]
            if size < -1:
                _refuse("a compressed buffer has a negative size")
            # -1 says that this buffer is stored as it is.
            self._grow(size if size >= 0 else length - _INT64.size)
            self._expect_buffer()

        if gap > 0:
            self._expect(gap, arrive, skips=True)
        else:
            arrive(b"")

    def _grow(self, size: int) -> None:
        """Add to what the batch takes after decompression."""
        limits = self._limits
        assert self._batch is not None
        self._grown_bytes += size
        batch_bytes = max(self._batch.bytes_min, self._grown_bytes)
        if batch_bytes > limits.insert_batch_bytes_max:
            raise InvalidInput(
                f"A record batch has more than {limits.insert_batch_bytes_max} bytes after"
                " decompression; send smaller batches."
            )
        if self.decompressed_bytes + batch_bytes > limits.insert_decompressed_bytes_max:
            raise InvalidInput(
                f"The body has more than {limits.insert_decompressed_bytes_max} bytes after"
                " decompression; send it in several requests."
            )

    def _end_message(self) -> None:
        batch = self._batch
        if batch is not None:
            batch_bytes = max(batch.bytes_min, self._grown_bytes)
            self.decompressed_bytes += batch_bytes
            if batch.dictionary is not None:
                self._hold_dictionary(batch.dictionary, batch_bytes, is_delta=batch.is_delta)
        self._expect_message()

    def _hold_dictionary(self, dictionary: int, size: int, *, is_delta: bool) -> None:
        """Count what a reader keeps for the batches to come."""
        if not is_delta:
            self._dictionary_bytes_held -= self._dictionary_bytes.pop(dictionary, 0)
        self._dictionary_bytes[dictionary] = self._dictionary_bytes.get(dictionary, 0) + size
        self._dictionary_bytes_held += size
        if self._dictionary_bytes_held > self._limits.insert_batch_bytes_max:
            raise InvalidInput(
                f"The body's dictionaries have more than {self._limits.insert_batch_bytes_max}"
                " bytes together; send the values themselves."
            )

    def _refuse_length(self) -> NoReturn:
        raise InvalidInput(
            f"The body has more than {self._limits.insert_body_bytes_max} bytes; send it in"
            " several requests."
        )


@dataclass(frozen=True, slots=True)
class _Batch:
    """What the header of a record batch or of a dictionary tells of sizes.

    `compressed_buffers` are offset and length of each, in order; `bytes_min` is what the batch
    counts whatever they grow to.
    """

    bytes_min: int
    compressed_buffers: list[tuple[int, int]]
    dictionary: int | None = None
    is_delta: bool = False

    @staticmethod
    def of(header: "_Table", body_bytes: int, columns_max: int) -> "_Batch":
        """Read a RecordBatch."""
        rows = header.scalar(0, _INT64)
        nodes = header.pairs(1)
        buffers = header.pairs(2)
        if len(nodes) > columns_max:
            raise InvalidInput(
                f"A record batch has more than {columns_max} columns, nested ones counted; send"
                " fewer."
            )
        if rows < 0 or any(length < 0 or nulls < 0 for length, nulls in nodes):
            _refuse("a batch's length is negative")
        if any(
            offset < 0 or length < 0 or offset + length > body_bytes for offset, length in buffers
        ):
            _refuse("a buffer is outside its message's body")
        bytes_min = max(body_bytes, rows * ROW_BYTES_MIN, sum(length for length, _ in nodes))
        if not header.has(3):
            return _Batch(max(bytes_min, sum(length for _, length in buffers)), [])
        filled = [(offset, length) for offset, length in buffers if length > 0]
        end = 0
        for offset, length in filled:
            if offset < end or length < _INT64.size:
                _refuse("compressed buffers overlap or are too short")
            end = offset + length
        return _Batch(bytes_min, filled)


class _Table:
    """A table of a flatbuffer; InvalidInput for whatever is not inside the buffer."""

    def __init__(self, buffer: bytes, position: int) -> None:
        self._buffer = buffer
        self._position = position
        self._slots = position - _read(_INT32, buffer, position)
        self._slots_end = self._slots + _read(_UINT16, buffer, self._slots)

    @staticmethod
    def root(buffer: bytes) -> "_Table":
        """The table that the whole buffer is about."""
        return _Table(buffer, _read(_UINT32, buffer, 0))

    def has(self, number: int) -> bool:
        """Whether the field is set."""
        return self._field(number) is not None

    def scalar(self, number: int, layout: struct.Struct) -> int:
        """The field's number, 0 if it is not set."""
        position = self._field(number)
        return 0 if position is None else _read(layout, self._buffer, position)

    def table(self, number: int) -> "_Table":
        """The table that the field refers to."""
        position = self._field(number)
        if position is None:
            _refuse("a message lacks its header")
        return _Table(self._buffer, position + _read(_UINT32, self._buffer, position))

    def pairs(self, number: int) -> list[tuple[int, int]]:
        """A vector of structs of two 64-bit integers, empty if it is not set."""
        position = self._field(number)
        if position is None:
            return []
        start = position + _read(_UINT32, self._buffer, position)
        end = start + _UINT32.size + _read(_UINT32, self._buffer, start) * 2 * _INT64.size
        if end > len(self._buffer):
            _refuse("a message's header is damaged")
        return list(_PAIR.iter_unpack(self._buffer[start + _UINT32.size : end]))

    def _field(self, number: int) -> int | None:
        slot = self._slots + 2 * _UINT16.size + number * _UINT16.size
        if slot + _UINT16.size > self._slots_end:
            return None
        distance = _read(_UINT16, self._buffer, slot)
        return self._position + distance if distance else None


def _read(layout: struct.Struct, buffer: bytes, position: int) -> int:
    if not 0 <= position <= len(buffer) - layout.size:
        _refuse("a message's header is damaged")
    return int(layout.unpack_from(buffer, position)[0])


def _refuse(what: str) -> NoReturn:
    raise InvalidInput(f"The body is not a valid Arrow IPC stream: {what}.")
