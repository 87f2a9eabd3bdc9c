"""Namespaces over HTTP."""

from typing import Any

import pytest

from actors.model import CreateMode
from cluster.errors import NamespaceNotEmpty
from cluster.settings import LimitSettings, Settings
from tests.http.conftest import HttpClient, assert_problem
from tests.http.fakes import ROOT, FakeServer, table_id


def test_created_namespace_is_described_listed_and_dropped(client: HttpClient) -> None:
    created = client.post("/v1/namespace/a/create", {"properties": {"owner": "x"}})
    assert (created.status_code, created.json()) == (200, {"properties": {"owner": "x"}})
    described = client.post("/v1/namespace/a/describe", {"id": ["a"]})
    assert described.json() == {"properties": {"owner": "x"}}
    assert client.get("/v1/namespace/$/list").json() == {"namespaces": ["a"]}
    dropped = client.post("/v1/namespace/a/drop")
    assert (dropped.status_code, dropped.json()) == (200, {"properties": {"owner": "x"}})
    assert_problem(client.post("/v1/namespace/a/describe"), 404, 1)


def test_properties_are_an_empty_map_when_none_are_set(client: HttpClient) -> None:
    assert client.post("/v1/namespace/a/create", {"properties": None}).json() == {"properties": {}}


def test_exists_answers_without_a_body(client: HttpClient, server: FakeServer) -> None:
    server.catalog("default").namespaces[table_id("a")] = {}
    response = client.post("/v1/namespace/a/exists")
    assert (response.status_code, response.content) == (200, b"")
    assert_problem(client.post("/v1/namespace/b/exists"), 404, 1)


@pytest.mark.parametrize(
    ("mode", "meant"),
    [
        (None, CreateMode.CREATE),
        ("Create", CreateMode.CREATE),
        ("ExistOk", CreateMode.EXIST_OK),
        ("exist_ok", CreateMode.EXIST_OK),
        ("EXIST_OK", CreateMode.EXIST_OK),
        ("existok", CreateMode.EXIST_OK),
        ("overwrite", CreateMode.OVERWRITE),
    ],
)
def test_create_mode_has_two_spellings(
    client: HttpClient, server: FakeServer, mode: str | None, meant: CreateMode
) -> None:
    assert client.post("/v1/namespace/a/create", {"mode": mode}).status_code == 200
    assert server.last[1] is meant


@pytest.mark.parametrize("mode", ["", "append", "exist-ok", 1, True])
def test_create_mode_that_is_none_is_refused(client: HttpClient, mode: Any) -> None:
    assert_problem(client.post("/v1/namespace/a/create", {"mode": mode}), 400, 13, "mode")


def test_taken_name_is_a_conflict(client: HttpClient) -> None:
    client.post("/v1/namespace/a/create")
    assert_problem(client.post("/v1/namespace/a/create"), 409, 2)
    assert client.post("/v1/namespace/a/create", {"mode": "ExistOk"}).status_code == 200


@pytest.mark.parametrize(
    ("body", "skip_missing", "cascade"),
    [
        ({}, False, False),
        ({"mode": "Fail", "behavior": "Restrict"}, False, False),
        ({"mode": "SKIP"}, True, False),
        ({"behavior": "cascade"}, False, True),
    ],
)
def test_drop_modes_reach_the_catalog(
    client: HttpClient, server: FakeServer, body: Any, skip_missing: bool, cascade: bool
) -> None:
    server.catalog("default").namespaces[table_id("a")] = {}
    assert client.post("/v1/namespace/a/drop", body).status_code == 200
    assert server.last == (table_id("a"), skip_missing, cascade)


def test_drop_of_what_is_not_there_or_not_empty(client: HttpClient, server: FakeServer) -> None:
    assert_problem(client.post("/v1/namespace/a/drop"), 404, 1)
    assert client.post("/v1/namespace/a/drop", {"mode": "Skip"}).status_code == 200
    server.failures["drop_namespace"] = NamespaceNotEmpty("a holds tables")
    assert_problem(client.post("/v1/namespace/a/drop"), 409, 3)


