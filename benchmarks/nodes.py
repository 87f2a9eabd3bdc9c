"""Measure work that Daft spreads over several nodes of Ray, all of them on this machine.

    python -m benchmarks.nodes [--nodes N] [--rounds N] [--rows N ...] [--only NAME] [--quick]

Two parts. On N nodes: what each does of counts, a query, an update and a delete that Daft runs. On
two nodes, each with half of this machine's cores: how long the same takes in process, which has the
cores of one node, and by Daft, which has those of both; and the size from which Daft is faster.
The last line of the output is JSON; the exit code is 1 if a node did nothing or an answer is wrong.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from benchmarks.ray_nodes import Node, Used, UseWatch, ray_nodes
from benchmarks.report import ratio_in_turns
from benchmarks.rows import post
from benchmarks.servers import RunningServer, destrier
from benchmarks.tables import Tables, rows, stream_of

ENGINES = ("lance", "daft")
TENTHS = 10
# Of every table, whatever its size, so that there is as much to share out.
FRAGMENTS = 16
SPREAD_ROWS = 2_000_000
ROWS = (1_000_000, 2_000_000, 4_000_000, 8_000_000, 16_000_000)
# Of an equal share of what is read, the part that shows that a node did some of it.
SHARE_MIN = 0.1
# Each round deletes a tenth, as do warming up and the last turn; one is left to compare.
ROUNDS_MAX = TENTHS - 3
_ENDED_BY_SIGNAL = 143

Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Operation:
    """Something to be done to the rows that `predicate` selects; `{}` is the round's number."""

    name: str
    verb: str
    predicate: str
    selects: Callable[[Numbers, int], Any]

    def body(self, number: int, engine: str) -> dict[str, Any]:
        """The request of a round."""
        predicate = self.predicate.format(number)
        context = {"context": {"engine": engine}}
        if self.verb == "query":
            return {"vector": [], "filter": predicate, **context}
        if self.verb == "update":
            return {"predicate": predicate, "updates": [["price", "price + 1"]], **context}
        return {"predicate": predicate, **context}


def _has_last_digit(numbers: Numbers, digit: int) -> Any:
    return numbers % TENTHS == digit


def _has_tens_digit(numbers: Numbers, digit: int) -> Any:
    return numbers // 10 % TENTHS == digit


