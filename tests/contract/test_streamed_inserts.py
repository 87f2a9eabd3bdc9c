"""Inserts that are streamed into fragments by whoever received them and committed by the owner."""

import hashlib
import io
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from actors.model import InsertMode, Pin, TableRecord
from actors.owners import LocalOwners, Owner
from actors.server import Server
from cluster.clock import SystemClock
from cluster.errors import DestrierError, TableNotFound
from cluster.identifiers import TableRef
from tests.contract.domain import ipc, make_settings, make_table, new_key, ref

TABLE = ref("t")
ROWS = pa.table({"a": [2, 3]})

pytestmark = pytest.mark.anyio


class Body(io.BytesIO):
    """A whole body as a reader (ports.ArrowReader)."""

    def digest(self) -> str:
        return hashlib.sha256(self.getvalue()).hexdigest()[:32]


class WaitingBody(Body):
    """A body whose bytes come when `ready` is set."""

    def __init__(self, data: bytes, ready: threading.Event) -> None:
        super().__init__(data)
        self._ready = ready

    def read(self, size: int | None = -1, /) -> bytes:
        assert self._ready.wait(30)
        return super().read(size)


class NotingOwners(LocalOwners):
    """Owners that say when a table's is asked for."""

    opened = threading.Event()

    async def open_table(self, table: TableRef) -> tuple[TableRecord, Owner]:
        self.opened.set()
        return await super().open_table(table)


async def insert(server: Server, body: Body, request_id: str) -> int:
    commit = await server.insert_stream(TABLE, None, InsertMode.APPEND, request_id, body)
    return commit.version


async def count(server: Server) -> int:
    return (await server.count_rows(TABLE, Pin(), None, None)).count


async def test_a_streamed_insert_is_carried_out_once(server: Server) -> None:
    await make_table(server, TABLE, pa.table({"a": [1]}))
    request_id = new_key().id
    first = await insert(server, Body(ipc(ROWS)), request_id)
    assert await insert(server, Body(ipc(ROWS)), request_id) == first
    assert await count(server) == 3


async def test_a_streamed_insert_that_ends_early_changes_nothing(server: Server) -> None:
    await make_table(server, TABLE, pa.table({"a": [1]}))
    with pytest.raises(DestrierError):
        await insert(server, Body(ipc(ROWS)[:-24]), new_key().id)
    assert await count(server) == 1


async def test_a_streamed_insert_into_no_table_is_refused(server: Server) -> None:
    with pytest.raises(TableNotFound):
        await insert(server, Body(ipc(ROWS)), new_key().id)


async def test_the_owner_starts_while_rows_are_still_arriving(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    clock = SystemClock()
    await make_table(Server.local(settings), TABLE, pa.table({"a": [1]}))
    owners = NotingOwners(settings, clock)
    server = Server(settings, owners, clock)
    await insert(server, WaitingBody(ipc(ROWS), owners.opened), new_key().id)
    assert await count(server) == 3
