"""Creations that end halfway: what was made stays, and the same request sent again completes it."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from actors import catalog as catalog_module
from actors import creation
from actors.catalog import Catalog
from actors.catalog_view import CatalogView
from actors.freshness import find_manifest
from actors.model import (
    LATEST,
    Assignment,
    CreatedTable,
    CreateMode,
    InsertMode,
    NewTable,
    Pin,
    RequestKey,
    ScanRequest,
)
from actors.server import Server
from actors.storage import Storage
from cluster.clock import SystemClock
from cluster.errors import (
    InvalidInput,
    OutcomeUnknown,
    ServiceUnavailable,
    TableAlreadyExists,
)
from cluster.identifiers import ObjectId, TableRef
from cluster.settings import LimitSettings, Settings, ViewSettings
from tests.contract.domain import DATABASE, ipc, make_settings, make_table, new_key, ref
from tests.contract.uploading import Body, MeetingOwners
from udtf.spec import check_view_definition

pytestmark = pytest.mark.anyio

ROWS = pa.table({"a": [1, 2]})
OTHER_ROWS = pa.table({"other": ["x"] * 5})
PROPERTIES = {"owner": "me"}
ROOT_TABLE, NESTED_TABLE = ref("t"), ref("ns", "t")
OTHER_BODY = "another request body"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path / "root")


def fail(*_: Any, **__: Any) -> None:
    raise OSError("no space left on device")


def break_step(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Have one step of a creation fail, once the table has its rows."""
    if step == "register":
        change = Catalog._change

        def refuse(self: Catalog, operation: str, request: Any) -> None:
            if operation == "register_table":
                fail()
            change(self, operation, request)

        monkeypatch.setattr(Catalog, "_change", refuse)
    elif step == "identity":
        monkeypatch.setattr(catalog_module, "ensure_incarnation", fail)
    else:
        monkeypatch.setattr(CatalogView, step, fail)


async def server_of(settings: Settings) -> Server:
    """A server whose database has a namespace."""
    server = Server.local(settings)
    await server.catalog(DATABASE).create_namespace(ObjectId.of(["ns"]), CreateMode.EXIST_OK, {})
    return server


async def create(
    server: Server,
    table: TableRef,
    key: RequestKey,
    body: bytes | Body | None = None,
    mode: CreateMode = CreateMode.CREATE,
) -> CreatedTable:
    new = NewTable(table.id, properties=PROPERTIES)
    return await server.create_table(DATABASE, new, mode, key, body or ipc(ROWS))


async def rows(server: Server, table: TableRef) -> list[dict[str, Any]]:
    """The rows as they are read, which takes the files."""
    stream = await server.scan(table, LATEST, ScanRequest(), None)
    return pa.Table.from_batches(stream.batches(), stream.schema).to_pylist()


async def properties(server: Server, table: TableRef) -> dict[str, str]:
    return dict((await server.catalog(DATABASE).find_table(table.id)).properties)


def data_files(settings: Settings) -> int:
    found = Path(settings.storage.root, DATABASE).glob("*/data/*")
    return sum("__manifest" not in file.parts for file in found)


@pytest.mark.parametrize("is_streamed", [False, True], ids=["small", "streamed"])
@pytest.mark.parametrize("step", ["register", "set_properties", "sync", "identity"])
@pytest.mark.parametrize("table", [ROOT_TABLE, NESTED_TABLE], ids=["root", "nested"])
async def test_a_creation_that_fails_after_its_rows_is_completed_by_the_same_request(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    table: TableRef,
    step: str,
    is_streamed: bool,
) -> None:
    key = new_key()

    def body() -> bytes | Body:
        return Body(ipc(ROWS)) if is_streamed else ipc(ROWS)

    server = await server_of(settings)
    with monkeypatch.context() as broken:
        break_step(broken, step)
        with pytest.raises(OutcomeUnknown):
            await create(server, table, key, body())
    # The catalog's process may have died of it.
    for sent_to in (server, Server.local(settings)):
        assert (await create(sent_to, table, key, body())).version == 1
        assert await rows(sent_to, table) == ROWS.to_pylist()
        assert await properties(sent_to, table) == PROPERTIES
    assert data_files(settings) == 1
    snapshot = await server._reads.catalog(DATABASE)
    assert table.id in snapshot.registered
    await server.insert_rows(table, None, InsertMode.APPEND, new_key(), ipc(ROWS))
    assert len(await rows(server, table)) == 4


