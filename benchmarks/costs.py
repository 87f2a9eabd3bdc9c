"""Measure what the same operations cost as requests, tables and catalogs grow.

    python -m benchmarks.costs [--plots FOLDER] [--quick] [--only NAME]

Four kinds of size: rows per request, versions of a table, fragments of a table, tables of a
namespace. At each size an operation is asked some times, one request after another; what counts is
the median. Every answer is checked, and the rows of the tables in the end. README.md says how to
read the slopes. The last line of the output is JSON; the exit code is 1 if an answer was wrong.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata

from benchmarks.asking import PAGE, AskedTable, Asker
from benchmarks.curves import Axis, Curve
from benchmarks.picture import draw
from benchmarks.servers import destrier
from benchmarks.tables import rows

DOCS = Path(__file__).parents[1] / "docs"
PICTURE = "costs.png"
# All sizes take turns so often, so that a slow minute of the machine is not one size's.
ROUNDS = 3
WARM_UP = 1
# In each round. Writes change what they measure: with the others these stay under the 64 small
# fragments that a server joins.
READS = 8
WRITES = 5
# What a server starts for a database or a table, and for the next one, has started by then.
SETTLE_S = 3.0
# Of a fragment that is not small for Destrier (half of maintenance.fragment_bytes_max), or it would
# join fragments while they are measured.
LARGE_BYTES = 65 << 20
FRAGMENT_ROWS = 10
NAMESPACE = "growing"


@dataclass(frozen=True, slots=True)
class Operation:
    """Requests that are sent one after another at a size, and the milliseconds of each."""

    names: tuple[str, ...]
    ask: Callable[[int], Sequence[float]]
    repetitions: int


def read(name: str, ask: Callable[[int], float]) -> Operation:
    """An operation that changes nothing."""
    return Operation((name,), lambda size: (ask(size),), READS)


def write(name: str, ask: Callable[[int], float]) -> Operation:
    """An operation that changes its table."""
    return Operation((name,), lambda size: (ask(size),), WRITES)


def measure(sizes: Sequence[int], operations: Iterable[Operation]) -> list[Curve]:
    """The curves of some operations."""
    curves = []
    for operation in operations:
        taken: dict[int, list[Sequence[float]]] = {size: [] for size in sizes}
        for _ in range(ROUNDS):
            for size in sizes:
                found = [operation.ask(size) for _ in range(WARM_UP + operation.repetitions)]
                taken[size] += found[WARM_UP:]
        for place, name in enumerate(operation.names):
            ms = tuple(median(found[place] for found in taken[size]) for size in sizes)
            curves.append(Curve(name, tuple(sizes), ms))
    return curves


def insert_and_count(tables: dict[int, AskedTable]) -> Operation:
    """One row, and the first read of the version that it makes."""
    names = ("insert", "count_rows after insert")
    return Operation(names, lambda n: (tables[n].insert(), tables[n].count()), WRITES)


def measured(
    name: str,
    tables: dict[int, AskedTable],
    operations: Iterable[Operation],
    writing: Operation,
) -> Axis:
    """The curves of operations that need no owner of the tables, which were just made, and of one
    that does; the tables end here."""
    sizes = tuple(tables)
    time.sleep(SETTLE_S)
    axis = Axis(name, measure(sizes, operations))
    # Has the server start what it starts for a table that is written to.
    for table in tables.values():
        table.insert()
    time.sleep(SETTLE_S)
    axis.curves += measure(sizes, [writing])
    end(axis, tables)
    return axis


# --- rows per request -----------------------------------------------------------------------------


def by_rows(asker: Asker, sizes: Sequence[int]) -> Axis:
    """Tables of one fragment, of as many rows as a request is about."""
    tables = {size: AskedTable(asker, f"rows_{size}", size) for size in sizes}
    for table in tables.values():
        table.create()
    reads = (
        read("query", lambda n: tables[n].query()),
        read("count_rows by predicate", lambda n: tables[n].count_first()),
    )
    inserting = write("insert", lambda n: tables[n].insert(n))
    return measured("rows per request", tables, reads, inserting)


# --- versions of a table --------------------------------------------------------------------------


def by_versions(asker: Asker, sizes: Sequence[int]) -> Axis:
    """Tables of one row and one fragment, changed again and again before they are asked."""
    tables = {size: AskedTable(asker, f"versions_{size}", first=1, version=size) for size in sizes}
    for table in tables.values():
        table.create()
        make_versions(table.open(), table.version)
    reads = (
        read("describe_table", lambda n: tables[n].describe()),
        read("count_rows", lambda n: tables[n].count()),
        read("list_versions", lambda n: tables[n].list_versions()),
    )
    return measured("versions of a table", tables, reads, insert_and_count(tables))


def make_versions(dataset: lance.LanceDataset, count: int) -> None:
    """Change a table's configuration, which adds no fragment, until it has so many versions."""
    for number in range(dataset.version, count):
        dataset.update_config({"number": str(number)})
    assert len(dataset.versions()) == count


