"""Partitions of a UDTF view's source: the rows that one call of its code sees together.

`partition_by` groups by the values of a column; NULL is a value of its own, and so is NaN.
`partition_by_indexed_column` groups by the partitions of the column's IVF index, of which every row
is in exactly one. The index's own lists do not say that: rows that were deleted stay in them, rows
that were added are missing, and a row whose vector has changed is still where it was, or in two
places. So only what a list says of a row that lies in an indexed fragment, and in one list only,
is believed; every other row goes to its nearest centroid.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lance.dataset import VectorIndexReader

from cluster.errors import InvalidInput
from udtf.items import Ids, RowIds, WorkItem, item_id
from udtf.source_rows import ROW_ID, SourceReader, joined

_LABEL_CHARACTERS_MAX = 100
_KEY = "key"
_BY_INDEX = "partition_by_indexed_column"
_NAME = re.compile(r"(\w+)|[`\"]([^`\"]+)[`\"]")
_COLUMN = re.compile(rf"(?:{_NAME.pattern})(?:\.(?:{_NAME.pattern}))*")
# Distances of so many rows to every centroid are in memory at a time.
_ROWS_AT_ONCE = 4_096
_Codes = npt.NDArray[np.int64]
_Vectors = npt.NDArray[np.float64]


def by_value(reader: SourceReader, path: str, items_max: int) -> list[WorkItem]:
    """One item for each value of the output `path` (names of nested fields joined by dots).

    They come in the order in which their first rows do.

    Raises:
        InvalidInput: there is no such output, it has no values that can be told apart, or too many.
    """
    name, nested = _output(reader, path, "partition_by")
    scanner = reader.dataset.scanner(
        columns={_KEY: reader.columns[name]},
        filter=reader.filter,
        limit=reader.limit,
        with_row_id=True,
    )
    values = _Values(path, items_max)
    codes: list[_Codes] = []
    ids: list[Ids] = []
    for batch in scanner.to_batches():
        key = batch.column(_KEY)
        for part in nested:
            key = _field(key, part, path)
        codes.append(values.codes(key))
        ids.append(batch.column(ROW_ID).to_numpy())
    labels = [f"{path} = {text}" for text in values.labels]
    return _items(labels, np.concatenate([np.empty(0, np.int64), *codes]), joined(ids))


class _Values:
    """The values met so far, numbered."""

    def __init__(self, path: str, items_max: int) -> None:
        self._path = path
        self._items_max = items_max
        self._numbers: dict[Any, int] = {}
        self.labels: list[str] = []

    def codes(self, column: pa.Array) -> _Codes:
        """The number of each row's value."""
        try:
            encoded = _comparable(column).dictionary_encode(null_encoding="encode")
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            raise InvalidInput(
                f"partition_by: values of the type {column.type} cannot be grouped; choose another"
                f" column than {self._path!r}"
            ) from None
        numbers = [self._number(value) for value in encoded.dictionary]
        codes: _Codes = np.array(numbers, np.int64)[encoded.indices.to_numpy()]
        return codes

    def _number(self, scalar: pa.Scalar) -> int:
        value = scalar.as_py()
        if isinstance(value, float) and value != value:
            value = "NaN"  # no number equals it, and no float column holds text
        number = self._numbers.setdefault(value, len(self._numbers))
        if number == len(self.labels):
            if number == self._items_max:
                raise InvalidInput(
                    f"partition_by: {self._path!r} has more values than the {self._items_max} that"
                    " views.items_max allows; choose a column with fewer"
                )
            self.labels.append("NULL" if value is None else str(value)[:_LABEL_CHARACTERS_MAX])
        return number


def _comparable(column: pa.Array) -> pa.Array:
    """The values in a type that Python reads without loss."""
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    if pa.types.is_duration(column.type):
        return column.cast(pa.int64())
    if pa.types.is_temporal(column.type):
        # Nanoseconds are beyond Python's own times; as text, people can still read them.
        return column.cast(pa.string())
    return column


def by_index(reader: SourceReader, column: str) -> list[WorkItem]:
    """One item for each partition of the IVF index of `column` that has rows.

    Rows whose vector is null or not finite are a partition of their own.

    Raises:
        InvalidInput: the column has no IVF index, or one with another distance than L2, cosine or
            dot product.
    """
    expression = reader.columns.get(column) or _quoted(column)
    dataset = reader.dataset
    index, lists, metric = _opened(dataset, _unquoted(expression))
    centroids = _vectors(dataset.get_ivf_model(index.name).centroids)
    ids = reader.selected_ids()
    codes = np.full(len(ids), -1, np.int64)
    order = np.argsort(ids)
    ordered = ids[order]
    trusted, partitions = _listed(dataset, index, lists)
    if len(ordered):
        at = np.minimum(np.searchsorted(ordered, trusted), len(ordered) - 1)
        present = ordered[at] == trusted
        codes[order[at[present]]] = partitions[present]
    left = np.flatnonzero(codes < 0)
    codes[left] = _nearest(reader, expression, ids[left], centroids, metric)
    labels = [f"IVF partition {number}" for number in range(len(centroids))]
    return _items([*labels, "no vector"], codes, ids)


def check_indexed(dataset: Any, columns: Mapping[str, str], column: str) -> None:
    """Refuse a `column` that `by_index` cannot group by; `columns` as SourceReader has them.

    Raises:
        InvalidInput: as `by_index`.
    """
    _opened(dataset, _unquoted(columns.get(column) or _quoted(column)))


