"""What a refresh writes into its view's folder."""

import json
from collections.abc import Iterator
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

from udtf.view_files import ViewFolder, data_files, fragment_rows

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.struct([("x", pa.int64())]))])


@pytest.fixture
def folder(tmp_path: Path) -> ViewFolder:
    uri = str(tmp_path / "v.lance")
    lance.write_dataset(SCHEMA.empty_table(), uri, enable_stable_row_ids=True)
    return ViewFolder(uri, "job", "first", (), fsync=True)


def rows(first: int, count: int) -> pa.RecordBatch:
    values = [{"n": n, "s": {"x": n} if n % 2 else None} for n in range(first, first + count)]
    return pa.RecordBatch.from_pylist(values, SCHEMA)


def committed(folder: ViewFolder, fragments: tuple[str, ...]) -> pa.Table:
    new = [lance.FragmentMetadata.from_json(text) for text in fragments]
    operation = lance.LanceOperation.Append(new)
    return lance.LanceDataset.commit(folder.uri, operation, read_version=1).to_table()


def test_rows_become_fragments_of_limited_size_when_written(folder: ViewFolder) -> None:
    batches = iter([rows(0, 0), rows(0, 25), rows(25, 5), rows(30, 0)])
    fragments = folder.write(folder.open(), SCHEMA, batches, 12)
    assert [fragment_rows(fragment) for fragment in fragments] == [12, 12, 6]
    assert not folder.missing(fragments)
    assert folder.open().count_rows() == 0
    assert committed(folder, fragments).to_pylist() == rows(0, 30).to_pylist()


def test_nothing_is_written_without_rows(folder: ViewFolder) -> None:
    assert folder.write(folder.open(), SCHEMA, iter([rows(0, 0)]), 10) == ()
    assert folder.write(folder.open(), SCHEMA, iter([]), 10) == ()
    assert folder.local is not None
    assert not (folder.local / "data").exists()


class Fault(Exception):
    """What user code may raise."""


@pytest.mark.parametrize("after", [0, 3])
def test_an_exception_keeps_its_type_when_rows_end_with_one(folder: ViewFolder, after: int) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(after):
            yield rows(number, 1)
        raise Fault("mine")

    with pytest.raises(Fault, match="mine"):
        folder.write(folder.open(), SCHEMA, batches(), 10)


def test_rows_are_pulled_as_they_are_written(folder: ViewFolder) -> None:
    """Memory does not grow with an item: the first files are there before the last rows are."""
    seen: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(40):
            seen.append(len(list(Path(folder.uri).glob("data/*.lance"))))
            yield rows(number * 1_000, 1_000)

    fragments = folder.write(folder.open(), SCHEMA, batches(), 4_000)
    assert len(fragments) == 10
    assert max(seen) >= 5


def test_a_missing_file_is_noticed(folder: ViewFolder) -> None:
    fragments = folder.write(folder.open(), SCHEMA, iter([rows(0, 9)]), 3)
    assert folder.local is not None
    (folder.local / data_files(fragments)[1]).unlink()
    assert folder.missing(fragments)
    assert not folder.missing(fragments[:1])
    assert not folder.missing(())


def test_the_first_rows_of_a_fragment_are_read(folder: ViewFolder) -> None:
    (fragment,) = folder.write(folder.open(), SCHEMA, iter([rows(0, 9)]), 100)
    found = pa.Table.from_batches(folder.read(fragment, 4, SCHEMA), SCHEMA)
    assert found.to_pylist() == rows(0, 4).to_pylist()


def test_evictions_are_an_arrow_file_of_row_ids(folder: ViewFolder) -> None:
    ids = np.array([5, 1 << 60, 7], np.uint64)
    uri = folder.write_evictions(ids)
    assert uri == f"{folder.uri}/_refresh/job/evict.arrow"
    table = pa.ipc.open_file(uri).read_all()
    assert table.schema == pa.schema([pa.field("row_id", pa.uint64(), nullable=False)])
    assert table.column("row_id").to_pylist() == ids.tolist()
    assert folder.write_evictions(np.empty(0, np.uint64)) is None
    assert folder.open().count_rows() == 0


def test_the_workers_of_one_driver_are_stopped_and_those_of_the_next_are_not(
    folder: ViewFolder,
) -> None:
    following = ViewFolder(folder.uri, folder.job_id, "second", (), fsync=False)
    assert not folder.is_stopped()
    folder.stop()
    assert folder.is_stopped()
    assert not following.is_stopped()
    folder.clear()
    assert not folder.is_stopped()
    assert not (Path(folder.uri) / "_refresh" / "job").exists()


def test_fragments_cross_processes_as_json(folder: ViewFolder) -> None:
    fragments = folder.write(folder.open(), SCHEMA, iter([rows(0, 2)]), 10)
    assert json.loads(fragments[0])["physical_rows"] == 2


@pytest.fixture
def remote(folder: ViewFolder, monkeypatch: pytest.MonkeyPatch) -> ViewFolder:
    """The same folder, reached as an object store is."""
    monkeypatch.setattr(ViewFolder, "local", property(lambda _: None))
    return folder


def test_an_object_store_holds_the_same_files(remote: ViewFolder) -> None:
    fragments = remote.write(remote.open(), SCHEMA, iter([rows(0, 2)]), 10)
    assert not remote.missing(fragments)
    (Path(remote.uri) / data_files(fragments)[0]).unlink()
    assert remote.missing(fragments)
    uri = remote.write_evictions(np.array([3], np.uint64))
    assert uri is not None
    assert pa.ipc.open_file(uri).read_all().column("row_id").to_pylist() == [3]
    assert not remote.is_stopped()
    remote.stop()
    assert remote.is_stopped()
    remote.clear()
    assert not remote.is_stopped()
    assert not Path(uri).exists()
