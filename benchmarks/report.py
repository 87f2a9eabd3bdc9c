"""What was measured, for people and, in one line of JSON, for programs."""

import json
import os
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from itertools import pairwise
from statistics import median
from typing import Any

from benchmarks.load import Measured

# What the server is to reach; ratios to the peer and to the in-process write of the same run.
RATIO_MIN = {
    ("count_rows", 1): 1.0,
    ("count_rows", 8): 1.0,
    ("count_rows", 32): 1.0,
    ("count unindexed", 1): 1.0,
    ("count indexed", 1): 1.0,
    ("describe", 1): 1.0,
    ("list_tables", 1): 1.0,
    ("insert", 1): 1.0,
    ("insert", 32): 25.0,
    ("insert", 256): 60.0,
    ("insert in 32", 32): 1.5,
}
UPLOAD_RATIO_MAX = 1.3
UPLOAD_GROWTH_MB_MAX = 350.0
_PACKAGES = ("pylance", "ray", "pyarrow", "fastapi", "uvicorn")


def ratio_in_turns(found: Sequence[float], baseline: Sequence[float]) -> float:
    """Each figure by the mean of the baseline's before and after it; the median over the rounds.

    The baseline has one more.
    """
    return median(
        2 * figure / (before + after)
        for figure, (before, after) in zip(found, pairwise(baseline), strict=True)
    )


@dataclass(slots=True)
class Side:
    """One server at one point: the figures of each round and what went wrong in all of them."""

    rates: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    rows_acknowledged: int = 0
    rows_lost: int = 0
    rows_doubled: int = 0

    def add(self, measured: Measured, cpu_s: float) -> None:
        """Take the figures of one measurement, in which the server used `cpu_s` of processors."""
        self.rates.append(measured.rate)
        self.p50_ms.append(measured.p50_ms)
        self.p99_ms.append(measured.p99_ms)
        self.cpu_us.append(1e6 * cpu_s / measured.answers)
        self.errors.update(measured.errors)

    @property
    def is_right(self) -> bool:
        """Whether every answer was right and every acknowledged row is there once."""
        return not (self.errors or self.rows_lost or self.rows_doubled)

    def summary(self) -> dict[str, Any]:
        """Medians over the rounds, and the rounds."""
        return {
            "per_second": round(median(self.rates), 1),
            "p50_ms": round(median(self.p50_ms), 3),
            "p99_ms": round(median(self.p99_ms), 3),
            "cpu_us": round(median(self.cpu_us), 1),
            "rounds": [round(rate, 1) for rate in self.rates],
            "errors": dict(self.errors),
            "rows_acknowledged": self.rows_acknowledged,
            "rows_lost": self.rows_lost,
            "rows_doubled": self.rows_doubled,
        }


@dataclass(slots=True)
class Point:
    """One operation at one number of connections; the peer is measured around each round."""

    operation: str
    connections: int
    destrier: Side = field(default_factory=Side)
    peer: Side = field(default_factory=Side)

    def ratio(self) -> float:
        """Destrier's rate by the peer's before and after, the median over the rounds."""
        return ratio_in_turns(self.destrier.rates, self.peer.rates)

    def wanted(self) -> float | None:
        """The ratio that it is to reach, if any."""
        return RATIO_MIN.get((self.operation, self.connections))

    def is_met(self) -> bool:
        """Whether it reaches that, and every answer of Destrier was right."""
        return self.ratio() >= (self.wanted() or 0.0) and self.destrier.is_right

    def summary(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "operation": self.operation,
            "connections": self.connections,
            "destrier": self.destrier.summary(),
            "peer": self.peer.summary(),
            "ratio": round(self.ratio(), 3),
        }


@dataclass(slots=True)
class UploadRound:
    """One upload, and the in-process writes around it."""

    seconds: float
    local_seconds: float
    replica_growth_mb: float
    largest_growth_mb: float
    largest_growth_process: str
    local_growth_mb: float


@dataclass(slots=True)
class Upload:
    """A large insert beside `lance.write_dataset`."""

    bytes: int
    rows: int
    peer_answer: str
    rounds: list[UploadRound] = field(default_factory=list)
    is_right: bool = True

    def ratio(self) -> float:
        """Seconds by those in process, the median over the rounds."""
        return median(item.seconds / item.local_seconds for item in self.rounds)

    def summary(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "bytes": self.bytes,
            "rows": self.rows,
            "seconds": round(median(item.seconds for item in self.rounds), 3),
            "local_seconds": round(median(item.local_seconds for item in self.rounds), 3),
            "ratio": round(self.ratio(), 3),
            "replica_growth_mb": round(max(item.replica_growth_mb for item in self.rounds), 1),
            "local_growth_mb": round(max(item.local_growth_mb for item in self.rounds), 1),
            "is_right": self.is_right,
            "peer": self.peer_answer,
            "rounds": [asdict(item) for item in self.rounds],
        }


@dataclass(frozen=True, slots=True)
class Target:
    """A figure and what it is to be."""

    name: str
    wanted: str
    found: float
    is_met: bool


