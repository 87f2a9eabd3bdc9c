"""Faults that users of other systems of views and UDTFs reported, on refreshes in this process.

Those of what a view shows are in tests/property/test_view_faults.py, those that take a cluster in
tests/cluster and tests/fault.
"""

import base64
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import lance
import psutil
import pyarrow as pa
import pytest
from ray import cloudpickle

from cluster.settings import Settings
from tests.unit.refresh_lab import Lab, Notes, publish, settle
from tests.unit.view_requests import check, encoded, envelope, spec
from udtf.refresh import RefreshCancelled, run_refresh

# Daft's runner leaves the pipes of its workers to the garbage collector.
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

IDS = pa.schema([("id", pa.int64())])
MIB = 1 << 20
# Processes of code.
TWO = {"intra_applier_concurrency": 2}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    yield Lab(tmp_path)
    settle()


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Bytes that this process and those it started have had at most, beyond those at first."""
    mine, done, peak = psutil.Process(), threading.Event(), [0]

    def used() -> int:
        total = 0
        for process in [mine, *mine.children(recursive=True)]:
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return total

    before = used()

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], used() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def test_one_fragment_that_expands_a_hundredfold_is_written_as_several(lab: Lab) -> None:
    """A source of one fragment had one writer, which seemed to hang over 500 GB."""
    output = pa.schema([("id", pa.int64()), ("text", pa.string())])
    code = """
def expand(id):
    for n in range(100):
        yield {"text": f"{id}.{n}." + "x" * 1_000}
"""
    peaks = []
    for rows in (300, 2_700):
        lab.write_source(pa.table({"id": range(rows)}))
        if rows == 300:
            lab.code("chunker", code, output)
        else:
            lab.source.optimize.compact_files()
        with peak_memory() as peak:
            request = lab.compute(source_task_size=1_000, max_rows_per_fragment=40_000)
        peaks.append(peak[0])
    assert len(lab.source.get_fragments()) == 1
    assert request is not None
    assert request.rows_written == 300_000
    # Progress is seen before all is done: the items end one by one.
    assert [status.rows_in for status in lab.notes.items] == [1_000, 1_000, 1_000]
    assert len(request.fragments) == 9
    # The second refresh wrote 270 MB more than the first.
    assert peaks[1] - peaks[0] < 120 * MIB


def test_a_class_is_built_once_in_each_process(lab: Lab, tmp_path: Path) -> None:
    """A model was loaded anew for every partition."""
    lab.write_source(pa.table({"id": range(12)}))
    built = tmp_path / "built"
    built.mkdir()
    code = f"""
import uuid
class Model:
    def __init__(self):
        open({str(built)!r} + "/" + uuid.uuid4().hex, "w").close()
    def __call__(self, source):
        yield source.to_arrow()
"""
    lab.code("udtf", code, IDS, partition_by="id", entrypoint="Model")
    assert set(lab.sorted_rows(**TWO)) == {(number,) for number in range(12)}
    assert len(lab.notes.items) == 12
    assert 1 <= len(list(built.iterdir())) <= 2


def test_processes_of_code_work_at_the_same_time(lab: Lab, tmp_path: Path) -> None:
    """Workers of one machine shared one core."""
    lab.write_source(pa.table({"id": range(2)}))
    code = f"""
import os, time
def expand(source):
    table = source.to_arrow()
    mine = table["id"][0].as_py()
    open({str(tmp_path)!r} + f"/at-work-{{mine}}", "w").close()
    deadline = time.monotonic() + 30
    while not os.path.exists({str(tmp_path)!r} + f"/at-work-{{1 - mine}}"):
        if time.monotonic() > deadline:
            raise TimeoutError("the other process waits for this one")
        time.sleep(0.01)
    yield table
"""
    lab.code("udtf", code, IDS, partition_by="id")
    assert lab.sorted_rows(**TWO) == [(0,), (1,)]


def test_a_refresh_goes_on_at_once_when_its_job_is_resumed(lab: Lab) -> None:
    """The first driver after a pause found the mark that had stopped the one before."""
    lab.write_source(pa.table({"id": range(8)}))
    code = "def expand(source):\n    yield source.to_arrow()\n"
    lab.code("udtf", code, IDS, partition_by="id")
    task, paused, resumed = lab.task(), Notes(cancel_after=2), Notes()
    with pytest.raises(RefreshCancelled):
        run_refresh(task, paused)
    # What was done is left out: all is to be done again.
    request = run_refresh(replace(task, checkpoint_key=paused.checkpoint_key), resumed)
    assert request is not None
    assert len(resumed.items) == 8
    publish(lab.view_uri, request)
    assert sorted(lab.rows().column("id").to_pylist()) == list(range(8))


def test_code_sees_its_source_as_a_data_frame(lab: Lab) -> None:
    pytest.importorskip("pandas")
    lab.write_source(pa.table({"id": [1, 2, 3, 4], "kind": ["a", "b", "a", "b"]}))
    code = """
import pyarrow as pa
def expand(source):
    frame = source.to_pandas()
    assert type(frame).__name__ == "DataFrame", type(frame)
    sums = frame.groupby("kind", as_index=False)["id"].sum()
    yield pa.Table.from_pandas(sums, preserve_index=False)
"""
    output = pa.schema([("kind", pa.string()), ("id", pa.int64())])
    lab.code("udtf", code, output)
    assert lab.sorted_rows() == [("a", 4), ("b", 6)]
    assert lance.dataset(lab.view_uri).count_rows() == 2


def test_pickled_code_runs_where_pickles_are_accepted(tmp_path: Path) -> None:
    """The pickler that Ray brings makes what LanceDB's client sends."""
    unit = 3

    def expand(id: int) -> Iterator[dict[str, int]]:
        yield {"tripled": unit * id}

    # By value, as code of a program's main module is: this module is not where workers are.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        data = base64.b64encode(cloudpickle.dumps(expand)).decode()
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    views = {"views": {"concurrency": 1, "cloudpickle": True}}
    lab = Lab(tmp_path, Settings.model_validate(views))
    lab.write_source(pa.table({"id": range(3)}))
    artifact = {"encoding": "cloudpickle", "data": data}
    record = spec("chunker", envelope("chunker", artifact=artifact))
    output = encoded(pa.schema([("id", pa.int64()), ("tripled", pa.int64())]))
    query = "SELECT * FROM source"
    lab.create_view(check("chunker", query, output, record, views=lab.settings.views))
    shown = [(row["id"], row["tripled"]) for row in lab.refresh().to_pylist()]
    assert sorted(shown) == [(0, 0), (1, 3), (2, 6)]
    settle()
