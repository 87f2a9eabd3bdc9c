"""Which source rows the fragments of a view come from, as far as an owner has seen it.

Evicting rows reads the id of every row's source row, of fragments that can hold one of them. What
one read has shown of a fragment is remembered: its first and last id, about 200 bytes, for as long
as the owner lives. A fragment is known by its file and its deletions, so no change is missed.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from actors.lance_store import file_name
from actors.staging import ROW_ADDRESS
from udtf.spec import SOURCE_ROW_ID

Ids: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]

# The upper half of a row's address is the number of its fragment.
_FRAGMENT_SHIFT = np.uint64(32)
_Fragment: TypeAlias = tuple[str, str | None]


class SourceRanges:
    """The fragments of one view."""

    def __init__(self) -> None:
        self._known: dict[_Fragment, tuple[int, int]] = {}

    def addresses(self, view: Any, ids: Ids) -> list[Ids]:
        """Addresses of the view's rows that come from the source rows `ids`, sorted, each once.

        Errors are Lance's.
        """
        if not len(ids):
            return []
        fragments = {part.fragment_id: part for part in view.get_fragments()}
        names = {number: _name(part) for number, part in fragments.items()}
        self._known = {name: self._known[name] for name in names.values() if name in self._known}
        wanted = [part for number, part in fragments.items() if self._may_hold(names[number], ids)]
        if not wanted:
            return []
        seen = _Seen()
        found = []
        for parents, addresses in _rows(view, wanted):
            seen.add(parents, addresses)
            # As np.isin, which would sort `ids` again for every batch.
            places = np.searchsorted(ids, parents)
            hit = ids[np.minimum(places, len(ids) - 1)] == parents
            found.append(addresses[hit])
        # Only when all is read: half of a fragment says nothing of the rest.
        self._known |= {names[number]: (first, last) for number, first, last in seen.ranges()}
        return found

    def _may_hold(self, name: _Fragment, ids: Ids) -> bool:
        known = self._known.get(name)
        if known is None:
            return True
        first, last = known
        place = int(np.searchsorted(ids, np.uint64(first)))
        return place < len(ids) and int(ids[place]) <= last


class _Seen:
    """First and last ids of fragments that are being read."""

    def __init__(self) -> None:
        self._ranges: dict[int, tuple[int, int]] = {}

    def add(self, parents: Ids, addresses: Ids) -> None:
        numbers = addresses >> _FRAGMENT_SHIFT
        # Mostly one: a batch has rows of one fragment, as far as is known.
        for number in {int(numbers[0]), *np.unique(numbers[numbers != numbers[0]]).tolist()}:
            part = parents[numbers == number]
            first, last = self._ranges.get(number, (int(part[0]), int(part[0])))
            self._ranges[number] = min(first, int(part.min())), max(last, int(part.max()))

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        for number, (first, last) in self._ranges.items():
            yield number, first, last


def _rows(view: Any, fragments: Sequence[Any]) -> Iterator[tuple[Ids, Ids]]:
    """Ids of source rows, and the addresses of the rows that come from them."""
    scanner = view.scanner(
        columns=[SOURCE_ROW_ID], with_row_address=True, scan_in_order=True, fragments=fragments
    )
    for batch in scanner.to_batches():
        if batch.num_rows:
            yield batch.column(SOURCE_ROW_ID).to_numpy(), batch.column(ROW_ADDRESS).to_numpy()


def _name(fragment: Any) -> _Fragment:
    return file_name(fragment.data_files()[0]), fragment.deletion_file()
