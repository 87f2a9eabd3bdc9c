"""Tables over HTTP: create, declare, register, describe, list, drop, metadata."""

import json
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from actors.model import CreateMode, NewTable, Pin
from cluster.identifiers import ObjectId, TableRef
from cluster.settings import LimitSettings, Settings
from tests.http.conftest import ARROW, HttpClient, assert_problem
from tests.http.fakes import arrow_stream, table_id

ROWS = pa.table({"id": pa.array([1, 2], pa.int32()), "name": ["a", "b"]})
STREAM = arrow_stream(ROWS)
T = TableRef("default", table_id("t"))


def test_create_answers_location_version_and_transaction(client: HttpClient) -> None:
    response = client.post("/v1/table/ns$t/create", content=STREAM)
    assert response.status_code == 200
    assert response.json() == {
        "transaction_id": "txn-create",
        "location": "/data/default/ns$t.lance",
        "version": 1,
        "properties": {},
    }
    database, table, mode, key, body = client.server.last
    assert (database, table, mode) == ("default", NewTable(table_id("ns", "t")), CreateMode.CREATE)
    assert (len(key.id), body) == (32, STREAM)


@pytest.mark.parametrize(
    ("mode", "meant"),
    [
        ("Create", CreateMode.CREATE),
        ("ExistOk", CreateMode.EXIST_OK),
        ("exist_ok", CreateMode.EXIST_OK),
        ("Overwrite", CreateMode.OVERWRITE),
    ],
)
def test_create_modes(client: HttpClient, mode: str, meant: CreateMode) -> None:
    assert client.post(f"/v1/table/t/create?mode={mode}", content=STREAM).status_code == 200
    assert client.server.last[2] is meant


@pytest.mark.parametrize("mode", ["", "append", "create_"])
def test_create_mode_that_is_none_is_refused(client: HttpClient, mode: str) -> None:
    assert_problem(client.post(f"/v1/table/t/create?mode={mode}", content=STREAM), 400, 13, "mode")


def test_create_without_a_body_is_refused(client: HttpClient) -> None:
    assert_problem(client.post("/v1/table/t/create"), 400, 13, "Arrow IPC stream is required")


def create_with(client: HttpClient, **query: str) -> Any:
    text = "&".join(f"{name}={quote(value)}" for name, value in query.items())
    return client.post(f"/v1/table/t/create?{text}", content=STREAM)


def test_create_takes_properties(client: HttpClient) -> None:
    properties = {"owner": "x", "lance.stable_row_ids": "false"}
    response = create_with(client, properties=json.dumps(properties), storage_options="{}")
    assert response.json()["properties"] == properties
    assert client.server.last[1] == NewTable(table_id("t"), properties, {}, False)


@pytest.mark.parametrize(
    "properties",
    ["", "x", "[]", '{"a": 1}', '{"a": null}', '{"lance.stable_row_ids": "no"}'],
)
def test_properties_that_are_no_map_of_strings_are_refused(
    client: HttpClient, properties: str
) -> None:
    assert_problem(create_with(client, properties=properties), 400, 13, "propert")


def test_storage_options_are_the_deployments(client: HttpClient) -> None:
    assert_problem(create_with(client, storage_options='{"aws_region": "x"}'), 406, 0)
    assert_problem(create_with(client, storage_options="x"), 400, 13, "storage_options")


def test_taken_name_is_a_conflict_to_namespace_clients(client: HttpClient) -> None:
    client.post("/v1/table/t/create", content=STREAM)
    assert_problem(client.post("/v1/table/t/create", content=STREAM), 409, 5)


def test_taken_name_is_what_lancedb_recognises(client: HttpClient) -> None:
    client.post("/v1/table/t/create/?mode=create", content=STREAM)
    response = client.post("/v1/table/t/create/?mode=create", content=STREAM)
    assert_problem(response, 400, 5, "already exists")


