"""Arrow bodies that are too large to hold: they reach the domain while they arrive."""

from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

from actors.model import CreateMode, InsertMode, NewTable
from cluster.errors import TableSchemaValidationError
from cluster.identifiers import TableRef
from cluster.settings import LimitSettings, Settings
from tests.http.conftest import HttpClient, assert_problem
from tests.http.fakes import FakeServer, arrow_stream, table_id

ROWS = pa.table({"id": list(range(20_000))})
STREAM = arrow_stream(ROWS)
T = TableRef("default", table_id("t"))


@pytest.fixture(autouse=True)
def _small_bodies_are_short(client: HttpClient) -> None:
    client.settings = Settings(limits=LimitSettings(insert_small_bytes_max=1_000))


async def in_parts(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), 7_000):
        yield content[start : start + 7_000]


@pytest.mark.parametrize("slash", ["", "/"])
def test_insert_streams(client: HttpClient, server: FakeServer, slash: str) -> None:
    server.add_table("t", rows=ROWS.slice(0, 1))
    url = f"/v1/table/t/insert{slash}?mode=overwrite&branch=dev"
    response = client.post(url, content=in_parts(STREAM), headers={"x-request-id": "r"})
    assert response.json()["num_inserted_rows"] == 20_000
    table, branch, mode, request_id, body = server.called("insert_stream")
    assert (table, branch, mode) == (T, "dev", InsertMode.OVERWRITE)
    assert (len(request_id), len(body.digest())) == (32, 32)


def test_small_and_large_bodies_have_one_kind_of_key(
    client: HttpClient, server: FakeServer
) -> None:
    server.add_table("t", rows=ROWS.slice(0, 1))
    headers = {"x-request-id": "r"}
    client.post("/v1/table/t/insert", content=STREAM, headers=headers)
    client.post("/v1/table/t/insert", content=arrow_stream(ROWS.slice(0, 1)), headers=headers)
    assert server.called("insert_stream")[3] == server.called("insert_rows")[3].id


@pytest.mark.parametrize("path", ["/v1/table/t/create?mode=exist_ok", "/v1/tables/t?mode=ExistOk"])
def test_create_streams(client: HttpClient, server: FakeServer, path: str) -> None:
    assert client.post(path, content=in_parts(STREAM)).json()["version"] == 1
    database, table, mode, key, _ = server.called("create_table")
    assert (database, table, mode) == ("default", NewTable(table_id("t")), CreateMode.EXIST_OK)
    assert (len(key.id), key.digest) == (32, "")
    assert server.table("t").rows == ROWS


@pytest.mark.parametrize("length", [len(STREAM) - 8, len(STREAM) // 2])
@pytest.mark.parametrize("path", ["insert", "create"])
def test_body_that_ends_early_changes_nothing(
    client: HttpClient, server: FakeServer, path: str, length: int
) -> None:
    if path == "insert":
        server.add_table("t", rows=ROWS.slice(0, 1))
    response = client.post(f"/v1/table/t/{path}", content=in_parts(STREAM[:length]))
    assert_problem(response, 400, 13)
    found = server.catalog("default").tables.get(T.id)
    assert found is None or found.version == 1


@pytest.mark.parametrize("content", [b"not arrow" * 1_000, b"not arrow", STREAM[:100]])
def test_body_that_is_no_arrow_stream_is_refused(client: HttpClient, content: bytes) -> None:
    client.server.add_table("t", rows=ROWS.slice(0, 1))
    assert_problem(client.post("/v1/table/t/insert", content=content), 400, 13)
    assert client.server.table("t").version == 1


def test_error_of_the_domain_ends_the_upload(client: HttpClient, server: FakeServer) -> None:
    server.add_table("t", rows=ROWS)
    server.failures["insert_stream"] = TableSchemaValidationError("column 'id' is missing")
    response = client.post("/v1/table/t/insert", content=in_parts(STREAM))
    assert_problem(response, 400, 20, "column 'id'")
