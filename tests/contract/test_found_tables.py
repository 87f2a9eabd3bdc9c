"""A table that was found is looked for again when its folder shows a change, and only then."""

import time
from pathlib import Path

import pyarrow as pa
import pytest

from actors import catalog_view
from actors.catalog_view import CatalogView
from actors.incarnation import mark_dropped
from actors.model import Assignment, InsertMode, TableRecord
from actors.server import Server
from actors.storage import Storage
from cluster.clock import SystemClock
from cluster.errors import TableNotFound
from cluster.settings import Settings
from tests.contract.domain import DATABASE, ipc, make_settings, make_table, new_key, ref

TABLE = ref("t")
# Longer than folders are taken to be still changing.
SETTLING_S = 0.1

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path)


@pytest.fixture
def server(settings: Settings) -> Server:
    return Server.local(settings)


def view_of(settings: Settings) -> CatalogView:
    storage = Storage.of(settings.storage)
    return CatalogView(storage.database_uri(DATABASE), storage, SystemClock(), 60)


def find(view: CatalogView) -> TableRecord:
    return view.find_table(TABLE.id, view.snapshot())


async def test_an_unchanged_table_is_not_read_again(
    server: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_table(server, TABLE, pa.table({"a": [1]}))
    time.sleep(SETTLING_S)
    view = view_of(settings)
    found = find(view)

    def read_again(*_: object) -> str:
        raise AssertionError("the identity was read again")

    monkeypatch.setattr(catalog_view, "read_incarnation", read_again)
    assert find(view) == found


async def test_a_drop_elsewhere_is_seen_by_the_next_look(
    server: Server, settings: Settings
) -> None:
    await make_table(server, TABLE, pa.table({"a": [1]}))
    time.sleep(SETTLING_S)
    view = view_of(settings)
    uri = find(view).location.uri
    mark_dropped(uri, Storage.of(settings.storage))
    with pytest.raises(TableNotFound):
        find(view)


async def test_the_next_life_of_a_name_is_told_from_the_first(
    server: Server, settings: Settings
) -> None:
    view = view_of(settings)
    seen = set()
    for _ in range(5):
        await make_table(server, TABLE, pa.table({"a": [1]}))
        time.sleep(SETTLING_S)
        seen.add(find(view).location.incarnation)
        await server.catalog(DATABASE).drop_table(TABLE.id)
        with pytest.raises(TableNotFound):
            find(view)
    assert len(seen) == 5


async def test_properties_that_change_elsewhere_are_seen_by_the_next_look(
    server: Server, settings: Settings
) -> None:
    await make_table(server, TABLE, pa.table({"a": [1]}))
    time.sleep(SETTLING_S)
    view = view_of(settings)
    find(view)
    change = (Assignment(("a",), "a + 1"),)
    await server.update_rows(TABLE, None, new_key(), change, None, {"owner": "me"}, None)
    assert find(view).properties["owner"] == "me"


async def test_a_declared_table_is_looked_at_until_it_has_data(
    server: Server, settings: Settings
) -> None:
    await server.catalog(DATABASE).declare_table(TABLE.id, None, {})
    time.sleep(SETTLING_S)
    view = view_of(settings)
    assert find(view).is_only_declared
    await server.insert_rows(TABLE, None, InsertMode.APPEND, new_key(), ipc(pa.table({"a": [1]})))
    assert not find(view).is_only_declared
