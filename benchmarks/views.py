"""Measure refreshes of views, in one run on one machine.

    python -m benchmarks.views [--rounds N] [--quick]

Five figures: a no-op chunker over 400,000 rows beside plain Ray tasks that do the same work; the
refresh after 1 % of 1M rows have changed beside the full one of the same view; code that only
computes on every core beside the same on one, and on twice as many slower ones (`slow_cores.py`);
and the time from asking a warm server for a refresh to its first rows. The last line of the output
is JSON; the exit code is 1 if a view had other rows than its definition says.
"""

import argparse
import hashlib
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import lance
import pyarrow as pa

from benchmarks.servers import RunningServer, destrier
from benchmarks.slow_cores import SlowCores
from benchmarks.tables import ARROW_TYPE
from udtf import ViewClient, chunker

TASK_ROWS = 1_024
# How often a job is looked at: looking costs the server time too.
POLL_S = 0.1
# What came before has ended by then; a refresh begins on a server that does nothing else.
SETTLE_S = 2.0
_TIMEOUT_S = 900.0


@chunker(output_schema={"word": str})
def one_chunk(text: str) -> Iterator[dict[str, str]]:
    """A chunker that does nothing: one chunk of each row, as it is."""
    yield {"word": text}


@chunker(output_schema={"word": str})
def passages(text: str) -> Iterator[dict[str, str]]:
    """What chunkers are for: cuts a text into passages of whole sentences, about 160 characters."""
    passage: list[str] = []
    length = 0
    for sentence in re.split(r"(?<=[.!?])\s+", text):
        words = sentence.split()
        size = sum(map(len, words)) + len(words)
        if passage and length + size > 160:
            yield {"word": " ".join(passage)}
            passage, length = [], 0
        passage += words
        length += size
    yield {"word": " ".join(passage)}


@chunker(output_schema={"word": str})
def digests(text: str) -> Iterator[dict[str, str]]:
    """Only computes, for some hundredths of a second."""
    yield {"word": digest(text)}


@chunker(output_schema={"word": str}, num_cpus=0.5)
def slow_digests(text: str) -> Iterator[dict[str, str]]:
    """The same, by twice as many workers as there are cores."""
    yield {"word": digest(text)}


def digest(text: str) -> str:
    """What takes so long."""
    return hashlib.pbkdf2_hmac("sha256", text.encode(), b"salt", 100_000).hex()


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure: what was measured, beside what, and what is to be reached."""

    name: str
    seconds: float
    baseline_seconds: float
    wanted_max: float

    @property
    def ratio(self) -> float:
        """Seconds by the baseline's."""
        return self.seconds / self.baseline_seconds

    @property
    def is_met(self) -> bool:
        """Whether it reached what it is to reach."""
        return self.ratio <= self.wanted_max


class Bench:
    """One server, and the views that are measured on it."""

    def __init__(self, server: RunningServer) -> None:
        host, port = server.address
        url = f"http://{host}:{port}"
        self._http = httpx.Client(
            base_url=url,
            headers={"x-api-key": server.api_key},
            timeout=_TIMEOUT_S,
            trust_env=False,
        )
        self.views = ViewClient(url, api_key=server.api_key)
        self._root = server.root

    def create(self, name: str, rows: int, sentences: int = 1) -> str:
        """A table of numbered texts of so many sentences; the URI of its folder."""
        texts = [
            " ".join(f"Sentence {part} of the text of row {n}." for part in range(sentences))
            for n in range(rows)
        ]
        table = pa.table({"number": range(rows), "text": texts})
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=65_536)
        self._post(f"/v1/table/{name}/create", content=sink.getvalue(), kind=ARROW_TYPE)
        location: str = self._post(f"/v1/table/{name}/describe", content=b"{}")["location"]
        return location

    def change(self, name: str, predicate: str) -> None:
        """Update the rows that `predicate` selects."""
        body = {"predicate": predicate, "updates": [["text", "text || '!'"]]}
        self._post(f"/v1/table/{name}/update", content=json.dumps(body).encode())

    def _post(self, path: str, content: bytes, kind: str = "application/json") -> Any:
        answer = self._http.post(path, content=content, headers={"content-type": kind})
        answer.raise_for_status()
        return answer.json()

    def refresh(self, view: str, **options: Any) -> tuple[float, float, dict[str, Any]]:
        """Refresh; seconds until it is done, until the first item was done, and the result."""
        time.sleep(SETTLE_S)
        started_s = time.perf_counter()
        job = self.views.refresh(view, **options)
        first_s = None
        while True:
            status = job.status()
            now_s = time.perf_counter() - started_s
            if first_s is None and status.count("items_done"):
                first_s = now_s
            if status.is_over:
                break
            time.sleep(POLL_S)
        if status.state != "DONE":
            raise RuntimeError(f"the refresh ended {status.state}: {status.failure}")
        assert status.result is not None
        return now_s, first_s or now_s, dict(status.result)

    def is_right(self, view: str, source: str, code: Callable[[str], Iterable[Any]]) -> bool:
        """Whether a view has the chunks that `code` makes of its source."""
        texts = lance.dataset(source).to_table(columns=["text"]).column("text").to_pylist()
        want = [chunk["word"] for text in texts for chunk in code(text)]
        have = self.views.rows(view, ["word"]).column("word").to_pylist()
        return sorted(want) == sorted(have)


