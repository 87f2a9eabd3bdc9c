"""Materialized views over HTTP."""

from typing import Any

import pytest

from cluster.errors import TableAlreadyExists
from cluster.identifiers import TableRef
from tests.http.conftest import HttpClient, assert_problem
from tests.http.fakes import table_id
from tests.http.view_values import OUTPUT_SCHEMA
from tests.unit.view_requests import PYTHON, envelope, spec
from udtf.spec import ViewKind

QUERY = {"kind": "query", "source_query": "SELECT x FROM t", "output_schema": OUTPUT_SCHEMA}
URL = "/v1/materialized_view/ns$v/create"


@pytest.mark.parametrize(
    "extra",
    [{}, {"with_no_data": True, "udtf_spec": None, "auto_refresh": None}, {"id": ["ns", "v"]}],
)
def test_view_is_created_empty(client: HttpClient, extra: dict[str, Any]) -> None:
    response = client.post(URL, {**QUERY, **extra})
    assert (response.status_code, response.json()) == (200, {"version": 1})
    view, definition, _, with_data, _ = client.server.called("create_view")
    assert (view, with_data) == (TableRef("default", table_id("ns", "v")), False)
    assert (definition.kind, definition.source_query) == (ViewKind.QUERY, "SELECT x FROM t")


def test_generated_clients_get_201(client: HttpClient) -> None:
    headers = {"user-agent": "OpenAPI-Generator/0.13.0/python"}
    response = client.post(URL, QUERY, headers=headers)
    assert (response.status_code, response.json()) == (201, {"version": 1})


def test_view_is_filled_if_asked_to(client: HttpClient) -> None:
    response = client.post(URL, {**QUERY, "with_no_data": False})
    assert (response.status_code, response.json()) == (200, {"version": 1, "job_id": "job-1"})
    assert client.server.called("create_view")[3:] == (True, "caller-admin")
    headers = {"user-agent": "OpenAPI-Generator/0.13.0/python"}
    assert client.post(URL, {**QUERY, "with_no_data": False}, headers=headers).status_code == 201


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
    client.authenticator.add("writer", "write+read:*")
    assert client.post(URL, QUERY, key="writer").status_code == 200
    response = client.post(URL, {**QUERY, "kind": kind}, key="writer")
    assert_problem(response, 403, 15, "'execute_code'")


def test_view_needs_the_right_to_write(client: HttpClient) -> None:
    client.authenticator.add("reader", "read+list+alter:*")
    assert_problem(client.post(URL, QUERY, key="reader"), 403, 15, "'write'")


def test_view_needs_the_right_to_read_its_source(client: HttpClient) -> None:
    client.authenticator.add("writer", "write:*", "read:default/u")
    assert_problem(client.post(URL, QUERY, key="writer"), 403, 15, "'read'", "default/t")
    assert client.server.calls == []
    other = {**QUERY, "source_query": "SELECT x FROM u"}
    assert client.post(URL, other, key="writer").status_code == 200
    # What is read is not known, and will never be.
    opaque = {**QUERY, "source_query": "whatever"}
    assert client.post(URL, opaque, key="writer").status_code == 200


def test_root_is_no_view(client: HttpClient) -> None:
    assert_problem(client.post("/v1/materialized_view/$/create", QUERY), 400, 13)


def test_code_for_another_python_is_refused_with_both_versions(client: HttpClient) -> None:
    """Elsewhere a worker failed later, with an error of a pickle."""
    udtf = spec("udtf", envelope("udtf", runtime={"python": "3.9"}))
    body = {**QUERY, "kind": "udtf", "udtf_spec": udtf}
    response = client.post(URL, body)
    assert_problem(response, 400, 13, "3.9")
    assert PYTHON in response.text
    udtf = spec("udtf", envelope("udtf", runtime={"python": PYTHON}))
    assert client.post(URL, {**QUERY, "kind": "udtf", "udtf_spec": udtf}).status_code == 200
