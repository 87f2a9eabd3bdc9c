"""Names of namespaces and tables: modes, listings, drops, exchange with Lance's own catalog."""

import json
from pathlib import Path

import lance
import lance_namespace as wire
import pyarrow as pa
import pytest
from lance.namespace import DirectoryNamespace

from actors.incarnation import mark_dropped
from actors.locations import check_location
from actors.model import LATEST, CreateMode, InsertMode
from actors.server import Server
from actors.storage import Storage
from cluster.errors import (
    DestrierError,
    InvalidInput,
    NamespaceAlreadyExists,
    NamespaceNotEmpty,
    NamespaceNotFound,
    TableAlreadyExists,
    TableNotFound,
)
from cluster.identifiers import ObjectId
from cluster.settings import Settings
from tests.contract.domain import DATABASE, ipc, make_settings, make_table, new_key, ref

pytestmark = pytest.mark.anyio

ROOT = ObjectId(())
NS = ObjectId.of(["ns"])
ROWS = pa.table({"id": [1, 2]})


def folder(settings: Settings) -> Path:
    """The folder of the tests' database."""
    return Path(settings.storage.root) / DATABASE


async def make_namespace(server: Server, *parts: str) -> None:
    await server.catalog(DATABASE).create_namespace(ObjectId.of(parts), CreateMode.CREATE, {})


async def test_namespace_modes(server: Server) -> None:
    catalog = server.catalog(DATABASE)
    assert await catalog.create_namespace(NS, CreateMode.CREATE, {"a": "1"}) == {"a": "1"}
    with pytest.raises(NamespaceAlreadyExists):
        await catalog.create_namespace(NS, CreateMode.CREATE, {})
    assert await catalog.create_namespace(NS, CreateMode.EXIST_OK, {"b": "2"}) == {"a": "1"}
    assert await catalog.describe_namespace(NS) == {"a": "1"}
    assert await catalog.create_namespace(NS, CreateMode.OVERWRITE, {"b": "2"}) == {"b": "2"}
    assert await catalog.describe_namespace(NS) == {"b": "2"}
    with pytest.raises(NamespaceNotFound):
        await catalog.create_namespace(ObjectId.of(["no", "ns"]), CreateMode.CREATE, {})


async def test_dropping_namespaces(server: Server) -> None:
    catalog = server.catalog(DATABASE)
    await make_namespace(server, "ns")
    await make_namespace(server, "ns", "deep")
    await make_table(server, ref("ns", "t"), ROWS)
    await make_table(server, ref("ns", "deep", "t"), ROWS)
    with pytest.raises(NamespaceNotEmpty):
        await catalog.drop_namespace(NS, skip_missing=False, cascade=False)
    with pytest.raises(NamespaceNotEmpty):
        await catalog.create_namespace(NS, CreateMode.OVERWRITE, {})
    await catalog.drop_namespace(NS, skip_missing=False, cascade=True)
    assert (await catalog.list_all_tables(None, None, include_declared=True)).items == ()
    with pytest.raises(NamespaceNotFound):
        await catalog.drop_namespace(NS, skip_missing=False, cascade=False)
    assert await catalog.drop_namespace(NS, skip_missing=True, cascade=False) == {}


async def test_tables_and_namespaces_share_names(server: Server) -> None:
    await make_namespace(server, "ns")
    await make_table(server, ref("t"), ROWS)
    with pytest.raises(NamespaceAlreadyExists):
        await make_table(server, ref("ns"), ROWS)
    with pytest.raises(TableAlreadyExists):
        await make_namespace(server, "t")
    with pytest.raises(NamespaceNotFound):
        await make_table(server, ref("no", "t"), ROWS)
    with pytest.raises(InvalidInput):
        await server.count_rows(ref(), LATEST, None, None)