def test_overwriting_needs_the_right_to_drop(client: HttpClient) -> None:
    client.authenticator.add("writer", "write:*")
    assert client.post("/v1/table/t/create", content=STREAM, key="writer").status_code == 200
    response = client.post("/v1/table/t/create?mode=Overwrite", content=STREAM, key="writer")
    assert_problem(response, 403, 15, "'drop'")


def test_declared_table_has_a_location_and_no_version(client: HttpClient) -> None:
    response = client.post("/v1/table/t/declare", {"properties": {"a": "b"}})
    assert response.json() == {"location": "/data/default/t.lance", "properties": {"a": "b"}}
    assert client.server.last == (table_id("t"), None, {"a": "b"})
    described = client.post("/v1/table/t/describe", {"check_declared": True}).json()
    assert described == {
        "table": "t",
        "namespace": [],
        "location": "/data/default/t.lance",
        "properties": {"a": "b"},
        "is_only_declared": True,
    }


def test_location_of_a_declared_table_takes_the_right_to_manage(client: HttpClient) -> None:
    client.authenticator.add("writer", "write:*")
    assert client.post("/v1/table/t/declare", {}, key="writer").status_code == 200
    response = client.post("/v1/table/t/declare", {"location": "x.lance"}, key="writer")
    assert_problem(response, 403, 15, "'manage'")


@pytest.mark.parametrize(
    ("mode", "overwrite"), [(None, False), ("Create", False), ("OVERWRITE", True)]
)
def test_register_echoes_the_location(
    client: HttpClient, mode: str | None, overwrite: bool
) -> None:
    body = {"location": "x.lance", "mode": mode, "properties": {"a": "b"}}
    response = client.post("/v1/table/t/register", body)
    assert response.json() == {"location": "x.lance", "properties": {"a": "b"}}
    assert client.server.last == (table_id("t"), "x.lance", {"a": "b"}, overwrite)


@pytest.mark.parametrize("operation", ["declare", "register"])
def test_choices_that_cannot_be_are_refused_before_a_name_is_given(
    client: HttpClient, operation: str
) -> None:
    wrong = {"lance.stable_row_ids": "no"}
    body = {"properties": wrong} | ({"location": "x.lance"} if operation == "register" else {})
    assert_problem(client.post(f"/v1/table/t/{operation}", body), 400, 13, "'true' or 'false'")
    assert not client.server.calls


@pytest.mark.parametrize(
    "body", [{}, {"location": None}, {"location": 1}, {"location": "x", "mode": "ExistOk"}]
)
def test_malformed_registration_is_refused(client: HttpClient, body: Any) -> None:
    assert_problem(client.post("/v1/table/t/register", body), 400, 13)


def test_register_needs_rights_on_the_name_and_on_the_root(client: HttpClient) -> None:
    body = {"location": "x.lance"}
    client.authenticator.add("writer", "write:*", "manage:default/t")
    client.authenticator.add("manager", "manage:*")
    client.authenticator.add("both", "write:default/t", "manage:default/")
    for key, right in (("writer", "'manage'"), ("manager", "'write'")):
        assert_problem(client.post("/v1/table/t/register", body, key=key), 403, 15, right)
    assert client.post("/v1/table/t/register", body, key="both").status_code == 200


@pytest.mark.parametrize("body", [None, {}, {"version": None}])
def test_describe_always_has_version_and_schema(client: HttpClient, body: Any) -> None:
    client.server.add_table("ns", "t", rows=ROWS)
    assert client.post("/v1/table/ns$t/describe", body).json() == {
        "table": "t",
        "namespace": ["ns"],
        "version": 1,
        "location": "/data/default/ns$t.lance",
        "schema": {
            "fields": [
                {"name": "id", "nullable": True, "type": {"type": "int32"}},
                {"name": "name", "nullable": True, "type": {"type": "utf8"}},
            ]
        },
        "properties": {},
    }


def test_lancedb_gets_its_own_names_of_types(client: HttpClient) -> None:
    client.server.add_table("t", rows=ROWS)
    fields = client.post("/v1/table/t/describe/").json()["schema"]["fields"]
    assert [field["type"]["type"] for field in fields] == ["int32", "string"]