async def test_a_creation_of_a_view_that_fails_after_its_table_is_completed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await server_of(settings)
    await make_table(server, ref("source"), ROWS)
    schema = base64.b64encode(ROWS.schema.serialize()).decode()
    definition = check_view_definition(
        "query", "SELECT a FROM source", schema, None, None, LimitSettings(), ViewSettings()
    )
    for view in (ref("v"), ref("ns", "v")):
        key = new_key()
        with monkeypatch.context() as broken:
            break_step(broken, "register")
            with pytest.raises(OutcomeUnknown):
                await server.create_view(view, definition, key)
        assert (await server.create_view(view, definition, key)).commit.version == 1
        assert view.id in (await server._reads.catalog(DATABASE)).registered
        with pytest.raises(InvalidInput, match=OTHER_BODY):
            await server.create_view(view, definition, RequestKey(key.id, "f" * 32))


@pytest.mark.parametrize("mode", list(CreateMode))
@pytest.mark.parametrize("table", [ROOT_TABLE, NESTED_TABLE], ids=["root", "nested"])
async def test_a_creation_with_the_id_of_another_one_is_refused(
    settings: Settings, table: TableRef, mode: CreateMode
) -> None:
    server = await server_of(settings)
    key = new_key()
    await create(server, table, key, mode=mode)
    with pytest.raises(InvalidInput, match=OTHER_BODY):
        await create(server, table, RequestKey(key.id, "f" * 32), ipc(OTHER_ROWS), mode)
    with pytest.raises(InvalidInput, match=OTHER_BODY):
        await create(server, table, RequestKey(key.id, ""), Body(ipc(OTHER_ROWS)), mode)
    assert await rows(server, table) == ROWS.to_pylist()


async def test_a_streamed_creation_that_is_sent_again_is_answered_by_its_body(
    settings: Settings,
) -> None:
    server = await server_of(settings)
    key = RequestKey(new_key().id, "")
    first = await create(server, ROOT_TABLE, key, Body(ipc(ROWS)))
    again = await create(server, ROOT_TABLE, key, Body(ipc(ROWS)))
    assert again.transaction_id == first.transaction_id
    assert data_files(settings) == 1