async def test_listings_are_sorted_and_paged(server: Server) -> None:
    catalog = server.catalog(DATABASE)
    for name in ("c", "a", "b"):
        await catalog.declare_table(ObjectId.of([name]), None, {})
    await make_namespace(server, "ns")
    await make_table(server, ref("ns", "t"), ROWS)
    first = await catalog.list_tables(ROOT, None, 2, include_declared=True)
    assert (first.items, first.page_token) == (("a", "b"), "b")
    second = await catalog.list_tables(ROOT, first.page_token, 2, include_declared=True)
    assert (second.items, second.page_token) == (("c",), None)
    assert (await catalog.list_tables(ROOT, None, None, include_declared=False)).items == ()
    everything = await catalog.list_all_tables(None, None, include_declared=True)
    assert everything.items == ("a", "b", "c", "ns$t")
    made = await catalog.list_all_tables(None, None, include_declared=False)
    assert made.items == ("ns$t",)
    assert (await catalog.list_namespaces(ROOT, None, None)).items == ("ns",)
    with pytest.raises(NamespaceNotFound):
        await catalog.list_tables(ObjectId.of(["no"]), None, None, include_declared=True)
    with pytest.raises(InvalidInput):
        await catalog.list_tables(ROOT, None, 0, include_declared=True)


async def test_a_deregistered_table_is_gone_and_its_data_stay(
    server: Server, settings: Settings
) -> None:
    catalog = server.catalog(DATABASE)
    await make_namespace(server, "ns")
    for parts in (("t",), ("ns", "t")):
        table = ref(*parts)
        await make_table(server, table, ROWS)
        location = (await catalog.deregister_table(table.id)).location
        with pytest.raises(TableNotFound):
            await server.count_rows(table, LATEST, None, None)
        with pytest.raises(TableNotFound):
            await server.insert_rows(table, None, InsertMode.APPEND, new_key(), ipc(ROWS))
        assert lance.dataset(location).count_rows() == 2
        relative = str(Path(location).relative_to(folder(settings)))
        await catalog.register_table(table.id, relative, {"p": "1"}, overwrite=False)
        assert (await server.count_rows(table, LATEST, None, None)).count == 2
        assert (await catalog.find_table(table.id)).properties == {"p": "1"}