# --- fragments of a table -------------------------------------------------------------------------


def by_fragments(asker: Asker, sizes: Sequence[int]) -> Axis:
    """Tables of ten rows per fragment, which also hold so much that they are not joined."""
    data = large_rows()
    tables = {
        size: AskedTable(
            asker, f"fragments_{size}", FRAGMENT_ROWS, copies=size, fragments=size, data=data
        )
        for size in sizes
    }
    for size, table in tables.items():
        table.create()
        if size > 1:
            link_fragments(table.open(), size)
            table.version += 1
    reads = (
        read("describe_table", lambda n: tables[n].describe()),
        read("count_rows by predicate", lambda n: tables[n].count_first()),
        read("query of 10 rows", lambda n: tables[n].query()),
    )
    return measured("fragments of a table", tables, reads, insert_and_count(tables))


def large_rows() -> pa.Table:
    """The rows of one fragment, with a column that nothing asks for and that makes them large."""
    value_bytes = LARGE_BYTES // FRAGMENT_ROWS
    values = np.random.default_rng(0).bytes(LARGE_BYTES)
    parts = [values[n * value_bytes : (n + 1) * value_bytes] for n in range(FRAGMENT_ROWS)]
    return rows(range(FRAGMENT_ROWS)).append_column("payload", pa.array(parts, pa.binary()))


def link_fragments(dataset: lance.LanceDataset, count: int) -> None:
    """Give a table of one fragment more, whose files are links to its file, in one version."""
    fragment = dataset.get_fragments()[0].metadata.to_json()
    (file,) = fragment["files"]
    folder = Path(dataset.uri.removeprefix("file://")) / "data"
    new = []
    for number in range(1, count):
        name = f"{number:06}_{file['path']}"
        os.link(folder / file["path"], folder / name)
        # Lance gives each fragment its id, and its rows theirs.
        linked = {**fragment, "id": 0, "row_id_meta": None, "files": [{**file, "path": name}]}
        new.append(FragmentMetadata.from_json(json.dumps(linked)))
    lance.LanceDataset.commit(
        dataset, lance.LanceOperation.Append(new), read_version=dataset.version
    )


# --- tables of a namespace ------------------------------------------------------------------------


def by_tables(asker: Asker, sizes: Sequence[int]) -> Axis:
    """Namespaces of tables of one row, each in a database of its own."""
    tables = {size: make_tables(asker, size) for size in sizes}
    creating = Operation(
        ("create_table", "list_tables after create"),
        lambda n: create_and_list(tables[n], n),
        WRITES,
    )
    of_the_namespace = (
        read("list_tables", lambda n: list_tables(tables[n], n)),
        read("describe_table", lambda n: tables[n].describe()),
        creating,
    )
    inserting = write("insert", lambda n: tables[n].insert())
    return measured("tables of a namespace", tables, of_the_namespace, inserting)


