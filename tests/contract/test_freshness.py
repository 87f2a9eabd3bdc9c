"""The proof that an open table is the latest, against writers in other processes.

The rule: a read that starts after a write was acknowledged sees it. A writer process acknowledges
by raising a shared number after each commit; readers take that number first, then ask for the
latest state, and compare.
"""

import multiprocessing
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from actors.freshness import TableHandle, manifest_version
from actors.storage import Storage
from cluster.clock import SystemClock
from cluster.errors import DestrierError, TableBranchNotFound, TableNotFound
from cluster.settings import StorageSettings
from tests.clients.manual_clock import ManualClock

SECONDS = 4.0
READERS = 2


def handle_of(path: Path, branch: str | None = None) -> TableHandle:
    storage = Storage.of(StorageSettings(root=str(path.parent)))
    return TableHandle(str(path), branch, storage, SystemClock(), 60)


def append_and_clean(path: str, acknowledged: Any, stop: Any) -> None:
    """Append rows and clean old versions up, acknowledging each version."""
    dataset = lance.dataset(path)
    count = 0
    while not stop.value:
        dataset = lance.write_dataset(pa.table({"a": [1]}), dataset, mode="append")
        acknowledged.value = dataset.version
        count += 1
        if count % 20 == 0:
            dataset.cleanup_old_versions(retain_versions=1)


def drop_and_make_anew(path: str, acknowledged: Any, stop: Any) -> None:
    """Make the table with n rows in the same number of versions, again and again; acknowledge n."""
    life = 0
    while not stop.value:
        life += 1
        acknowledged.value = -1
        shutil.rmtree(path, ignore_errors=True)
        lance.write_dataset(pa.table({"a": [1] * life}), path)
        acknowledged.value = life
        time.sleep(0.004)


def run_readers(check: Callable[[], None]) -> list[Exception]:
    """Run `check` in threads until the time is over; the failures."""
    failures: list[Exception] = []
    end = time.monotonic() + SECONDS

    def read() -> None:
        while time.monotonic() < end and not failures:
            try:
                check()
            except Exception as error:  # noqa: BLE001 - reported by the test
                failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


@pytest.fixture
def writer() -> Any:
    """Start a writer process over two shared numbers; it is stopped and joined at the end."""
    context = multiprocessing.get_context("spawn")
    acknowledged, stop = context.Value("q", 0), context.Value("q", 0)
    started: list[Any] = []

    def start(work: Callable[..., None], path: Path) -> Any:
        process = context.Process(target=work, args=(str(path), acknowledged, stop))
        process.start()
        started.append(process)
        deadline = time.monotonic() + 60
        while acknowledged.value <= 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert acknowledged.value > 0
        return acknowledged

    yield start
    stop.value = 1
    for process in started:
        process.join(60)
        assert process.exitcode == 0


def test_a_read_sees_every_acknowledged_version(tmp_path: Path, writer: Any) -> None:
    path = tmp_path / "t.lance"
    lance.write_dataset(pa.table({"a": [1]}), path)
    acknowledged = writer(append_and_clean, path)
    handle = handle_of(path)
    reads = {"cached": 0, "all": 0}

    def check() -> None:
        expected = acknowledged.value
        cached = handle.cached()
        state = cached or handle.latest()
        reads["all"] += 1
        reads["cached"] += cached is not None
        assert state.version >= expected
        assert state.dataset.count_rows() >= expected

    assert run_readers(check) == []
    assert reads["cached"] > 0, "the cheap proof was never used, so nothing was tested"


def test_a_read_never_sees_a_dropped_table(tmp_path: Path, writer: Any) -> None:
    path = tmp_path / "t.lance"
    acknowledged = writer(drop_and_make_anew, path)
    handle = handle_of(path)
    seen: set[int] = set()

    def check() -> None:
        expected = acknowledged.value
        try:
            rows = handle.latest().dataset.count_rows()
        except DestrierError:
            # Only while the writer was making the table anew.
            assert acknowledged.value != expected or expected == -1
            return
        if expected != -1:
            assert rows >= expected
            seen.add(rows)

    assert run_readers(check) == []
    assert len(seen) > 5


def test_a_full_look_is_taken_after_the_interval(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lance.write_dataset(pa.table({"a": [1]}), path)
    clock = ManualClock()
    storage = Storage.of(StorageSettings(root=str(tmp_path)))
    handle = TableHandle(str(path), None, storage, clock, 60)
    first = handle.latest()
    assert handle.cached() is first
    clock.advance(61)
    assert handle.cached() is None
    assert handle.latest().version == 1
    assert handle.cached() is not None


def test_missing_tables_and_branches_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    with pytest.raises(TableNotFound):
        handle_of(path).latest()
    lance.write_dataset(pa.table({"a": [1]}), path).create_branch("dev")
    assert handle_of(path, "dev").latest().version == 1
    with pytest.raises(TableBranchNotFound):
        handle_of(path, "nope").latest()


def test_both_manifest_namings_are_read() -> None:
    assert manifest_version("18446744073709551613.manifest") == 2
    assert manifest_version("7.manifest") == 7
    assert manifest_version("latest_version_hint.json") is None