async def test_a_nameless_table_of_another_body_is_not_taken(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await server_of(settings)
    key = new_key()
    with monkeypatch.context() as broken:
        break_step(broken, "register")
        with pytest.raises(OutcomeUnknown):
            await create(server, NESTED_TABLE, key)
    with pytest.raises(InvalidInput, match=OTHER_BODY):
        await create(server, NESTED_TABLE, RequestKey(key.id, "f" * 32), ipc(OTHER_ROWS))
    assert data_files(settings) == 1
    # Another request gets the name, with its own rows.
    await create(server, NESTED_TABLE, new_key(), ipc(OTHER_ROWS))
    assert await rows(server, NESTED_TABLE) == OTHER_ROWS.to_pylist()
    with pytest.raises(TableAlreadyExists):
        await create(server, NESTED_TABLE, key)
    assert await rows(server, NESTED_TABLE) == OTHER_ROWS.to_pylist()


async def test_a_creation_that_is_sent_again_after_its_table_was_deregistered_is_a_new_one(
    settings: Settings,
) -> None:
    server = await server_of(settings)
    key = new_key()
    await create(server, NESTED_TABLE, key)
    await server.insert_rows(NESTED_TABLE, None, InsertMode.APPEND, new_key(), ipc(ROWS))
    await server.catalog(DATABASE).deregister_table(NESTED_TABLE.id)
    await create(server, NESTED_TABLE, key)
    assert await rows(server, NESTED_TABLE) == ROWS.to_pylist()
    await server.catalog(DATABASE).drop_table(NESTED_TABLE.id)
    await create(server, NESTED_TABLE, key)
    assert await rows(server, NESTED_TABLE) == ROWS.to_pylist()


async def test_a_creation_that_is_sent_again_keeps_properties_that_were_changed_since(
    settings: Settings,
) -> None:
    server = await server_of(settings)
    key = new_key()
    await create(server, ROOT_TABLE, key)
    changed = {"owner": "you", "more": "1"}
    await server.update_rows(ROOT_TABLE, None, new_key(), A_PLUS_ONE, None, changed, None)
    await create(server, ROOT_TABLE, key)
    assert await properties(server, ROOT_TABLE) == changed


@pytest.mark.parametrize("table", [ROOT_TABLE, NESTED_TABLE], ids=["root", "nested"])
async def test_a_creation_that_is_sent_twice_at_once_is_done_once_and_answered_twice(
    settings: Settings, table: TableRef
) -> None:
    await server_of(settings)
    server = Server(settings, MeetingOwners(settings, "create_table"), SystemClock())
    key = new_key()
    one, other = await asyncio.gather(*(create(server, table, key) for _ in range(2)))
    assert one.transaction_id == other.transaction_id is not None
    assert (one.created, other.created) == (True, True)
    assert await rows(server, table) == ROWS.to_pylist()
    assert data_files(settings) == 1


def damage(settings: Settings, location: str, version: int) -> None:
    """Cut a manifest short."""
    folder = Path(settings.storage.root, DATABASE, location)
    storage = Storage.of(settings.storage)
    manifest = find_manifest(str(folder), None, version, storage)
    assert manifest is not None
    Path(manifest).write_bytes(b"")


async def test_a_table_whose_first_version_is_damaged_is_there_for_every_creation(
    settings: Settings,
) -> None:
    server = await server_of(settings)
    for table in (ROOT_TABLE, NESTED_TABLE):
        record = (await create(server, table, new_key())).record
        await server.insert_rows(table, None, InsertMode.APPEND, new_key(), ipc(ROWS))
        damage(settings, Path(record.location.uri).name, 1)
        with pytest.raises(TableAlreadyExists):
            await create(server, table, new_key())
        existing = await create(server, table, new_key(), mode=CreateMode.EXIST_OK)
        assert (existing.created, existing.version) == (False, 2)


@pytest.mark.parametrize("failures", [1, 2], ids=["once", "for a while"])
async def test_a_creation_is_unknown_when_the_first_version_cannot_be_read_for_a_moment(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    server = await server_of(settings)
    key = new_key()
    first = await create(server, ROOT_TABLE, key)
    await server.insert_rows(ROOT_TABLE, None, InsertMode.APPEND, new_key(), ipc(ROWS))
    open_dataset = creation.lance.dataset
    left = [None] * failures

    def fail_at_first(*arguments: Any, **keywords: Any) -> Any:
        if left:
            left.pop()
            fail()
        return open_dataset(*arguments, **keywords)

    with monkeypatch.context() as broken:
        broken.setattr(creation.lance, "dataset", fail_at_first)
        with pytest.raises(OutcomeUnknown):
            await create(server, ROOT_TABLE, key)
    assert (await create(server, ROOT_TABLE, key)).transaction_id == first.transaction_id


async def test_a_folder_without_a_name_that_cannot_be_read_keeps_the_name_from_nobody(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = await server_of(settings)
    key = new_key()
    with monkeypatch.context() as broken:
        break_step(broken, "register")
        with pytest.raises(OutcomeUnknown):
            await create(server, NESTED_TABLE, key)
    (nameless,) = Path(settings.storage.root, DATABASE).glob(f"*_{NESTED_TABLE.id.stored}")
    damage(settings, nameless.name, 1)
    with caplog.at_level("WARNING", logger="actors.creation"):
        await create(server, NESTED_TABLE, new_key(), ipc(OTHER_ROWS))
    assert nameless.name in caplog.text
    assert await rows(server, NESTED_TABLE) == OTHER_ROWS.to_pylist()
    await server.catalog(DATABASE).drop_table(NESTED_TABLE.id)
    await create(server, NESTED_TABLE, key)
    assert await rows(server, NESTED_TABLE) == ROWS.to_pylist()


async def test_a_creation_looks_for_folders_without_a_name_in_the_snapshot_that_there_is(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await server_of(settings)
    key = new_key()
    with monkeypatch.context() as broken:
        break_step(broken, "register")
        with pytest.raises(OutcomeUnknown):
            await create(server, NESTED_TABLE, key)
    storage = Storage.of(settings.storage)
    snapshot = await server._reads.catalog(DATABASE)
    monkeypatch.setattr(Storage, "folders", fail)
    uri = storage.database_uri(DATABASE)
    found = creation.find_nameless(uri, NESTED_TABLE.id, key, snapshot, storage)
    assert found is not None
    assert found[0] in snapshot.folders


A_PLUS_ONE = [Assignment(("a",), "a + 1")]


async def test_properties_that_fail_after_the_rows_are_an_unknown_outcome(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await server_of(settings)
    await create(server, ROOT_TABLE, new_key())
    update, overwrite = new_key(), new_key()
    new = NewTable(ROOT_TABLE.id, properties={"version": "2"})

    async def send(key: RequestKey) -> None:
        if key is update:
            more = {"updated": "yes"}
            await server.update_rows(ROOT_TABLE, None, key, A_PLUS_ONE, None, more, None)
        else:
            mode = CreateMode.OVERWRITE
            await server.create_table(DATABASE, new, mode, key, ipc(OTHER_ROWS))

    for key in (update, overwrite):
        with monkeypatch.context() as broken:
            break_step(broken, "set_properties")
            with pytest.raises(OutcomeUnknown):
                await send(key)
        await send(key)
    assert await properties(server, ROOT_TABLE) == PROPERTIES | {"updated": "yes", "version": "2"}
    counted = await server.count_rows(ROOT_TABLE, Pin(version=2), "a > 1", None)
    assert (counted.count, await rows(server, ROOT_TABLE)) == (2, OTHER_ROWS.to_pylist())


async def test_a_creation_that_is_refused_before_its_rows_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await server_of(settings)
    with monkeypatch.context() as broken:
        broken.setattr(creation, "missing_files", lambda *_: ["gone"])
        for table in (ROOT_TABLE, NESTED_TABLE):
            with pytest.raises(ServiceUnavailable) as refused:
                await create(server, table, new_key())
            assert not isinstance(refused.value, OutcomeUnknown)
    assert data_files(settings) == 0


@pytest.mark.parametrize("by_default", [True, False])
@pytest.mark.parametrize("asked", [None, "true", "false"])
@pytest.mark.parametrize("table", [ROOT_TABLE, NESTED_TABLE])
async def test_row_ids_are_stable_as_asked_or_as_set(
    tmp_path: Path, table: TableRef, asked: str | None, by_default: bool
) -> None:
    storage = {"root": str(tmp_path / "root"), "stable_row_ids": by_default}
    server = Server.local(make_settings(tmp_path, storage=storage))
    if table is NESTED_TABLE:
        await server.catalog(DATABASE).create_namespace(ObjectId(("ns",)), CreateMode.CREATE, {})
    properties = {} if asked is None else {"lance.stable_row_ids": asked}
    await make_table(server, table, ROWS, properties=properties)
    other = TableRef(DATABASE, ObjectId((*table.id.parts[:-1], "declared")))
    await server.catalog(DATABASE).declare_table(other.id, None, properties)
    await server.insert_rows(other, None, InsertMode.APPEND, new_key(), ipc(ROWS))
    for made in (table, other):
        record = await server.catalog(DATABASE).find_table(made.id)
        wanted = by_default if asked is None else asked == "true"
        assert lance.dataset(record.location.uri).has_stable_row_ids == wanted
    await server.close()