def _opened(dataset: Any, column: str) -> tuple[Any, Any, str]:
    """The IVF index of a column, its lists and the distance that it is made for."""
    index = _ivf_index(dataset, column)
    # Its statistics open the index, which get_ivf_model relies on for nested columns.
    lists = VectorIndexReader(dataset, index.name)
    metric = str(lists.stats["indices"][0]["metric_type"]).lower()
    if metric not in ("l2", "cosine", "dot"):
        raise InvalidInput(
            f"{_BY_INDEX}: the index of {column!r} is made for the distance {metric}; make one for"
            " l2, cosine or dot"
        )
    return index, lists, metric


def _ivf_index(dataset: Any, column: str) -> Any:
    for index in dataset.describe_indices():
        if list(index.field_names) == [column] and str(index.index_type).startswith("IVF"):
            return index
    raise InvalidInput(
        f"{_BY_INDEX}: {column!r} has no IVF index in version {dataset.version} of the source;"
        " create a vector index such as IVF_FLAT or IVF_PQ on it, or use partition_by"
    )


def _listed(dataset: Any, index: Any, lists: Any) -> tuple[Ids, _Codes]:
    """Ids of rows whose list is right, and the numbers of their lists."""
    parts = [
        lists.read_partition(number)[ROW_ID].to_numpy() for number in range(lists.num_partitions())
    ]
    ids = joined(parts)
    partitions = np.repeat(np.arange(len(parts), dtype=np.int64), [len(part) for part in parts])
    known, first, times = np.unique(ids, return_index=True, return_counts=True)
    known, first = known[times == 1], first[times == 1]
    indexed = {number for segment in index.segments for number in segment.fragment_ids}
    fragments = [part for part in dataset.get_fragments() if part.fragment_id in indexed]
    if not fragments:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    scanner = dataset.scanner(columns=[], with_row_id=True, fragments=fragments)
    live = joined([batch.column(ROW_ID).to_numpy() for batch in scanner.to_batches()])
    right = np.isin(known, live)
    return known[right], partitions[first[right]]


def _nearest(
    reader: SourceReader, expression: str, ids: Ids, centroids: _Vectors, metric: str
) -> _Codes:
    """The number of the nearest centroid for each row; of rows without a vector the next number."""
    codes = [np.empty(0, np.int64)]
    for start in range(0, len(ids), _ROWS_AT_ONCE):
        for table in reader.take(ids[start : start + _ROWS_AT_ONCE], {_KEY: expression}):
            codes.append(_nearest_of(table.column(_KEY).combine_chunks(), centroids, metric))
    return np.concatenate(codes)


def _nearest_of(column: pa.Array, centroids: _Vectors, metric: str) -> _Codes:
    codes = np.full(len(column), len(centroids), np.int64)
    filled = np.flatnonzero(pc.is_valid(column).to_numpy(zero_copy_only=False))
    vectors = _vectors(column.take(pa.array(filled)))
    finite = np.isfinite(vectors).all(axis=1)
    vectors, filled = vectors[finite], filled[finite]
    if metric == "cosine":
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = vectors / np.where(lengths > 0, lengths, 1)
    closeness = vectors @ centroids.T
    if metric != "dot":
        closeness -= np.square(centroids).sum(axis=1) / 2
    codes[filled] = closeness.argmax(axis=1)
    return codes


def _vectors(column: pa.FixedSizeListArray) -> _Vectors:
    values = column.flatten().cast(pa.float64()).fill_null(np.nan)
    vectors: _Vectors = values.to_numpy(zero_copy_only=False).reshape(len(column), -1)
    return vectors


def _items(labels: Sequence[str], codes: _Codes, ids: Ids) -> list[WorkItem]:
    """An item for each label that has rows; rows keep their order."""
    return [
        WorkItem(item_id(number), label, RowIds.of(part), len(part))
        for number, (label, part) in enumerate(_grouped(labels, codes, ids))
    ]


def _grouped(labels: Sequence[str], codes: _Codes, ids: Ids) -> Iterator[tuple[str, Ids]]:
    ordered = ids[np.argsort(codes, kind="stable")]
    counts = np.bincount(codes, minlength=len(labels))
    end = 0
    for label, count in zip(labels, counts.tolist(), strict=True):
        start, end = end, end + count
        if count:
            yield label, ordered[start:end]


def _output(reader: SourceReader, path: str, field: str) -> tuple[str, list[str]]:
    """The output that `path` begins with, and the names of the fields inside it."""
    if path in reader.columns:
        return path, []
    name, *nested = path.split(".")
    if name not in reader.columns:
        raise InvalidInput(
            f"{field}: the source query has no column {path!r}; it has"
            f" {', '.join(map(repr, reader.columns))}"
        )
    return name, nested


def _field(column: pa.Array, name: str, path: str) -> pa.Array:
    kind = column.type
    if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
        raise InvalidInput(f"partition_by: there is no field {name!r} in {path!r}")
    # Unlike the array's own accessor, this keeps the nulls of the struct.
    return pc.struct_field(column, [kind.get_field_index(name)])


def _quoted(path: str) -> str:
    """SQL of the column `path` of the source."""
    return ".".join(f"`{name}`" for name in path.split("."))


def _unquoted(expression: str) -> str:
    """The path of the source's column that `expression` is; another expression as it is."""
    while expression.startswith("(") and expression.endswith(")"):
        expression = expression[1:-1].strip()
    if not _COLUMN.fullmatch(expression):
        return expression
    return ".".join(bare or quoted for bare, quoted in _NAME.findall(expression))