def overhead(bench: Bench, rows: int, rounds: int, folder: Path) -> tuple[Ratio, bool]:
    """A no-op chunker beside plain Ray tasks."""
    uri = bench.create("chunked", rows)
    bench.views.create("chunks", one_chunk, source="chunked", inherit=[])
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(rounds):
        theirs.append(_ray_tasks(uri, folder / f"tasks-{number}.lance"))
        ours.append(bench.refresh("chunks", full=True, source_task_size=TASK_ROWS)[0])
    ratio = Ratio("no-op chunker by plain Ray tasks", _median(ours), _median(theirs), 2.0)
    return ratio, bench.is_right("chunks", uri, one_chunk)


def incremental(bench: Bench, rows: int, rounds: int) -> tuple[Ratio, bool]:
    """The refresh after 1 % of the rows have changed, beside the full one."""
    uri = bench.create("growing", rows, sentences=8)
    bench.views.create("grown", passages, source="growing", inherit=[])
    full = [bench.refresh("grown", full=True)[0] for _ in range(rounds)]
    part: list[float] = []
    for number in range(rounds):
        first = number * (rows // 100)
        bench.change("growing", f"number >= {first} AND number < {first + rows // 100}")
        seconds, _, result = bench.refresh("grown")
        if result["mode"] != "incremental" or result["rows_read"] != rows // 100:
            raise RuntimeError(f"not an incremental refresh of 1 %: {result}")
        part.append(seconds)
    print("incremental refreshes, the first one after a full one:", *(f"{s:.2f} s" for s in part))
    ratio = Ratio("incremental by full refresh", _median(part), _median(full), 1 / 20)
    return ratio, bench.is_right("grown", uri, passages)


def every_core(bench: Bench, rows: int, rounds: int) -> tuple[Ratio, bool]:
    """Code that only computes, by a worker on each core and by one worker."""
    cores = os.cpu_count() or 1
    return _computing(
        bench, f"computing code on {cores} cores by one", digests, cores, rows, rounds
    )


def slow_cores(bench: Bench, rows: int, rounds: int) -> tuple[Ratio, bool]:
    """The same on twice as many cores, each of which has less than half of the speed."""
    cores = 2 * (os.cpu_count() or 1)
    name = f"computing code on {cores} slow cores by one"
    with SlowCores():
        return _computing(bench, name, slow_digests, cores, rows, rounds)


def _computing(
    bench: Bench, name: str, code: Any, cores: int, rows: int, rounds: int
) -> tuple[Ratio, bool]:
    source, view = f"computed_{cores}", f"computing_{cores}"
    uri = bench.create(source, rows)
    bench.views.create(view, code, source=source, inherit=[])

    def seconds(workers: int) -> float:
        options = {"full": True, "source_task_size": rows // (8 * cores), "concurrency": workers}
        return bench.refresh(view, **options)[0]

    # The first starts the workers.
    seconds(cores)
    alone, together = zip(*((seconds(1), seconds(cores)) for _ in range(rounds)), strict=True)
    ratio = Ratio(name, _median(list(together)), _median(list(alone)), 4 / (3 * cores))
    return ratio, bench.is_right(view, uri, code)


def first_rows(bench: Bench, rounds: int) -> float:
    """Seconds from asking a warm server to the first item that is done."""
    bench.create("small", 1_000)
    bench.views.create("smaller", one_chunk, source="small", inherit=[])
    bench.refresh("smaller")
    return _median([bench.refresh("smaller", full=True)[1] for _ in range(rounds)])


def _ray_tasks(source: str, target: Path) -> float:
    command = [sys.executable, "-m", "benchmarks.ray_tasks", source, str(target), str(TASK_ROWS)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def _median(values: list[float]) -> float:
    return statistics.median(values)


def main() -> int:
    """Measure, print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, one round")
    options = parser.parse_args()
    rounds, part = (1, 10) if options.quick else (options.rounds, 1)
    with tempfile.TemporaryDirectory(prefix="destrier-benchmark-") as name:
        folder = Path(name)
        with destrier(folder / "destrier") as server:
            bench = Bench(server)
            first_s = first_rows(bench, rounds)
            chunks, chunks_right = overhead(bench, 400_000 // part, rounds, folder)
            changed, changed_right = incremental(bench, 1_000_000 // part, rounds)
            cores, cores_right = every_core(bench, 640 // part, rounds)
            slow, slow_right = slow_cores(bench, 640 // part, rounds)
    measured = (chunks, changed, cores, slow)
    for figure in measured:
        state = "met   " if figure.is_met else "MISSED"
        print(
            f"{state} {figure.name}: {figure.seconds:.2f} s by {figure.baseline_seconds:.2f} s ="
            f" {figure.ratio:.3f} (wanted <= {figure.wanted_max:g})"
        )
    print(f"from asking to the first item done: {first_s:.2f} s")
    is_right = chunks_right and changed_right and cores_right and slow_right
    figures = {f.name: [f.seconds, f.baseline_seconds, f.ratio] for f in measured}
    print(json.dumps({"first_item_s": first_s, "ratios": figures, "is_right": is_right}))
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
