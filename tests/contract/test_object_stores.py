"""What an object store costs: nothing of it is waited for on the event loop."""

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from actors.model import LATEST, CreateMode, InsertMode, ScanRequest
from actors.server import Server
from actors.storage import Storage
from cluster.identifiers import ObjectId
from tests.contract.domain import DATABASE, ipc, make_settings, make_table, new_key, ref
from tests.contract.object_store import use_object_store

T = ref("t")
ROWS = pa.table({"id": [1, 2]})

pytestmark = pytest.mark.anyio


async def test_no_request_waits_for_an_object_store_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_object_store(monkeypatch)
    open_store = Storage._open
    event_loop = threading.get_ident()
    asked = []

    def note(storage: Storage, uri: str) -> tuple[Any, str]:
        asked.append(uri)
        assert threading.get_ident() != event_loop
        return open_store(storage, uri)

    monkeypatch.setattr(Storage, "_open", note)
    server = Server.local(make_settings(tmp_path))
    catalog = server.catalog(DATABASE)
    await make_table(server, T, ROWS)
    asked.clear()
    assert (await server.count_rows(T, LATEST, None, None)).count == 2
    assert asked
    stream = await server.scan(T, LATEST, ScanRequest(), None)
    assert pa.Table.from_batches(stream.batches(), stream.schema) == ROWS
    await server.describe_table(T, LATEST, detailed=True)
    await server.list_versions(T, None, None, None, descending=False)
    await server.insert_rows(T, None, InsertMode.APPEND, new_key(), ipc(ROWS))
    await server.delete_rows(T, None, new_key(), "id = 1", None)
    root = ObjectId(())
    await catalog.create_namespace(ObjectId.of(["ns"]), CreateMode.CREATE, {})
    assert (await catalog.list_tables(root, None, None, include_declared=False)).items == ("t",)
    assert (await server.list_views(DATABASE, root, None, None)).items == ()
    await catalog.drop_table(T.id)
    await make_table(server, T, ROWS)
