"""Refreshes on a Ray with logical GPUs: the same rows, by workers that have what they ask for."""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from cluster.settings import Settings
from tests.contract.ray_cluster import own_ray
from tests.processes import command_line
from tests.unit.refresh_lab import Lab
from udtf.refresh import RefreshFailed
from udtf.refresh_model import ItemState, Runner
from udtf.resources import ImpossibleResources

pytestmark = [pytest.mark.cluster, pytest.mark.own_process, pytest.mark.timeout(240)]

CPUS, GPUS = 2, 2
MEMORY = 100 << 20
SEEN = pa.schema([("id", pa.int64()), ("gpus", pa.string()), ("pid", pa.int64())])
# Slow enough for both workers to get some.
LOOK = """
import os, time
import pyarrow as pa

def expand(source):
    time.sleep(0.5)
    rows = source.to_arrow()["id"].to_pylist()
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "none")
    yield pa.RecordBatch.from_pydict({
        "id": rows, "gpus": [gpus] * len(rows), "pid": [os.getpid()] * len(rows)
    })
"""
# Computes until as many processes as there are workers do so.
MEET = """
import os, pathlib, time
import pyarrow as pa

def expand(source):
    pathlib.Path({folder!r}, str(os.getpid())).touch()
    ends = time.monotonic() + 60
    while len(os.listdir({folder!r})) < {workers}:
        if time.monotonic() > ends:
            raise RuntimeError(f"alone with {{os.listdir({folder!r})}}")
    rows = source.to_arrow()["id"].to_pylist()
    yield pa.RecordBatch.from_pydict({{"id": rows, "gpus": [""], "pid": [os.getpid()]}})
"""


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A Ray that believes in two GPUs."""
    variable = "RAY_OVERRIDE_RESOURCES"
    os.environ[variable] = f'{{"CPU": {CPUS}, "GPU": {GPUS}}}'
    try:
        with own_ray():
            import ray

            yield ray
    finally:
        del os.environ[variable]


@pytest.fixture
def lab(ray: Any, tmp_path: Path) -> Lab:
    """Its refreshes are Ray's tasks, but for those that ask for GPUs."""
    # Workers of the test before would have a refresh begin with fewer.
    deadline = time.monotonic() + 30
    while ray.available_resources().get("CPU") != CPUS:
        assert time.monotonic() < deadline, ray.available_resources()
        time.sleep(0.05)
    return Lab(tmp_path, runner=Runner.RAY)


@pytest.fixture
def daft_lab(lab: Lab) -> Lab:
    """Its refreshes are Daft's, but for those whose workers ask for a part of a CPU."""
    lab.settings = Settings.model_validate({"views": {"daft_items_min": 1, "concurrency": 1}})
    return lab


class Holder:
    """Has a GPU for as long as it lives."""

    def ping(self) -> None:
        """Answer."""


class Usage:
    """The most that was in use at a time, by names of resources, while the block ran."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.most: dict[str, float] = {}

    def __enter__(self) -> "Usage":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        total = self._ray.cluster_resources()
        while not self._ended.wait(0.1):
            free = self._ray.available_resources()
            for name in ("CPU", "GPU", "memory"):
                used = total[name] - free.get(name, 0.0)
                self.most[name] = max(self.most.get(name, 0.0), used)


def write_rows(lab: Lab, rows: int = 6) -> None:
    lab.write_source(pa.table({"id": range(rows), "text": [f"a{n} b{n}" for n in range(rows)]}), 4)


def test_workers_have_the_gpus_the_cpus_and_the_memory_that_they_ask_for(
    ray: Any, lab: Lab
) -> None:
    write_rows(lab)
    lab.code("udtf", LOOK, SEEN, partition_by="id", num_cpus=0.5, num_gpus=1, memory=MEMORY)
    with Usage(ray) as usage:
        rows = lab.refresh(concurrency=4)
    assert sorted(rows.column("id").to_pylist()) == list(range(6))
    # Four were wanted; the GPUs are enough for two, each of which sees its own.
    assert set(rows.column("gpus").to_pylist()) == {"0", "1"}
    assert len(set(rows.column("pid").to_pylist())) == 2
    assert usage.most == pytest.approx({"CPU": 1.0, "GPU": 2.0, "memory": 2.0 * MEMORY}, rel=0.01)


@pytest.mark.parametrize("kind", ["lab", "daft_lab"])
def test_a_chunker_view_and_its_increments_are_the_same_on_ray(
    kind: str, request: pytest.FixtureRequest
) -> None:
    lab: Lab = request.getfixturevalue(kind)
    code = "def expand(text):\n    for word in text.split():\n        yield {'word': word}\n"
    write_rows(lab, 20)
    lab.code(
        "chunker",
        code,
        pa.schema([("id", pa.int64()), ("word", pa.string())]),
        input_columns=["text"],
        num_cpus=1,
    )
    expected = {(n, f"{letter}{n}", index) for n in range(20) for index, letter in enumerate("ab")}
    assert set(lab.sorted_rows(source_task_size=3)) == expected
    lab.source.update({"text": "'new'"}, where="id = 3")
    assert set(lab.sorted_rows()) == {row for row in expected if row[0] != 3} | {(3, "new", 0)}
    assert lab.notes.mode == "incremental"


def test_tasks_have_the_cpus_and_the_memory_that_they_ask_for(ray: Any, lab: Lab) -> None:
    write_rows(lab)
    lab.code("udtf", LOOK, SEEN, partition_by="id", num_cpus=1, memory=10 * MEMORY)
    with Usage(ray) as usage:
        rows = lab.refresh(concurrency=4)
    assert sorted(rows.column("id").to_pylist()) == list(range(6))
    assert set(rows.column("gpus").to_pylist()) <= {"", "none"}
    # Four were wanted; the CPUs are enough for two, each of which builds its code once.
    assert len(set(rows.column("pid").to_pylist())) == 2
    assert usage.most == pytest.approx({"CPU": 2.0, "GPU": 0.0, "memory": 20.0 * MEMORY}, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "workers"),
    [("lab", CPUS), ("daft_lab", CPUS), ("lab", 2 * CPUS), ("daft_lab", 2 * CPUS)],
)
def test_computing_code_has_a_process_for_each_worker_all_at_once(
    kind: str, workers: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    lab: Lab = request.getfixturevalue(kind)
    folder = tmp_path / "at work"
    folder.mkdir()
    write_rows(lab, workers)
    code = MEET.format(folder=str(folder), workers=workers)
    lab.code("udtf", code, SEEN, partition_by="id", num_cpus=CPUS / workers)
    rows = lab.refresh(concurrency=workers)
    assert sorted(rows.column("id").to_pylist()) == list(range(workers))
    assert len(set(rows.column("pid").to_pylist())) == workers


def test_a_task_whose_worker_dies_ends_with_an_error(ray: Any, lab: Lab) -> None:
    write_rows(lab)
    code = LOOK.replace("time.sleep(0.5)", "time.sleep(60)")
    lab.code("udtf", code, SEEN, partition_by="id", num_cpus=0.5)
    killed = threading.Thread(target=kill_workers)
    killed.start()
    with pytest.raises(ray.exceptions.RayError, match="died"):
        lab.compute()
    killed.join()


def test_no_worker_goes_on_after_enough_rows(lab: Lab) -> None:
    """The workers are kept for the next refresh, and nobody deletes what they wrote too late."""
    write_rows(lab, 200)
    code = """
