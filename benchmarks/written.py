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
from benchmarks.load import Measured, Request
from benchmarks.measuring import SETTLE_S, Measuring, both_servers, check_rows, create_inserted
from benchmarks.report import POINT_HEAD, Point, point_line, ratio_in_turns, trouble_lines
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

    def requests(self) -> list[Request]:
        """An insert into each of the tables."""
        return [insert_request(self.server, name) for name in self.names]

    def note(self, measured: Measured) -> None:
        """Remember what was acknowledged, and what may have been written."""
        self.numbers += measured.acknowledged
        self.uncertain += measured.uncertain


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
        state = "met" if self.point.is_met() else "MISSED"
        found = [
            f"{point_line(self.point)}{self.inserts:>9}  {state}",
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
            _fill(measuring, filled, age)
        for server in measuring.turns():
            filled = next(item for item in both if item.server is server)
            filled.note(measuring.send(server, filled.requests(), age.point, filled.next_number))
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


def _fill(measuring: Measuring, filled: Filled, age: Age) -> None:
    """Insert until the tables are of this age; what is answered wrongly counts with its point."""
    address, connections = filled.server.address, age.point.connections
    while filled.inserts < age.inserts:
        sent = measuring.load(address, filled.requests(), connections, filled.next_number)
        if not sent.acknowledged:
            raise RuntimeError(f"{filled.server.name} takes no inserts: {dict(sent.errors)}")
        filled.note(sent)
        measuring.side(filled.server, age.point).errors.update(sent.errors)


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
    print("\n".join(POINT_HEAD) + f"{'earlier':>9}")
    for age in found:
        print("\n".join(age.lines()))
    summaries = [age.summary() for age in found]
    line = {"benchmark": "written", "cpus": cpus, "rounds": rounds, "ages": summaries}
    print(json.dumps({**line, "is_right": is_right}))
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
