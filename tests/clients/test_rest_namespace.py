"""The `lance` library's own client of the specification, written in Rust."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from lance.namespace import RestNamespace
from lance_namespace import errors
from lance_namespace_urllib3_client import models

from tests.clients import airports, lance_folder, view_request
from tests.clients.plain_http import Database, stream
from tests.clients.running_server import DATABASE_HEADER, RunningServer

pytestmark = pytest.mark.cluster

Connect = Callable[..., RestNamespace]
Id = list[str]


@pytest.fixture
def connect(live_server: RunningServer, database: Database) -> Connect:
    """Opens clients: `connect(api_key, delimiter=...)`."""

    def open_client(api_key: str | None, **properties: str) -> RestNamespace:
        headers = {f"header.{DATABASE_HEADER}": database.name}
        if api_key is not None:
            headers["header.x-api-key"] = api_key
        return RestNamespace(uri=live_server.url, **headers, **properties)

    return open_client


@pytest.fixture
def client(connect: Connect, live_server: RunningServer) -> RestNamespace:
    """The administrator's client."""
    return connect(live_server.admin_key)


@pytest.fixture
def id(table: str) -> Id:
    """The identifier of a table that no other test uses."""
    return [table]


def create(client: RestNamespace, id: Id, rows: pa.Table) -> models.CreateTableResponse:
    """Create a table."""
    return client.create_table(models.CreateTableRequest(id=id), stream(rows))


def insert(
    client: RestNamespace, id: Id, rows: pa.Table, branch: str | None = None
) -> models.InsertIntoTableResponse:
    """Insert rows."""
    request = models.InsertIntoTableRequest(id=id, branch=branch)
    return client.insert_into_table(request, stream(rows))


def count(client: RestNamespace, id: Id, **fields: Any) -> int:
    """Count rows."""
    counted: int = client.count_table_rows(models.CountTableRowsRequest(id=id, **fields)).count
    return counted


def location(client: RestNamespace, id: Id) -> str:
    """Where the table is."""
    found = client.describe_table(models.DescribeTableRequest(id=id)).location
    assert found is not None
    return str(found)


def test_rows_are_created_inserted_updated_deleted_and_read_back(
    client: RestNamespace, id: Id
) -> None:
    first, rest = airports.first_and_rest()
    assert create(client, id, first).version == 1
    inserted = insert(client, id, rest)
    assert (inserted.num_inserted_rows, inserted.version) == (rest.num_rows, 2)
    assert inserted.transaction_id
    assert count(client, id) == airports.ROWS
    assert count(client, id, predicate="tzone IS NULL") == 3

    updated = client.update_table(
        models.UpdateTableRequest(id=id, predicate=airports.IN_HONOLULU, updates=airports.RAISED)
    )
    assert (updated.updated_rows, updated.version) == (18, 3)
    deleted = client.delete_from_table(
        models.DeleteFromTableRequest(id=id, predicate=airports.UNKNOWN_DST)
    )
    assert deleted.version == 4

    everything = models.QueryTableRequest(
        id=id, vector=models.QueryTableRequestVector(single_vector=[]), k=10_000
    )
    rows = pa.ipc.open_file(client.query_table(everything).data).read_all()
    assert airports.same_rows(rows, airports.changed())
    assert count(client, id, version=1) == first.num_rows


def test_an_index_is_described_with_its_rows(client: RestNamespace, id: Id) -> None:
    first, rest = (lance_folder.with_places(part) for part in airports.first_and_rest())
    create(client, id, first)
    lance_folder.index_altitudes(location(client, id))
    lance_folder.index_places(location(client, id))
    insert(client, id, rest)

    def stats(name: str) -> models.DescribeTableIndexStatsResponse:
        return client.describe_table_index_stats(
            models.DescribeTableIndexStatsRequest(id=id, index_name=name)
        )

    tree = stats("by_altitude")
    assert (tree.index_type, tree.distance_type, tree.num_indices) == ("BTree", None, 1)
    assert (tree.num_indexed_rows, tree.num_unindexed_rows) == (first.num_rows, rest.num_rows)
    vectors = stats("by_place")
    assert (vectors.index_type, vectors.distance_type) == ("IVF_FLAT", "cosine")
    with pytest.raises(errors.TableIndexNotFoundError):
        stats("no such index")


def test_metadata_are_merged_and_a_dropped_table_is_gone(client: RestNamespace, id: Id) -> None:
    create(client, id, airports.first_and_rest()[0])

    def update(**entries: str) -> dict[str, str] | None:
        request = models.UpdateTableSchemaMetadataRequest(id=id, metadata=entries)
        return client.update_table_schema_metadata(request).metadata

    assert update(source="FAA", year="2013") == {"source": "FAA", "year": "2013"}
    assert update(year="2014") == {"source": "FAA", "year": "2014"}

    was_at = location(client, id)
    dropped = client.drop_table(models.DropTableRequest(id=id))
    assert (dropped.id, dropped.location, dropped.properties) == (id, was_at, {})
    with pytest.raises(errors.TableNotFoundError):
        count(client, id)


