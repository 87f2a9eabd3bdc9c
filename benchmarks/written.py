"""Measure inserts into tables that were written before, beside Lance's own REST server.

    python -m benchmarks.written [--rounds N] [--seconds S] [--quick] [--only NAME]

Inserts of one row, one after another and many at once into one table, and at once into many, of
tables that hold ever more earlier inserts; both servers in turns, in one run on one machine. Beside
those into many new tables pylance alone does the same in processes of its own, without a server.
Rows are compared with what was acknowledged. The last line of the output is JSON; the exit code is
1 if Destrier gave a wrong answer or lost or doubled a row.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks import bare_commits
from benchmarks.bare_commits import Writers
from benchmarks.measuring import SETTLE_S, Measuring, both_servers, check_rows, create_inserted
from benchmarks.report import RATIO_MIN, Point, ratio_in_turns, trouble_lines
from benchmarks.servers import RunningServer
from benchmarks.tables import Tables, insert_request

# Earlier inserts of each table.
ONE = (0, 1_000)
# Tables with a connection each, and connections to one table.
MANY_TABLES = 32
MANY = (0, 250, 1_000)
QUICK = (0, 50)


@dataclass(slots=True)
class Filled:
    """The tables of one server, and the numbers of their rows."""

    server: RunningServer
    names: Sequence[str]
    numbers: list[int] = field(default_factory=list)
    uncertain: list[int] = field(default_factory=list)

    @property
    def inserts(self) -> float:
        """Inserts that were acknowledged so far, by table."""
        return len(self.numbers) / len(self.names)

    @property
    def next_number(self) -> int:
        """The first number that no request had."""
        return max([0, *self.numbers, *self.uncertain]) + 1


@dataclass(slots=True)
class Age:
    """What tables of so many earlier inserts took; `bare` is pylance alone, by processes."""

    inserts: int
    point: Point
    bare: dict[int, list[float]] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """Everything, for JSON."""
        bare = {count: self._bare_ratio(count) for count in self.bare}
        return {"earlier_inserts": self.inserts, **self.point.summary(), "bare_ratio": bare}

    def lines(self) -> list[str]:
        """For people."""
        ours, theirs = self.point.destrier, self.point.peer
        cells = "".join(
            f"{median(side.rates):>9.0f}{median(side.p50_ms):>9.2f}{median(side.p99_ms):>9.1f}"
            for side in (ours, theirs)
        )
        ratio = self.point.ratio()
        is_met = ratio >= RATIO_MIN[self.point.operation, self.point.connections]
        state = "met" if is_met else "MISSED"
        found = [
            f"{self.point.operation:<14}{self.point.connections:>6}{self.inserts:>8}{cells}"
            f"{ratio:>8.2f}  {state}",
            *trouble_lines(self.point),
        ]
        for count, rates in self.bare.items():
            found.append(
                f"  pylance alone, {count} processes, flushed: {median(rates):.0f}/s,"
                f" {self._bare_ratio(count):.2f} of the peer's"
            )
        return found

    def _bare_ratio(self, processes: int) -> float:
        return round(ratio_in_turns(self.bare[processes], self.point.peer.rates), 3)


def measure(
    measuring: Measuring,
    table_count: int,
    connections: int,
    ages: Sequence[int],
    bare: Sequence[Writers] = (),
) -> list[Age]:
    """Inserts of one row, when tables hold so many earlier ones."""
    names = [f"written_{table_count}_{connections}_{number}" for number in range(table_count)]
    both = [Filled(server, names) for server in (measuring.destrier, measuring.peer)]
    for filled in both:
        create_inserted(Tables(filled.server), filled.names)
    time.sleep(SETTLE_S)
    operation = "insert" if table_count == 1 else f"insert in {table_count}"
    found = []
    for inserts in ages:
        age = Age(inserts, Point(operation, connections))
        for filled in both:
            while filled.inserts < inserts:
                _send(measuring, filled, Point(operation, connections))
        for server in measuring.turns():
            _send(measuring, next(item for item in both if item.server is server), age.point)
            if server is measuring.destrier and inserts == 0:
                for alone in bare:
                    rate = alone.rate(measuring.seconds)
                    age.bare.setdefault(alone.processes, []).append(rate)
        found.append(age)
    for filled in both:
        side = measuring.side(filled.server, found[-1].point)
        tables = Tables(filled.server)
        check_rows(tables, filled.names, filled.numbers, filled.uncertain, side)
    return found


def _send(measuring: Measuring, filled: Filled, point: Point) -> None:
    requests = [insert_request(filled.server, name) for name in filled.names]
    measured = measuring.send(filled.server, requests, point, filled.next_number)
    filled.numbers += measured.acknowledged
    filled.uncertain += measured.uncertain


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure inserts into tables that are written.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds per age (5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per measurement (2)")
    parser.add_argument("--quick", action="store_true", help="a look: 1 round, few inserts")
    parser.add_argument("--only", choices=("one", "shared", "many"), help="one part")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    cpus = len(os.sched_getaffinity(0))
    with both_servers(rounds, options.seconds) as measuring, ExitStack() as stack:
        found = []
        if options.only in (None, "one"):
            found += measure(measuring, 1, 1, QUICK if options.quick else ONE)
        if options.only in (None, "shared"):
            found += measure(measuring, 1, MANY_TABLES, QUICK if options.quick else ONE)
        if options.only in (None, "many"):
            bare = [
                stack.enter_context(
                    bare_commits.writers(measuring.folder / f"by_{n}", n, MANY_TABLES)
                )
                for n in (cpus, MANY_TABLES)
            ]
            ages = QUICK if options.quick else MANY
            found += measure(measuring, MANY_TABLES, MANY_TABLES, ages, bare)
    is_right = all(age.point.destrier.is_right for age in found)
    print(f"{'':<28}{'destrier':>27}{'peer':>27}")
    columns = f"{'/s':>9}{'p50 ms':>9}{'p99 ms':>9}"
    print(f"{'operation':<14}{'conns':>6}{'earlier':>8}{columns}{columns}{'ratio':>8}")
    for age in found:
        print("\n".join(age.lines()))
    summaries = [age.summary() for age in found]
    line = {"benchmark": "written", "cpus": cpus, "rounds": rounds, "ages": summaries}
    print(json.dumps({**line, "is_right": is_right}))
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
