"""The client that OpenAPI Generator made from the Lance namespace specification."""

from collections.abc import Callable, Iterator
from functools import partial

import lance_namespace_urllib3_client as generated
import pyarrow as pa
import pytest
from lance_namespace_urllib3_client import models
from lance_namespace_urllib3_client.exceptions import (
    ApiException,
    BadRequestException,
    ConflictException,
    ForbiddenException,
    NotFoundException,
    UnauthorizedException,
)

from tests.clients import airports, lance_folder, view_request
from tests.clients.plain_http import Database, stream
from tests.clients.running_server import DATABASE_HEADER, RunningServer

pytestmark = pytest.mark.cluster


class Client:
    """The generated API classes that tests use, over one connection pool."""

    def __init__(self, api: generated.ApiClient) -> None:
        self.api = api
        self.tables = generated.TableApi(api)
        self.metadata = generated.MetadataApi(api)
        self.namespaces = generated.NamespaceApi(api)
        self.views = generated.MaterializedViewApi(api)

    def count(self, table: str, predicate: str | None = None, branch: str | None = None) -> int:
        """How many rows a predicate selects."""
        request = models.CountTableRowsRequest(predicate=predicate, branch=branch)
        return self.tables.count_table_rows(table, request)

    def rows(self, table: str, filter: str | None = None) -> pa.Table:
        """The rows that a filter selects."""
        everything = models.QueryTableRequestVector(single_vector=[])
        request = models.QueryTableRequest(vector=everything, k=10_000, filter=filter)
        return pa.ipc.open_file(self.tables.query_table(table, request)).read_all()

    def location(self, table: str) -> str:
        """Where the table is."""
        found = self.tables.describe_table(table, models.DescribeTableRequest())
        assert found.location is not None
        return found.location


Connect = Callable[..., Client]


@pytest.fixture
def connect(live_server: RunningServer, database: Database) -> Iterator[Connect]:
    """Opens clients: `connect(api_key=..., access_token=..., to=...)`."""
    opened = []

    def open_client(
        api_key: str | None = None,
        access_token: str | None = None,
        to: str | None = database.name,
    ) -> Client:
        configuration = generated.Configuration(
            host=live_server.url,
            api_key=None if api_key is None else {"ApiKeyAuth": api_key},
            access_token=access_token,
        )
        api = generated.ApiClient(configuration)
        if to is not None:
            api.set_default_header(DATABASE_HEADER, to)
        opened.append(api)
        return Client(api)

    yield open_client
    for api in opened:
        api.rest_client.pool_manager.clear()


@pytest.fixture
def client(connect: Connect, live_server: RunningServer) -> Client:
    """The administrator's client."""
    return connect(api_key=live_server.admin_key)


def refused(kind: type[ApiException], call: Callable[[], object]) -> int:
    """The error code with which a call is refused."""
    with pytest.raises(kind) as caught:
        call()
    code = caught.value.data.code
    assert isinstance(code, int)
    return code


def test_rows_are_created_inserted_updated_deleted_and_read_back(
    client: Client, table: str
) -> None:
    first, rest = airports.first_and_rest()
    created = client.tables.create_table(table, stream(first))
    assert created.version == 1

    inserted = client.tables.insert_into_table(table, stream(rest), mode="append")
    assert inserted.num_inserted_rows == rest.num_rows
    assert inserted.version == 2
    assert inserted.transaction_id
    assert client.count(table) == airports.ROWS
    assert client.count(table, "tzone IS NULL") == 3

    updated = client.tables.update_table(
        table, models.UpdateTableRequest(predicate=airports.IN_HONOLULU, updates=airports.RAISED)
    )
    assert (updated.updated_rows, updated.version) == (18, 3)
    deleted = client.tables.delete_from_table(
        table, models.DeleteFromTableRequest(predicate=airports.UNKNOWN_DST)
    )
    assert deleted.version == 4
    assert airports.same_rows(client.rows(table), airports.changed())
    pinned = models.CountTableRowsRequest(version=1)
    assert client.tables.count_table_rows(table, pinned) == first.num_rows

    client.tables.insert_into_table(table, stream(rest), mode="Overwrite")
    assert client.count(table) == rest.num_rows


