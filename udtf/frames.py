"""What a worker and the process of user code send each other over two pipes.

A frame is a byte of kind, eight of length, and a payload: JSON, or one record batch as an Arrow IPC
stream of its own, so that dictionaries and schemas need no state on either side.

    worker → process    SPEC, then for each item: ITEM, ROWS*, END
    process → worker    READY, then for each item: ROWS*, and DONE or FAILED

A process that has sent DONE or FAILED skips what is left of the item's rows.
"""

import struct
from enum import IntEnum
from typing import Any

import pyarrow as pa

HEADER = struct.Struct("<BQ")


class Frame(IntEnum):
    """The kinds of frames."""

    SPEC = 1
    ITEM = 2
    ROWS = 3
    END = 4
    READY = 5
    DONE = 6
    FAILED = 7


# Lance's decoders end their thread when values are less aligned than their type.
_OPTIONS = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.DataTypeSpecific)


def header(kind: Frame, length: int = 0) -> bytes:
    """The bytes before a payload."""
    return HEADER.pack(kind, length)


def encode_batch(batch: pa.RecordBatch) -> pa.Buffer:
    """The payload of ROWS."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def decode_batch(payload: Any) -> pa.RecordBatch:
    """The batch in a payload of ROWS; shares its memory.

    Raises:
        pa.ArrowException: it is none.
    """
    with pa.ipc.open_stream(payload, options=_OPTIONS) as reader:
        return reader.read_next_batch()
