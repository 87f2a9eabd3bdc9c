"""Streamed inserts whose owner dies, or is asked twice: rows that were committed stay, other files
go.

Method: owners in this process that are told when to lose an answer. The right values are read with
the rows, since a count is in the manifest.
"""

import asyncio
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from actors.freshness import TableHandle
from actors.model import InsertMode, Pin, ScanRequest, TableRecord
from actors.owner_errors import OwnerLost
from actors.owners import LocalOwners, Owner
from actors.server import Server
from actors.storage import Storage
from cluster.clock import SystemClock
from cluster.errors import DestrierError, InternalError, OutcomeUnknown, ServiceUnavailable
from cluster.identifiers import TableRef
from cluster.settings import Settings
from tests.contract.domain import DATABASE, ipc, make_table, new_key, ref
from tests.contract.uploading import Body, MeetingOwners

pytestmark = pytest.mark.anyio

TABLE = ref("t")
ROWS = pa.table({"a": [2, 3]})


async def insert(server: Server, body: Body, request_id: str) -> int:
    commit = await server.insert_stream(TABLE, None, InsertMode.APPEND, request_id, body)
    return commit.version


class LosingOwners(LocalOwners):
    """Owners that die when they have committed, as often as `losses` says; `refusal` is what
    becomes of asking for the next one."""

    losses = 0
    refusal: DestrierError | None = None

    async def open_table(self, table: TableRef) -> tuple[TableRecord, Owner]:
        if self.refusal is not None and self.losses == 0:
            raise self.refusal
        record, owner = await super().open_table(table)
        return record, Losing(owner, self)


class Losing:
    """One of them."""

    def __init__(self, owner: Owner, owners: LosingOwners) -> None:
        self._owner = owner
        self._owners = owners

    async def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        answer = await self._owner.call(method, *arguments, **keywords)
        if method == "commit_fragments" and self._owners.losses:
            self._owners.losses -= 1
            raise OwnerLost("the owner died")
        return answer


async def rows(server: Server) -> list[int]:
    """The rows as they are read, which takes the files."""
    stream = await server.scan(TABLE, Pin(), ScanRequest(), None)
    found = pa.Table.from_batches(stream.batches(), stream.schema)
    return sorted(found.column("a").to_pylist())


def data_files(settings: Settings) -> int:
    return len(list(Path(settings.storage.root).glob(f"{DATABASE}/t.lance/data/*")))


@pytest.mark.parametrize("mode", list(InsertMode))
async def test_rows_stay_when_the_owner_dies_after_the_commit(
    settings: Settings, mode: InsertMode
) -> None:
    clock = SystemClock()
    owners = LosingOwners(settings, clock)
    server = Server(settings, owners, clock)
    await make_table(server, TABLE, pa.table({"a": [1]}))
    owners.losses = 1
    commit = await server.insert_stream(TABLE, None, mode, new_key().id, Body(ipc(ROWS)))
    assert (commit.version, commit.rows) == (2, 2)
    assert await rows(server) == ([1, 2, 3] if mode is InsertMode.APPEND else [2, 3])


@pytest.mark.parametrize(
    "refusal",
    [ServiceUnavailable("too many tables are being written to"), InternalError("catalog")],
)
async def test_rows_stay_when_the_owner_dies_after_the_commit_and_there_is_no_next_one(
    settings: Settings, refusal: DestrierError
) -> None:
    clock = SystemClock()
    owners = LosingOwners(settings, clock)
    server = Server(settings, owners, clock)
    await make_table(server, TABLE, pa.table({"a": [1]}))
    owners.losses, owners.refusal = 1, refusal
    request_id = new_key().id
    with pytest.raises(OutcomeUnknown):
        await insert(server, Body(ipc(ROWS)), request_id)
    assert await rows(server) == [1, 2, 3]
    owners.refusal = None
    assert await insert(server, Body(ipc(ROWS)), request_id) == 2
    assert await rows(server) == [1, 2, 3]


async def test_an_upload_that_is_sent_again_leaves_no_files(settings: Settings) -> None:
    server = Server.local(settings)
    await make_table(server, TABLE, pa.table({"a": [1]}))
    request_id = new_key().id
    for _ in range(2):
        assert await insert(server, Body(ipc(ROWS)), request_id) == 2
    assert data_files(settings) == 2
    assert await rows(server) == [1, 2, 3]


async def test_an_upload_that_is_sent_twice_at_once_leaves_no_files(settings: Settings) -> None:
    server = Server(settings, MeetingOwners(settings, "commit_fragments"), SystemClock())
    await make_table(server, TABLE, pa.table({"a": [1]}))
    request_id = new_key().id
    assert await asyncio.gather(
        *(insert(server, Body(ipc(ROWS)), request_id) for _ in range(2))
    ) == [2, 2]
    assert data_files(settings) == 2
    assert await rows(server) == [1, 2, 3]


@pytest.mark.parametrize("fault", ["read", "delete"])
async def test_an_upload_is_answered_when_its_files_cannot_be_looked_after(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    server = Server.local(settings)
    await make_table(server, TABLE, pa.table({"a": [1]}))
    request_id = new_key().id
    assert await insert(server, Body(ipc(ROWS)), request_id) == 2

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("storage does not answer")

    if fault == "read":
        monkeypatch.setattr(lance.LanceDataset, "get_fragments", fail)
    else:
        monkeypatch.setattr(Storage, "delete_file", fail)
    assert await insert(server, Body(ipc(ROWS)), request_id) == 2
    monkeypatch.undo()
    assert data_files(settings) == 3
    assert await rows(server) == [1, 2, 3]


async def test_rows_stay_when_the_owner_fails_after_the_commit(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours is no refusal: it says nothing of how far the owner came."""
    server = Server.local(settings)
    await make_table(server, TABLE, pa.table({"a": [1]}))

    def fail(*_: Any) -> None:
        raise RuntimeError("a fault")

    with monkeypatch.context() as faulty:
        faulty.setattr(TableHandle, "replace", fail)
        with pytest.raises(DestrierError):
            await insert(server, Body(ipc(ROWS)), new_key().id)
    assert await rows(server) == [1, 2, 3]