def test_an_index_is_described_with_its_rows(client: Client, table: str) -> None:
    first, rest = (lance_folder.with_places(part) for part in airports.first_and_rest())
    client.tables.create_table(table, stream(first))
    lance_folder.index_altitudes(client.location(table))
    lance_folder.index_places(client.location(table))
    client.tables.insert_into_table(table, stream(rest))

    def stats(name: str, version: int | None = None) -> models.DescribeTableIndexStatsResponse:
        request = models.DescribeTableIndexStatsRequest(version=version)
        return client.tables.describe_table_index_stats(table, name, request)

    tree = stats("by_altitude")
    assert (tree.index_type, tree.distance_type, tree.num_indices) == ("BTree", None, 1)
    assert (tree.num_indexed_rows, tree.num_unindexed_rows) == (first.num_rows, rest.num_rows)
    vectors = stats("by_place")
    assert (vectors.index_type, vectors.distance_type) == ("IVF_FLAT", "cosine")
    assert stats("by_altitude", version=2).num_unindexed_rows == 0
    assert refused(NotFoundException, lambda: stats("by_altitude", version=1)) == 6
    assert refused(NotFoundException, lambda: stats("no such index")) == 6


def test_metadata_are_merged_and_a_dropped_table_is_gone(client: Client, table: str) -> None:
    rows = stream(airports.first_and_rest()[0])
    client.tables.create_table(table, rows, properties='{"owner": "ann"}')
    client.metadata.update_table_schema_metadata(table, {"source": "FAA", "year": "2013"})
    merged = client.metadata.update_table_schema_metadata(table, {"year": "2014"})
    assert merged == {"source": "FAA", "year": "2014"}

    described = client.tables.describe_table(table, models.DescribeTableRequest())
    assert described.var_schema is not None
    assert described.var_schema.metadata == merged
    dropped = client.tables.drop_table(table)
    assert (dropped.id, dropped.location) == ([table], described.location)
    assert dropped.properties == {"owner": "ann"}
    assert refused(NotFoundException, lambda: client.count(table)) == 4
    assert refused(NotFoundException, lambda: client.tables.drop_table(table)) == 4


def test_deleting_version_records_leaves_the_table(client: Client, table: str) -> None:
    first, rest = airports.first_and_rest()
    client.tables.create_table(table, stream(first))
    client.tables.insert_into_table(table, stream(rest))

    def delete_versions(start: int, end: int) -> int | None:
        ranges = [models.VersionRange(start_version=start, end_version=end)]
        request = models.BatchDeleteTableVersionsRequest(ranges=ranges)
        return client.metadata.batch_delete_table_versions(table, request).deleted_count

    assert delete_versions(1, 2) == 1
    assert delete_versions(0, -1) == 1
    assert delete_versions(0, -1) == 0
    assert client.count(table) == airports.ROWS
    pinned = models.CountTableRowsRequest(version=1)
    assert refused(NotFoundException, lambda: client.tables.count_table_rows(table, pinned)) == 11
    assert client.tables.insert_into_table(table, stream(rest)).version == 3


def test_a_view_is_created_once(client: Client, table: str, airports_table: str) -> None:
    request = models.CreateMaterializedViewRequest(
        kind="query",
        source_query=view_request.SOURCE_QUERY,
        output_schema=view_request.OUTPUT_SCHEMA,
    )
    created = client.views.create_materialized_view(table, request)
    assert (created.version, created.job_id) == (1, None)
    assert client.count(table) == 0
    again = partial(client.views.create_materialized_view, table, request)
    assert refused(ConflictException, again) == 5


