"""Partitions of a source: by the values of a column, and by the lists of an IVF index."""

import datetime
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from cluster.errors import InvalidInput
from udtf.items import RowIds, WorkItem
from udtf.partitions import by_index, by_value
from udtf.source_rows import SourceReader

MANY = 1_000

WIDTH = 8


def write(tmp_path: Path, table: pa.Table, rows_per_file: int = 400) -> Any:
    uri = str(tmp_path / "t.lance")
    return lance.write_dataset(
        table, uri, enable_stable_row_ids=True, max_rows_per_file=rows_per_file
    )


def read_all(dataset: Any, **options: Any) -> SourceReader:
    columns = {name: f"`{name}`" for name in dataset.schema.names}
    return SourceReader(
        dataset, columns, options.get("filter"), options.get("limit"), options.get("batch", 50)
    )


def rows_of(items: list[WorkItem]) -> dict[str, list[int]]:
    found = {}
    for item in items:
        assert isinstance(item.rows, RowIds)
        assert item.rows_in == len(item.rows.array())
        found[item.label] = item.rows.array().tolist()
    assert len(found) == len(items)
    return found


def test_null_is_a_partition_and_values_come_in_order(tmp_path: Path) -> None:
    dataset = write(tmp_path, pa.table({"k": ["b", None, "a", "b", None, ""]}), 2)
    assert rows_of(by_value(read_all(dataset), "k", MANY)) == {
        "k = b": [0, 3],
        "k = NULL": [1, 4],
        "k = a": [2],
        "k = ": [5],
    }


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1.5, float("nan"), 0.0, -0.0, float("nan")]),
        pa.array([3, 2, 1, 1, 2], pa.timestamp("ns")),
        pa.array([3, 2, 1, 1, 2], pa.duration("us")),
        pa.array([3, 2, 1, 1, 2], pa.decimal128(12, 3)),
        pa.array([datetime.date(2026, 1, day) for day in (3, 2, 1, 1, 2)]),
        pa.array([b"3", b"2", b"1", b"1", b"2"]),
        pa.array(["3", "2", "1", "1", "2"]).dictionary_encode(),
    ],
    ids=lambda values: str(values.type),
)
def test_equal_values_share_a_partition(tmp_path: Path, values: pa.Array) -> None:
    dataset = write(tmp_path, pa.table({"k": values}), 2)
    groups = list(rows_of(by_value(read_all(dataset, batch=1), "k", MANY)).values())
    assert groups == [[0], [1, 4], [2, 3]]


def test_both_truths_and_neither_are_three_partitions(tmp_path: Path) -> None:
    dataset = write(tmp_path, pa.table({"k": [True, False, None, True]}))
    assert list(rows_of(by_value(read_all(dataset), "k", MANY)).values()) == [[0, 3], [1], [2]]


def test_a_nested_field_partitions_and_a_null_struct_is_null(tmp_path: Path) -> None:
    meta = pa.array([{"lang": "en"}, None, {"lang": None}, {"lang": "en"}])
    dataset = write(tmp_path, pa.table({"meta": meta}))
    assert rows_of(by_value(read_all(dataset), "meta.lang", MANY)) == {
        "meta.lang = en": [0, 3],
        "meta.lang = NULL": [1, 2],
    }
    with pytest.raises(InvalidInput, match=r"no field 'size' in 'meta\.size'"):
        by_value(read_all(dataset), "meta.size", MANY)


def test_filter_and_limit_apply_before_rows_are_grouped(tmp_path: Path) -> None:
    dataset = write(tmp_path, pa.table({"k": [n % 3 for n in range(20)], "n": range(20)}))
    chosen = read_all(dataset, filter="n >= 10", limit=4)
    assert rows_of(by_value(chosen, "k", MANY)) == {
        "k = 1": [10, 13],
        "k = 2": [11],
        "k = 0": [12],
    }


def test_an_expression_of_the_query_partitions(tmp_path: Path) -> None:
    dataset = write(tmp_path, pa.table({"n": range(5)}))
    reader = SourceReader(dataset, {"parity": "n % 2"}, None, None, 10)
    assert rows_of(by_value(reader, "parity", MANY)) == {
        "parity = 0": [0, 2, 4],
        "parity = 1": [1, 3],
    }


