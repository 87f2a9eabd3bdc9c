"""Reading item after item, of which those that lie together share a scan."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from udtf.adjacent_rows import AdjacentRows
from udtf.items import RowIds, RowsOf, WorkItem, cut_fragments, item_id
from udtf.source_rows import ROW_ID, SourceReader

BATCH_ROWS = 8
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), (ROW_ID, pa.uint64())])


@dataclass(frozen=True)
class CountedReader(SourceReader):
    """Counts the reads of one item, and those of several, which have batches of an item's rows."""

    counts: Counter[str] = field(default_factory=Counter)

    @property
    def shared(self) -> int:
        return self.counts["shared"]

    @property
    def alone(self) -> int:
        return self.counts["alone"]

    def read(self, rows: RowsOf, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        self.counts["alone" if self.batch_rows == BATCH_ROWS else "shared"] += 1
        return super().read(rows, names)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """100 rows in fragments of 40, 40 and 20, of which some are deleted."""
    uri = str(tmp_path_factory.mktemp("adjacent") / "t.lance")
    rows = pa.table({"id": range(100), "text": [f"row {n}" for n in range(100)]})
    lance.write_dataset(rows, uri, max_rows_per_file=40, enable_stable_row_ids=True)
    lance.dataset(uri).delete("id % 7 = 3")
    return lance.dataset(uri)


def reader(dataset: Any, text: str = "text") -> CountedReader:
    return CountedReader(dataset, {"id": "id", "text": text}, None, None, BATCH_ROWS)


def table(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(list(batches), SCHEMA)


def read(rows: AdjacentRows, item: WorkItem) -> pa.Table:
    return table(rows.read(item.rows, ["id", "text"]))


@pytest.mark.parametrize("rows_per_item", [1, 5, BATCH_ROWS, BATCH_ROWS + 1, 30])
def test_items_have_the_rows_that_they_have_alone(dataset: Any, rows_per_item: int) -> None:
    items = cut_fragments(dataset, rows_per_item, whole=False)
    alone = reader(dataset)
    rows = AdjacentRows(partial(reader, dataset))
    rows.expect(items)
    for item in items:
        assert read(rows, item).equals(table(alone.read(item.rows, ["id", "text"])))


def test_items_that_lie_together_are_read_by_one_scan(dataset: Any) -> None:
    counted = reader(dataset)
    items = cut_fragments(dataset, 4, whole=False)
    rows = AdjacentRows(lambda: counted)
    for start in range(0, len(items), 4):
        call = items[start : start + 4]
        rows.expect(call)
        for item in call:
            read(rows, item)
    assert counted.alone < len(items) / 2
    assert 0 < counted.shared <= len(items) / 4 + 3


def test_items_in_another_order_or_again_have_their_own_rows(dataset: Any) -> None:
    items = cut_fragments(dataset, 4, whole=False)
    rows = AdjacentRows(partial(reader, dataset))
    rows.expect(items)
    alone = reader(dataset)
    for number in (0, 1, 2, 2, 1, 5, 6, 4, 7, 0, 8, len(items) - 1):
        item = items[number]
        assert read(rows, item).equals(table(alone.read(item.rows, ["id", "text"]))), number


def test_other_columns_are_read_by_another_scan(dataset: Any) -> None:
    items = cut_fragments(dataset, 4, whole=False)
    rows = AdjacentRows(partial(reader, dataset))
    rows.expect(items)
    for item in items[:2]:
        read(rows, item)
    (batch,) = rows.read(items[2].rows, ["id"])
    assert batch.schema.names == ["id", ROW_ID]
    assert batch.column("id").to_pylist() == read(rows, items[2]).column("id").to_pylist()


def test_rows_by_id_are_read_as_they_are(dataset: Any) -> None:
    rows = AdjacentRows(partial(reader, dataset))
    ids = reader(dataset).selected_ids()[[5, 2, 9]]
    item = WorkItem(item_id(0), "three rows", RowIds.of(ids))
    rows.expect([item])
    assert read(rows, item).column(ROW_ID).to_pylist() == ids.tolist()


def test_only_the_item_whose_row_fails_fails(dataset: Any) -> None:
    items = cut_fragments(dataset, 4, whole=False)
    counted = reader(dataset, "CAST(100 / (id - 9) AS STRING)")
    rows = AdjacentRows(lambda: counted)
    rows.expect(items)
    failed = []
    seen: list[int] = []
    for item in items:
        try:
            seen += read(rows, item).column("id").to_pylist()
        except (OSError, ValueError):
            failed.append(item)
    assert len(failed) == 1
    assert counted.shared
    lost = set(dataset.to_table(columns=["id"]).column("id").to_pylist()) - set(seen)
    assert 9 in lost and len(lost) == 4


def test_large_rows_are_not_read_ahead(tmp_path: Path) -> None:
    uri = str(tmp_path / "large.lance")
    rows = pa.table({"id": range(20), "text": ["x" * (1 << 20)] * 20})
    lance.write_dataset(rows, uri, enable_stable_row_ids=True)
    counted = reader(lance.dataset(uri))
    items = cut_fragments(lance.dataset(uri), 5, whole=False)
    adjacent = AdjacentRows(lambda: counted)
    adjacent.expect(items)
    for item in items:
        read(adjacent, item)
    assert (counted.alone, counted.shared) == (len(items), 0)