@pytest.mark.parametrize(
    ("query", "body"),
    [("?load_detailed_metadata=true", None), ("", {"load_detailed_metadata": True})],
)
def test_details_are_counts(client: HttpClient, query: str, body: Any) -> None:
    client.server.add_table("t", rows=ROWS)
    found = client.post(f"/v1/table/t/describe{query}", body).json()
    assert found["stats"] == {"num_deleted_rows": 0, "num_fragments": 1}
    assert found["metadata"] == {
        "total_rows": "2",
        "total_fragments": "1",
        "total_deletion_file_rows": "0",
        "total_files_size": "1234",
    }
    assert found["is_only_declared"] is False
    assert client.server.last == (T, Pin(), True)


@pytest.mark.parametrize(
    ("query", "body"), [("?with_table_uri=true", None), ("", {"with_table_uri": True})]
)
def test_uri_is_given_when_asked_for(client: HttpClient, query: str, body: Any) -> None:
    client.server.add_table("t 1", rows=ROWS)
    found = client.post(f"/v1/table/t%201/describe{query}", body).json()
    assert found["table_uri"] == "file:///data/default/t%201.lance"


@pytest.mark.parametrize(
    ("body", "pin"),
    [
        ({"version": 3}, Pin(version=3)),
        ({"tag": "v1"}, Pin(tag="v1")),
        ({"branch": "dev"}, Pin(branch="dev")),
        ({"version": 0, "branch": "main"}, Pin(version=0)),
    ],
)
def test_describe_pins_the_state(client: HttpClient, body: Any, pin: Pin) -> None:
    client.server.add_table("t", rows=ROWS)
    assert client.post("/v1/table/t/describe", body).status_code == 200
    assert client.server.last[1] == pin


def test_tag_with_version_or_branch_is_refused(client: HttpClient) -> None:
    for other in ({"version": 1}, {"branch": "dev"}):
        response = client.post("/v1/table/t/describe", {"tag": "v1", **other})
        assert_problem(response, 400, 13, "tag")


def test_exists_answers_without_a_body(client: HttpClient) -> None:
    client.server.add_table("t", rows=ROWS)
    for body in (None, {}, {"version": 1}):
        response = client.post("/v1/table/t/exists", body)
        assert (response.status_code, response.content) == (200, b"")
    assert client.server.last == (T, Pin(version=1), False)
    assert_problem(client.post("/v1/table/u/exists"), 404, 4)


@pytest.mark.parametrize(("path", "method"), [("drop", "drop_table"), ("deregister",) * 2])
def test_name_is_forgotten(client: HttpClient, path: str, method: str) -> None:
    client.server.add_table("ns", "t", rows=ROWS)
    response = client.post(f"/v1/table/ns$t/{path}")
    assert response.json() == {
        "id": ["ns", "t"],
        "location": "/data/default/ns$t.lance",
        "properties": {},
    }
    assert client.server.calls[-1][0].startswith(method)
    assert_problem(client.post(f"/v1/table/ns$t/{path}"), 404, 4)


def test_listing_of_everything_holds_every_namespace(client: HttpClient) -> None:
    client.server.add_table("ns", "t", rows=ROWS)
    client.server.add_table("a b", rows=None)
    assert client.get("/v1/table").json() == {"tables": ["a b", "ns$t"]}
    assert client.get("/v1/table?limit=1").json() == {"tables": ["a b"], "page_token": "a b"}
    assert client.get("/v1/table?include_declared=false").json() == {"tables": ["ns$t"]}


def test_lancedb_lists_root_tables_that_it_can_name(client: HttpClient) -> None:
    for name in ("a", "b c", "d", "e!", "f.g-h_1", "é"):
        client.server.add_table(name, rows=None)
    client.server.add_table("ns", "t", rows=ROWS)
    assert client.get("/v1/table/").json() == {"tables": ["a", "d", "f.g-h_1"]}
    assert client.get("/v1/table/?limit=10").json() == {"tables": ["a", "d", "f.g-h_1"]}


