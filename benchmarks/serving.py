"""Measure Destrier beside Lance's own REST server, in one run on one machine.

    python -m benchmarks.serving [--rounds N] [--seconds S] [--insert-seconds S]
                                 [--quick] [--only NAME]

README.md says what is measured and how to read it. The last line of the output is JSON. The exit
code is 1 if Destrier gave a wrong answer or lost or doubled a row.
"""

import argparse
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copytree, rmtree

import lance
import numpy as np

from benchmarks import ceiling, load
from benchmarks.local_write import LocalWrite, LocalWriter
from benchmarks.measuring import (
    FIRST_ROWS,
    SETTLE_S,
    Measuring,
    both_servers,
    check_rows,
    create_inserted,
)
from benchmarks.processes import MB, MemoryWatch, process_tree, replicas
from benchmarks.report import Point, Report, Upload, UploadRound
from benchmarks.servers import RunningServer
from benchmarks.tables import (
    UPLOAD_SCHEMA,
    Tables,
    UploadFile,
    count_request,
    describe_request,
    holds_upload,
    insert_request,
    list_request,
    rows,
    stream_of,
    upload_head,
    write_upload_file,
)

CONNECTIONS = (1, 8, 32)
INSERT_CONNECTIONS = (1, 32, 256)
SPREAD_TABLES = 32
LISTED_TABLES = 10_000
PAGE_TABLES = 100
DESCRIBED_FRAGMENTS = 2_000
PARTS = ("count_rows", "predicate", "catalog", "insert", "spread", "upload")
COUNTED = "counted"
SELECTED_ROWS = 10_000
# After which a virtual machine has given free memory back, if it does that at all.
COLD_S = 6.0
# Over the peer's bound of 2 MiB.
REFUSED_BYTES = 3 << 20


@dataclass(frozen=True, slots=True)
class Options:
    """How much to measure."""

    rounds: int
    seconds: float
    insert_seconds: float
    upload_bytes: int
    counted_rows: int
    only: str | None


def main() -> int:
    """Measure and print."""
    options = _options()
    with both_servers(options.rounds, options.seconds) as measuring:
        inserting = replace(measuring, seconds=options.insert_seconds)
        report = Report(
            options={
                "rounds": options.rounds,
                "seconds": options.seconds,
                "insert_seconds": options.insert_seconds,
                "upload_bytes": options.upload_bytes,
                "counted_rows": options.counted_rows,
            },
            replicas=len(replicas(measuring.destrier.pid)),
            generator_per_second=_ceiling(measuring),
        )
        if options.only in (None, "count_rows"):
            report.points += measure_count_rows(measuring, options.counted_rows)
        if options.only in (None, "predicate"):
            report.points += measure_predicates(measuring, options.counted_rows)
        if options.only in (None, "insert"):
            report.points += measure_inserts(inserting)
        if options.only in (None, "spread"):
            report.points += measure_spread_inserts(inserting)
        if options.only in (None, "catalog"):
            report.points += measure_catalog(measuring)
        if options.only in (None, "upload"):
            report.upload = measure_upload(measuring, options.upload_bytes)
    print(report.text())
    print(report.json_line())
    return 0 if report.is_right else 1


def _options() -> Options:
    parser = argparse.ArgumentParser(description="Measure Destrier beside its peer.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds per point (5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per measurement (2)")
    parser.add_argument("--insert-seconds", type=float, default=4.0, help="of inserts (4)")
    parser.add_argument("--upload-bytes", type=int, default=1 << 30, help="large insert (1 GiB)")
    parser.add_argument(
        "--counted-rows", type=int, default=1_000_000, help="rows that are counted (a million)"
    )
    parser.add_argument("--quick", action="store_true", help="a look: 1 round, 1 s, 128 MiB")
    parser.add_argument("--only", choices=PARTS, help="one part")
    args = parser.parse_args()
    if args.quick:
        return Options(1, 1.0, 1.0, 128 << 20, args.counted_rows, args.only)
    return Options(
        args.rounds,
        args.seconds,
        args.insert_seconds,
        args.upload_bytes,
        args.counted_rows,
        args.only,
    )


