"""Arrow IPC streams for tests."""

from typing import Any

import pyarrow as pa


def stream_of(rows: pa.Table | pa.RecordBatch, rows_per_batch: int = 3, **options: Any) -> bytes:
    """`rows` as an IPC stream; `options` are those of IpcWriteOptions."""
    sink = pa.BufferOutputStream()
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    writing = pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_stream(sink, table.schema, options=writing) as writer:
        writer.write_table(table, max_chunksize=rows_per_batch)
    return bytes(sink.getvalue().to_pybytes())


def stream_of_batches(schema: pa.Schema, *batches: pa.RecordBatch, **options: Any) -> bytes:
    """The batches as they are, which may each have a dictionary of their own."""
    sink = pa.BufferOutputStream()
    writing = pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_stream(sink, schema, options=writing) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())
