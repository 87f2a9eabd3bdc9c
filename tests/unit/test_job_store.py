"""The system tables of jobs: what is written is there, whenever the process is killed."""

import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import lance
import pytest

from actors.job_store import Batch, JobStore, StoredItem
from actors.jobs_model import (
    Job,
    JobEvent,
    JobFailure,
    JobMetric,
    JobPhase,
    JobState,
    StoredJob,
    Submission,
    Trigger,
    WatchedView,
)
from actors.model import TableLocation
from actors.storage import Storage
from udtf.refresh_model import (
    ItemError,
    ItemState,
    ItemStatus,
    PublishRequest,
    RefreshMode,
    RefreshOptions,
    RefreshResult,
    RefreshSummary,
    Watermark,
)
from udtf.resources import WorkerResources

SUBMISSION = Submission(
    "db",
    ("n", "v"),
    TableLocation("/t", "life"),
    RefreshOptions(source_version=3, manifest="{}"),
    WorkerResources(0.5, 1, 1 << 30),
    "embed",
    after=("a", "b"),
    trigger=Trigger.CASCADE,
    requested_by="ann",
    idempotency_key="k",
)
FULL = Job(
    "j1",
    SUBMISSION,
    JobState.FAILED,
    JobPhase.COMPUTE,
    1,
    2,
    attempt=2,
    started_ms=3,
    ended_ms=4,
    heartbeat_ms=5,
    waiting_for="it's a 'quoted' thing",
    resolved=RefreshSummary(RefreshMode.INCREMENTAL, "why", 3, 4, None, "key"),
    metrics=(JobMetric("items", 1, 4), JobMetric("retries", 0)),
    result=RefreshResult(RefreshMode.NO_OP, 0, 3, 9, details={"a": [1]}),
    failure=JobFailure(JobPhase.PLAN, "no", True, "ValueError", "i1"),
)
PUBLISH = PublishRequest(
    "j1",
    1,
    RefreshMode.REBUILD,
    True,
    "/evict",
    ("{}",),
    5,
    Watermark(("s",), "/s", None, 3, 4, "d", "u", "m", 10, "j1", 6),
)


def at(root: Path) -> JobStore:
    return JobStore(Storage(str(root), (), fsync=True, is_local=True))


def job(number: int, **changes: object) -> StoredJob:
    return StoredJob(replace(FULL, job_id=f"j{number}", **changes))  # type: ignore[arg-type]


def event(number: int, job_id: str = "j1") -> JobEvent:
    return JobEvent(
        job_id, number, 10 * number, "state", JobState.RUNNING, JobPhase.PLAN, 1, f"m{number}"
    )


def status(number: int, state: ItemState = ItemState.DONE) -> ItemStatus:
    error = None if state is ItemState.DONE else ItemError("user", "ValueError", "it's", "tb")
    return ItemStatus(f"i{number}", state, 2, 3, 4, ("f",), error, "label", 7)


def test_everything_of_a_job_comes_back(tmp_path: Path) -> None:
    stored = StoredJob(FULL, PUBLISH, forgotten=True)
    at(tmp_path).write(Batch(jobs=[stored]))
    assert at(tmp_path).load() == [stored]


def test_there_is_nothing_before_the_first_write(tmp_path: Path) -> None:
    store = at(tmp_path)
    assert store.load() == [] and store.load_watched() == []
    assert store.items("j1") == [] and store.events("j1", 10) == []
    store.forget(["j1"])
    store.forget_done_items(["j1"])
    store.compact()
    store.write(Batch())
    assert not any(tmp_path.iterdir())


def test_the_newest_record_of_a_job_counts(tmp_path: Path) -> None:
    store = at(tmp_path)
    for attempt in range(5):
        store.write(Batch(jobs=[job(1, attempt=attempt), job(2, attempt=10 * attempt)]))
    assert [s.job.attempt for s in at(tmp_path).load()] == [4, 40]
    # A successor goes on counting where its predecessor was.
    successor = at(tmp_path)
    successor.load()
    successor.write(Batch(jobs=[job(1, attempt=99)]))
    assert [s.job.attempt for s in at(tmp_path).load()] == [99, 40]


def test_events_are_the_newest_in_order(tmp_path: Path) -> None:
    store = at(tmp_path)
    store.write(Batch(events=[event(2), event(1), event(1, "j2")]))
    store.write(Batch(events=[event(3)]))
    # A batch whose first writing was in doubt is written again.
    store.write(Batch(events=[event(3)]))
    assert store.events("j1", 10) == [event(1), event(2), event(3)]
    assert store.events("j1", 2) == [event(2), event(3)]


