"""Reads the source rows of item after item; of those that lie together, many by one scan.

To begin a scan takes Lance half a millisecond, several times as long as to read the rows of an item
of the usual size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from udtf.items import FragmentRange, FragmentRows, RowsOf, WorkItem
from udtf.source_rows import SourceReader

# What one scan of several items reads, by the largest rows that were seen before: it is read ahead
# of the item that is done.
_BYTES_AT_ONCE_MAX = 8 << 20


class AdjacentRows:
    """Reads as its SourceReader does; knows from `expect` what will be asked for next."""

    def __init__(self, reader: SourceReader) -> None:
        self._reader = reader
        self._expected: list[FragmentRange | None] = []
        self._scan: _SharedScan | None = None
        self._row_bytes: float | None = None

    def expect(self, items: Sequence[WorkItem]) -> None:
        """These items will be read, most likely in this order."""
        self._expected = [self._part(item.rows) for item in items]

    def read(self, rows: RowsOf, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The outputs called `names`, and `_rowid` after them; errors as SourceReader.read."""
        batch = None
        part = self._part(rows)
        if part is not None and self._is_shared(part, names):
            batch = self._next(part)
        batches = self._reader.read(rows, names) if batch is None else iter([batch])
        for read in batches:
            if read.num_rows:
                self._row_bytes = max(self._row_bytes or 0.0, read.nbytes / read.num_rows)
            yield read

    def _part(self, rows: RowsOf) -> FragmentRange | None:
        """The rows as what a scan may share with others: a part of one fragment, in one batch."""
        if not isinstance(rows, FragmentRows) or len(rows.ranges) != 1:
            return None
        part = rows.ranges[0]
        fits = part.length is not None and 0 < part.length <= self._reader.batch_rows
        return part if fits else None

    def _is_shared(self, part: FragmentRange, names: Sequence[str]) -> bool:
        """Whether there is a scan that comes to `part` next, now if not before."""
        scan = self._scan
        if scan is None or not scan.is_at(part, names):
            self._scan = None
            together = self._together(part)
            if together is not None:
                assert part.length is not None
                batches = self._reader.range_of(together, names, part.length)
                self._scan = _SharedScan(together, names, batches)
        return self._scan is not None

    def _together(self, part: FragmentRange) -> FragmentRange | None:
        """What one scan reads from `part` on; None if that is no more than `part`."""
        if part not in self._expected or self._row_bytes is None:
            return None
        length = part.length or 0
        rows_max = _BYTES_AT_ONCE_MAX / max(self._row_bytes, 1.0)
        for later in self._expected[self._expected.index(part) + 1 :]:
            if later is None or later.length is None:
                break
            if (later.fragment, later.offset) != (part.fragment, part.offset + length):
                break
            if length + later.length > rows_max:
                break
            length += later.length
        return None if length == part.length else replace(part, length=length)

    def _next(self, part: FragmentRange) -> pa.RecordBatch | None:
        """The rows of `part` from the scan; None if it has failed, maybe for rows of others."""
        assert self._scan is not None and part.length is not None
        try:
            batch = self._scan.take(part.length)
        except BaseException:  # noqa: BLE001 - a panic of Lance's is no Exception
            # Reading `part` by itself says whether the fault is its own.
            self._scan = None
            return None
        if self._scan.is_over:
            self._scan = None
        return batch


class _SharedScan:
    """One scan over the rows of several items."""

    def __init__(
        self, rows: FragmentRange, names: Sequence[str], batches: Iterator[pa.RecordBatch]
    ) -> None:
        self._left = rows
        self._names = list(names)
        self._batches = batches
        self._waiting: list[pa.RecordBatch] = []

    @property
    def is_over(self) -> bool:
        return not self._left.length

    def is_at(self, part: FragmentRange, names: Sequence[str]) -> bool:
        """Whether `part` comes next."""
        left = self._left
        place = (left.fragment, left.offset, self._names)
        return place == (part.fragment, part.offset, list(names)) and (
            (left.length or 0) >= (part.length or 0)
        )

    def take(self, rows: int) -> pa.RecordBatch:
        """The next rows, as one batch."""
        count = sum(batch.num_rows for batch in self._waiting)
        while count < rows:
            self._waiting.append(next(self._batches))
            count += self._waiting[-1].num_rows
        last = self._waiting.pop()
        kept = last.num_rows - (count - rows)
        parts = [*self._waiting, last.slice(0, kept)]
        self._waiting = [last.slice(kept)] if kept < last.num_rows else []
        left = self._left
        assert left.length is not None
        self._left = replace(left, offset=left.offset + rows, length=left.length - rows)
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)
