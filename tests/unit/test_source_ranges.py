"""What is remembered of a view's fragments never hides a row that is to be evicted."""

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from actors.source_ranges import SourceRanges
from udtf.spec import SOURCE_ROW_ID


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "view.lance")


def write(uri: str, *fragments: list[int]) -> Any:
    for ids in fragments:
        rows = pa.table({SOURCE_ROW_ID: pa.array(ids, pa.uint64())})
        lance.write_dataset(rows, uri, mode="append" if Path(uri).exists() else "create")
    return lance.dataset(uri)


class Reads:
    """A dataset that remembers which fragments were read."""

    def __init__(self, uri: str) -> None:
        self._dataset = lance.dataset(uri)
        self.fragments: list[int] = []

    def get_fragments(self) -> Any:
        return self._dataset.get_fragments()

    def scanner(self, fragments: Any, **options: Any) -> Any:
        self.fragments += [part.fragment_id for part in fragments]
        return self._dataset.scanner(fragments=fragments, **options)


def found(ranges: SourceRanges, view: Any, *ids: int) -> list[int]:
    """The source rows of what was found, sorted."""
    wanted = np.array(sorted(ids), np.uint64)
    addresses = [int(a) for part in ranges.addresses(view, wanted) for a in part]
    dataset = lance.dataset(view._dataset.uri) if isinstance(view, Reads) else view
    rows = dataset.scanner(columns=[SOURCE_ROW_ID], with_row_address=True).to_table().to_pylist()
    by_address = {row["_rowaddr"]: row[SOURCE_ROW_ID] for row in rows}
    return sorted(by_address[address] for address in addresses)


def test_only_fragments_that_can_hold_a_row_are_read_again(uri: str) -> None:
    write(uri, [1, 2, 2, 3], [10, 11], [5, 20])
    ranges, first = SourceRanges(), Reads(uri)
    assert found(ranges, first, 2, 11, 99) == [2, 2, 11]
    assert first.fragments == [0, 1, 2]
    again = Reads(uri)
    assert found(ranges, again, 11) == [11]
    assert again.fragments == [1, 2]
    assert found(ranges, again, 0, 4, 21) == []
    assert again.fragments == [1, 2]
    assert found(ranges, again) == []


def test_a_fragment_of_another_file_or_other_deletions_is_another(uri: str) -> None:
    view = write(uri, [1, 2, 50], [60])
    ranges = SourceRanges()
    view.delete(f"{SOURCE_ROW_ID} = 50")
    assert found(ranges, view, 50) == []
    # The row is there again.
    view.checkout_version(2).restore()
    assert found(ranges, lance.dataset(uri), 50, 60) == [50, 60]
    lance.write_dataset(
        pa.table({SOURCE_ROW_ID: pa.array([70], pa.uint64())}), uri, mode="overwrite"
    )
    assert found(ranges, lance.dataset(uri), 1, 70) == [70]


def test_a_read_that_breaks_off_is_not_remembered(uri: str) -> None:
    view = write(uri, [1], [2])

    class Broken(Reads):
        def scanner(self, fragments: Any, **options: Any) -> Any:
            batches = super().scanner(fragments, **options).to_batches()

            class Scanner:
                def to_batches(self) -> Any:
                    yield next(batches)
                    raise OSError("gone")

            return Scanner()

    ranges = SourceRanges()
    with pytest.raises(OSError, match="gone"):
        ranges.addresses(Broken(uri), np.array([2], np.uint64))
    assert found(ranges, view, 1, 2) == [1, 2]
