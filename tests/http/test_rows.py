"""Insert, update, delete, count and query over HTTP."""

import hashlib
from typing import Any

import pyarrow as pa
import pytest

from actors.model import Assignment, InsertMode, Pin, ScanRequest
from cluster.errors import InvalidInput, OutcomeUnknown, Throttling
from cluster.identifiers import TableRef
from cluster.settings import LimitSettings, Settings
from tests.http.conftest import ARROW, HttpClient, assert_problem
from tests.http.fakes import FakeRows, FakeServer, arrow_stream, table_id

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", None]})
T = TableRef("default", table_id("t"))


@pytest.fixture(autouse=True)
def _table(server: FakeServer) -> None:
    server.add_table("t", rows=ROWS)


def test_count_answers_a_bare_number_and_the_version(client: HttpClient) -> None:
    response = client.post("/v1/table/t/count_rows", {"predicate": "id > 1"})
    assert (response.status_code, response.content) == (200, b"3")
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-lancedb-version"] == "1"
    assert client.server.called("count_rows") == (T, Pin(), "id > 1", None)


@pytest.mark.parametrize("content_type", [None, "application/json", "text/plain", "a/b;c=d"])
def test_count_takes_an_empty_body_whatever_its_type(
    client: HttpClient, content_type: str | None
) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    response = client.post("/v1/table/t/count_rows", headers=headers)
    assert (response.status_code, response.content) == (200, b"3")


