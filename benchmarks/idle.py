"""Measure how soon a server answers, and what it takes while nobody asks it anything.

    python -m benchmarks.idle [--seconds N] [--quick]

The server is started three times, with a request as soon as it says that it is ready; the last one
is then left alone. The last line of the output is JSON.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.processes import MB, cpu_seconds, memory_bytes, process_tree
from benchmarks.report import print_verdict
from benchmarks.servers import destrier
from benchmarks.tables import Tables

STARTS = 3
# As long as someone who has just typed the command waits without a doubt; and little enough for a
# server that is left running on a small machine.
FIRST_ANSWER_S_MAX = 12.0
CPU_PERCENT_MAX = 10.0
# What a start leaves to be done has been done by then.
SETTLES_S = 15.0


def main() -> int:
    """Measure, print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long it is left alone")
    parser.add_argument("--quick", action="store_true", help="10 seconds, one start")
    options = parser.parse_args()
    starts, seconds = (1, 10.0) if options.quick else (STARTS, options.seconds)
    first_answers_s: list[float] = []
    for number in range(starts):
        started_s = time.perf_counter()
        with (
            tempfile.TemporaryDirectory(prefix="destrier-benchmark-") as name,
            destrier(Path(name) / "destrier") as server,
        ):
            assert Tables(server).names(1) == []
            first_answers_s.append(time.perf_counter() - started_s)
            if number == starts - 1:
                cpu_percent, memory_mb, processes = left_alone(server.pid, seconds)
    first_answer_s = statistics.median(first_answers_s)
    print_verdict("start to first answer, s", first_answer_s, FIRST_ANSWER_S_MAX)
    print_verdict("processor time while idle, % of a core", cpu_percent, CPU_PERCENT_MAX)
    print(f"       memory while idle: {memory_mb:.0f} MB in {processes} processes")
    figures = {
        "first_answer_s": first_answers_s,
        "cpu_percent": cpu_percent,
        "memory_mb": memory_mb,
        "processes": processes,
    }
    print(json.dumps({"benchmark": "idle", "seconds": seconds, **figures}))
    return 0


def left_alone(pid: int, seconds: float) -> tuple[float, float, int]:
    """Percent of a core, MB of memory (what processes share counts once), and how many processes
    there are."""
    time.sleep(SETTLES_S)
    before_s = cpu_seconds(pid)
    time.sleep(seconds)
    cpu_percent = 100 * (cpu_seconds(pid) - before_s) / seconds
    return cpu_percent, memory_bytes(pid) / MB, len(process_tree(pid))


if __name__ == "__main__":
    sys.exit(main())