def test_lancedb_pages_through_all_names(client: HttpClient) -> None:
    names = [f"t{number:02}" for number in range(7)]
    for name in names:
        client.server.add_table(name, rows=None)
        client.server.add_table(f"{name} x", rows=None)
    found: list[str] = []
    token = ""
    for _ in range(8):
        page = client.get(f"/v1/table/?limit=2&page_token={token}").json()
        assert len(page["tables"]) <= 2
        found += page["tables"]
        token = page.get("page_token", "")
        if not token:
            break
    assert found == names


def test_schema_metadata_is_merged_and_answered_whole(client: HttpClient) -> None:
    client.server.add_table("t", rows=ROWS).metadata = {"a": "1"}
    response = client.post("/v1/table/t/schema_metadata/update?branch=dev", {"b": "2", "id": "x"})
    assert response.json() == {"a": "1", "b": "2", "id": "x"}
    table, branch, key, entries = client.server.last
    assert (table, branch, entries) == (T, "dev", {"b": "2", "id": "x"})
    assert len(key.id) == len(key.digest) == 32


@pytest.mark.parametrize("body", [{"a": 1}, {"a": None}, {"a": {"b": "c"}}, ["a"], "a", 1])
def test_schema_metadata_that_is_no_map_of_strings_is_refused(
    client: HttpClient, body: Any
) -> None:
    assert_problem(client.post("/v1/table/t/schema_metadata/update", body), 400, 13, "body")


def test_too_much_schema_metadata_is_refused(client: HttpClient) -> None:
    client.settings = Settings(limits=LimitSettings(metadata_entries_max=1))
    response = client.post("/v1/table/t/schema_metadata/update", {"a": "", "b": ""})
    assert_problem(response, 400, 13, "more than 1 entries")


@pytest.mark.parametrize(
    ("path", "content", "right"),
    [
        ("create", STREAM, "write"),
        ("declare", b"{}", "write"),
        ("describe", b"", "read"),
        ("exists", b"", "list"),
        ("drop", b"", "drop"),
        ("deregister", b"", "drop"),
        ("schema_metadata/update", b'{"a":"b"}', "alter"),
    ],
)
def test_each_operation_needs_its_right_on_the_table(
    client: HttpClient, path: str, content: bytes, right: str
) -> None:
    client.server.add_table("t", rows=ROWS)
    others = {"list", "read", "write", "alter", "drop", "manage", "execute_code"} - {right}
    client.authenticator.add("without", f"{'+'.join(others)}:*", f"{right}:default/u")
    client.authenticator.add("with", f"{right}:default/t")
    url = f"/v1/table/t/{path}" + ("?mode=exist_ok" if path == "create" else "")
    refused = client.request("POST", url, content=content, key="without")
    assert_problem(refused, 403, 15, f"'{right}'")
    assert client.server.calls == []
    headers = {"content-type": ARROW if path == "create" else "application/json"}
    allowed = client.request("POST", url, content=content, key="with", headers=headers)
    assert allowed.status_code == 200


def test_listing_everything_needs_the_right_to_list_the_root(client: HttpClient) -> None:
    client.authenticator.add("inside", "list:default/ns")
    client.authenticator.add("root", "list:default/")
    for path in ("/v1/table", "/v1/table/", "/v1/tables"):
        assert_problem(client.get(path, key="inside"), 403, 15, "'list'")
        assert client.get(path, key="root").status_code == 200


@pytest.mark.parametrize("path", ["create", "declare", "describe", "drop", "deregister", "exists"])
def test_root_is_no_table(client: HttpClient, path: str) -> None:
    options = {"content": STREAM} if path == "create" else {"content": b"{}"}
    assert_problem(client.post(f"/v1/table/$/{path}", **options), 400, 13, "root namespace")


def test_identifier_of_a_new_table_is_checked(client: HttpClient) -> None:
    assert_problem(client.post("/v1/table/.hidden/create", content=STREAM), 400, 13, "reserved")
    assert ObjectId(()) not in client.server.catalog("default").tables