async def test_dropping_one_of_two_names_keeps_the_data(server: Server, settings: Settings) -> None:
    catalog = server.catalog(DATABASE)
    await make_namespace(server, "ns")
    await make_table(server, ref("t"), ROWS)
    await catalog.register_table(ObjectId.of(["ns", "alias"]), "t.lance", {}, overwrite=False)
    await catalog.drop_table(ObjectId.of(["ns", "alias"]))
    assert (await server.count_rows(ref("t"), LATEST, None, None)).count == 2
    await catalog.drop_table(ObjectId.of(["t"]))
    assert not (folder(settings) / "t.lance").exists()


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("", "names no table"),
        (".", "names no table"),
        ("./t.lance", "names no table"),
        ("__manifest", "names no table"),
        ("../other/t.lance", "Path traversal is not allowed"),
        ("/etc", "Absolute paths are not allowed"),
        ("s3://bucket/t.lance", "Absolute URIs are not allowed"),
    ],
)
def test_a_location_outside_the_database_is_refused(location: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        check_location(location)


async def test_a_location_without_a_table_is_refused(server: Server) -> None:
    with pytest.raises(DestrierError, match="holds no table"):
        await server.catalog(DATABASE).register_table(
            ObjectId.of(["t"]), "nothing.lance", {}, overwrite=False
        )


async def test_a_drop_that_was_cut_short_is_a_drop(server: Server, settings: Settings) -> None:
    await make_table(server, ref("t"), ROWS)
    record = await server.catalog(DATABASE).find_table(ObjectId.of(["t"]))
    mark_dropped(record.location.uri, Storage.of(settings.storage))
    with pytest.raises(TableNotFound):
        await server.count_rows(ref("t"), LATEST, None, None)
    with pytest.raises(TableNotFound):
        await server.insert_rows(ref("t"), None, InsertMode.APPEND, new_key(), ipc(ROWS))
    await make_table(server, ref("t"), pa.table({"other": ["x"]}))
    assert (await server.count_rows(ref("t"), LATEST, None, None)).count == 1
    await server.catalog(DATABASE).drop_table(ObjectId.of(["t"]))
    assert not (folder(settings) / "t.lance").exists()


async def test_databases_do_not_see_each_other(server: Server) -> None:
    await make_table(server, ref("t"), ROWS)
    assert (await server.catalog("other").list_all_tables(None, None, include_declared=True)) == (
        await server.catalog("empty").list_all_tables(None, None, include_declared=True)
    )
    assert (await server.catalog("other").list_namespaces(ROOT, None, None)).items == ()


async def test_lances_own_catalog_serves_what_we_make(server: Server, settings: Settings) -> None:
    await make_namespace(server, "ns")
    await make_table(server, ref("ns", "t 1é"), ROWS, properties={"p": "it's"})
    await make_table(server, ref("r"), ROWS)
    await server.catalog(DATABASE).declare_table(ObjectId.of(["ns", "d"]), None, {})
    theirs = DirectoryNamespace(root=str(folder(settings)))
    assert theirs.list_namespaces(wire.ListNamespacesRequest(id=[])).namespaces == ["ns"]
    assert sorted(theirs.list_tables(wire.ListTablesRequest(id=["ns"])).tables) == ["d", "t 1é"]
    assert theirs.list_tables(wire.ListTablesRequest(id=[])).tables == ["r"]
    described = theirs.describe_table(wire.DescribeTableRequest(id=["ns", "t 1é"]))
    assert described.properties == {"p": "it's"}
    count = theirs.count_table_rows(wire.CountTableRowsRequest(id=["r"]))
    assert int(getattr(count, "count", count)) == 2
    theirs.create_namespace(wire.CreateNamespaceRequest(id=["after"]))
    described = theirs.describe_table(wire.DescribeTableRequest(id=["ns", "t 1é"]))
    assert described.properties == {"p": "it's"}
    theirs.drop_table(wire.DropTableRequest(id=["r"]))
    with pytest.raises(TableNotFound):
        await server.count_rows(ref("r"), LATEST, None, None)


async def test_we_serve_what_lances_own_catalog_makes(server: Server, settings: Settings) -> None:
    theirs = DirectoryNamespace(root=str(folder(settings)))
    theirs.create_namespace(wire.CreateNamespaceRequest(id=["ns"], properties={"k": "v"}))
    theirs.create_table(wire.CreateTableRequest(id=["ns", "c"], properties={"p": "1"}), ipc(ROWS))
    theirs.create_table(wire.CreateTableRequest(id=["r"]), ipc(ROWS))
    theirs.declare_table(wire.DeclareTableRequest(id=["ns", "d"]))
    lance.write_dataset(ROWS, folder(settings) / "plain.lance")
    catalog = server.catalog(DATABASE)
    assert (await catalog.list_all_tables(None, None, include_declared=True)).items == (
        "ns$c",
        "ns$d",
        "plain",
        "r",
    )
    assert await catalog.describe_namespace(NS) == {"k": "v"}
    assert (await catalog.find_table(ObjectId.of(["ns", "c"]))).properties == {"p": "1"}
    for parts in (("ns", "c"), ("r",), ("plain",), ("ns", "d")):
        table = ref(*parts)
        await server.insert_rows(table, None, InsertMode.APPEND, new_key(), ipc(ROWS))
    assert (await server.count_rows(ref("ns", "c"), LATEST, None, None)).count == 4
    assert (await server.count_rows(ref("plain"), LATEST, None, None)).count == 4
    assert (await server.count_rows(ref("ns", "d"), LATEST, None, None)).count == 2
    theirs.drop_table(wire.DropTableRequest(id=["r"]))
    with pytest.raises(TableNotFound):
        await server.count_rows(ref("r"), LATEST, None, None)


async def test_odd_names_keep_their_properties(server: Server) -> None:
    catalog = server.catalog(DATABASE)
    odd = {"quote": "a'b\"c", "json": json.dumps({"x": [1]}), "empty": ""}
    await make_table(server, ref("it's a table"), ROWS, properties=odd)
    assert (await catalog.find_table(ObjectId.of(["it's a table"]))).properties == odd


async def test_a_catalog_with_manifests_of_the_first_naming_is_changed(tmp_path: Path) -> None:
    settings = make_settings(tmp_path / "root")
    await make_namespace(Server.local(settings), "n")
    for path in (folder(settings) / "__manifest" / "_versions").glob("*.manifest"):
        path.rename(path.with_name(f"{2**64 - 1 - int(path.stem)}.manifest"))
    server = Server.local(settings)
    await make_namespace(server, "m")
    await make_table(server, ref("n", "t"), ROWS, properties={"k": "v"})
    catalog = Server.local(settings).catalog(DATABASE)
    assert list((await catalog.list_namespaces(ROOT, None, None)).items) == ["m", "n"]
    assert (await catalog.find_table(ref("n", "t").id)).properties == {"k": "v"}
