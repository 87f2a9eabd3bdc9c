"""Reading the source of a view: one pinned version, in the columns of the source query.

Rows are read in the order of a scan, or of the ids that are asked for, as a stream of batches, so
that memory does not grow with the source.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udtf.items import AllRows, FragmentRange, FragmentRows, Ids, RowIds, RowsOf

ROW_ID = "_rowid"

# Ids of rows are looked up so many at a time: 0.5 MB of them, and few steps for many.
_IDS_AT_ONCE = 65_536
_KEEP = "keep"


@dataclass(frozen=True, slots=True)
class SourceReader:
    """Reads a dataset that is open at its version.

    `columns` are the names of the source query's outputs with their SQL, `filter` and `limit` its
    own (a query with a limit is cut by ids only, or not at all); `batch_rows` bounds the rows of a
    batch.
    """

    dataset: Any
    columns: Mapping[str, str]
    filter: str | None
    limit: int | None
    batch_rows: int

    def read(self, rows: RowsOf, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The outputs called `names`, and `_rowid` after them.

        Errors are Lance's: of storage, or of an expression that fails on a row.
        """
        columns = {name: self.columns[name] for name in names}
        if isinstance(rows, RowIds):
            yield from self._by_id(rows.array(), columns)
        elif isinstance(rows, FragmentRows):
            for part in _scans(rows.ranges):
                yield from self._scan(columns, part)
        else:
            assert isinstance(rows, AllRows)
            yield from self._scan(columns, ())

    def selected_ids(self) -> Ids:
        """Ids of all rows that the query selects, in the order of a scan."""
        scanner = self.dataset.scanner(
            columns=[], with_row_id=True, filter=self.filter, limit=self.limit
        )
        return joined([batch.column(ROW_ID).to_numpy() for batch in scanner.to_batches()])

    def passing(self, ids: Ids) -> Ids:
        """Those of the rows `ids` that the filter lets through, in the order given.

        The filter is applied before any column is computed, as a scan would: an expression may fail
        on rows that are not selected.
        """
        if self.filter is None:
            return ids
        kept = []
        for start in range(0, len(ids), _IDS_AT_ONCE):
            part = ids[start : start + _IDS_AT_ONCE]
            table = self._take(part, {_KEEP: self.filter})
            kept.append(part[pc.fill_null(table.column(_KEEP), False).to_numpy()])
        return joined(kept)

    def take(self, ids: Ids, columns: Mapping[str, str]) -> Iterator[pa.Table]:
        """SQL expressions over the rows `ids`, a batch at a time."""
        for start in range(0, len(ids), self.batch_rows):
            yield self._take(ids[start : start + self.batch_rows], columns)

    def _by_id(self, ids: Ids, columns: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(ids), self.batch_rows):
            part = ids[start : start + self.batch_rows]
            if columns:
                table = self._take(part, columns).append_column(ROW_ID, pa.array(part, pa.uint64()))
            else:
                table = pa.table({ROW_ID: pa.array(part, pa.uint64())})
            yield from table.combine_chunks().to_batches()

    def _take(self, ids: Ids, columns: Mapping[str, str]) -> pa.Table:
        table = self.dataset._take_rows(ids, columns=dict(columns))
        if table.num_rows != len(ids):
            # Lance leaves out what it does not find, and every row after it would be another's.
            missing = len(ids) - table.num_rows
            raise RuntimeError(f"{missing} rows are not in version {self.dataset.version}")
        return table

    def _scan(
        self, columns: Mapping[str, str], ranges: Sequence[FragmentRange]
    ) -> Iterator[pa.RecordBatch]:
        options: dict[str, Any] = {"limit": self.limit}
        if ranges:
            first = ranges[0]
            options["fragments"] = [self.dataset.get_fragment(part.fragment) for part in ranges]
            options["limit"] = first.length
            options["offset"] = first.offset if first.length is not None else None
        scanner = self.dataset.scanner(
            columns=dict(columns) if columns else [],
            filter=self.filter,
            with_row_id=True,
            batch_size=self.batch_rows,
            **options,
        )
        yield from scanner.to_batches()


def joined(parts: Sequence[Ids]) -> Ids:
    """The arrays one after another; an empty one of the right type if there are none."""
    return np.concatenate([np.empty(0, np.uint64), *parts])


def _scans(ranges: Sequence[FragmentRange]) -> Iterator[Sequence[FragmentRange]]:
    """What one scan can read: a part of one fragment, or several whole ones."""
    whole: list[FragmentRange] = []
    for part in ranges:
        if part.length is None:
            whole.append(part)
            continue
        if whole:
            yield whole
            whole = []
        yield [part]
    if whole:
        yield whole
