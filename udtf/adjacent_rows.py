"""Reads the source rows of item after item; of those that lie together, many by one scan.

To begin a scan takes Lance half a millisecond, several times as long as to read the rows of an item
of the usual size.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import pyarrow as pa

from udtf.items import FragmentRange, FragmentRows, RowsOf, WorkItem
from udtf.source_rows import SourceReader

# What one scan of several items reads, by the largest rows that were seen before: it is read ahead
# of the item that is done.
_BYTES_AT_ONCE_MAX = 8 << 20


class AdjacentRows:
    """Reads as the SourceReader does that `open_reader` gives, which is asked for one once.

    From `expect` it knows what will be asked for next.
    """

    def __init__(self, open_reader: Callable[[], SourceReader]) -> None:
        self._open_reader = open_reader
        self._expected: list[FragmentRange | None] = []
        self._scan: _SharedScan | None = None
        self._row_bytes: float | None = None

    @cached_property
    def reader(self) -> SourceReader:
        """What reads; the first one to ask opens it."""
        return self._open_reader()

    def expect(self, items: Sequence[WorkItem]) -> None:
        """These items will be read, most likely in this order."""
        self._expected = [_part(item.rows) for item in items]

    def read(self, rows: RowsOf, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The outputs called `names`, and `_rowid` after them; errors as SourceReader.read."""
        shared = self._from_shared_scan(rows, names)
        batches = self.reader.read(rows, names) if shared is None else iter([shared])
        for batch in batches:
            if batch.num_rows:
                self._row_bytes = max(self._row_bytes or 0.0, batch.nbytes / batch.num_rows)
            yield batch

    def _from_shared_scan(self, rows: RowsOf, names: Sequence[str]) -> pa.RecordBatch | None:
        """The rows, if a scan of several items comes to them next or can begin with them.

        None also if the scan fails, maybe for rows of others: whoever reads these alone will see.
        """
        part = _part(rows)
        if part is None or _length(part) > self.reader.batch_rows:
            return None
        scan, self._scan = self._scan, None
        if scan is None or not scan.is_at(part, names):
            scan = self._begin_scan(part, names)
        if scan is None:
            return None
        try:
            batch = scan.take(_length(part))
        except BaseException:  # noqa: BLE001 - a panic of Lance's is no Exception
            return None
        if not scan.is_over:
            self._scan = scan
        return batch

    def _begin_scan(self, part: FragmentRange, names: Sequence[str]) -> "_SharedScan | None":
        """A scan of `part` and of what is expected behind it; None if that is nothing."""
        together = self._together(part)
        if _length(together) == _length(part):
            return None
        reader = replace(self.reader, batch_rows=_length(part))
        return _SharedScan(together, names, reader.read(FragmentRows((together,)), names))

    def _together(self, part: FragmentRange) -> FragmentRange:
        """What one scan may read from `part` on."""
        if part not in self._expected or self._row_bytes is None:
            return part
        rows_max = _BYTES_AT_ONCE_MAX / max(self._row_bytes, 1.0)
        length = _length(part)
        for later in self._expected[self._expected.index(part) + 1 :]:
            if later is None or not 0 < _length(later) <= self.reader.batch_rows:
                break
            if (later.fragment, later.offset) != (part.fragment, part.offset + length):
                break
            if length + _length(later) > rows_max:
                break
            length += _length(later)
        return replace(part, length=length)


def _part(rows: RowsOf) -> FragmentRange | None:
    """The rows as what a scan may share with others: a part of one fragment."""
    if not isinstance(rows, FragmentRows) or len(rows.ranges) != 1:
        return None
    return rows.ranges[0] if rows.ranges[0].length else None


def _length(part: FragmentRange) -> int:
    assert part.length is not None
    return part.length


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
        is_next = place == (part.fragment, part.offset, list(names))
        return is_next and _length(left) >= _length(part)

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
        self._left = replace(left, offset=left.offset + rows, length=_length(left) - rows)
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)