def test_json_is_read_under_any_content_type(client: HttpClient) -> None:
    response = client.request(
        "POST",
        "/v1/table/t/count_rows",
        content=b'{"version": 7}',
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    assert response.status_code == 200
    assert client.server.last[1] == Pin(version=7)


@pytest.mark.parametrize(
    "field", [{"version": None}, {"branch": None}, {"predicate": None}, {"unknown": [1]}]
)
def test_count_takes_nulls_and_unknown_fields(client: HttpClient, field: dict[str, Any]) -> None:
    assert client.post("/v1/table/t/count_rows", field).status_code == 200
    assert client.server.last[1:3] == (Pin(), None)


@pytest.mark.parametrize(
    "version", ["1", 1.5, True, -1, 2**63, [1], {"a": 1}], ids=lambda value: repr(value)
)
def test_version_that_is_no_version_is_refused(client: HttpClient, version: Any) -> None:
    response = client.post("/v1/table/t/count_rows", {"version": version})
    assert_problem(response, 400, 13, "body field 'version'")
    assert client.server.calls == []


@pytest.mark.parametrize(
    "body",
    [b"{", b"{} {}", b"[1]", b'"text"', b"null", b"\xff", b'{"version": NaN}', b"[" * 100_000],
)
def test_body_that_is_no_json_object_is_refused(client: HttpClient, body: bytes) -> None:
    response = client.request("POST", "/v1/table/t/count_rows", content=body)
    assert_problem(response, 400, 13, "body")


@pytest.mark.parametrize("branch", ["", "main", None])
def test_main_has_three_spellings(client: HttpClient, branch: str | None) -> None:
    client.post("/v1/table/t/count_rows", {"branch": branch})
    assert client.server.last[1] == Pin()


def test_branch_and_version_pin_the_read(client: HttpClient) -> None:
    client.post("/v1/table/t/count_rows", {"branch": "dev", "version": 3})
    assert client.server.last[1] == Pin("dev", 3)


@pytest.mark.parametrize(
    ("headers", "least"),
    [
        ({"x-lancedb-min-version": "5"}, 5),
        ({"x-lancedb-min-read-version": "6"}, 6),
        ({"x-lancedb-min-version": "9", "x-lancedb-min-read-version": "6"}, 9),
        ({}, None),
    ],
)
def test_reads_are_as_new_as_the_client_has_seen(
    client: HttpClient, headers: dict[str, str], least: int | None
) -> None:
    client.post("/v1/table/t/count_rows", headers=headers)
    assert client.server.last[1] == Pin(version_min=least)


@pytest.mark.parametrize("value", ["", "x", "-1", "1.0", "9" * 30])
def test_least_version_that_is_no_number_is_refused(client: HttpClient, value: str) -> None:
    response = client.post("/v1/table/t/count_rows", headers={"x-lancedb-min-version": value})
    assert_problem(response, 400, 13, "x-lancedb-min-version")


def test_update_passes_field_paths_and_answers_in_both_dialects(client: HttpClient) -> None:
    body = {
        "predicate": "id = 1",
        "updates": [["name", "upper(name)"], ["s.`y.z`.`q``r`", "1"]],
        "branch": "dev",
        "properties": {"k": "v"},
    }
    response = client.post("/v1/table/t/update", body)
    assert response.json() == {
        "transaction_id": "txn-update",
        "updated_rows": 2,
        "rows_updated": 2,
        "version": 2,
        "properties": {},
    }
    table, branch, key, assignments, predicate, properties, engine = client.server.last
    assert (table, branch, predicate, properties, engine) == (T, "dev", "id = 1", {"k": "v"}, None)
    assert assignments == [
        Assignment(("name",), "upper(name)"),
        Assignment(("s", "y.z", "q`r"), "1"),
    ]
    assert key.digest == hashlib.sha256(response.request.content).hexdigest()[:32]


@pytest.mark.parametrize(
    "updates",
    [
        None,
        [],
        [["a"]],
        [["a", "1", "2"]],
        [["a", 1]],
        "a",
        {"a": "1"},
        [["", "1"]],
        [["a..b", "1"]],
        [["a.", "1"]],
        [["`a", "1"]],
        [["`a`b", "1"]],
    ],
    ids=repr,
)
def test_updates_that_are_no_pairs_of_path_and_expression_are_refused(
    client: HttpClient, updates: Any
) -> None:
    assert_problem(client.post("/v1/table/t/update", {"updates": updates}), 400, 13)
    assert client.server.calls == []


def test_update_needs_updates(client: HttpClient) -> None:
    assert_problem(client.post("/v1/table/t/update"), 400, 13, "'updates'", "required")


def test_delete_answers_the_commit(client: HttpClient) -> None:
    response = client.post("/v1/table/t/delete", {"predicate": "id = 1", "branch": "dev"})
    assert response.json() == {
        "transaction_id": "txn-delete",
        "version": 2,
        "num_deleted_rows": 1,
    }
    table, branch, _, predicate, engine = client.server.last
    assert (table, branch, predicate, engine) == (T, "dev", "id = 1", None)


@pytest.mark.parametrize("body", [{}, {"predicate": None}, {"predicate": ""}, {"predicate": 1}])
def test_delete_needs_a_predicate(client: HttpClient, body: dict[str, Any]) -> None:
    assert_problem(client.post("/v1/table/t/delete", body), 400, 13, "'predicate'")


def test_limits_of_sql_and_updates_come_from_settings(client: HttpClient) -> None:
    limits = LimitSettings(sql_characters_max=10, updates_max=1, metadata_entries_max=1)
    client.settings = Settings(limits=limits)
    long = "x" * 11
    for path, body, field in (
        ("count_rows", {"predicate": long}, "predicate"),
        ("delete", {"predicate": long}, "predicate"),
        ("update", {"updates": [["a", long]]}, "expression"),
        ("update", {"updates": [["a", "1"], ["b", "1"]]}, "updates"),
        ("update", {"updates": [["a", "1"]], "predicate": long}, "predicate"),
        ("update", {"updates": [["a", "1"]], "properties": {"a": "", "b": ""}}, "properties"),
        ("query", {"filter": long}, "filter"),
        ("query", {"columns": {"a": long}}, "column"),
    ):
        assert_problem(client.post(f"/v1/table/t/{path}", body), 400, 13, field)


@pytest.mark.parametrize(
    ("query", "mode", "branch"),
    [
        ("", InsertMode.APPEND, None),
        ("?mode=Append", InsertMode.APPEND, None),
        ("?mode=OVERWRITE&branch=dev", InsertMode.OVERWRITE, "dev"),
        ("?delimiter=%24&branch=main&mode=overwrite", InsertMode.OVERWRITE, None),
    ],
)
@pytest.mark.parametrize("content_type", [ARROW, "application/json", None])
def test_insert_passes_the_stream_whatever_its_type(
    client: HttpClient,
    query: str,
    mode: InsertMode,
    branch: str | None,
    content_type: str | None,
) -> None:
    body = arrow_stream(ROWS)
    headers = {} if content_type is None else {"content-type": content_type}
    response = client.post(f"/v1/table/t/insert{query}", content=body, headers=headers)
    assert response.json() == {
        "transaction_id": "txn-insert",
        "num_inserted_rows": 3,
        "version": 2,
    }
    table, got_branch, got_mode, key, got_body = client.server.called("insert_rows")
    assert (table, got_branch, got_mode, got_body) == (T, branch, mode, body)
    assert key.digest == hashlib.sha256(body).hexdigest()[:32]


@pytest.mark.parametrize("mode", ["", "upsert", "append_", "a_p_p_e_n_d"])
def test_insert_mode_that_is_none_is_refused(client: HttpClient, mode: str) -> None:
    response = client.post(f"/v1/table/t/insert?mode={mode}", content=arrow_stream(ROWS))
    assert_problem(response, 400, 13, "mode", "append, overwrite")
    assert client.server.calls == []


def test_insert_without_a_body_is_refused(client: HttpClient) -> None:
    assert_problem(client.post("/v1/table/t/insert"), 400, 13, "Arrow IPC stream is required")


def keys_of(client: HttpClient, *requests: tuple[str, dict[str, Any]]) -> list[str]:
    for path, options in requests:
        assert client.post(path, content=arrow_stream(ROWS), **options).status_code == 200
    return [arguments[3].id for name, arguments in client.server.calls if name == "insert_rows"]


def test_repeated_write_has_the_same_key(client: HttpClient) -> None:
    same = {"headers": {"x-request-id": "r1"}}
    first, second = keys_of(client, ("/v1/table/t/insert", same), ("/v1/table/t/insert/", same))
    assert first == second
    assert len(first) == 32


def test_idempotency_key_comes_before_the_request_id(client: HttpClient) -> None:
    found = keys_of(
        client,
        ("/v1/table/t/insert", {"headers": {"x-request-id": "r1", "idempotency-key": "i"}}),
        ("/v1/table/t/insert", {"headers": {"x-request-id": "r2", "idempotency-key": "i"}}),
        ("/v1/table/t/insert", {"headers": {"x-request-id": "i"}}),
    )
    assert len(set(found)) == 1


def test_write_of_another_caller_table_branch_database_or_request_has_another_key(
    client: HttpClient,
) -> None:
    client.authenticator.add("other", "write:*")
    client.server.add_table("u", rows=ROWS)
    client.server.add_table("t", rows=ROWS, database="db2")
    same = {"x-request-id": "r1"}
    found = keys_of(
        client,
        ("/v1/table/t/insert", {"headers": same}),
        ("/v1/table/t/insert", {"headers": same, "key": "other"}),
        ("/v1/table/u/insert", {"headers": same}),
        ("/v1/table/t/insert?branch=dev", {"headers": same}),
        ("/v1/table/t/insert", {"headers": {**same, "x-lancedb-database": "db2"}}),
        ("/v1/table/t/insert", {"headers": {"x-request-id": "r2"}}),
        ("/v1/table/t/insert", {}),
        ("/v1/table/t/insert", {}),
    )
    assert len(set(found)) == 8


def read_file(content: bytes) -> pa.Table:
    return pa.ipc.open_file(content).read_all()


@pytest.mark.parametrize(
    ("body", "request_of_scan"),
    [
        ({}, ScanRequest()),
        ({"vector": {"single_vector": []}, "k": 10}, ScanRequest(limit=10)),
        ({"vector": {}, "k": 2, "offset": 1}, ScanRequest(limit=2, offset=1)),
        (
            {"columns": {"column_names": ["id", "s.x"]}},
            ScanRequest(names=("id", "s.x")),
        ),
        ({"columns": {"column_aliases": {"x": "id"}}}, ScanRequest(columns=(("x", "id"),))),
        (
            {
                "k": 9223372036854775807,
                "prefilter": True,
                "vector": [],
                "version": None,
                "filter": "id > 1",
                "with_row_id": True,
                "order_by": [],
            },
            ScanRequest(filter="id > 1", with_row_id=True),
        ),
        ({"columns": ["id", "a + b"], "vector": []}, ScanRequest(names=("id", "a + b"))),
        (
            {"columns": {"b": "id+1", "a": "name"}},
            ScanRequest(columns=(("b", "id+1"), ("a", "name"))),
        ),
        ({"columns": {}}, ScanRequest()),
        ({"columns": None, "full_text_query": None}, ScanRequest()),
    ],
    ids=repr,
)
def test_query_is_read_in_both_dialects(
    client: HttpClient, body: dict[str, Any], request_of_scan: ScanRequest
) -> None:
    response = client.post("/v1/table/t/query", body)
    assert response.headers["content-type"] == "application/vnd.apache.arrow.file"
    assert response.headers["x-lancedb-version"] == "1"
    assert read_file(response.content).equals(ROWS)
    assert client.server.called("scan") == (T, Pin(), request_of_scan, None)


@pytest.mark.parametrize(
    "body",
    [
        {"vector": {"single_vector": [0.1, 2]}, "k": 1},
        {"vector": [1, 2], "k": 1},
        {"vector": [[1.0], [2.0]], "k": 1},
        {"full_text_query": {"string_query": {"query": "x"}}, "k": 1},
        {"full_text_query": {"columns": ["a"], "query": "x"}, "k": 1},
        {"order_by": [{"column_name": "id", "ascending": True}]},
    ],
    ids=repr,
)
def test_search_is_not_built(client: HttpClient, body: dict[str, Any]) -> None:
    assert_problem(client.post("/v1/table/t/query", body), 406, 0, "not built")
    assert client.server.calls == []


@pytest.mark.parametrize(
    "body",
    [
        {"k": -1},
        {"k": 2**63},
        {"k": "1"},
        {"columns": 7},
        {"columns": [1]},
        {"columns": {"column_names": ["a"], "column_aliases": {"b": "c"}}},
        {"vector": "x"},
        {"offset": -1},
        {"filter": 1},
    ],
    ids=repr,
)
def test_malformed_query_is_refused(client: HttpClient, body: dict[str, Any]) -> None:
    assert_problem(client.post("/v1/table/t/query", body), 400, 13)


def test_long_result_is_streamed_whole(client: HttpClient) -> None:
    parts = [
        pa.record_batch({"n": list(range(start, start + 100))}) for start in range(0, 5_000, 100)
    ]
    client.server.scan_result = rows = FakeRows(parts[0].schema, 9, parts)
    client.settings = Settings(limits=LimitSettings(query_rows_buffered_max=250))
    response = client.post("/v1/table/t/query", {})
    assert read_file(response.content)["n"].to_pylist() == list(range(5_000))
    assert response.headers["x-lancedb-version"] == "9"
    assert rows.is_closed


def test_empty_result_is_a_file_with_the_schema(client: HttpClient) -> None:
    client.server.scan_result = FakeRows(ROWS.schema, 1, [])
    result = read_file(client.post("/v1/table/t/query", {}).content)
    assert (result.schema, result.num_rows) == (ROWS.schema, 0)


@pytest.mark.parametrize("fails_after", [0, 1])
def test_error_among_the_first_rows_is_an_error_answer(
    client: HttpClient, fails_after: int
) -> None:
    failure = InvalidInput("division by zero; change the filter")
    rows = FakeRows(ROWS.schema, 1, ROWS.to_batches(), failure, fails_after)
    client.server.scan_result = rows
    assert_problem(client.post("/v1/table/t/query", {}), 400, 13, "division by zero")
    assert rows.is_closed


def test_error_after_the_first_rows_ends_the_answer_early(client: HttpClient) -> None:
    parts = ROWS.to_batches() * 9
    failure = InvalidInput("division by zero; change the filter")
    client.server.scan_result = FakeRows(ROWS.schema, 1, parts, failure, 8)
    client.settings = Settings(limits=LimitSettings(query_rows_buffered_max=4))
    with pytest.raises(InvalidInput):
        client.post("/v1/table/t/query", {})


@pytest.mark.parametrize("engine", ["auto", "lance", "daft"])
def test_context_chooses_the_engine_for_managers(client: HttpClient, engine: str) -> None:
    body = {"context": {"engine": engine}, "predicate": "true", "updates": [["a", "1"]]}
    for path in ("count_rows", "query", "update", "delete"):
        assert client.post(f"/v1/table/t/{path}", body).status_code == 200
        assert client.server.last[-1] == engine
    client.authenticator.add("user", "read+write:*")
    for path in ("count_rows", "query", "update", "delete"):
        response = client.post(f"/v1/table/t/{path}", body, key="user")
        assert_problem(response, 403, 15, "'manage'")


def test_unknown_engine_is_refused(client: HttpClient) -> None:
    response = client.post("/v1/table/t/count_rows", {"context": {"engine": "spark"}})
    assert_problem(response, 400, 13, "spark", "auto, lance, daft")


@pytest.mark.parametrize(
    ("path", "body", "right"),
    [
        ("count_rows", {}, "read"),
        ("query", {}, "read"),
        ("update", {"updates": [["a", "1"]]}, "write"),
        ("delete", {"predicate": "true"}, "write"),
        ("insert", None, "write"),
    ],
)
def test_each_operation_needs_its_right_on_the_table(
    client: HttpClient, path: str, body: Any, right: str
) -> None:
    others = {"list", "read", "write", "alter", "drop", "manage", "execute_code"} - {right}
    client.authenticator.add("without", f"{'+'.join(others)}:*", f"{right}:default/other")
    client.authenticator.add("with", f"{right}:default/t")
    options = {"content": arrow_stream(ROWS)} if body is None else {}
    refused = client.post(f"/v1/table/t/{path}", body, key="without", **options)
    assert_problem(refused, 403, 15, f"'{right}'")
    assert client.server.calls == []
    assert client.post(f"/v1/table/t/{path}", body, key="with", **options).status_code == 200


def test_properties_of_an_update_need_the_right_to_alter(client: HttpClient) -> None:
    client.authenticator.add("writer", "write:*")
    body = {"updates": [["a", "1"]], "properties": {"k": "v"}}
    assert_problem(client.post("/v1/table/t/update", body, key="writer"), 403, 15, "'alter'")


@pytest.mark.parametrize("failure", [Throttling("queue full"), OutcomeUnknown("lost")])
def test_busy_server_says_when_to_come_back(client: HttpClient, failure: Exception) -> None:
    client.server.failures["insert_rows"] = failure
    response = client.post("/v1/table/t/insert", content=arrow_stream(ROWS))
    assert_problem(response, 503, failure.code, str(failure))  # type: ignore[attr-defined]
    assert response.headers["retry-after"] == "1"