@pytest.mark.parametrize("body", [{"mode": "x"}, {"behavior": "x"}, {"mode": ""}])
def test_unknown_drop_modes_are_refused(client: HttpClient, body: Any) -> None:
    assert_problem(client.post("/v1/namespace/a/drop", body), 400, 13)


@pytest.mark.parametrize("kind", ["list", "table/list"])
def test_listings_page(client: HttpClient, server: FakeServer, kind: str) -> None:
    for name in ("a", "b", "c"):
        server.catalog("default").namespaces[table_id("n", name)] = {}
        server.add_table("n", name, rows=None)
    field = "namespaces" if kind == "list" else "tables"
    path = f"/v1/namespace/n/{kind}"
    assert client.get(path).json() == {field: ["a", "b", "c"]}
    first = client.get(f"{path}?limit=2").json()
    assert first == {field: ["a", "b"], "page_token": "b"}
    assert client.get(f"{path}?limit=2&page_token=b").json() == {field: ["c"]}
    assert client.get(f"{path}?page_token=").json() == {field: ["a", "b", "c"]}


@pytest.mark.parametrize("limit", ["0", "-1", "x", "1.5", ""])
def test_page_of_no_size_is_refused(client: HttpClient, limit: str) -> None:
    assert_problem(client.get(f"/v1/namespace/$/list?limit={limit}"), 400, 13, "limit")
    assert_problem(client.get(f"/v1/table?limit={limit}"), 400, 13, "limit")


def test_page_is_never_larger_than_the_setting(client: HttpClient, server: FakeServer) -> None:
    client.settings = Settings(limits=LimitSettings(page_size_max=5))
    client.get("/v1/namespace/$/list?limit=1000")
    assert server.last == (ROOT, None, 5)


@pytest.mark.parametrize(("query", "shown"), [("", True), ("?include_declared=false", False)])
def test_declared_tables_may_be_left_out(
    client: HttpClient, server: FakeServer, query: str, shown: bool
) -> None:
    server.add_table("n", "t", rows=None)
    found = client.get(f"/v1/namespace/n/table/list{query}").json()["tables"]
    assert found == (["t"] if shown else [])


def test_lancedb_lists_tables_that_it_can_name(client: HttpClient, server: FakeServer) -> None:
    for name in ("a", "b c", "d", "é"):
        server.add_table("n", name, rows=None)
    lancedb = {"user-agent": "LanceDB-Python-Client/0.40.0"}
    path = "/v1/namespace/n/table/list"
    assert client.get(path, headers=lancedb).json() == {"tables": ["a", "d"]}
    assert client.get(path).json() == {"tables": ["a", "b c", "d", "é"]}


@pytest.mark.parametrize(
    ("path", "body", "rights"),
    [
        ("create", {}, "write"),
        ("create", {"mode": "overwrite"}, "write+drop"),
        ("describe", {}, "list"),
        ("exists", {}, "list"),
        ("drop", {}, "drop"),
        ("drop", {"behavior": "Cascade"}, "drop+manage"),
    ],
)
def test_each_operation_needs_its_rights(
    client: HttpClient, server: FakeServer, path: str, body: Any, rights: str
) -> None:
    server.catalog("default").namespaces[table_id("a")] = {}
    for missing in rights.split("+"):
        others = {"list", "read", "write", "alter", "drop", "manage", "execute_code"} - {missing}
        client.authenticator.add("some", f"{'+'.join(others)}:*")
        assert_problem(client.post(f"/v1/namespace/a/{path}", body, key="some"), 403, 15, missing)
    client.authenticator.add("enough", f"{rights}:default/a")
    mode = {"mode": "exist_ok"} if (path, body) == ("create", {}) else body
    assert client.post(f"/v1/namespace/a/{path}", mode, key="enough").status_code == 200


def test_too_many_properties_are_refused(client: HttpClient) -> None:
    client.settings = Settings(limits=LimitSettings(metadata_entries_max=1, metadata_bytes_max=9))
    for properties in ({"a": "b", "c": "d"}, {"a": "123456789"}):
        response = client.post("/v1/namespace/a/create", {"properties": properties})
        assert_problem(response, 400, 13, "properties")
