"""Materialized views over HTTP."""

import base64
from typing import Any

import pyarrow as pa
import pytest

from cluster.errors import TableAlreadyExists
from cluster.identifiers import TableRef
from tests.http.conftest import HttpClient, assert_problem
from tests.http.fakes import table_id
from udtf.spec import ViewKind

SCHEMA = base64.b64encode(pa.schema({"x": pa.int64()}).serialize().to_pybytes()).decode()
QUERY = {"kind": "query", "source_query": "SELECT x FROM t", "output_schema": SCHEMA}
URL = "/v1/materialized_view/ns$v/create"


@pytest.mark.parametrize(
    "extra",
    [{}, {"with_no_data": True, "udtf_spec": None, "auto_refresh": None}, {"id": ["ns", "v"]}],
)
def test_view_is_created_empty(client: HttpClient, extra: dict[str, Any]) -> None:
    response = client.post(URL, {**QUERY, **extra})
    assert (response.status_code, response.json()) == (200, {"version": 1})
    view, definition, _ = client.server.called("create_view")
    assert view == TableRef("default", table_id("ns", "v"))
    assert (definition.kind, definition.source_query) == (ViewKind.QUERY, "SELECT x FROM t")


def test_generated_clients_get_201(client: HttpClient) -> None:
    headers = {"user-agent": "OpenAPI-Generator/0.13.0/python"}
    response = client.post(URL, QUERY, headers=headers)
    assert (response.status_code, response.json()) == (201, {"version": 1})


def test_refresh_at_creation_is_not_built(client: HttpClient) -> None:
    assert_problem(client.post(URL, {**QUERY, "with_no_data": False}), 406, 0, "refresh")
    assert client.server.calls == []


@pytest.mark.parametrize("missing", ["kind", "source_query", "output_schema"])
def test_each_part_of_the_definition_is_required(client: HttpClient, missing: str) -> None:
    body = {name: value for name, value in QUERY.items() if name != missing}
    assert_problem(client.post(URL, body), 400, 13, f"'{missing}'")


@pytest.mark.parametrize(
    "extra",
    [
        {"kind": "other"},
        {"output_schema": "%%%"},
        {"udtf_spec": {"kind": "udtf"}},
        {"with_no_data": "no"},
        {"auto_refresh": 1},
        {"kind": "udtf"},
    ],
    ids=repr,
)
def test_malformed_definition_is_refused(client: HttpClient, extra: dict[str, Any]) -> None:
    assert_problem(client.post(URL, {**QUERY, **extra}), 400, 13)
    assert client.server.calls == []


def test_taken_name_is_a_conflict(client: HttpClient) -> None:
    client.server.failures["create_view"] = TableAlreadyExists("ns$v is there")
    problem = assert_problem(client.post(URL, QUERY), 409, 5, "is there")
    assert problem["title"] == "The namespace has been concurrently modified"


@pytest.mark.parametrize("kind", ["udtf", "chunker", "scalar_udtf"])
def test_code_takes_a_right_of_its_own(client: HttpClient, kind: str) -> None:
    client.authenticator.add("writer", "write:*")
    assert client.post(URL, QUERY, key="writer").status_code == 200
    response = client.post(URL, {**QUERY, "kind": kind}, key="writer")
    assert_problem(response, 403, 15, "'execute_code'")


def test_view_needs_the_right_to_write(client: HttpClient) -> None:
    client.authenticator.add("reader", "read+list+alter:*")
    assert_problem(client.post(URL, QUERY, key="reader"), 403, 15, "'write'")


def test_root_is_no_view(client: HttpClient) -> None:
    assert_problem(client.post("/v1/materialized_view/$/create", QUERY), 400, 13)