def make_tables(asker: Asker, count: int) -> AskedTable:
    """Make a database with a namespace of so many tables; the first of them."""
    database = f"tables_{count}"
    asker.post(f"/v1/namespace/{NAMESPACE}/create", database)
    tables = [AskedTable(asker, table_name(n), first=1, database=database) for n in range(count)]
    for table in tables:
        table.create()
    return tables[0]


def table_name(number: int) -> str:
    """The name of a table, in the order of their numbers."""
    return f"{NAMESPACE}$t{number:06}"


def list_tables(first: AskedTable, count: int) -> float:
    """Ask for a page of the names; milliseconds."""
    path = f"/v1/namespace/{NAMESPACE}/table/list?limit={PAGE}"
    answer = first.asker.get(path, first.database)
    expected = [table_name(n).partition("$")[2] for n in range(min(PAGE, count))]
    first.asker.check("tables", answer.json()["tables"], expected)
    return answer.ms


def create_and_list(first: AskedTable, count: int) -> tuple[float, float]:
    """Make another table, ask for the names, and drop it; milliseconds of the first two."""
    made = AskedTable(first.asker, table_name(count), first=1, database=first.database)
    found = (made.create(), list_tables(first, count + 1))
    made.describe()
    made.drop()
    return found


# --- all ------------------------------------------------------------------------------------------


def end(axis: Axis, tables: dict[int, AskedTable]) -> None:
    """Compare the tables with what they must be, note what they are, and drop them."""
    versions, fragments = [], []
    for table in tables.values():
        table.describe()
        table.check_rows()
        versions.append(f"{table.version:,}")
        fragments.append(f"{table.fragments:,}")
        table.drop()
    axis.facts.append(f"in the end versions {' | '.join(versions)}")
    axis.facts.append(f"in the end fragments {' | '.join(fragments)}")


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of size; `quick` are the sizes of a look."""

    measure: Callable[[Asker, Sequence[int]], Axis]
    sizes: tuple[int, ...]
    quick: tuple[int, ...]


PARTS = {
    "rows": Part(by_rows, (1, 1_000, 10_000, 100_000), (1, 100, 1_000)),
    "versions": Part(by_versions, (1, 10, 100, 1_000, 10_000), (1, 10, 100)),
    "fragments": Part(by_fragments, (1, 10, 100, 500, 2_000), (1, 10, 50)),
    "tables": Part(by_tables, (1, 10, 100, 1_000), (1, 5, 20)),
}


def main() -> int:
    """Measure, print tables and a line of JSON, draw."""
    parser = argparse.ArgumentParser(description="Measure what operations cost as things grow.")
    parser.add_argument("--plots", type=Path, help="where the picture goes (docs/, if all is run)")
    parser.add_argument("--quick", action="store_true", help="a look: far smaller sizes")
    parser.add_argument("--only", choices=PARTS, help="one kind of size")
    options = parser.parse_args()
    axes = []
    with (
        tempfile.TemporaryDirectory(prefix="destrier-benchmark-") as folder,
        destrier(Path(folder) / "destrier") as server,
    ):
        asker = Asker(server)
        for name, part in PARTS.items():
            if options.only in (None, name):
                axis = part.measure(asker, part.quick if options.quick else part.sizes)
                print(axis.text(), end="\n\n", flush=True)
                axes.append(axis)
    for answer in asker.wrong:
        print(f"WRONG {answer}")
    whole = not options.quick and options.only is None
    plots = options.plots or (DOCS if whole else None)
    if plots is not None:
        draw(axes, plots / PICTURE)
        print(f"drawn: {plots / PICTURE}")
    figures = {"axes": [axis.summary() for axis in axes], "wrong": asker.wrong}
    print(json.dumps({"benchmark": "costs", "quick": options.quick, **figures}))
    return 1 if asker.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
