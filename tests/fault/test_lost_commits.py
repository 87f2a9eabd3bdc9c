"""Commits whose outcome is lost: storage fails before or after the change, or the owner dies.

Method: the call of Lance that makes a version is replaced by one that fails at a named point. The
right values: what is acknowledged is there once; what is refused is not there; what is unknown is
told by the same request sent again, to this owner or the next.
"""

import asyncio
import errno
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from actors.lance_store import commit
from actors.model import (
    LATEST,
    Assignment,
    Commit,
    CreateMode,
    InsertItem,
    InsertMode,
    NewTable,
    RequestKey,
    ScanRequest,
    StagedFragments,
    TableLocation,
)
from actors.server import Server
from actors.storage import Storage
from actors.table import Table
from cluster import disk
from cluster.errors import (
    DestrierError,
    InvalidInput,
    OutcomeUnknown,
    ServiceUnavailable,
    TableAlreadyExists,
    TableNotFound,
)
from cluster.settings import Settings
from tests.contract.domain import DATABASE, ipc, make_settings, make_table, new_key, ref
from tests.contract.test_streamed_inserts import Body

pytestmark = pytest.mark.anyio

T = ref("t")
ROWS = pa.table({"id": [1, 2], "n": [10, 20]})


class Commits:
    """Stands in for LanceDataset.commit; each entry of `faults` is the fault of one call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.faults: list[str] = []
        self.calls = 0
        self._commit = lance.LanceDataset.commit
        monkeypatch.setattr(lance.LanceDataset, "commit", self)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        self.calls += 1
        fault = self.faults.pop(0) if self.faults else None
        if fault == "before":
            raise OSError("storage failed before the manifest was written")
        committed = self._commit(*arguments, **keywords)
        if fault == "after":
            raise OSError("the reply was lost after the manifest was written")
        return committed


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    return Commits(monkeypatch)


async def insert(server: Server, key: RequestKey | None = None) -> Commit:
    return await server.insert_rows(T, None, InsertMode.APPEND, key or new_key(), ipc(ROWS))


async def insert_stream(server: Server, key: RequestKey | None = None) -> Commit:
    id_ = (key or new_key()).id
    return await server.insert_stream(T, None, InsertMode.APPEND, id_, Body(ipc(ROWS)))


async def scan(server: Server) -> list[dict[str, Any]]:
    stream = await server.scan(T, LATEST, ScanRequest(), None)
    rows: list[dict[str, Any]] = pa.Table.from_batches(stream.batches(), stream.schema).to_pylist()
    return rows


def fail_reading(patch: pytest.MonkeyPatch) -> None:
    """No transaction can be read."""

    def fail(*_: Any) -> None:
        raise OSError("LanceError(IO): Generic S3 error: 503 SlowDown")

    patch.setattr(lance.LanceDataset, "read_transaction", fail)


def fail_flushing_manifests(patch: pytest.MonkeyPatch) -> None:
    """The disk takes everything but manifests."""
    sync = disk.sync

    def fail(paths: Iterable[str]) -> None:
        paths = list(paths)
        if any(str(path).endswith(".manifest") for path in paths):
            raise OSError(errno.EIO, "Input/output error")
        sync(paths)

    patch.setattr(disk, "sync", fail)


async def count(server: Server) -> int:
    return (await server.count_rows(T, LATEST, None, None)).count


async def test_a_commit_that_landed_but_was_reported_failed_is_a_success(
    settings: Settings, commits: Commits
) -> None:
    server = Server.local(settings)
    await make_table(server, T, ROWS)
    commits.faults = ["after"]
    commit = await insert(server)
    assert (commit.version, commit.rows) == (2, 2)
    assert await count(server) == 4


async def test_a_commit_that_did_not_land_changes_nothing_and_can_be_sent_again(
    settings: Settings, commits: Commits
) -> None:
    server = Server.local(settings)
    await make_table(server, T, ROWS)
    commits.faults = ["before"]
    key = new_key()
    with pytest.raises(DestrierError) as refused:
        await insert(server, key)
    assert not isinstance(refused.value, OutcomeUnknown)
    assert await count(server) == 2
    assert (await insert(server, key)).version == 2
    assert await count(server) == 4


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_first_commit_that_landed_but_was_reported_failed_is_a_success(
    settings: Settings, commits: Commits, streamed: bool
) -> None:
    server = Server.local(settings)
    await server.catalog(DATABASE).declare_table(T.id, None, {})
    commits.faults = ["after"]
    key = new_key()
    send = insert_stream if streamed else insert
    commit = await send(server, key)
    assert (commit.version, commit.rows, commit.repeated) == (1, 2, False)
    assert (await send(server, key)).repeated
    assert await scan(server) == ROWS.to_pylist()


async def test_inserts_whose_first_commit_was_reported_failed_are_there_once(
    settings: Settings, commits: Commits
) -> None:
    server = Server.local(settings)
    await server.catalog(DATABASE).declare_table(T.id, None, {})
    location = (await server.catalog(DATABASE).find_table(T.id)).location
    commits.faults = ["after"]
    items = [InsertItem(new_key(), ipc(ROWS)), InsertItem(new_key(), ipc(ROWS))]
    answers = await Table(T, location, settings).append(location, items)
    assert [answer.version for answer in answers if isinstance(answer, Commit)] == [1, 1]
    assert await count(server) == 4


async def test_a_first_commit_that_did_not_land_changes_nothing_and_can_be_sent_again(
    settings: Settings, commits: Commits
) -> None:
    server = Server.local(settings)
    await server.catalog(DATABASE).declare_table(T.id, None, {})
    commits.faults = ["before"]
    key = new_key()
    with pytest.raises(DestrierError) as refused:
        await insert(server, key)
    assert not isinstance(refused.value, OutcomeUnknown)
    assert (await insert(server, key)).version == 1
    assert await count(server) == 2


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_unknown_first_commit_is_told_by_the_same_request(
    settings: Settings, commits: Commits, monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    server = Server.local(settings)
    await server.catalog(DATABASE).declare_table(T.id, None, {})
    key = new_key()
    send = insert_stream if streamed else insert
    commits.faults = ["after"]
    with monkeypatch.context() as blind:
        fail_reading(blind)
        with pytest.raises(OutcomeUnknown):
            await send(server, key)
    assert (await send(server, key)).repeated
    assert await scan(server) == ROWS.to_pylist()


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_commit_that_cannot_be_flushed_is_told_by_the_same_request(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, declared: bool, streamed: bool
) -> None:
    server = Server.local(settings)
    if declared:
        await server.catalog(DATABASE).declare_table(T.id, None, {})
    else:
        await make_table(server, T, ROWS)
        await insert(server)
    key = new_key()
    send = insert_stream if streamed else insert
    with monkeypatch.context() as broken:
        fail_flushing_manifests(broken)
        with pytest.raises(OutcomeUnknown):
            await send(server, key)
        # It is there, but nobody may be told so while it may be lost.
        with pytest.raises(OutcomeUnknown):
            await send(server, key)
    again = await send(server, key)
    assert (again.rows, again.repeated) == (2, True)
    assert await scan(server) == ROWS.to_pylist() * (1 if declared else 3)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_table_with_manifests_of_the_first_naming_takes_every_change(
    settings: Settings, streamed: bool
) -> None:
    uri = f"{settings.storage.root}/{DATABASE}/t.lance"
    lance.write_dataset(ROWS, uri, enable_v2_manifest_paths=False)
    server = Server.local(settings)
    key = new_key()
    send = insert_stream if streamed else insert
    assert [(await send(server, key)).version for _ in range(2)] == [2, 2]
    done = await Server.local(settings).delete_rows(T, None, new_key(), "id = 1", None)
    assert (done.version, done.rows) == (3, 2)
    again = await send(Server.local(settings), key)
    assert (again.version, again.repeated) == (2, True)
    names = {path.name for path in (Path(uri) / "_versions").glob("*.manifest")}
    assert names == {"1.manifest", "2.manifest", "3.manifest"}


async def test_an_unknown_outcome_is_told_by_the_same_request(
    settings: Settings, commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server.local(settings)
    await make_table(server, T, ROWS)
    key = new_key()
    commits.faults = ["after"]
    with monkeypatch.context() as blind:

        def fail(*_: Any) -> None:
            raise OSError("storage does not answer")

        blind.setattr(lance.LanceDataset, "checkout_version", fail)
        with pytest.raises(OutcomeUnknown):
            await insert(server, key)
    again = await insert(server, key)
    assert (again.version, again.rows, again.repeated) == (2, 2, True)
    assert await count(server) == 4


@pytest.mark.parametrize("write", ["insert", "update", "delete", "metadata", "overwrite"])
async def test_the_next_owner_knows_what_the_last_one_did(settings: Settings, write: str) -> None:
    key = new_key()

    async def send(server: Server) -> Any:
        if write == "insert":
            return await insert(server, key)
        if write == "overwrite":
            return await server.insert_rows(T, None, InsertMode.OVERWRITE, key, ipc(ROWS))
        if write == "update":
            plus_one = [Assignment(("n",), "n + 1")]
            return (await server.update_rows(T, None, key, plus_one, None, None, None))[0]
        if write == "delete":
            return await server.delete_rows(T, None, key, "id = 1", None)
        return await server.update_schema_metadata(T, None, key, {"k": "v"})

    first = Server.local(settings)
    await make_table(first, T, ROWS)
    done = await send(first)
    version = (await first.count_rows(T, LATEST, None, None)).version
    second = Server.local(settings)
    await insert(second)
    again = await send(second)
    assert (await second.count_rows(T, LATEST, None, None)).version == version + 1
    if isinstance(done, Commit):
        assert (again.version, again.transaction_id, again.rows) == (
            done.version,
            done.transaction_id,
            done.rows,
        )


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_owner_that_cannot_read_what_is_done_does_nothing_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    first, second = Server.local(settings), Server.local(settings)
    await make_table(first, T, ROWS)
    key = new_key()
    send = insert_stream if streamed else insert
    done = await send(first, key)
    await insert(first)
    with monkeypatch.context() as blind:
        fail_reading(blind)
        with pytest.raises(OutcomeUnknown):
            await send(second, key)
    again = await send(second, key)
    assert (again.version, again.transaction_id, again.repeated) == (2, done.transaction_id, True)
    assert await scan(second) == ROWS.to_pylist() * 3


async def test_an_owner_reads_what_is_done_back_to_versions_that_are_gone(
    settings: Settings,
) -> None:
    first = Server.local(settings)
    await make_table(first, T, ROWS)
    keys = [new_key() for _ in range(4)]
    for key in keys:
        await insert(first, key)
    uri = (await first.catalog(DATABASE).find_table(T.id)).location.uri
    lance.dataset(uri).cleanup_old_versions(versions=[1, 2], delete_unverified=True)
    second = Server.local(settings)
    assert [(await insert(second, key)).repeated for key in keys] == [False, True, True, True]


async def test_what_a_large_commit_did_is_flushed_too(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server.local(settings)
    await make_table(server, T, ROWS)
    uri = (await server.catalog(DATABASE).find_table(T.id)).location.uri
    flushed: list[str] = []
    sync = disk.sync

    def note(paths: Iterable[str]) -> None:
        paths = list(paths)
        sync(paths)
        flushed.extend(paths)

    monkeypatch.setattr(disk, "sync", note)
    append, large = lance.LanceOperation.Append([]), {"k": "v" * (21 << 20)}
    storage = Storage.of(settings.storage)
    _, done = commit(lance.dataset(uri), uri, None, append, large, storage)
    assert f"{uri}/_transactions/1-{done.transaction_id}.txn" in flushed
    flushed.clear()
    await insert(server)
    assert not [path for path in flushed if "_transactions" in path]
    # Lost by whoever copied the table: that version tells nothing, and the others do.
    shutil.rmtree(f"{uri}/_transactions")
    key = new_key()
    second = Server.local(settings)
    assert [(await insert(second, key)).repeated for _ in range(2)] == [False, True]


async def test_two_owners_of_one_table_lose_nothing(settings: Settings) -> None:
    one, other = Server.local(settings), Server.local(settings)
    await make_table(one, T, ROWS)
    answers = await asyncio.gather(
        *(insert(server) for _ in range(20) for server in (one, other)), return_exceptions=True
    )
    done = [answer for answer in answers if isinstance(answer, Commit)]
    assert all(isinstance(a, Commit | ServiceUnavailable | DestrierError) for a in answers)
    assert await count(one) == await count(other) == 2 + 2 * len(done)
    assert len(done) == 40


async def test_a_call_meant_for_an_earlier_life_is_refused(settings: Settings) -> None:
    server = Server.local(settings)
    await make_table(server, T, ROWS)
    record = await server.catalog(DATABASE).find_table(T.id)
    await server.catalog(DATABASE).drop_table(T.id)
    await make_table(server, T, ROWS)
    owner = Table(T, TableLocation(record.location.uri), settings)
    item = InsertItem(new_key(), ipc(ROWS))
    with pytest.raises(TableNotFound):
        await owner.append(record.location, [item])
    assert await count(server) == 2


async def test_fragments_whose_files_are_gone_are_not_committed(
    settings: Settings, tmp_path: Path
) -> None:
    server = Server.local(settings)
    await make_table(server, T, ROWS)
    location = (await server.catalog(DATABASE).find_table(T.id)).location
    dataset = lance.dataset(location.uri)
    fragments = lance.fragment.write_fragments(ROWS, dataset, schema=dataset.schema)
    text = tuple(json.dumps(fragment.to_json()) for fragment in fragments)
    staged = StagedFragments(text, bytes(ROWS.schema.serialize()), 2)
    for item in fragments:
        for file in item.files:
            (Path(location.uri) / "data" / file.path).unlink()
    owner = Table(T, location, settings)
    with pytest.raises(ServiceUnavailable, match="gone"):
        await owner.commit_fragments(location, None, new_key(), staged, overwrite=False)
    assert await count(server) == 2


async def test_too_much_waiting_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    settings = make_settings(tmp_path / "root", actors={"pending_bytes_max": 1_000})
    server = Server.local(settings)
    await make_table(server, T, ROWS)
    answers = await asyncio.gather(*(insert(server) for _ in range(20)), return_exceptions=True)
    done = [answer for answer in answers if isinstance(answer, Commit)]
    refused = [answer for answer in answers if isinstance(answer, DestrierError)]
    assert len(done) + len(refused) == 20
    assert refused and all("slow down" in str(error) for error in refused)
    assert await count(server) == 2 + 2 * len(done)


async def test_another_program_writing_the_folder_is_seen_and_respected(
    settings: Settings,
) -> None:
    server = Server.local(settings)
    await make_table(server, T, ROWS)
    uri = (await server.catalog(DATABASE).find_table(T.id)).location.uri
    await insert(server)
    lance.write_dataset(ROWS, uri, mode="append")
    assert await count(server) == 6
    assert (await insert(server)).version == 4
    lance.dataset(uri).delete("id = 1")
    commit, _ = await server.update_rows(
        T, None, new_key(), [Assignment(("n",), "0")], "id = 2", None, None
    )
    assert commit.rows == 4


async def test_a_create_whose_answer_was_lost_is_answered_again(settings: Settings) -> None:
    server = Server.local(settings)
    key, new = new_key(), NewTable(T.id)
    first = await server.create_table(DATABASE, new, CreateMode.CREATE, key, ipc(ROWS))
    await insert(server)
    again = await server.create_table(DATABASE, new, CreateMode.CREATE, key, ipc(ROWS))
    assert (again.version, again.transaction_id) == (1, first.transaction_id)
    assert await count(server) == 4
    with pytest.raises(TableAlreadyExists):
        await server.create_table(DATABASE, new, CreateMode.CREATE, new_key(), ipc(ROWS))


async def test_a_create_that_is_refused_leaves_nothing_behind(settings: Settings) -> None:
    server = Server.local(settings)
    bad = ipc(ROWS)[:-100]
    with pytest.raises(InvalidInput):
        await server.create_table(DATABASE, NewTable(T.id), CreateMode.CREATE, new_key(), bad)
    folder = Path(settings.storage.root) / DATABASE
    assert list(folder.glob("*.lance")) == []
    answers = await asyncio.gather(
        *(make_table(server, ref("other"), ROWS) for _ in range(4)), return_exceptions=True
    )
    assert sum(answer is None for answer in answers) == 1
    files = list((folder / "other.lance" / "data").iterdir())
    assert len(files) == 1
