"""Data files are flushed while Lance still writes them, and a failed flush fails the write."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from actors.early_sync import EarlySync
from actors.lance_store import write_first_fragments
from actors.storage import Storage
from cluster.settings import Settings, StorageSettings

SCHEMA = pa.schema({"blob": pa.binary()})
# Lance writes whole pages of 8 MB: more than one of them each time.
ROWS = pa.record_batch([[os.urandom(1 << 20) for _ in range(10)]], SCHEMA)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """A local folder whose writes are durable."""
    return Storage.of(StorageSettings(root=str(tmp_path)))


def slow_stream(enough: threading.Event) -> pa.RecordBatchReader:
    """Rows for as long as nothing of them was flushed."""

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(100):
            yield ROWS
            if enough.wait(0.02):
                return

    return pa.RecordBatchReader.from_batches(SCHEMA, batches())


def test_a_stream_is_flushed_before_it_has_ended(
    tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = threading.Event()
    fdatasync = os.fdatasync
    sizes = []

    def noting(file: int) -> None:
        fdatasync(file)
        if os.fstat(file).st_size > 0:
            sizes.append(os.fstat(file).st_size)
            flushed.set()

    monkeypatch.setattr(os, "fdatasync", noting)
    uri = str(tmp_path / "t.lance")
    fragments = write_first_fragments(slow_stream(flushed), uri, SCHEMA, storage)
    assert flushed.is_set()
    (file,) = (tmp_path / "t.lance" / "data").iterdir()
    assert 0 < sizes[0] <= file.stat().st_size
    assert 0 < sum(fragment.physical_rows for fragment in fragments) < 100 * len(ROWS)
    assert "early-sync" not in {thread.name for thread in threading.enumerate()}


def test_a_failed_flush_fails_the_write(
    tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def failing(file: int) -> None:
        failed.set()
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(OSError, match="Input/output error"):
        write_first_fragments(slow_stream(failed), str(tmp_path / "t.lance"), SCHEMA, storage)


def test_a_file_that_goes_away_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / ".tmp1").write_bytes(b"rows")
    with EarlySync(str(tmp_path)) as progress:
        progress.begin(None)
        (tmp_path / ".tmp1").unlink()
        threading.Event().wait(0.25)
    with EarlySync(str(tmp_path / "nowhere")) as progress:
        progress.begin(None)


def test_storage_that_does_not_flush_is_not_flushed_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes: list[int] = []
    monkeypatch.setattr(os, "fdatasync", flushes.append)
    settings = Settings.model_validate({"storage": {"root": str(tmp_path), "durability": "none"}})
    ended = threading.Event()
    threading.Timer(0.3, ended.set).start()
    storage = Storage.of(settings.storage)
    write_first_fragments(slow_stream(ended), str(tmp_path / "t.lance"), SCHEMA, storage)
    assert flushes == []
