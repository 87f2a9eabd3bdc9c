"""Checks an Arrow IPC stream's framing and sizes while its bytes go by, before anything decodes it.

A stream is a sequence of messages: a length, a flatbuffer that describes the message, and a body.
The scanner reads the lengths, the few fields of the flatbuffer that tell sizes, and of a compressed
body the eight bytes before each buffer that tell what it grows to; bodies are skipped. Its work is
thus in proportion to messages and buffers, not to bytes.

Neither pyarrow nor its dependencies offer a public parser of message headers, so `_Table` reads
flatbuffers: https://flatbuffers.dev/internals. Message.fbs and Schema.fbs of the Arrow project
name the fields.
"""

import struct
from collections.abc import Callable

from cluster.errors import InvalidInput
from cluster.settings import LimitSettings

METADATA_BYTES_MAX = 64 << 20
"""Bytes of one message's flatbuffer; that of 10,000 columns takes less than 4 MiB."""
ROW_BYTES_MIN = 8
"""What a row counts at least. A column of nulls takes no bytes, and its rows are work all the same."""

_CONTINUATION = b"\xff\xff\xff\xff"
_INT32 = struct.Struct("<i")
_INT64 = struct.Struct("<q")

_SCHEMA = 1
_DICTIONARY_BATCH = 2
_RECORD_BATCH = 3
# Arrow before 1.0 named a batch's compression in its metadata; pyarrow still honours that.
_OLD_COMPRESSION = b"ARROW:experimental_compression"


def check_stream(body: bytes, limits: LimitSettings) -> int:
    """Check a whole stream as FrameScanner does; returns its bytes after decompression."""
    scanner = FrameScanner(limits)
    scanner.feed(body)
    scanner.finish()
    return scanner.decompressed_bytes


class FrameScanner:
    """Follows the frames of one Arrow IPC stream.

    `feed` takes the bytes in order, in parts of any size; `finish` says that there are no more.
    Both raise InvalidInput for what is not one whole stream within `limits`; then the scanner is of
    no more use.
    """

    def __init__(self, limits: LimitSettings) -> None:
        self._limits = limits
        self._received = 0
        # What is read next: `_missing` bytes, given to `_step` together, or skipped if it is None.
        self._missing = _INT32.size
        self._step: Callable[[bytes | memoryview], None] | None = self._read_prefix
        self._partial = bytearray()
        self._frame_start = 0
        self._has_schema = False
        self._is_ended = False
        self._batches = 0
        self._batch: _Batch | None = None
        self._batch_bytes = 0
        self._batch_position = 0
        self._dictionaries: dict[int, int] = {}
        self.decompressed_bytes = 0

    @property
    def settled_bytes(self) -> int:
        """How many of the bytes fed surely come before the end-of-stream marker."""
        is_between = self._is_ended or self._step in (self._read_prefix, self._read_length)
        return self._frame_start if is_between else self._received

    def feed(self, data: bytes | memoryview) -> None:
        """Check the next bytes."""
        view = memoryview(data)
        self._received += len(view)
        if self._received > self._limits.insert_body_bytes_max:
            self._refuse_long_body()
        start = 0
        while start < len(view):
            if self._is_ended:
                raise InvalidInput("The body goes on after Arrow's end-of-stream marker.")
            start = self._advance(view, start)

    def finish(self) -> None:
        """Check that the stream has ended."""
        if self._received == 0:
            raise InvalidInput("Request data (Arrow IPC stream) is required.")
        if not self._is_ended:
            if not self._has_schema:
                raise InvalidInput("The body is not an Arrow IPC stream: it ends too early.")
            raise InvalidInput(
                "The body ended before Arrow's end-of-stream marker; send the whole stream."
            )

    def _advance(self, view: memoryview, start: int) -> int:
        """Take what `_step` needs, or what there is of it; returns where the rest starts."""
        end = min(start + self._missing, len(view))
        self._missing -= end - start
        if self._step is None:
            if self._missing == 0:
                self._continue_body()
            return end
        element: bytes | memoryview = view[start:end]
        if self._partial or self._missing:
            self._partial += element
            element = self._partial
        if self._missing == 0:
            self._partial = bytearray()
            self._step(element)
        return end

    def _expect(self, size: int, step: Callable[[bytes | memoryview], None] | None) -> None:
        self._missing = size
        self._step = step

    def _read_prefix(self, element: bytes | memoryview) -> None:
        if element == _CONTINUATION:
            self._expect(_INT32.size, self._read_length)
            return
        if element == b"ARRO" and not self._has_schema:
            raise InvalidInput(
                "The body is an Arrow IPC file (it begins with ARROW1); send the stream format."
            )
        # Arrow before 0.15 had no marker: this is the length.
        self._read_length(element)

    def _read_length(self, element: bytes | memoryview) -> None:
        (size,) = _INT32.unpack(element)
        if not 0 <= size <= METADATA_BYTES_MAX:
            self._refuse_metadata()
        if size > 0:
            self._expect(size, self._read_metadata)
        elif self._has_schema:
            self._is_ended = True
        else:
            raise InvalidInput("The body is not an Arrow IPC stream: it has no schema.")

    def _read_metadata(self, element: bytes | memoryview) -> None:
        metadata = bytes(element)
        try:
            message = _Message(metadata)
        except (struct.error, _BadOffset):
            self._refuse_metadata()
        if message.body_bytes < 0:
            self._refuse_metadata()
        if self._received + message.body_bytes > self._limits.insert_body_bytes_max * 2:
            self._refuse_long_body()
        if message.kind == _SCHEMA and not self._has_schema:
            self._has_schema = True
            self._expect_body(message.body_bytes)
        elif message.kind in (_DICTIONARY_BATCH, _RECORD_BATCH) and self._has_schema:
            self._begin_batch(message)
        else:
            self._refuse_metadata()
