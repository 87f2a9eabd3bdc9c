"""One folder, served by Destrier and by Lance's own DirectoryNamespace in turns."""

import lance
import pyarrow as pa
import pytest
from lance.namespace import DirectoryNamespace
from lance_namespace_urllib3_client import models

from tests.clients import airports
from tests.clients.plain_http import Database, refusal, right, stream
from tests.clients.running_server import direct_only

pytestmark = [
    pytest.mark.cluster,
    direct_only,
]


@pytest.fixture
def directory(fresh_database: Database) -> DirectoryNamespace:
    """Lance's own catalog over the database's folder."""
    root = fresh_database.server.root / fresh_database.name
    return DirectoryNamespace(root=str(root))


def listed(directory: DirectoryNamespace, *namespace: str) -> list[str]:
    """Names of the tables of a namespace."""
    return sorted(directory.list_tables(models.ListTablesRequest(id=list(namespace))).tables)


def read(directory: DirectoryNamespace, *table: str) -> pa.Table:
    """The rows at the place where the catalog says that the table is."""
    request = models.DescribeTableRequest(id=list(table))
    return lance.dataset(directory.describe_table(request).location).to_table()


def test_what_destrier_makes_is_read_by_lance(
    fresh_database: Database, directory: DirectoryNamespace
) -> None:
    first, rest = airports.first_and_rest()
    right(fresh_database.post("namespace/faa/create", {"properties": {"country": "US"}}))
    for table in ("airports", "faa$airports"):
        fresh_database.create(table, first)
        fresh_database.insert(table, rest)
        fresh_database.ask(table, "update", predicate=airports.IN_HONOLULU, updates=airports.RAISED)
        fresh_database.ask(table, "delete", predicate=airports.UNKNOWN_DST)
    right(fresh_database.post("table/faa$declared/declare", {}))

    assert listed(directory) == ["airports"]
    assert listed(directory, "faa") == ["airports", "declared"]
    described = directory.describe_namespace(models.DescribeNamespaceRequest(id=["faa"]))
    assert described.properties == {"country": "US"}
    for id in (["airports"], ["faa", "airports"]):
        assert airports.same_rows(read(directory, *id), airports.changed())
        counted = directory.count_table_rows(models.CountTableRowsRequest(id=id))
        assert counted.count == len(airports.changed())

    fresh_database.ask("faa$airports", "drop")
    assert listed(directory, "faa") == ["declared"]


def test_what_lance_makes_is_served_by_destrier(
    fresh_database: Database, directory: DirectoryNamespace
) -> None:
    first, rest = airports.first_and_rest()
    directory.create_namespace(
        models.CreateNamespaceRequest(id=["faa"], properties={"country": "US"})
    )
    for id in (["airports"], ["faa", "airports"]):
        directory.create_table(models.CreateTableRequest(id=id), stream(first))
    folder = fresh_database.server.root / fresh_database.name / "plain.lance"
    lance.write_dataset(first, folder)

    assert fresh_database.http.get("/v1/table").json() == {
        "tables": ["airports", "faa$airports", "plain"]
    }
    described = fresh_database.post("namespace/faa/describe", {}).json()
    assert described["properties"] == {"country": "US"}
    for table in ("airports", "faa$airports", "plain"):
        assert fresh_database.count(table) == first.num_rows
        fresh_database.insert(table, rest)
        fresh_database.ask(table, "update", predicate=airports.IN_HONOLULU, updates=airports.RAISED)
        fresh_database.ask(table, "delete", predicate=airports.UNKNOWN_DST)
        assert airports.same_rows(fresh_database.rows(table), airports.changed())

    directory.drop_table(models.DropTableRequest(id=["faa", "airports"]))
    assert refusal(fresh_database.post("table/faa$airports/count_rows", {})) == (404, 4)


def test_rows_that_lance_writes_meanwhile_are_seen(
    fresh_database: Database, directory: DirectoryNamespace
) -> None:
    first, rest = airports.first_and_rest()
    fresh_database.create("airports", first)
    assert fresh_database.count("airports") == first.num_rows
    request = models.InsertIntoTableRequest(id=["airports"])
    directory.insert_into_table(request, stream(rest))
    assert fresh_database.count("airports") == airports.ROWS
    # Both write in turns; neither loses what the other wrote.
    fresh_database.insert("airports", rest)
    directory.insert_into_table(request, stream(rest))
    fresh_database.insert("airports", rest)
    assert fresh_database.count("airports") == airports.ROWS + 3 * rest.num_rows
    assert fresh_database.version("airports") == 5
