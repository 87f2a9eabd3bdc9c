"""Cutting a refresh into work items, and reading the rows that an item names."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from udtf.items import (
    AllRows,
    FragmentRange,
    FragmentRows,
    RowIds,
    RowsOf,
    WorkItem,
    cut_fragments,
    cut_ids,
)
from udtf.source_rows import ROW_ID, SourceReader

COLUMNS = {"id": "id", "twice": "n * 2"}
# Deleted from the table of the fixture.
GONE = range(10, 15)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """100 rows in four fragments of 30 and 10, of which a few are deleted."""
    uri = str(tmp_path_factory.mktemp("items") / "t.lance")
    rows = pa.table({"id": range(100), "n": [None if n % 10 == 0 else n for n in range(100)]})
    lance.write_dataset(rows, uri, max_rows_per_file=30, enable_stable_row_ids=True)
    dataset = lance.dataset(uri)
    dataset.delete(f"id >= {GONE.start} AND id < {GONE.stop}")
    return lance.dataset(uri)


def reader(dataset: Any, where: str | None = None, limit: int | None = None) -> SourceReader:
    return SourceReader(dataset, COLUMNS, where, limit, batch_rows=7)


def read(reader: SourceReader, rows: RowsOf, names: tuple[str, ...] = ("id",)) -> pa.Table:
    batches = list(reader.read(rows, names))
    assert all(batch.num_rows <= reader.batch_rows for batch in batches)
    schema = pa.schema([*((name, pa.int64()) for name in names), (ROW_ID, pa.uint64())])
    return pa.Table.from_batches(batches, schema)


def ids_of(items: list[WorkItem], reader: SourceReader) -> Iterator[list[int]]:
    for item in items:
        yield read(reader, item.rows).column("id").to_pylist()


def live() -> list[int]:
    return [n for n in range(100) if n not in GONE]


@pytest.mark.parametrize("rows_per_item", [1, 7, 30, 40, 1_000])
def test_every_live_row_is_in_one_item_when_cut_by_fragments(
    dataset: Any, rows_per_item: int
) -> None:
    items = cut_fragments(dataset, rows_per_item, whole=False)
    parts = list(ids_of(items, reader(dataset)))
    assert [n for part in parts for n in part] == live()
    assert [len(part) for part in parts] == [item.rows_in for item in items]
    assert max(map(len, parts)) <= rows_per_item


def test_an_item_reaches_over_fragments_until_it_is_full(dataset: Any) -> None:
    items = cut_fragments(dataset, 60, whole=False)
    assert [item.rows for item in items] == [
        FragmentRows((FragmentRange(0), FragmentRange(1), FragmentRange(2, 0, 5))),
        FragmentRows((FragmentRange(2, 5, 25), FragmentRange(3))),
    ]


def test_no_fragment_is_cut_when_rows_are_filtered_later(dataset: Any) -> None:
    filtered = reader(dataset, "id % 2 = 1")
    items = cut_fragments(dataset, 10, whole=True)
    assert [item.rows_in for item in items] == [None] * 4
    parts = list(ids_of(items, filtered))
    assert [n for part in parts for n in part] == [n for n in live() if n % 2 == 1]


def test_ids_keep_their_order_when_cut(dataset: Any) -> None:
    ids = np.array([50, 3, 99, 4, 0], np.uint64)
    items = cut_ids(ids, 2)
    assert [item.rows_in for item in items] == [2, 2, 1]
    assert list(ids_of(items, reader(dataset))) == [[50, 3], [99, 4], [0]]


def test_cutting_again_gives_the_same_items(dataset: Any) -> None:
    assert cut_fragments(dataset, 7, whole=False) == cut_fragments(dataset, 7, whole=False)
    items = cut_ids(np.arange(30, dtype=np.uint64), 4)
    assert items == cut_ids(np.arange(30, dtype=np.uint64), 4)
    assert sorted(item.id for item in items) == [item.id for item in items]


def test_an_empty_source_has_no_items() -> None:
    assert cut_ids(np.empty(0, np.uint64), 10) == []


def test_expressions_and_row_ids_are_read_by_id_as_by_scan(dataset: Any) -> None:
    names = ("id", "twice")
    everything = read(reader(dataset), AllRows(), names)
    by_id = read(reader(dataset), RowIds.of(reader(dataset).selected_ids()), names)
    ranges = FragmentRows((FragmentRange(0), FragmentRange(1, 0, 30), FragmentRange(2)))
    assert by_id == everything
    assert read(reader(dataset), ranges, names) == everything.slice(0, 85)
    assert everything.column("twice").to_pylist()[:3] == [None, 2, 4]


def test_only_row_ids_are_read_when_nothing_is_named(dataset: Any) -> None:
    for rows in (AllRows(), RowIds.of(reader(dataset).selected_ids())):
        assert read(reader(dataset), rows, ()).column(ROW_ID).to_pylist() == live()


def test_filter_and_limit_select_ids(dataset: Any) -> None:
    chosen = reader(dataset, "n > 20 AND n % 3 = 0", 5)
    assert chosen.selected_ids().tolist() == [21, 24, 27, 33, 36]


def test_null_does_not_pass_a_filter(dataset: Any) -> None:
    ids = np.array([31, 30, 5, 40, 20], np.uint64)
    assert reader(dataset, "n > 10").passing(ids).tolist() == [31]
    assert reader(dataset).passing(ids).tolist() == ids.tolist()


def test_an_expression_is_not_computed_of_rows_that_do_not_pass(dataset: Any) -> None:
    divides = SourceReader(dataset, {"x": "100 / (id - 20)"}, "id <> 20", None, 7)
    ids = divides.passing(np.array([19, 20, 21], np.uint64))
    table = pa.Table.from_batches(divides.read(RowIds.of(ids), ["x"]))
    assert table.column("x").to_pylist() == [-100, 100]


def test_reading_a_row_that_is_gone_is_an_error(dataset: Any) -> None:
    with pytest.raises(RuntimeError, match="1 rows are not in version 2"):
        read(reader(dataset), RowIds.of(np.array([1, GONE.start], np.uint64)))


def test_rows_of_another_table_are_not_read(dataset: Any, tmp_path: Path) -> None:
    empty = lance.write_dataset(
        dataset.schema.empty_table(), str(tmp_path / "e.lance"), enable_stable_row_ids=True
    )
    assert cut_fragments(empty, 10, whole=False) == []
    assert read(reader(empty), AllRows()).num_rows == 0