def _ceiling(measuring: Measuring) -> dict[int, float]:
    """The generator's own rate at each number of connections."""
    request = count_request(measuring.peer, COUNTED, ceiling.COUNT)
    with ceiling.trivial_server() as address:
        return {n: measuring.load(address, [request], n).rate for n in CONNECTIONS}


# --- count_rows -----------------------------------------------------------------------------------


def measure_count_rows(measuring: Measuring, counted_rows: int) -> list[Point]:
    """Counts of one table that does not change."""
    _create_counted(measuring, COUNTED, counted_rows)
    requests = {
        server.name: count_request(server, COUNTED, counted_rows)
        for server in (measuring.destrier, measuring.peer)
    }

    points = [Point("count_rows", connections) for connections in CONNECTIONS]
    for point in points:
        for server in measuring.turns():
            measuring.send(server, [requests[server.name]], point)
    return points


def measure_predicates(measuring: Measuring, counted_rows: int) -> list[Point]:
    """Counts of the rows that a predicate selects, without an index and with one."""
    points = []
    for name, has_index in (("unindexed", False), ("indexed", True)):
        for tables in _create_counted(measuring, name, counted_rows):
            if has_index:
                tables.open(name).create_scalar_index("number", "BTREE")
        first = counted_rows // 2
        predicate = f"number >= {first} AND number < {first + SELECTED_ROWS}"
        requests = {
            server.name: count_request(server, name, SELECTED_ROWS, predicate)
            for server in (measuring.destrier, measuring.peer)
        }
        for connections in (1, 8):
            point = Point(f"count {name}", connections)
            for server in measuring.turns():
                measuring.send(server, [requests[server.name]], point)
            points.append(point)
    return points


def _create_counted(measuring: Measuring, name: str, counted_rows: int) -> tuple[Tables, Tables]:
    """A table of many rows on each server."""
    table = rows(np.arange(counted_rows))
    ours, theirs = Tables(measuring.destrier), Tables(measuring.peer)
    ours.create(name, stream_of(table))
    # The peer refuses so large a body, so its table is written beside it.
    theirs.create(name, stream_of(table.slice(0, 1)))
    lance.write_dataset(table, theirs.open(name).uri, mode="overwrite")
    return ours, theirs


# --- the catalog ----------------------------------------------------------------------------------


def measure_catalog(measuring: Measuring) -> list[Point]:
    """The description of a table of many fragments, and a page of the names of many tables."""
    described, listed = Point("describe", 1), Point("list_tables", 1)
    servers = (measuring.destrier, measuring.peer)
    for server in servers:
        tables = Tables(server)
        tables.create("many_fragments", stream_of(rows([0])))
        uri = tables.open("many_fragments").uri
        numbers = rows(np.arange(DESCRIBED_FRAGMENTS))
        lance.write_dataset(numbers, uri, mode="overwrite", max_rows_per_file=1)
        assert len(lance.dataset(uri).get_fragments()) == DESCRIBED_FRAGMENTS
    requests = {server.name: describe_request(server, "many_fragments") for server in servers}
    for server in measuring.turns():
        measuring.send(server, [requests[server.name]], described)
    for server in servers:
        _fill_database(Tables(server))
    requests = {server.name: list_request(server, PAGE_TABLES) for server in servers}
    names = [Tables(server).names(PAGE_TABLES) for server in servers]
    assert len(names[0]) == PAGE_TABLES and names[0] == names[1]
    for server in measuring.turns():
        measuring.send(server, [requests[server.name]], listed)
    return [described, listed]


def _fill_database(tables: Tables) -> None:
    """Many tables, which are links to the files of one."""
    tables.create("a00000", stream_of(rows([0])))
    folder = Path(tables.open("a00000").uri.removeprefix("file://"))
    for number in range(1, LISTED_TABLES):
        copytree(folder, folder.with_name(f"a{number:05}.lance"), copy_function=os.link)


# --- inserts of one row ---------------------------------------------------------------------------


def measure_inserts(measuring: Measuring) -> list[Point]:
    """One-row inserts into one table, a new one for each measurement."""
    points = [Point("insert", connections) for connections in INSERT_CONNECTIONS]
    for point in points:
        for server in measuring.turns():
            _insert(measuring, server, point)
    return points


