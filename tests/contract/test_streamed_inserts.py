"""Inserts that are streamed into fragments by whoever received them and committed by the owner."""

import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from actors.model import InsertMode, Pin, ScanRequest, TableRecord
from actors.owners import LocalOwners, Owner
from actors.server import Server
from cluster.clock import SystemClock
from cluster.errors import (
    DestrierError,
    TableNotFound,
    TableSchemaValidationError,
    Throttling,
)
from cluster.identifiers import TableRef
from tests.contract.domain import DATABASE, ipc, make_settings, make_table, new_key, ref
from tests.contract.uploading import Body

TABLE = ref("t")
ROWS = pa.table({"a": [2, 3]})

pytestmark = pytest.mark.anyio


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


class Interrupted(LocalOwners):
    """Owners of tables to which `meanwhile` happens, once, between an upload and its commit."""

    meanwhile: Callable[[], Awaitable[Any]] | None = None

    async def open_table(self, table: TableRef) -> tuple[TableRecord, Owner]:
        record, owner = await super().open_table(table)
        return record, _Interrupted(self, owner)


class _Interrupted:
    def __init__(self, owners: Interrupted, owner: Owner) -> None:
        self._owners = owners
        self._owner = owner

    async def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        meanwhile = self._owners.meanwhile
        if method == "commit_fragments" and meanwhile is not None:
            self._owners.meanwhile = None
            await meanwhile()
        return await self._owner.call(method, *arguments, **keywords)


@pytest.fixture
def owners(tmp_path: Path) -> Interrupted:
    return Interrupted(make_settings(tmp_path), SystemClock())


@pytest.fixture
def interrupted(owners: Interrupted, tmp_path: Path) -> Server:
    return Server(make_settings(tmp_path), owners, SystemClock())


async def declare(server: Server) -> None:
    await server.catalog(DATABASE).declare_table(TABLE.id, None, {})


async def found(server: Server) -> list[dict[str, Any]]:
    stream = await server.scan(TABLE, Pin(), ScanRequest(), None)
    return pa.Table.from_batches(stream.batches(), stream.schema).to_pylist()


NUMBERS = pa.table({"x": [1, 2], "y": ["p", "q"]})
WORDS = pa.table({"s": ["hello", "world"], "f": [1.5, 2.5]})
PLACES = pa.table({"lat": [1.0, 2.0], "lon": [10.0, 20.0]})
SWAPPED = pa.table({"lon": [30.0, 40.0], "lat": [3.0, 4.0]})
REQUIRED = pa.table(
    {"lat": [5.0], "lon": [50.0]},
    schema=pa.schema([pa.field(name, pa.float64(), nullable=False) for name in ("lat", "lon")]),
)
MARKED = PLACES.cast(
    pa.schema([pa.field("lat", pa.float64(), metadata={"unit": "rad"}), ("lon", pa.float64())])
)


@pytest.mark.parametrize(
    ("upload", "other", "is_overwrite"),
    [
        (WORDS, NUMBERS, False),
        (WORDS, NUMBERS, True),
        (SWAPPED, PLACES, False),
        (SWAPPED, PLACES, True),
        (PLACES, REQUIRED, True),
        (PLACES, MARKED, True),
    ],
)
async def test_an_upload_changes_nothing_when_the_table_got_other_columns_meanwhile(
    interrupted: Server,
    owners: Interrupted,
    upload: pa.Table,
    other: pa.Table,
    is_overwrite: bool,
) -> None:
    """Lance numbers the columns of both from 0."""
    if is_overwrite:
        await make_table(interrupted, TABLE, upload.slice(0, 1))
    else:
        await declare(interrupted)
    mode = InsertMode.OVERWRITE if is_overwrite else InsertMode.APPEND
    owners.meanwhile = lambda: interrupted.insert_rows(TABLE, None, mode, new_key(), ipc(other))
    request_id = new_key().id
    with pytest.raises(Throttling, match="columns changed"):
        await insert(interrupted, Body(ipc(upload)), request_id)
    assert await found(interrupted) == other.to_pylist()
    if set(upload.column_names) != set(other.column_names):
        with pytest.raises(TableSchemaValidationError):
            await insert(interrupted, Body(ipc(upload)), request_id)
        return
    await insert(interrupted, Body(ipc(upload)), request_id)
    assert await found(interrupted) == other.to_pylist() + upload.to_pylist()


NESTED = pa.table({"s": pa.array([{"a": 7, "c": 8}]), "b": [9]})


async def table_with_a_field_added_later(server: Server) -> None:
    await make_table(server, TABLE, pa.table({"s": pa.array([{"a": 1}]), "b": [3]}))
    location = (await server.catalog(DATABASE).find_table(TABLE.id)).location
    added = pa.field("s", pa.struct([("c", pa.int64())]))
    lance.dataset(location.uri).add_columns(added)


async def test_an_upload_fits_columns_whose_numbers_are_out_of_order(server: Server) -> None:
    await table_with_a_field_added_later(server)
    await insert(server, Body(ipc(NESTED)), new_key().id)
    assert await found(server) == [{"s": {"a": 1, "c": None}, "b": 3}, *NESTED.to_pylist()]


async def test_an_upload_changes_nothing_when_equal_columns_were_numbered_anew_meanwhile(
    interrupted: Server, owners: Interrupted
) -> None:
    await table_with_a_field_added_later(interrupted)
    owners.meanwhile = lambda: interrupted.insert_rows(
        TABLE, None, InsertMode.OVERWRITE, new_key(), ipc(NESTED)
    )
    request_id = new_key().id
    with pytest.raises(Throttling, match="columns changed"):
        await insert(interrupted, Body(ipc(NESTED)), request_id)
    assert await found(interrupted) == NESTED.to_pylist()
    await insert(interrupted, Body(ipc(NESTED)), request_id)
    assert await found(interrupted) == NESTED.to_pylist() * 2


OF_ALL_KINDS = pa.table(
    {
        "n": pa.array([1, 2]),
        "word": pa.array(["a", "b"]).dictionary_encode(),
        "json": pa.array(['{"a":1}', None], pa.json_()),
        "uuid": pa.array([b"0123456789abcdef", None], pa.uuid()),
        "items": pa.array([[1], None], pa.list_(pa.field("number", pa.int32()))),
        "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int32())),
        "vector": pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2)),
        "at": pa.array([0, 1], pa.timestamp("us", "Europe/Berlin")),
    }
)


@pytest.mark.parametrize("is_made", [True, False])
async def test_an_upload_fits_when_the_columns_are_the_same_and_other_metadata_changed(
    interrupted: Server, owners: Interrupted, is_made: bool
) -> None:
    marked = OF_ALL_KINDS.schema.set(0, OF_ALL_KINDS.schema.field(0).with_metadata({"unit": "m"}))
    rows = OF_ALL_KINDS.cast(marked.with_metadata({"made": "by hand"}))
    if is_made:
        await make_table(interrupted, TABLE, rows)
    else:
        await declare(interrupted)

    async def meanwhile() -> None:
        if not is_made:
            await interrupted.insert_rows(TABLE, None, InsertMode.APPEND, new_key(), ipc(rows))
        await interrupted.update_schema_metadata(TABLE, None, new_key(), {"more": "of it"})

    owners.meanwhile = meanwhile
    await insert(interrupted, Body(ipc(rows)), new_key().id)
    assert owners.meanwhile is None
    assert await found(interrupted) == rows.to_pylist() * 2