def test_columns_that_cannot_partition_are_refused(tmp_path: Path) -> None:
    dataset = write(tmp_path, pa.table({"n": range(5), "many": [[1]] * 5}))
    with pytest.raises(InvalidInput, match=r"no column 'k'; it has 'n', 'many'"):
        by_value(read_all(dataset), "k", MANY)
    with pytest.raises(InvalidInput, match=r"type list<.*> cannot be grouped"):
        by_value(read_all(dataset), "many", MANY)
    with pytest.raises(InvalidInput, match=r"'n' has more values than the 3 that views.items_max"):
        by_value(read_all(dataset), "n", 3)
    assert len(by_value(read_all(dataset), "n", 5)) == 5


def vectors(values: np.ndarray[Any, Any]) -> pa.Array:
    flat = pa.array(values.astype(np.float32).ravel())
    return pa.FixedSizeListArray.from_arrays(flat, WIDTH)


def embedded(random: np.random.Generator, count: int, first: int = 0) -> pa.Table:
    values = vectors(random.normal(size=(count, WIDTH)))
    return pa.table({"id": range(first, first + count), "Vec": values})


def expected(dataset: Any, metric: str) -> dict[str, set[int]]:
    """Every row at its nearest centroid, computed from the rows alone."""
    dataset.stats.index_stats("vectors")
    centroids = np.array(dataset.get_ivf_model("vectors").centroids.to_pylist(), np.float64)
    table = dataset.to_table(columns=["Vec"], with_row_id=True)
    found: dict[str, set[int]] = {}
    for row_id, vector in zip(
        table.column("_rowid").to_pylist(), table.column("Vec").to_pylist(), strict=True
    ):
        label = "no vector"
        if vector is not None:
            point = np.array(vector, np.float64)
            if metric == "cosine":
                point /= np.linalg.norm(point)
            distances = np.square(centroids - point).sum(axis=1)
            if metric == "dot":
                distances = -(centroids @ point)
            label = f"IVF partition {int(distances.argmin())}"
        found.setdefault(label, set()).add(row_id)
    return found


def as_sets(items: list[WorkItem]) -> dict[str, set[int]]:
    return {label: set(rows) for label, rows in rows_of(items).items()}


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
def test_every_row_is_at_its_nearest_centroid_whatever_happened_to_it(
    tmp_path: Path, metric: str
) -> None:
    random = np.random.default_rng(7)
    dataset = write(tmp_path, embedded(random, 900))
    dataset.create_index("Vec", "IVF_FLAT", num_partitions=4, metric=metric, name="vectors")
    dataset = lance.dataset(dataset.uri)
    assert as_sets(by_index(read_all(dataset), "Vec")) == expected(dataset, metric)

    dataset.delete("id < 100")
    dataset.insert(embedded(random, 100, 1_000))
    dataset.insert(pa.table({"id": [2_000], "Vec": pa.nulls(1, dataset.schema.field("Vec").type)}))
    moved = embedded(random, 50, 300)
    dataset.merge_insert("id").when_matched_update_all().execute(moved)
    dataset = lance.dataset(dataset.uri)
    partitions = as_sets(by_index(read_all(dataset), "Vec"))
    assert partitions == expected(dataset, metric)
    assert len(partitions["no vector"]) == 1

    # The moved rows are now in two lists: of the index's old part, and of its new one.
    dataset.optimize.optimize_indices(num_indices_to_merge=0)
    dataset = lance.dataset(dataset.uri)
    assert as_sets(by_index(read_all(dataset), "Vec")) == expected(dataset, metric)


def test_only_selected_rows_are_in_an_index_partition(tmp_path: Path) -> None:
    dataset = write(tmp_path, embedded(np.random.default_rng(3), 600))
    dataset.create_index("Vec", "IVF_FLAT", num_partitions=3, metric="l2", name="vectors")
    dataset = lance.dataset(dataset.uri)
    chosen = read_all(dataset, filter="id >= 300")
    ids = {number for rows in rows_of(by_index(chosen, "Vec")).values() for number in rows}
    assert ids == set(range(300, 600))
    assert by_index(read_all(dataset, filter="id < 0"), "Vec") == []


def test_a_column_without_an_ivf_index_is_refused(tmp_path: Path) -> None:
    dataset = write(tmp_path, embedded(np.random.default_rng(3), 10))
    dataset.create_scalar_index("id", "BTREE")
    dataset = lance.dataset(dataset.uri)
    for column in ("id", "Vec", "nothing"):
        with pytest.raises(InvalidInput, match=f"'{column}' has no IVF index"):
            by_index(read_all(dataset), column)