def test_a_branch_is_changed_alone(client: Client, table: str) -> None:
    first, rest = airports.first_and_rest()
    client.tables.create_table(table, stream(first))
    location = client.location(table)
    lance_folder.branch(location, "trial")

    client.tables.insert_into_table(table, stream(rest), branch="trial")
    updated = client.tables.update_table(
        table,
        models.UpdateTableRequest(
            branch="trial", predicate=airports.IN_HONOLULU, updates=airports.RAISED
        ),
    )
    assert updated.updated_rows == 18
    client.tables.delete_from_table(
        table, models.DeleteFromTableRequest(branch="trial", predicate=airports.UNKNOWN_DST)
    )
    client.metadata.update_table_schema_metadata(table, {"on": "trial"}, branch="trial")

    changed = lance_folder.open_branch(location, "trial")
    assert airports.same_rows(changed.to_table(), airports.changed())
    assert changed.schema.metadata == {b"on": b"trial"}
    assert client.count(table, branch="trial") == len(airports.changed())
    assert client.count(table) == first.num_rows
    assert client.count(table, "name LIKE '%(Hawaii)'") == 0


def test_refusals_are_typed(
    client: Client, connect: Connect, reader_key: str, airports_table: str
) -> None:
    rows = stream(airports.first_and_rest()[0])
    create = partial(client.tables.create_table, airports_table, rows)
    assert refused(NotFoundException, lambda: client.count("nowhere")) == 4
    assert refused(ConflictException, create) == 5
    assert refused(BadRequestException, lambda: client.count(airports_table, "alt >")) == 13
    assert refused(NotFoundException, lambda: client.count(airports_table, branch="none")) == 22
    assert refused(UnauthorizedException, lambda: connect().count(airports_table)) == 16
    wrong = connect(api_key="wrong")
    assert refused(UnauthorizedException, lambda: wrong.count(airports_table)) == 16
    reader = connect(api_key=reader_key)
    assert reader.count(airports_table) == airports.ROWS
    assert refused(ForbiddenException, lambda: reader.tables.drop_table(airports_table)) == 15


def test_names_and_delimiters_arrive_as_they_were_meant(client: Client, table: str) -> None:
    namespace, name = f"été {table}", "a.b+c%20"
    client.namespaces.create_namespace(namespace, models.CreateNamespaceRequest())
    rows = stream(airports.first_and_rest()[0])
    client.tables.create_table(f"{namespace}~{name}~", rows, delimiter="~")
    assert client.namespaces.list_tables(namespace).tables == [name]
    request = models.CountTableRowsRequest(id=[namespace, name])
    assert client.tables.count_table_rows(f"{namespace}${name}", request) == 1_400
    other = models.CountTableRowsRequest(id=["another"])
    mismatch = partial(client.tables.count_table_rows, f"{namespace}${name}", other)
    assert refused(BadRequestException, mismatch) == 13


def test_a_bearer_token_is_a_credential(
    connect: Connect, live_server: RunningServer, airports_table: str
) -> None:
    client = connect(access_token=live_server.admin_key)
    assert client.count(airports_table) == airports.ROWS


def test_an_identity_in_the_body_is_a_credential_unless_a_header_is(
    client: Client, connect: Connect, reader_key: str, airports_table: str
) -> None:
    anyone = connect()
    identity = models.Identity(api_key=reader_key)
    request = models.CountTableRowsRequest(identity=identity)
    assert anyone.tables.count_table_rows(airports_table, request) == airports.ROWS
    delete = models.DeleteFromTableRequest(identity=identity, predicate="true")
    deletion = partial(anyone.tables.delete_from_table, airports_table, delete)
    assert refused(ForbiddenException, deletion) == 15
    wrong = models.CountTableRowsRequest(identity=models.Identity(api_key="wrong"))
    assert client.tables.count_table_rows(airports_table, wrong) == airports.ROWS
    unknown = partial(anyone.tables.count_table_rows, airports_table, wrong)
    assert refused(UnauthorizedException, unknown) == 16


def test_context_of_a_request_stands_for_its_headers(
    connect: Connect, live_server: RunningServer, database: Database, airports_table: str
) -> None:
    elsewhere = connect(api_key=live_server.admin_key, to=None)
    assert refused(NotFoundException, lambda: elsewhere.count(airports_table)) == 4
    context = {f"header.{DATABASE_HEADER}": database.name}
    request = models.CountTableRowsRequest(context=context)
    assert elsewhere.tables.count_table_rows(airports_table, request) == airports.ROWS