import time

def expand(id):
    time.sleep(0 if id < 3 else 0.4)
    yield {"word": str(id)}
"""
    lab.code(
        "chunker",
        code,
        pa.schema([("word", pa.string())]),
        input_columns=["id"],
        num_cpus=1,
    )
    request = lab.compute(source_task_size=1, output_limit=3, concurrency=2)
    assert request is not None and request.rows_written == 3
    view = lab.folder / "view.lance"
    # As the owner of the view does once it has committed; what tells workers to stop goes too.
    shutil.rmtree(view / "_refresh")
    files = sorted((view / "data").iterdir())
    # An item takes less than half of this.
    time.sleep(1)
    assert sorted((view / "data").iterdir()) == files
    assert not (view / "_refresh").exists()


def kill_workers() -> None:
    """Kill the workers of tasks below this process, once there are some."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        below = psutil.Process().children(recursive=True)
        workers = [process for process in below if "ray::_do_items" in command_line(process)]
        if workers:
            # The process of the code has begun.
            time.sleep(1)
            for worker in workers:
                worker.kill()
            return
        time.sleep(0.1)


def test_a_query_view_is_the_same_on_ray(lab: Lab) -> None:
    write_rows(lab, 10)
    lab.query("SELECT id FROM source WHERE id >= 5", pa.schema([("id", pa.int64())]))
    assert [row[0] for row in lab.sorted_rows()] == [5, 6, 7, 8, 9]


def test_a_partition_whose_process_dies_fails_and_holds_nothing_up(ray: Any, lab: Lab) -> None:
    write_rows(lab)
    code = LOOK.replace("time.sleep(0.5)", "os._exit(3)")
    lab.code("udtf", code, SEEN, partition_by="id", num_cpus=0.5)
    with pytest.raises(RefreshFailed, match="id = "):
        lab.compute()
    error = next(s.error for s in lab.notes.items if s.state is ItemState.FAILED)
    assert error is not None
    assert error.kind == "crash"


def test_a_refresh_waits_for_what_others_use_and_says_so(ray: Any, lab: Lab) -> None:
    write_rows(lab)
    lab.code("udtf", LOOK, SEEN, num_cpus=0.5, num_gpus=GPUS)
    holder = ray.remote(num_cpus=0, num_gpus=1)(Holder).remote()
    ray.get(holder.ping.remote())
    timer = threading.Timer(2.5, ray.kill, [holder])
    timer.start()
    assert lab.refresh().num_rows == 6
    timer.join()
    assert "2 GPUs, which other work uses" in str(lab.notes.waits[0])


def test_what_no_machine_has_is_refused_at_once(lab: Lab) -> None:
    write_rows(lab)
    lab.code("udtf", LOOK, SEEN, num_gpus=GPUS + 1)
    with pytest.raises(ImpossibleResources, match="3 GPUs"):
        lab.compute()
