"""Measure what stable row ids cost an update, in process, in one run on one machine.

    python -m benchmarks.row_ids [--rounds N] [--rows N] [--quick]

Two tables of the same rows, one with stable row ids and one without, are updated in turns by
pylance and by the code that Destrier's owners run, which stages an update and then commits it. The
last line of the output is JSON; the exit code is 1 if the rows differ in the end.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter

import lance
import numpy as np
import pyarrow as pa

from actors.lance_store import commit
from actors.row_changes import stage_fragments
from actors.staging import UpdatePlan, fragment_ids, update_operation
from actors.storage import Storage
from benchmarks.tables import rows
from cluster.settings import StorageSettings

FRAGMENTS = 8
# The rows that the n-th update of a table changes.
CHANGES: dict[str, Callable[[int], str]] = {
    "one row by B-tree": lambda number: f"number = {1_000 * number + 7}",
    "a tenth": lambda number: f"number % 10 = {number % 10}",
}


@dataclass(slots=True)
class Found:
    """Seconds of each round."""

    change: str
    has_stable_ids: bool
    staging_s: list[float] = field(default_factory=list)
    commit_s: list[float] = field(default_factory=list)
    pylance_s: list[float] = field(default_factory=list)


def make_table(uri: str, count: int, *, has_stable_ids: bool) -> None:
    """A table with a B-tree."""
    parts = [rows(part) for part in np.array_split(np.arange(count), FRAGMENTS)]
    lance.write_dataset(
        pa.concat_tables(parts),
        uri,
        max_rows_per_file=count // FRAGMENTS,
        enable_stable_row_ids=has_stable_ids,
    )
    lance.dataset(uri).create_scalar_index("number", "BTREE")


def update(uri: str, where: str, found: Found) -> None:
    """Update as an owner does."""
    storage = Storage.of(StorageSettings(root=str(Path(uri).parent)))
    dataset = lance.dataset(uri)
    plan = UpdatePlan(f"({where})", ((("price",), "price + 1"),))
    started_s = perf_counter()
    staged = stage_fragments(dataset, uri, plan, fragment_ids(dataset), storage)
    staged_s = perf_counter()
    commit(dataset, uri, None, update_operation(staged, dataset), {}, storage)
    found.staging_s.append(staged_s - started_s)
    found.commit_s.append(perf_counter() - staged_s)


def update_by_pylance(uri: str, where: str, found: Found) -> None:
    """Update as pylance does."""
    dataset = lance.dataset(uri)
    started_s = perf_counter()
    dataset.update({"price": "price + 1"}, where=where)
    found.pylance_s.append(perf_counter() - started_s)


def measure(folder: Path, count: int, rounds: int) -> tuple[list[Found], bool]:
    """The figures, and whether both tables hold the same rows in the end."""
    uris = {True: str(folder / "stable.lance"), False: str(folder / "plain.lance")}
    for has_stable_ids, uri in uris.items():
        make_table(uri, count, has_stable_ids=has_stable_ids)
    points = [Found(change, has) for change in CHANGES for has in uris]
    for number in range(rounds + 1):
        for point in points:
            # What is to be loaded once is loaded by the first, which does not count.
            noted = point if number else Found(point.change, point.has_stable_ids)
            where = CHANGES[point.change](number)
            update(uris[point.has_stable_ids], where, noted)
            update_by_pylance(uris[point.has_stable_ids], where, noted)
    tables = [lance.dataset(uri).to_table().sort_by("number") for uri in uris.values()]
    return points, tables[0].equals(tables[1])


def main() -> int:
    """Measure, print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each (5)")
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows of a table (4M)")
    parser.add_argument("--quick", action="store_true", help="a look: 1 round, 400,000 rows")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.rows = 1, 400_000
    with tempfile.TemporaryDirectory(prefix="destrier-benchmark-") as name:
        points, is_right = measure(Path(name), options.rows, options.rounds)
    print(f"{'update of':<20}{'row ids':<10}{'staging s':>11}{'commit s':>11}{'pylance s':>11}")
    for point in points:
        seconds = [median(taken) for taken in (point.staging_s, point.commit_s, point.pylance_s)]
        kind = "stable" if point.has_stable_ids else "plain"
        print(f"{point.change:<20}{kind:<10}" + "".join(f"{taken:>11.4f}" for taken in seconds))
    print("rows are right" if is_right else "ROWS DIFFER")
    figures = [asdict(point) for point in points]
    print(json.dumps({"benchmark": "row_ids", "rows": options.rows, "points": figures}))
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