def _ends_with(numbers: Numbers, digit: int) -> Any:
    return _has_last_digit(numbers, digit) & np.isin(numbers // 10 % TENTHS, (1, 3))


_LAST_DIGIT = f"number % {TENTHS} = {{}}"
OPERATIONS = (
    Operation("count", "count_rows", _LAST_DIGIT, _has_last_digit),
    Operation("count by regex", "count_rows", "regexp_like(name, '[13]{}$')", _ends_with),
    Operation("query a tenth", "query", _LAST_DIGIT, _has_last_digit),
    Operation("update a tenth", "update", f"number / 10 % {TENTHS} = {{}}", _has_tens_digit),
    Operation("delete a tenth", "delete", _LAST_DIGIT, _has_last_digit),
)


@dataclass(slots=True)
class Side:
    """One engine: seconds of each round, and what each node's workers used in it."""

    seconds: list[float] = field(default_factory=list)
    used: list[list[Used]] = field(default_factory=list)

    def cpu_s(self) -> float:
        """Processor time of all workers, a round."""
        return sum(used.cpu_s for nodes in self.used for used in nodes) / len(self.used)

    def daft_cpu_s(self) -> list[float]:
        """Processor time of each node's worker of Daft, a round."""
        by_node = zip(*self.used, strict=True)
        return [sum(used.daft_cpu_s for used in node) / len(node) for node in by_node]

    def daft_shares(self) -> list[float]:
        """The part that each node's worker of Daft has in what all of them read."""
        by_node = [sum(used.daft_read_mb for used in node) for node in zip(*self.used, strict=True)]
        return [read_mb / (sum(by_node) or 1.0) for read_mb in by_node]


@dataclass(slots=True)
class Point:
    """One operation on tables of one size, by both engines in turns."""

    operation: str
    rows: int
    lance: Side = field(default_factory=Side)
    daft: Side = field(default_factory=Side)
    is_right: bool = True

    def ratio(self) -> float:
        """Daft's seconds by those in process before and after, the median over the rounds."""
        return ratio_in_turns(self.daft.seconds, self.lance.seconds)

    def is_spread(self) -> bool:
        """Whether every node did some of what Daft did."""
        shares = self.daft.daft_shares()
        return min(shares) >= SHARE_MIN / len(shares) and min(self.daft.daft_cpu_s()) > 0

    def summary(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "operation": self.operation,
            "rows": self.rows,
            "ratio": self.ratio(),
            "lance_s": self.lance.seconds,
            "daft_s": self.daft.seconds,
            "lance_cpu_s": self.lance.cpu_s(),
            "daft_cpu_s": self.daft.cpu_s(),
            "daft_cpu_s_by_node": self.daft.daft_cpu_s(),
            "daft_shares_by_node": self.daft.daft_shares(),
            "is_right": self.is_right,
        }


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds, as a fixed part and one for each row."""

    fixed_s: float
    row_s: float


@dataclass(frozen=True, slots=True)
class Gain:
    """What the sizes of one operation say together."""

    operation: str
    lance: Line
    daft: Line
    # The smallest size from which Daft was faster at each.
    measured_rows: int | None
    # Where the lines meet; None if they do not.
    fitted_rows: float | None


@dataclass(frozen=True, slots=True)
class Bench:
    """A server on nodes of a cluster."""

    server: RunningServer
    tables: Tables
    nodes: Sequence[Node]
    folder: Path

    def measure(self, works: Sequence[Operation], count: int, rounds: int) -> Iterator[Point]:
        """Do `works` to two tables of `count` rows, of which each engine has one."""
        numbers = np.arange(count)
        for engine in ENGINES:
            self._create(engine, numbers)
        changes = {"update": 0, "delete": 0}
        for operation in works:
            point = Point(operation.name, count)
            self._in_turns(operation, numbers, rounds, point)
            if operation.verb in changes:
                changes[operation.verb] = rounds + 2
                left = _left(numbers, changes["update"], changes["delete"])
                found = [self.tables.open(engine).to_table() for engine in ENGINES]
                point.is_right = all(table.sort_by("number").equals(left) for table in found)
            yield point
        for engine in ENGINES:
            self.tables.drop(engine)

    def _create(self, name: str, numbers: Numbers) -> None:
        self.tables.create(name, stream_of(rows([])))
        uri = self.tables.open(name).uri
        for part in np.array_split(numbers, FRAGMENTS):
            lance.write_dataset(rows(part), uri, mode="append")

    def _in_turns(self, operation: Operation, numbers: Numbers, rounds: int, point: Point) -> None:
        # What is there to be read and to be started once is read and started.
        turns = [("lance", 0, Side()), ("daft", 0, Side()), ("lance", 1, point.lance)]
        for number in range(1, rounds + 1):
            turns += [("daft", number, point.daft), ("lance", number + 1, point.lance)]
        # Both tables are changed alike.
        turns.append(("daft", rounds + 1, Side()))
        for engine, number, side in turns:
            answer = self.folder / "answer"
            body = operation.body(number, engine)
            with UseWatch(self.nodes) as watch:
                side.seconds.append(post(self.server, engine, operation.verb, body, answer))
            side.used.append(watch.used)
            selected = numbers[operation.selects(numbers, number)]
            point.is_right = point.is_right and _is_right(operation.verb, answer, selected)


def _is_right(verb: str, answer: Path, selected: Numbers) -> bool:
    """Whether a read's answer is of the rows with these numbers; changes are looked at later."""
    if verb == "count_rows":
        return int(answer.read_text()) == len(selected)
    if verb == "query":
        with pa.memory_map(str(answer)) as file:
            return bool(pa.ipc.open_file(file).read_all().equals(rows(selected)))
    return True


def _left(numbers: Numbers, updates: int, deletes: int) -> pa.Table:
    """The rows after so many updates and deletes of a tenth."""
    numbers = numbers[numbers % TENTHS >= deletes]
    table = rows(numbers)
    price = table.column("price").to_numpy() + (numbers // 10 % TENTHS < updates)
    return table.set_column(2, table.schema.field("price"), pa.array(price))


@contextmanager
def _bench(nodes: int) -> Iterator[Bench]:
    with (
        tempfile.TemporaryDirectory(prefix="destrier-benchmark-") as name,
        ray_nodes(nodes) as cluster,
        # One replica, or it would be chance which one has read a table before.
        destrier(
            Path(name) / "destrier", {**cluster.environment, "DESTRIER_HTTP_REPLICAS": "1"}
        ) as server,
    ):
        yield Bench(server, Tables(server), cluster.nodes, Path(name))


def spread(works: Sequence[Operation], nodes: int, rounds: int) -> list[Point]:
    """What each of some nodes does of each operation."""
    count = SPREAD_ROWS
    print(
        f"{nodes} nodes, {count:,} rows: each node's part of what Daft's workers read, their CPU s"
    )
    points = []
    with _bench(nodes) as bench:
        for point in bench.measure(works, count, rounds):
            parts = zip(point.daft.daft_shares(), point.daft.daft_cpu_s(), strict=True)
            cells = "".join(f"{share:>8.0%}{cpu_s:>7.2f}" for share, cpu_s in parts)
            state = "" if point.is_spread() else "  NOT SPREAD"
            print(f"{point.operation:<16}{cells}{state}{_trouble(point)}", flush=True)
            points.append(point)
    return points


def pay(works: Sequence[Operation], sizes: Sequence[int], rounds: int) -> list[Point]:
    """Both engines at each size, on two nodes."""
    print("two nodes, each with half of the cores; in process, by Daft")
    print(f"{'':<16}{'rows':>12}{'lance s':>9}{'daft s':>9}{'ratio':>7}{'CPU s':>7}{'CPU s':>7}")
    points = []
    with _bench(2) as bench:
        for count in sizes:
            for point in bench.measure(works, count, rounds):
                print(
                    f"{point.operation:<16}{count:>12,}{median(point.lance.seconds):>9.3f}"
                    f"{median(point.daft.seconds):>9.3f}{point.ratio():>7.2f}"
                    f"{point.lance.cpu_s():>7.2f}{point.daft.cpu_s():>7.2f}{_trouble(point)}",
                    flush=True,
                )
                points.append(point)
    return points


def _trouble(point: Point) -> str:
    return "" if point.is_right else "  WRONG"


def gain(operation: str, points: Sequence[Point]) -> Gain:
    """What an operation's points, from small to large, say together."""
    in_process, by_daft = (
        _line([point.rows for point in points], [median(side.seconds) for side in sides])
        for sides in ([point.lance for point in points], [point.daft for point in points])
    )
    measured = None
    for point in reversed(points):
        if point.ratio() > 1:
            break
        measured = point.rows
    saved_s = in_process.row_s - by_daft.row_s
    fitted = (by_daft.fixed_s - in_process.fixed_s) / saved_s if saved_s > 0 else None
    return Gain(operation, in_process, by_daft, measured, fitted)


def _line(counts: Sequence[int], seconds: Sequence[float]) -> Line:
    # By relative errors: else the largest table alone would say what is fixed.
    row_s, fixed_s = np.polyfit(counts, seconds, 1, w=1 / np.array(seconds))
    return Line(float(fixed_s), float(row_s))


def _show(gains: Sequence[Gain]) -> None:
    print(
        "seconds as a line over the rows; where both meet, and the size from which Daft was faster"
    )
    print(
        f"{'':<16}{'lance ms':>9}{'ns/row':>8}{'daft ms':>9}{'ns/row':>8}{'meet':>9}{'faster':>9}"
    )
    for found in gains:
        cells = "".join(
            f"{1e3 * line.fixed_s:>9.0f}{1e9 * line.row_s:>8.1f}"
            for line in (found.lance, found.daft)
        )
        rows_from = (found.fitted_rows, found.measured_rows)
        cells += "".join(f"{'-' if it is None else f'{it / 1e6:.1f}M':>9}" for it in rows_from)
        print(f"{found.operation:<16}{cells}")


def main() -> int:
    """Measure, print tables and a line of JSON."""
    parser = argparse.ArgumentParser(description="Measure work that is spread over nodes of Ray.")
    parser.add_argument("--nodes", type=int, default=3, help="nodes of the first part (3)")
    parser.add_argument(
        "--rounds", type=int, default=3, choices=range(1, ROUNDS_MAX + 1), help="rounds (3)"
    )
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="sizes of tables")
    parser.add_argument("--quick", action="store_true", help="a look: 1 round, two small sizes")
    parser.add_argument("--only", choices=[it.name for it in OPERATIONS], help="one of them")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    if min(cores, options.nodes) < 2:
        parser.error("nothing spreads over less than two nodes and two cores")
    if options.quick:
        options.rounds, options.rows = 1, ROWS[:2]
    # Who ends this ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_ENDED_BY_SIGNAL))
    works = [operation for operation in OPERATIONS if options.only in (None, operation.name)]
    spread_points = spread(works, options.nodes, options.rounds)
    points = pay(works, sorted(options.rows), options.rounds)
    gains = [
        gain(operation.name, [point for point in points if point.operation == operation.name])
        for operation in works
    ]
    _show(gains)
    is_spread = all(point.is_spread() for point in spread_points)
    is_right = all(point.is_right for point in [*spread_points, *points])
    figures = {
        "spread": [point.summary() for point in spread_points],
        "points": [point.summary() for point in points],
        "gains": [asdict(found) for found in gains],
        "cores_per_node": cores // 2,
        "is_spread": is_spread,
        "is_right": is_right,
    }
    print(json.dumps({"benchmark": "nodes", "nodes": options.nodes, **figures}))
    return 0 if is_spread and is_right else 1


if __name__ == "__main__":
    sys.exit(main())
