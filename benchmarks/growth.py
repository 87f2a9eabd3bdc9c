"""Measure whether a table stays as fast as it was while it is written, in one run on one machine.

    python -m benchmarks.growth [--inserts N] [--quick]

Two figures of one server: how long inserts of one row take, one after another, when the table is
new and after thousands of them; and how long the first insert takes of a table that has no owner
yet. The rows are counted in the end. The last line of the output is JSON; the exit code is 1 if a
row is missing or there twice.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import print_verdict
from benchmarks.servers import destrier
from benchmarks.tables import Tables, rows, stream_of

# Inserts that are compared, at the beginning and at the end.
WINDOW = 100
GROWTH_MAX = 1.5
FIRST_INSERT_S_MAX = 0.4
# A process that takes the next table starts meanwhile.
PAUSE_S = 3.0
TABLE = "growing"


@dataclass(frozen=True, slots=True)
class Window:
    """Inserts one after another."""

    p50_ms: float
    p95_ms: float
    fragments: int
    versions: int


def grow(tables: Tables, inserts: int) -> list[Window]:
    """Windows of inserts of one row, the first, some between, and the last."""
    tables.create(TABLE, stream_of(rows([0])))
    # Which starts what the server starts for a table.
    tables.insert(TABLE, stream_of(rows([1])))
    windows = []
    taken_ms: list[float] = []
    wanted = {WINDOW, *(inserts * part // 5 for part in range(1, 5)), inserts, inserts + WINDOW}
    for number in range(2, inserts + WINDOW + 2):
        body = stream_of(rows([number]))
        started_s = time.perf_counter()
        tables.insert(TABLE, body)
        taken_ms.append(1e3 * (time.perf_counter() - started_s))
        if len(taken_ms) in wanted:
            windows.append(_window(tables, taken_ms[-WINDOW:]))
    return windows


def _window(tables: Tables, taken_ms: list[float]) -> Window:
    dataset = tables.open(TABLE)
    return Window(
        p50_ms=statistics.median(taken_ms),
        p95_ms=sorted(taken_ms)[int(0.95 * len(taken_ms))],
        fragments=len(dataset.get_fragments()),
        versions=len(dataset.versions()),
    )


def is_right(tables: Tables, inserts: int) -> bool:
    """Whether every row is there once."""
    found = Counter(tables.open(TABLE).to_table(columns=["number"]).column(0).to_pylist())
    return found == Counter(range(inserts + WINDOW + 2))


def first_inserts(tables: Tables, count: int) -> list[float]:
    """Seconds of the first insert into each of some new tables."""
    names = [f"untouched_{number}" for number in range(count)]
    for name in names:
        tables.create(name, stream_of(rows([0])))
    taken_s = []
    for name in names:
        time.sleep(PAUSE_S)
        body = stream_of(rows([1]))
        started_s = time.perf_counter()
        tables.insert(name, body)
        taken_s.append(time.perf_counter() - started_s)
    return taken_s


def main() -> int:
    """Measure, print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inserts", type=int, default=5_000)
    parser.add_argument("--quick", action="store_true", help="a fifth of the inserts")
    options = parser.parse_args()
    inserts = options.inserts // 5 if options.quick else options.inserts
    with (
        tempfile.TemporaryDirectory(prefix="destrier-benchmark-") as name,
        destrier(Path(name) / "destrier") as server,
    ):
        tables = Tables(server)
        first_s = first_inserts(tables, 5)
        windows = grow(tables, inserts)
        right = is_right(tables, inserts)
    growth = windows[-1].p95_ms / windows[0].p95_ms
    print(f"{'p50 ms':>8}{'p95 ms':>8}{'fragments':>11}{'versions':>10}")
    for window in windows:
        print(
            f"{window.p50_ms:>8.2f}{window.p95_ms:>8.2f}{window.fragments:>11}{window.versions:>10}"
        )
    first = statistics.median(first_s)
    print_verdict(f"p95 of the last {WINDOW} inserts by the first", growth, GROWTH_MAX)
    print_verdict("first insert into a table, seconds", first, FIRST_INSERT_S_MAX)
    figures = {"growth": growth, "first_insert_s": first_s, "inserts": inserts, "is_right": right}
    print(json.dumps({"benchmark": "growth", **figures}))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
