"""The two routes of LanceDB Enterprise's connection check."""

import pyarrow as pa

from tests.http.conftest import HttpClient, assert_problem
from tests.http.fakes import arrow_stream, table_id

STREAM = arrow_stream(pa.table({"id": [1]}))


def test_listing_holds_every_table(client: HttpClient) -> None:
    client.server.add_table("t", rows=None)
    client.server.add_table("ns", "u", rows=None)
    headers = {"content-type": "application/json", "x-service-database": "default"}
    assert client.get("/v1/tables", headers=headers).json() == {"tables": ["ns$u", "t"]}
    page = client.get("/v1/tables?limit=1").json()
    assert page == {"tables": ["ns$u"], "page_token": "ns$u"}


def test_arrow_body_creates_a_table(client: HttpClient) -> None:
    response = client.post("/v1/tables/ns$t", content=STREAM)
    assert response.json()["version"] == 1
    assert client.server.last[1].id == table_id("ns", "t")


def test_empty_body_declares_a_table(client: HttpClient) -> None:
    response = client.post("/v1/tables/t", headers={"x-service-database": "db2"})
    assert response.json() == {"location": "/data/db2/t.lance", "properties": {}}
    assert client.server.last == (table_id("t"), None, {})
    assert client.get("/v1/tables", headers={"x-service-database": "db2"}).json() == {
        "tables": ["t"]
    }


def test_taken_name_is_a_conflict(client: HttpClient) -> None:
    client.post("/v1/tables/t", content=STREAM)
    assert_problem(client.post("/v1/tables/t", content=STREAM), 409, 5)


def test_creating_needs_a_name_a_mode_and_a_right(client: HttpClient) -> None:
    assert_problem(client.post("/v1/tables/$", content=STREAM), 400, 13, "root namespace")
    assert_problem(client.post("/v1/tables/t?mode=x", content=STREAM), 400, 13, "mode")
    client.authenticator.add("reader", "read+list:*")
    assert_problem(client.post("/v1/tables/t", content=STREAM, key="reader"), 403, 15, "'write'")
    assert_problem(client.post("/v1/tables/t", content=STREAM, key=None), 401, 16)
