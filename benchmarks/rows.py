"""Measure changes and reads of many rows beside pylance in process, in one run on one machine.

    python -m benchmarks.rows [--rounds N] [--rows N] [--quick] [--only NAME]

Destrier and a process of pylance's own each have a table of the same kind (stable row ids, the same
files). They do the same in turns: update a tenth of the rows, update one row that a B-tree finds,
delete a tenth, and read a million rows into an Arrow file. Afterwards the rows are compared. The
last line of the output is JSON; the exit code is 1 if they differ.
"""

import argparse
import http.client
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from benchmarks import servers
from benchmarks.processes import MB, MemoryWatch, replicas
from benchmarks.report import ratio_in_turns
from benchmarks.servers import RunningServer
from benchmarks.tables import Tables, rows, stream_of

READ_ROWS = 1_000_000
TENTHS = 10
_WRITTEN_AT_ONCE = 500_000
_COPIED_BYTES = 1 << 20
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Work:
    """Something to be done to a table, over HTTP and by pylance; `number` is the round's."""

    name: str
    ratio_max: float
    body: Callable[[int], dict[str, Any]]
    verb: str
    locally: Callable[[str, int, str], None]
    has_index: bool = False


@dataclass(slots=True)
class Found:
    """Seconds of each round; pylance is measured before and after each of Destrier's."""

    name: str
    ratio_max: float
    seconds: list[float] = field(default_factory=list)
    local_seconds: list[float] = field(default_factory=list)
    replica_growth_mb: float = 0.0

    def ratio(self) -> float:
        """Seconds by those in process before and after, the median over the rounds."""
        return ratio_in_turns(self.seconds, self.local_seconds)


def _tenth(number: int) -> str:
    return f"number % {TENTHS} = {number % TENTHS}"


def _update_locally(uri: str, number: int, _: str) -> None:
    lance.dataset(uri).update({"price": "price + 1"}, where=_tenth(number))


def _update_one_locally(uri: str, number: int, _: str) -> None:
    lance.dataset(uri).update({"price": "price + 1"}, where=f"number = {_one(number)}")


def _delete_locally(uri: str, number: int, _: str) -> None:
    lance.dataset(uri).delete(_tenth(number))


def _read_locally(uri: str, _: int, target: str) -> None:
    scanner = lance.dataset(uri).scanner(limit=READ_ROWS)
    with pa.OSFile(target, "wb") as sink, pa.ipc.new_file(sink, scanner.projected_schema) as writer:
        for batch in scanner.to_batches():
            writer.write_batch(batch)


def _one(number: int) -> int:
    return 1_000 * number + 7


def _update_body(where: str) -> dict[str, Any]:
    return {"predicate": where, "updates": [["price", "price + 1"]]}


WORKS = (
    Work("read 1M rows", 1.5, lambda _: {"vector": [], "k": READ_ROWS}, "query", _read_locally),
    Work(
        "update 1 row by B-tree",
        1.2,
        lambda number: _update_body(f"number = {_one(number)}"),
        "update",
        _update_one_locally,
        has_index=True,
    ),
    Work("update a tenth", 1.2, lambda n: _update_body(_tenth(n)), "update", _update_locally),
    Work("delete a tenth", 1.2, lambda n: {"predicate": _tenth(n)}, "delete", _delete_locally),
)


def local_seconds(locally: Callable[[str, int, str], None], *arguments: Any) -> float:
    """How long pylance takes, in the process that this runs in."""
    started_s = perf_counter()
    locally(*arguments)
    return perf_counter() - started_s


