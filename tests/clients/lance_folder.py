"""What this release leaves to Lance's own tools: indexes and branches, made on a table's folder."""

from typing import Any

import lance
import pyarrow as pa


def index_altitudes(location: str) -> None:
    """Index the column `alt` with a B-tree named `by_altitude`."""
    lance.dataset(location).create_scalar_index("alt", "BTREE", name="by_altitude")


def index_places(location: str) -> None:
    """Index the vectors of `place` by their angle, under the name `by_place`."""
    lance.dataset(location).create_index(
        "place", "IVF_FLAT", name="by_place", metric="cosine", num_partitions=1
    )


def with_places(table: pa.Table) -> pa.Table:
    """The airports with latitude and longitude as one vector, too."""
    numbers = table.select(["lat", "lon"]).to_pandas().to_numpy(dtype="float32").ravel()
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(numbers), 2)
    return table.append_column("place", vectors)


def branch(location: str, name: str) -> None:
    """Make a branch of the latest version."""
    lance.dataset(location).create_branch(name)


def open_branch(location: str, name: str) -> Any:
    """The dataset at the head of a branch."""
    return lance.dataset(location).checkout_version((name, None))
