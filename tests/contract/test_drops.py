"""A dropped table is gone from the first moment, and a drop that is cut short is finished later."""

from collections.abc import Callable, Iterator
from pathlib import Path

import lance_namespace as wire
import pyarrow as pa
import pytest
from lance.namespace import DirectoryNamespace

from actors.catalog_view import CatalogView
from actors.incarnation import mark_dropped
from actors.model import LATEST, CreateMode, InsertMode
from actors.server import Server
from actors.storage import Storage
from cluster.clock import SystemClock
from cluster.errors import InternalError, TableNotFound
from cluster.identifiers import ObjectId, TableRef
from cluster.settings import Settings
from tests.contract.domain import DATABASE, ipc, make_settings, make_table, new_key, ref
from tests.contract.object_store import use_object_store

ROOT = ObjectId(())
NS = ObjectId.of(["ns"])
ROWS = pa.table({"id": [1, 2]})
TABLES = pytest.mark.parametrize("table", [ref("t"), ref("ns", "t")], ids=["root", "nested"])
# Manifests, transactions, data and mark are a folder each: a drop is cut short before one of them.
CUTS = pytest.mark.parametrize("cut", range(4))

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path)


@pytest.fixture(params=["folder", "object store"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tables lie in."""
    if request.param == "object store":
        use_object_store(monkeypatch)


@pytest.fixture
async def server(store: None, settings: Settings) -> Server:
    """A server with one namespace."""
    made = Server.local(settings)
    await made.catalog(DATABASE).create_namespace(NS, CreateMode.CREATE, {})
    return made


def folders(settings: Settings) -> list[str]:
    """The folders of tables that are there."""
    found = (Path(settings.storage.root) / DATABASE).iterdir()
    return sorted(path.name for path in found if not path.name.startswith("__"))


class Deletions:
    """Looks on when something is deleted, and may let it fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._delete = Storage.delete_folder
        self._look: Callable[[str], None] = lambda _: None
        monkeypatch.setattr(Storage, "delete_folder", self._watched())

    def _watched(self) -> Callable[[Storage, str], None]:
        def delete_folder(storage: Storage, uri: str) -> None:
            self._look(uri)
            self._delete(storage, uri)

        return delete_folder

    def look(self, look: Callable[[str], None]) -> None:
        """Call this before each deletion of a folder."""
        self._look = look

    def fail_from(self, cut: int) -> None:
        """Delete as many folders, and none after."""
        left: Iterator[int] = iter(range(cut))

        def count(uri: str) -> None:
            if next(left, None) is None:
                raise OSError(f"{uri} cannot be deleted")

        self.look(count)

    def succeed(self) -> None:
        """Delete from now on."""
        self.look(lambda _: None)


@pytest.fixture
def deletions(monkeypatch: pytest.MonkeyPatch, store: None) -> Deletions:
    return Deletions(monkeypatch)


async def cut_short(server: Server, table: TableRef, deletions: Deletions, cut: int) -> None:
    """Drop a table up to a point."""
    deletions.fail_from(cut)
    with pytest.raises(InternalError):
        await server.catalog(DATABASE).drop_table(table.id)
    deletions.succeed()


async def check_gone(server: Server, table: TableRef) -> None:
    """No operation knows the table."""
    catalog = server.catalog(DATABASE)
    assert (await catalog.list_all_tables(None, None, include_declared=True)).items == ()
    with pytest.raises(TableNotFound):
        await server.count_rows(table, LATEST, None, None)
    with pytest.raises(TableNotFound):
        await server.insert_rows(table, None, InsertMode.APPEND, new_key(), ipc(ROWS))


@TABLES
async def test_a_dropped_table_is_gone_while_its_files_are_deleted(
    server: Server, settings: Settings, deletions: Deletions, table: TableRef
) -> None:
    await make_table(server, table, ROWS)
    database = f"{settings.storage.root}/{DATABASE}"
    seen = []

    def look(uri: str) -> None:
        seen.append(uri.removeprefix(f"{database}/").partition("/")[2])
        view = CatalogView(database, Storage.of(settings.storage), SystemClock(), 60)
        assert not view.snapshot().tables
        theirs = DirectoryNamespace(root=database)
        request = wire.ListTablesRequest(id=list(table.id.parent.parts), include_declared=False)
        assert theirs.list_tables(request).tables == []

    deletions.look(look)
    await server.catalog(DATABASE).drop_table(table.id)
    assert seen[0] == "_versions"
    assert seen[-2:] == ["_destrier", ""]
    assert folders(settings) == []


@TABLES
@CUTS
async def test_a_cut_short_drop_is_finished_when_it_is_repeated(
    server: Server, settings: Settings, deletions: Deletions, table: TableRef, cut: int
) -> None:
    await make_table(server, table, ROWS)
    await cut_short(server, table, deletions, cut)
    # Whoever carries it on knows nothing of what was.
    next_server = Server.local(settings)
    await check_gone(next_server, table)
    location = folders(settings)[0]
    dropped = await next_server.catalog(DATABASE).drop_table(table.id)
    assert dropped.location.endswith(f"/{location}")
    assert folders(settings) == []
    with pytest.raises(TableNotFound):
        await next_server.catalog(DATABASE).drop_table(table.id)


@TABLES
@CUTS
async def test_the_next_table_of_a_name_is_whole_when_the_last_drop_was_cut_short(
    server: Server, settings: Settings, deletions: Deletions, table: TableRef, cut: int
) -> None:
    await make_table(server, table, ROWS)
    await cut_short(server, table, deletions, cut)
    await make_table(server, table, pa.table({"other": ["x"]}))
    assert (await server.count_rows(table, LATEST, None, None)).count == 1
    await server.catalog(DATABASE).drop_table(table.id)
    assert folders(settings) == []


@CUTS
async def test_a_cut_short_drop_of_a_namespace_is_finished_when_it_is_repeated(
    server: Server, settings: Settings, deletions: Deletions, cut: int
) -> None:
    catalog = server.catalog(DATABASE)
    await make_table(server, ref("ns", "a"), ROWS)
    await make_table(server, ref("ns", "b"), ROWS)
    deletions.fail_from(cut)
    with pytest.raises(InternalError):
        await catalog.drop_namespace(NS, skip_missing=False, cascade=True)
    deletions.succeed()
    await catalog.drop_namespace(NS, skip_missing=False, cascade=True)
    assert folders(settings) == []
    assert (await catalog.list_namespaces(ROOT, None, None)).items == ()


async def test_a_drop_goes_on_when_what_another_has_left_cannot_be_deleted(
    server: Server, settings: Settings, deletions: Deletions
) -> None:
    await make_table(server, ref("ns", "left"), ROWS)
    await make_table(server, ref("ns", "t"), ROWS)
    await cut_short(server, ref("ns", "left"), deletions, 1)

    def stays(uri: str) -> None:
        if "_ns$left" in uri:
            raise OSError(f"{uri} cannot be deleted")

    deletions.look(stays)
    await server.catalog(DATABASE).drop_table(ref("ns", "t").id)
    assert [name.partition("_")[2] for name in folders(settings)] == ["ns$left"]
    # Nor is a later life of the name kept by what an earlier one has left.
    (left,) = folders(settings)
    await make_table(server, ref("ns", "left"), ROWS)

    def left_stays(uri: str) -> None:
        if left in uri:
            raise OSError(f"{uri} cannot be deleted")

    deletions.look(left_stays)
    await server.catalog(DATABASE).drop_table(ref("ns", "left").id)
    assert folders(settings) == [left]
    await check_gone(server, ref("ns", "left"))


@TABLES
@pytest.mark.parametrize("location", ["nowhere.lance", "dropped.lance"])
async def test_a_table_keeps_its_name_when_another_cannot_be_registered_for_it(
    server: Server, settings: Settings, table: TableRef, location: str
) -> None:
    await make_table(server, table, ROWS)
    await make_table(server, ref("dropped"), ROWS)
    storage = Storage.of(settings.storage)
    mark_dropped(f"{settings.storage.root}/{DATABASE}/dropped.lance", storage)
    catalog = server.catalog(DATABASE)
    with pytest.raises(TableNotFound, match="holds no table"):
        await catalog.register_table(table.id, location, {}, overwrite=True)
    assert (await server.count_rows(table, LATEST, None, None)).count == 2
    uri = (await catalog.find_table(table.id)).location.uri
    assert not Path(uri, ".lance-deregistered").exists()


@TABLES
async def test_a_location_is_registered_over_a_table_whose_drop_was_cut_short(
    server: Server, settings: Settings, table: TableRef
) -> None:
    catalog = server.catalog(DATABASE)
    await make_table(server, table, ROWS)
    mark_dropped((await catalog.find_table(table.id)).location.uri, Storage.of(settings.storage))
    await make_table(server, ref("other"), pa.table({"id": [1]}))
    await catalog.deregister_table(ref("other").id)
    await catalog.register_table(table.id, "other.lance", {}, overwrite=True)
    assert (await server.count_rows(table, LATEST, None, None)).count == 1
    assert folders(settings) == ["other.lance"]