def print_verdict(name: str, found: float, wanted_max: float) -> None:
    """Say what was found beside what was wanted."""
    state = "met   " if found <= wanted_max else "MISSED"
    print(f"{state} {name}: {found:.2f} (wanted <= {wanted_max:g})")


@dataclass(slots=True)
class Report:
    """One run."""

    options: dict[str, Any]
    replicas: int
    generator_per_second: dict[int, float]
    points: list[Point] = field(default_factory=list)
    upload: Upload | None = None

    @property
    def is_right(self) -> bool:
        """Whether Destrier answered every request rightly and lost or doubled nothing."""
        uploaded = self.upload is None or self.upload.is_right
        return uploaded and all(point.destrier.is_right for point in self.points)

    def targets(self) -> list[Target]:
        """The targets that this run says something about."""
        found = []
        for point in self.points:
            wanted = point.wanted()
            if wanted is not None:
                name = f"{point.operation} at {point.connections} connections, ratio to the peer"
                ratio = round(point.ratio(), 2)
                found.append(Target(name, f">= {wanted:g}", ratio, point.is_met()))
        if self.upload is not None:
            ratio = round(self.upload.ratio(), 2)
            growth_mb = max(round(item.replica_growth_mb, 1) for item in self.upload.rounds)
            name = "upload, ratio to the in-process write"
            is_met = ratio <= UPLOAD_RATIO_MAX
            found.append(Target(name, f"<= {UPLOAD_RATIO_MAX:g}", ratio, is_met))
            is_met = growth_mb < UPLOAD_GROWTH_MB_MAX
            name = "upload, growth of the replica, MB"
            found.append(Target(name, f"< {UPLOAD_GROWTH_MB_MAX:g}", growth_mb, is_met))
        return found

    def json_line(self) -> str:
        """The whole report in one line."""
        return json.dumps(
            {
                "benchmark": "serving",
                "options": self.options,
                "machine": {
                    "cpus": len(os.sched_getaffinity(0)),
                    "system": platform.platform(),
                    "python": platform.python_version(),
                    "packages": {name: metadata.version(name) for name in _PACKAGES},
                },
                "replicas": self.replicas,
                "generator_per_second": self.generator_per_second,
                "points": [point.summary() for point in self.points],
                "upload": None if self.upload is None else self.upload.summary(),
                "targets": [asdict(target) for target in self.targets()],
                "is_right": self.is_right,
            }
        )

    def text(self) -> str:
        """The table for people."""
        lines = [*POINT_HEAD, *(point_line(point) for point in self.points)]
        for point in self.points:
            lines += trouble_lines(point)
        if self.upload is not None:
            lines += _upload_lines(self.upload)
        lines += [
            f"{'met' if target.is_met else 'MISSED':<8}{target.name} {target.wanted}:"
            f" {target.found:g}"
            for target in self.targets()
        ]
        rates = ", ".join(f"{rate:.0f}/s at {n}" for n, rate in self.generator_per_second.items())
        lines.append(f"the load generator against a server that does nothing: {rates}")
        return "\n".join(lines)


POINT_HEAD = (
    f"{'':<24}{'destrier':>30}{'peer':>30}",
    f"{'operation':<16}{'conns':>6}{'':<2}{'/s':>10}{'p50 ms':>10}{'p99 ms':>10}"
    f"{'/s':>10}{'p50 ms':>10}{'p99 ms':>10}{'ratio':>8}",
)


def point_line(point: Point) -> str:
    """The figures of a point, under POINT_HEAD."""
    cells = "".join(
        f"{median(side.rates):>10.0f}{median(side.p50_ms):>10.2f}{median(side.p99_ms):>10.2f}"
        for side in (point.destrier, point.peer)
    )
    return f"{point.operation:<16}{point.connections:>6}{'':<2}{cells}{point.ratio():>8.2f}"


def trouble_lines(point: Point) -> list[str]:
    """What went wrong at a point, a line for each server that did not give right answers only."""
    lines = []
    for name, side in (("destrier", point.destrier), ("peer", point.peer)):
        if not side.is_right:
            errors = ", ".join(f"{count} x {what}" for what, count in side.errors.items())
            lines.append(
                f"  {name}, {point.operation} at {point.connections}: {errors or 'no error'}; of"
                f" {side.rows_acknowledged} acknowledged rows {side.rows_lost} lost,"
                f" {side.rows_doubled} doubled"
            )
    return lines


def _upload_lines(upload: Upload) -> list[str]:
    found = upload.summary()
    largest = max(upload.rounds, key=lambda item: item.largest_growth_mb)
    return [
        f"insert of {upload.bytes / 1e6:.0f} MB, {upload.rows} rows: {found['seconds']:.2f} s,"
        f" in process {found['local_seconds']:.2f} s, ratio {found['ratio']:.2f};"
        f" rows {'right' if upload.is_right else 'WRONG'}",
        f"  memory: replica +{found['replica_growth_mb']:.0f} MB, largest of all processes"
        f" +{largest.largest_growth_mb:.0f} MB ({largest.largest_growth_process}),"
        f" in process +{found['local_growth_mb']:.0f} MB",
        f"  the peer answers {upload.peer_answer}",
    ]