@dataclass(frozen=True, slots=True)
class Rows:
    """Both tables, the process of pylance, and where what is read goes."""

    server: RunningServer
    tables: Tables
    pylance: ProcessPoolExecutor
    folder: Path
    count: int

    def measure(self, work: Work, rounds: int) -> tuple[Found, bool]:
        """Do the same to two new tables, in turns; whether they hold the same in the end."""
        name = work.name.replace(" ", "_")
        ours, theirs = self._create(name, work.has_index)
        found = Found(work.name, work.ratio_max)
        # What is there to be read once, and to be started for a table, is read and started.
        self._remotely(work, name, rounds, found)
        self._locally(work, theirs, rounds, found)
        found.seconds.clear()
        found.local_seconds.clear()
        self._locally(work, theirs, rounds + 1, found)
        for number in range(rounds):
            self._remotely(work, name, number, found)
            self._locally(work, theirs, number, found)
        self._remotely(work, name, rounds + 1, Found("", 0.0))
        right = _hold_the_same(ours, theirs)
        if work.verb == "query":
            right = right and _read(self._target("destrier")) == _read(self._target("pylance"))
        self.tables.drop(name)
        return found, right

    def _create(self, name: str, has_index: bool) -> tuple[str, str]:
        self.tables.create(name, stream_of(rows([])))
        ours = self.tables.open(name).uri
        theirs = str(self.folder / f"{name}.lance")
        lance.write_dataset(
            rows([]),
            theirs,
            enable_stable_row_ids=True,
            data_storage_version=self.tables.open(name).data_storage_version,
        )
        for start in range(0, self.count, _WRITTEN_AT_ONCE):
            part = rows(np.arange(start, min(start + _WRITTEN_AT_ONCE, self.count)))
            for uri in (ours, theirs):
                lance.write_dataset(part, uri, mode="append")
        if has_index:
            for uri in (ours, theirs):
                lance.dataset(uri).create_scalar_index("number", "BTREE")
        return ours, theirs

    def _locally(self, work: Work, uri: str, number: int, found: Found) -> None:
        target = str(self._target("pylance"))
        taken = self.pylance.submit(local_seconds, work.locally, uri, number, target).result()
        found.local_seconds.append(taken)

    def _remotely(self, work: Work, name: str, number: int, found: Found) -> None:
        with MemoryWatch(replicas(self.server.pid)) as watch:
            found.seconds.append(
                post(self.server, name, work.verb, work.body(number), self._target("destrier"))
            )
        growth_mb = max(watch.growth_bytes().values()) / MB
        found.replica_growth_mb = max(found.replica_growth_mb, growth_mb)

    def _target(self, name: str) -> Path:
        return self.folder / f"{name}.arrow"


def post(server: RunningServer, table: str, verb: str, body: dict[str, Any], to: Path) -> float:
    """Seconds from sending a request to having its answer in a file.

    Raises:
        RuntimeError: it was refused.
    """
    host, port = server.address
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    headers = {"content-type": "application/json", "x-api-key": server.api_key}
    part = bytearray(_COPIED_BYTES)
    try:
        connection.connect()
        with to.open("wb") as file:
            started_s = perf_counter()
            connection.request("POST", f"/v1/table/{table}/{verb}", json.dumps(body), headers)
            answer = connection.getresponse()
            while size := answer.readinto(part):
                file.write(memoryview(part)[:size])
            taken_s = perf_counter() - started_s
        if answer.status != 200:
            raise RuntimeError(f"{verb} {table}: {to.read_text()}")
        return taken_s
    finally:
        connection.close()


def _hold_the_same(ours: str, theirs: str) -> bool:
    """Whether both tables hold the same rows, whatever their order."""
    both = [lance.dataset(uri).to_table().sort_by("number") for uri in (ours, theirs)]
    return bool(both[0].equals(both[1]))


def _read(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all().sort_by("number")


def _measuring(works: list[Work], options: argparse.Namespace) -> Iterator[tuple[Found, bool]]:
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="destrier-benchmark-") as name,
        ProcessPoolExecutor(1, mp_context=context) as pylance,
        servers.destrier(Path(name) / "destrier") as server,
    ):
        measured = Rows(server, Tables(server), pylance, Path(name), options.rows)
        for work in works:
            # The last one's files are gone, and what they cost the machine with them.
            sleep(1)
            yield measured.measure(work, options.rounds)


def main() -> int:
    """Measure, print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description="Measure many rows beside pylance in process.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each (5)")
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows of a table (4M)")
    parser.add_argument("--quick", action="store_true", help="a look: 1 round, 1M rows")
    parser.add_argument("--only", choices=[work.name for work in WORKS], help="one of them")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.rows = 1, READ_ROWS
    works = [work for work in WORKS if options.only in (None, work.name)]
    print(f"{'':<24}{'destrier s':>12}{'pylance s':>12}{'ratio':>8}{'growth MB':>12}")
    all_right, figures = True, []
    for found, right in _measuring(works, options):
        ratio = found.ratio()
        print(
            f"{found.name:<24}{median(found.seconds):>12.3f}{median(found.local_seconds):>12.3f}"
            f"{ratio:>8.2f}{found.replica_growth_mb:>12.0f}"
            f"  {'met' if ratio <= found.ratio_max else 'MISSED'} (wanted <= {found.ratio_max:g})"
            f"{'' if right else '  ROWS DIFFER'}",
            flush=True,
        )
        all_right = all_right and right
        figures.append({**asdict(found), "ratio": ratio, "is_right": right})
    print(json.dumps({"benchmark": "rows", "rows": options.rows, "points": figures}))
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
