"""Tables with blobs: Lance puts large ones in files beside the data file of their rows."""

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from actors.model import Assignment, CreateMode, InsertMode, NewTable, Pin
from actors.server import Server
from cluster import disk
from cluster.errors import InvalidInput, ServiceUnavailable
from tests.contract.domain import DATABASE, ipc, make_settings, make_table, new_key, ref
from tests.contract.test_streamed_inserts import Body

pytestmark = pytest.mark.anyio

T = ref("t")
SCHEMA = pa.schema([pa.field("id", pa.int64()), lance.blob_field("blob")])
# In the data file, in one file with others, in a file of its own.
BLOBS = [b"small", b"m" * 200_000, b"l" * 5_000_000]
ROWS = pa.table({"id": [1, 2, 3], "blob": lance.blob_array(BLOBS)}, schema=SCHEMA)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server.local(make_settings(tmp_path / "root"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "root" / DATABASE / "t.lance"


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What was flushed to the disk."""
    paths: set[str] = set()
    sync = disk.sync

    def note(wanted: Any) -> None:
        wanted = [str(path) for path in wanted]
        sync(wanted)
        paths.update(wanted)

    monkeypatch.setattr(disk, "sync", note)
    return paths


def data(folder: Path) -> set[str]:
    """Everything in the data folder of a table or branch."""
    return {str(path) for path in (folder / "data").rglob("*")}


def blobs(dataset: Any) -> dict[int, bytes]:
    ids = dataset.to_table(columns=["id"]).column("id").to_pylist()
    found = dataset.take_blobs("blob", indices=list(range(len(ids))))
    return {row: blob.read() for row, blob in zip(ids, found, strict=True)}


@pytest.mark.parametrize("streamed", [False, True])
async def test_large_blobs_are_flushed_before_the_answer(
    server: Server, folder: Path, flushed: set[str], streamed: bool
) -> None:
    await make_table(server, T, ROWS)
    assert data(folder) <= flushed
    assert len([path for path in flushed if path.endswith(".blob")]) == 2
    if streamed:
        await server.insert_stream(T, None, InsertMode.APPEND, new_key().id, Body(ipc(ROWS)))
    else:
        await server.insert_rows(T, None, InsertMode.APPEND, new_key(), ipc(ROWS))
    assert data(folder) <= flushed
    assert len([path for path in flushed if path.endswith(".blob")]) == 4


async def test_a_repeated_upload_leaves_no_blobs(server: Server, folder: Path) -> None:
    await make_table(server, T, ROWS)
    request_id = new_key().id
    await server.insert_stream(T, None, InsertMode.APPEND, request_id, Body(ipc(ROWS)))
    before = data(folder)
    await server.insert_stream(T, None, InsertMode.APPEND, request_id, Body(ipc(ROWS)))
    assert data(folder) == before


async def test_a_refused_create_leaves_no_blobs(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.creation.missing_files", lambda *_: ["a file"])
    with pytest.raises(ServiceUnavailable):
        await make_table(server, T, ROWS)
    assert not folder.exists()


async def test_a_create_that_ends_early_leaves_no_empty_folder(
    server: Server, folder: Path
) -> None:
    first = ROWS.slice(0, 2)
    body = ipc(pa.concat_tables([first, first]))[: len(ipc(first)) + 1_000]
    with pytest.raises(InvalidInput):
        await server.create_table(
            DATABASE, NewTable(T.id), CreateMode.CREATE, new_key(), Body(body)
        )
    assert not folder.exists()


async def test_a_branch_takes_every_change_beside_blobs(server: Server, folder: Path) -> None:
    await make_table(server, T, ROWS)
    lance.dataset(folder).create_branch("b")
    for amount in (10, 100):
        # The second time the first one's files are the branch's own.
        plus = [Assignment(("id",), f"id + {amount}")]
        changed, _ = await server.update_rows(T, "b", new_key(), plus, "id > 1", None, None)
        assert changed.rows == 2
    await server.insert_rows(T, "b", InsertMode.APPEND, new_key(), ipc(ROWS.slice(0, 1)))
    await server.delete_rows(T, "b", new_key(), "id = 112", None)
    branch = lance.dataset(folder).checkout_version(("b", None))
    assert blobs(branch.checkout_version(("b", 3))) == {1: BLOBS[0], 112: BLOBS[1], 113: BLOBS[2]}
    assert blobs(lance.dataset(folder)) == dict(zip((1, 2, 3), BLOBS, strict=True))
    assert (await server.count_rows(T, Pin(branch="b"), None, None)).count == 3


async def test_values_that_a_branch_updates_beside_blobs_are_flushed(
    server: Server, folder: Path, flushed: set[str]
) -> None:
    await make_table(server, T, ROWS)
    lance.dataset(folder).create_branch("b")
    plus_one = [Assignment(("id",), "id + 1")]
    await server.update_rows(T, "b", new_key(), plus_one, None, None, None)
    assert data(folder / "tree" / "b")
    assert data(folder / "tree" / "b") <= flushed