def test_deleting_version_records_leaves_the_table(client: RestNamespace, id: Id) -> None:
    first, rest = airports.first_and_rest()
    create(client, id, first)
    insert(client, id, rest)
    everything = {"id": id, "ranges": [{"start_version": 0, "end_version": -1}]}
    assert client.batch_delete_table_versions(everything)["deleted_count"] == 2
    assert client.batch_delete_table_versions(everything)["deleted_count"] == 0
    assert count(client, id) == airports.ROWS
    with pytest.raises(errors.TableVersionNotFoundError):
        count(client, id, version=1)
    assert insert(client, id, rest).version == 3


def test_a_view_is_created_once(client: RestNamespace, id: Id, airports_table: str) -> None:
    request = models.CreateMaterializedViewRequest(
        id=id,
        kind="query",
        source_query=view_request.SOURCE_QUERY,
        output_schema=view_request.OUTPUT_SCHEMA,
    )
    created = client.create_materialized_view(request)
    assert (created.version, created.job_id) == (1, None)
    assert count(client, id) == 0
    with pytest.raises(errors.TableAlreadyExistsError):
        client.create_materialized_view(request)


def test_a_branch_is_changed_alone(client: RestNamespace, id: Id) -> None:
    first, rest = airports.first_and_rest()
    create(client, id, first)
    lance_folder.branch(location(client, id), "trial")
    insert(client, id, rest, branch="trial")
    client.update_table(
        models.UpdateTableRequest(
            id=id, branch="trial", predicate=airports.IN_HONOLULU, updates=airports.RAISED
        )
    )
    client.delete_from_table(
        models.DeleteFromTableRequest(id=id, branch="trial", predicate=airports.UNKNOWN_DST)
    )
    client.update_table_schema_metadata(
        models.UpdateTableSchemaMetadataRequest(id=id, branch="trial", metadata={"on": "trial"})
    )
    changed = lance_folder.open_branch(location(client, id), "trial")
    assert airports.same_rows(changed.to_table(), airports.changed())
    assert changed.schema.metadata == {b"on": b"trial"}
    assert count(client, id, branch="trial") == len(airports.changed())
    assert count(client, id) == first.num_rows
    assert count(client, id, predicate="name LIKE '%(Hawaii)'") == 0


def test_refusals_are_typed(
    client: RestNamespace, connect: Connect, reader_key: str, airports_table: str
) -> None:
    id = [airports_table]
    rows = airports.first_and_rest()[0]
    with pytest.raises(errors.TableNotFoundError):
        count(client, ["nowhere"])
    with pytest.raises(errors.TableAlreadyExistsError):
        create(client, id, rows)
    with pytest.raises(errors.InvalidInputError):
        count(client, id, predicate="alt >")
    with pytest.raises(errors.TableBranchNotFoundError):
        count(client, id, branch="none")
    with pytest.raises(errors.NamespaceNotFoundError):
        create(client, ["nowhere", "airports"], rows)
    with pytest.raises(errors.TableSchemaValidationError):
        insert(client, id, pa.table({"runways": [1]}))
    for key in (None, "wrong"):
        with pytest.raises(errors.UnauthenticatedError):
            count(connect(key), id)
    reader = connect(reader_key)
    assert count(reader, id) == airports.ROWS
    with pytest.raises(errors.PermissionDeniedError):
        reader.drop_table(models.DropTableRequest(id=id))


@pytest.mark.parametrize("delimiter", ["$", ".", "/", "@@"])
def test_names_arrive_as_they_were_meant(
    connect: Connect, live_server: RunningServer, table: str, delimiter: str
) -> None:
    client = connect(live_server.admin_key, delimiter=delimiter)
    namespace = [f"été {table}"]
    id = [*namespace, "a b+c%20"]
    client.create_namespace(models.CreateNamespaceRequest(id=namespace))
    create(client, id, airports.first_and_rest()[0])
    assert list(client.list_tables(models.ListTablesRequest(id=namespace)).tables) == [id[-1]]
    assert count(client, id) == 1_400
    # Without a body, the path is all that says which table is meant.
    assert client.drop_table(models.DropTableRequest(id=id)).id == id


def test_an_identity_in_the_request_is_a_credential(
    connect: Connect, reader_key: str, airports_table: str
) -> None:
    id = [airports_table]
    anyone = connect(None)
    for identity in (
        models.Identity(api_key=reader_key),
        models.Identity(auth_token=reader_key),
    ):
        assert count(anyone, id, identity=identity) == airports.ROWS
        with pytest.raises(errors.PermissionDeniedError):
            anyone.drop_table(models.DropTableRequest(id=id, identity=identity))
    with pytest.raises(errors.UnauthenticatedError):
        anyone.drop_table(models.DropTableRequest(id=id))


def test_context_becomes_headers_both_ways(
    live_server: RunningServer, database: Database, airports_table: str
) -> None:
    id = [airports_table]
    elsewhere = RestNamespace(uri=live_server.url, **{"header.x-api-key": live_server.admin_key})
    with pytest.raises(errors.TableNotFoundError):
        count(elsewhere, id)
    context = {f"header.{DATABASE_HEADER}": database.name, "header.x-request-id": "airports-1"}
    assert count(elsewhere, id, context=context) == airports.ROWS
    described = elsewhere.describe_table(models.DescribeTableRequest(id=id, context=context))
    assert described.context["header.x-request-id"] == "airports-1"
    assert described.context["header.content-type"] == "application/json"
