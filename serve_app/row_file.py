"""An Arrow IPC file of rows whose dictionaries differ from batch to batch.

Each fragment of a table has its own dictionaries, and a file may give a column one only, which
later batches may add to but not replace. So the dictionaries of each batch are put behind those of
the batches before it, and what is new in them is written as a delta. The column types stay as the
table has them, and readers of the format (pyarrow, LanceDB's client) need nothing special.
"""

from typing import Any

import pyarrow as pa

from actors.arrow_types import has_dictionary
from cluster.errors import InvalidInput

_ADVICE = "select fewer rows, other columns, or the values themselves: arrow_cast(column, 'Utf8')"


class RowFileWriter:
    """Writes batches of one schema to `sink`.

    `dictionary_bytes_max` bounds the dictionaries of all columns together: they are held here, and
    by whoever reads the file, until its end.
    """

    def __init__(self, sink: Any, schema: pa.Schema, dictionary_bytes_max: int) -> None:
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
        self._writer = pa.ipc.new_file(sink, schema, options=options)
        self._bytes_max = dictionary_bytes_max
        self._dictionaries: pa.Table | None = None
        """No rows, and the dictionaries of all that were written: each value once; None if no
        column has any."""
        if any(has_dictionary(field.type) for field in schema):
            self._dictionaries = schema.empty_table()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows of `batch`.

        Raises:
            InvalidInput: its dictionaries and those before it cannot be joined (more values than
                the column's indices can name, values that Arrow cannot compare), or are too large.
        """
        if self._dictionaries is None:
            self._writer.write_batch(batch)
            return
        if not batch.num_rows:
            return
        try:
            joined = _joined(self._dictionaries, batch)
            self._writer.write_batch(joined.to_batches()[-1])
        except pa.ArrowInvalid as error:
            raise InvalidInput(
                f"the dictionaries of these rows cannot be joined: {error}; {_ADVICE}"
            ) from error
        self._dictionaries = joined.slice(0, 0)
        if self._dictionaries.nbytes > self._bytes_max:
            raise InvalidInput(
                f"the dictionaries of these rows have more than {self._bytes_max} bytes; {_ADVICE}"
            )

    def close(self) -> None:
        """Write the end of the file."""
        self._writer.close()


def _joined(dictionaries: pa.Table, batch: pa.RecordBatch) -> pa.Table:
    """The rows, last of the table's chunks, and dictionaries that begin as the given ones do."""
    rows = pa.Table.from_batches([batch], dictionaries.schema)
    return pa.concat_tables([dictionaries, rows]).unify_dictionaries()