def measure_spread_inserts(measuring: Measuring) -> list[Point]:
    """One-row inserts into many tables, each of which has one connection."""
    point = Point(f"insert in {SPREAD_TABLES}", SPREAD_TABLES)
    for server in measuring.turns():
        _insert(measuring, server, point, SPREAD_TABLES)
    return [point]


def _insert(
    measuring: Measuring, server: RunningServer, point: Point, table_count: int = 1
) -> None:
    side = measuring.side(server, point)
    tables = Tables(server)
    names = [f"inserted_{point.connections}_{len(side.rates)}_{n}" for n in range(table_count)]
    create_inserted(tables, names)
    time.sleep(SETTLE_S)
    measured = measuring.send(server, [insert_request(server, name) for name in names], point)
    check_rows(tables, names, measured.acknowledged, measured.uncertain, side)
    for name in names:
        tables.drop(name)


# --- a large insert -------------------------------------------------------------------------------


def measure_upload(measuring: Measuring, upload_bytes: int) -> Upload:
    """A large Arrow stream, inserted into a table and written in process, in turns.

    Each begins some seconds after what the other wrote was deleted. A virtual machine may give
    memory that is free for a while back to its host, and the first touch of it then takes longer
    than the rest of a write: so neither may find what the other one has just warmed.
    """
    source = write_upload_file(measuring.folder / "upload.arrows", upload_bytes)
    upload = Upload(source.bytes, source.rows, _ask_peer(measuring))
    tables = Tables(measuring.destrier)
    written = measuring.folder / "local.lance"
    names = [f"uploaded_{number}" for number in range(measuring.rounds)]
    # What it takes says nothing: it is the first.
    _write_locally(source, written)
    before = _write_locally(source, written)
    for name in names:
        nothing = stream_of(UPLOAD_SCHEMA.empty_table())
        tables.create(name, nothing)
        tables.insert(name, nothing)
        time.sleep(COLD_S)
        found = _upload(measuring, source, name)
        is_right = tables.count_rows(name) == source.rows
        upload.is_right = upload.is_right and is_right and holds_upload(tables.open(name), source)
        tables.drop(name)
        after = _write_locally(source, written)
        found.local_seconds = (before.seconds + after.seconds) / 2
        found.local_growth_mb = max(before.growth_bytes, after.growth_bytes) / MB
        upload.rounds.append(found)
        before = after
    return upload


def _write_locally(source: UploadFile, target: Path) -> LocalWrite:
    writer = LocalWriter(source.path, target)
    time.sleep(COLD_S)
    written = writer.write()
    rmtree(target)
    return written


def _upload(measuring: Measuring, source: UploadFile, name: str) -> UploadRound:
    server = measuring.destrier
    processes = process_tree(server.pid)
    answering = replicas(server.pid)
    head = upload_head(server, name, source.bytes)
    with MemoryWatch(processes) as watch:
        uploaded = measuring.sender.submit(load.upload, server.address, head, source.path).result()
    if uploaded.status != 200:
        raise RuntimeError(f"destrier: insert {name}: {uploaded.body.decode()}")
    growth = watch.growth_bytes()
    largest = max(growth, key=lambda pid: growth[pid])
    return UploadRound(
        seconds=uploaded.seconds,
        local_seconds=0.0,
        replica_growth_mb=max(growth[pid] for pid in answering) / MB,
        largest_growth_mb=growth[largest] / MB,
        largest_growth_process=processes[largest],
        local_growth_mb=0.0,
    )


def _ask_peer(measuring: Measuring) -> str:
    """What the peer says to an insert that it finds too large."""
    server = measuring.peer
    small = write_upload_file(measuring.folder / "small.arrows", REFUSED_BYTES)
    Tables(server).create("uploaded", stream_of(rows(FIRST_ROWS)))
    head = upload_head(server, "uploaded", small.bytes)
    answer = measuring.sender.submit(load.upload, server.address, head, small.path).result()
    return f"{answer.status} to {small.bytes / MB:.1f} MB"


if __name__ == "__main__":
    sys.exit(main())