def test_items_are_those_of_the_plan_and_the_newest_of_each(tmp_path: Path) -> None:
    store = at(tmp_path)
    store.write(Batch(items=[StoredItem("j1", "old", status(1)), StoredItem("j2", "k", status(9))]))
    store.write(Batch(items=[StoredItem("j1", "it's", status(2, ItemState.FAILED))]))
    store.write(
        Batch(items=[StoredItem("j1", "it's", status(3)), StoredItem("j1", "it's", status(2))])
    )
    assert store.items("j1", "it's") == [status(3), status(2)]
    assert store.items("j1", "old") == [status(1)]
    assert store.items("j1") == [status(1), status(3), status(2)]


def test_finished_items_are_dropped_and_failed_ones_stay(tmp_path: Path) -> None:
    store = at(tmp_path)
    failed = status(2, ItemState.SKIPPED)
    store.write(Batch(items=[StoredItem("j1", "k", status(1)), StoredItem("j1", "k", failed)]))
    store.write(Batch(items=[StoredItem("j2", "k", status(1))]))
    store.forget_done_items(["j1"])
    assert store.items("j1") == [failed] and store.items("j2") == [status(1)]


def test_forgotten_jobs_leave_nothing(tmp_path: Path) -> None:
    store = at(tmp_path)
    for number in (1, 2):
        name = f"j{number}"
        store.write(Batch([job(number)], [event(1, name)], [StoredItem(name, "k", status(1))]))
    store.forget(["j1"])
    assert [s.job.job_id for s in at(tmp_path).load()] == ["j2"]
    assert store.items("j1") == [] and store.events("j1", 9) == []
    assert store.items("j2") and store.events("j2", 9)


def test_watched_views_are_the_newest_word(tmp_path: Path) -> None:
    store = at(tmp_path)
    one, two = WatchedView("db", ("a",)), WatchedView("db", ("n", "b"))
    store.write(Batch(watched={one: True, two: True}))
    store.write(Batch(watched={one: False}))
    assert at(tmp_path).load_watched() == [two]
    store.compact()
    assert at(tmp_path).load_watched() == [two]


def test_compaction_keeps_what_counts_and_little_else(tmp_path: Path) -> None:
    store = at(tmp_path)
    for number in range(20):
        store.write(
            Batch(
                [job(1, attempt=number)], [event(number)], [StoredItem("j1", "k", status(number))]
            )
        )
    store.compact()
    folder = tmp_path
    for name in ("jobs", "job_events", "job_items"):
        dataset = lance.dataset(str(folder / f"{name}.lance"))
        assert len(dataset.versions()) == 1 and len(dataset.get_fragments()) == 1
    assert [s.job.attempt for s in at(tmp_path).load()] == [19]
    assert len(store.events("j1", 100)) == len(store.items("j1")) == 20
    store.write(Batch(jobs=[job(1, attempt=50)]))
    assert [s.job.attempt for s in at(tmp_path).load()] == [50]


def test_a_record_of_a_later_version_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    store = at(tmp_path)
    store.write(Batch(jobs=[job(1)]))
    dataset = lance.dataset(str(tmp_path / "jobs.lance"))
    rows = dataset.to_table().to_pylist()
    text = rows[0]["record"].replace('"attempt": 2', '"attempt": 2, "later": {"x": 1}')
    assert text != rows[0]["record"]
    dataset.update({"record": "'" + text.replace("'", "''") + "'"})
    assert at(tmp_path).load() == [job(1)]


@pytest.mark.parametrize("moment_s", [0.02, 0.11, 0.2])
def test_a_writer_that_is_killed_leaves_whole_records(tmp_path: Path, moment_s: float) -> None:
    program = """
        import sys
        from pathlib import Path
        from tests.unit.test_job_store import Batch, StoredItem, at, event, job, status
        store = at(Path(sys.argv[1]))
        for number in range(1_000_000):
            items = [StoredItem("j1", "k", status(number))]
            store.write(Batch([job(1, attempt=number)], [event(number)], items))
            print(number, flush=True)
            if number % 10 == 9:
                store.compact()
    """
    writer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    said = [writer.stdout.readline()]
    time.sleep(moment_s)
    writer.kill()
    said += writer.stdout.readlines()
    writer.stdout.close()
    writer.wait()
    last = int([line for line in said if line.endswith("\n")][-1])
    successor = at(tmp_path)
    attempt = successor.load()[0].job.attempt
    assert attempt in (last, last + 1)
    # What a job's record tells of was written before it.
    assert {s.id for s in successor.items("j1")} >= {f"i{n}" for n in range(attempt + 1)}
    successor.write(Batch(jobs=[job(1, attempt=-1)]))
    successor.compact()
    assert at(tmp_path).load() == [job(1, attempt=-1)]
