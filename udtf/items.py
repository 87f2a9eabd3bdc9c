"""Work items: the parts into which a refresh is cut, each done, retried and remembered as a whole.

An item names source rows, it does not hold them. Cutting is deterministic: the same version of the
source cut in the same way gives the same items with the same ids, so what an earlier attempt has
done is known by its id.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint64]

# Wide enough that ids sort as text in the order of the rows.
_ID_DIGITS = 10
_ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class AllRows:
    """Every row that the source query selects."""


@dataclass(frozen=True, slots=True)
class RowIds:
    """Rows by row id, in this order; `ids` are little-endian unsigned 64-bit integers.

    They have passed the source query's filter already.
    """

    ids: bytes

    @staticmethod
    def of(ids: Ids) -> "RowIds":
        """The rows with these ids."""
        return RowIds(ids.astype("<u8").tobytes())

    def array(self) -> Ids:
        """The ids as numbers."""
        return np.frombuffer(self.ids, "<u8").astype(np.uint64, copy=False)


@dataclass(frozen=True, slots=True)
class FragmentRange:
    """Rows of one fragment, counted without deleted ones; `length` None takes all from `offset`."""

    fragment: int
    offset: int = 0
    length: int | None = None


@dataclass(frozen=True, slots=True)
class FragmentRows:
    """Rows by where they lie; the source query's filter is still to be applied.

    A range that is less than its fragment is only cut where there is no filter.
    """

    ranges: tuple[FragmentRange, ...]


RowsOf = AllRows | RowIds | FragmentRows


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One part of a refresh. `rows_in` counts its source rows where that is known beforehand."""

    id: str
    label: str
    rows: RowsOf
    rows_in: int | None = None


def item_id(number: int) -> str:
    """The id of the `number`-th item; ids sort as their numbers do."""
    return f"{number:0{_ID_DIGITS}d}"


def whole_item() -> WorkItem:
    """The only item of a view whose code sees the whole source at once."""
    return WorkItem(item_id(0), "all rows", AllRows())


def cut_ids(ids: Ids, rows_per_item: int) -> list[WorkItem]:
    """Items of up to `rows_per_item` of the given rows each, in their order."""
    items = []
    for number, start in enumerate(range(0, len(ids), rows_per_item)):
        part = ids[start : start + rows_per_item]
        label = f"rows {start} to {start + len(part) - 1}"
        items.append(WorkItem(item_id(number), label, RowIds.of(part), len(part)))
    return items


def cut_fragments(dataset: Any, rows_per_item: int, *, whole: bool) -> list[WorkItem]:
    """Items of `rows_per_item` rows that lie together, in the order of a scan; the last has fewer.

    With `whole` no fragment is cut, so items may hold more rows or fewer.
    """
    counts = [(fragment.fragment_id, fragment.count_rows()) for fragment in dataset.get_fragments()]
    groups = _whole(counts, rows_per_item) if whole else _pieces(counts, rows_per_item)
    items: list[WorkItem] = []
    start = 0
    for ranges, rows in groups:
        label = f"rows {start} to {start + rows - 1}"
        # A filter decides later how many of whole fragments are read.
        known = None if whole else rows
        items.append(WorkItem(item_id(len(items)), label, FragmentRows(tuple(ranges)), known))
        start += rows
    return items


_Group = tuple[list[FragmentRange], int]


def _whole(counts: Iterable[tuple[int, int]], rows_max: int) -> Iterator[_Group]:
    group: list[FragmentRange] = []
    rows = 0
    for fragment, count in counts:
        if group and rows + count > rows_max:
            yield group, rows
            group, rows = [], 0
        if count:
            group.append(FragmentRange(fragment))
            rows += count
    if group:
        yield group, rows


def _pieces(counts: Iterable[tuple[int, int]], rows_max: int) -> Iterator[_Group]:
    group: list[FragmentRange] = []
    rows = 0
    for fragment, count in counts:
        offset = 0
        while offset < count:
            length = min(rows_max - rows, count - offset)
            whole = length == count
            group.append(
                FragmentRange(fragment) if whole else FragmentRange(fragment, offset, length)
            )
            offset += length
            rows += length
            if rows == rows_max:
                yield group, rows
                group, rows = [], 0
    if group:
        yield group, rows
