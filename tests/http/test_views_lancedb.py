"""Views as LanceDB's client defines, refreshes, describes, lists and drops them."""

import base64
from typing import Any

import pyarrow as pa
import pytest

from actors.model import Pin
from cluster.errors import InvalidTableState
from cluster.identifiers import TableRef
from tests.http.conftest import HttpClient, assert_problem
from tests.http.fakes import FakeRows, table_id
from tests.http.view_values import CODE, OUTPUT_SCHEMA, SOURCE_QUERY, add_view, definition
from udtf.refresh_model import RefreshOptions
from udtf.spec import ViewKind

VIEW = "/v1/materialized_view/v"
SQL = 'SELECT `x` AS "x", x * 2 AS "twice" FROM "t" WHERE x > 3 LIMIT 7'


@pytest.fixture
def views(client: HttpClient) -> HttpClient:
    """A client of a server with the view `v` of the table `t`."""
    client.server.add_table("t", rows=pa.table({"x": [1]}))
    add_view(client.server, "v")
    return client


@pytest.mark.parametrize(
    ("with_no_data", "status", "answer"),
    [
        (False, 202, {"version": 1, "job_id": "job-1"}),
        (True, 200, {"version": 1}),
        (None, 200, {"version": 1}),
    ],
)
def test_a_query_alone_defines_a_view(
    views: HttpClient, with_no_data: bool | None, status: int, answer: dict[str, Any]
) -> None:
    found = pa.schema([pa.field("x", pa.int64()), pa.field("twice", pa.int64())], {"mv.x": "no"})
    views.server.scan_result = FakeRows(found, 1, [])
    body = {"query": SQL, "with_no_data": with_no_data}
    response = views.post("/v1/materialized_view/new/create", body)
    assert (response.status_code, response.json()) == (status, answer)
    columns = (("x", "x"), ("twice", "x * 2"))
    table, pin, scan, engine = views.server.called("scan")
    assert (table, pin, engine) == (TableRef("default", table_id("t")), Pin(), "lance")
    assert (scan.limit, [name for name, _ in scan.columns]) == (0, [name for name, _ in columns])
    view, made, _, with_data, _ = views.server.called("create_view")
    assert (view.id, made.kind, made.source_query) == (table_id("new"), ViewKind.QUERY, SQL)
    assert with_data is (with_no_data is False)
    schema = pa.ipc.read_schema(pa.py_buffer(made.output_schema))
    assert (schema.names, schema.metadata) == (["x", "twice"], None)


def test_a_query_of_another_form_cannot_define_a_view(views: HttpClient) -> None:
    for query in ("SELECT * FROM vector_dedup('docs', 1, 'vector', 0.5)", "", "DROP TABLE t"):
        body = {"query": query, "with_no_data": True}
        assert_problem(views.post("/v1/materialized_view/new/create", body), 400, 13, "query")
    assert views.server.calls == []


def test_a_query_reads_only_what_the_caller_may_read(views: HttpClient) -> None:
    views.authenticator.add("writer", "write:*")
    response = views.post("/v1/materialized_view/new/create", {"query": SQL}, key="writer")
    assert_problem(response, 403, 15, "'read'", "default/t")
    assert views.server.calls == []


def test_kind_decides_between_the_dialects(views: HttpClient) -> None:
    spec = {"kind": "query", "source_query": SOURCE_QUERY, "output_schema": OUTPUT_SCHEMA}
    body = {**spec, "query": SQL, "with_no_data": False}
    assert views.post("/v1/materialized_view/new/create", body).status_code == 200
    assert views.server.called("create_view")[1].source_query == SOURCE_QUERY


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ({}, RefreshOptions()),
        ({"full": False, "source_version": 3}, RefreshOptions(source_version=3)),
        ({"src_version": 3, "source_version": 3}, RefreshOptions(source_version=3)),
        ({"full": True}, RefreshOptions(full=True)),
        (
            {
                "max_rows_per_fragment": 1,
                "concurrency": 2,
                "intra_applier_concurrency": 3,
                "source_task_size": 4,
                "output_limit": 5,
                "manifest": "{}",
            },
            RefreshOptions(None, False, 1, 2, 3, 4, 5, "{}"),
        ),
    ],
)
def test_refresh_answers_202_with_its_job(
    views: HttpClient, body: dict[str, Any], options: RefreshOptions
) -> None:
    response = views.post(f"{VIEW}/refresh", body)
    assert (response.status_code, response.json()) == (202, {"job_id": "job-1"})
    called = views.server.called("refresh_view")
    assert called[:5] == (TableRef("default", table_id("v")), options, False, False, None)
    assert called[6] == "caller-admin"


def test_refresh_passes_on_what_else_is_asked(views: HttpClient) -> None:
    body = {"cascade": True, "failed_only": True, "cluster": "here"}
    assert views.post(f"{VIEW}/refresh", body).status_code == 202
    assert views.server.called("refresh_view")[2:5] == (True, True, "here")


@pytest.mark.parametrize(
    "body",
    [
        {"src_version": 3, "source_version": 4},
        {"src_version": -1},
        {"concurrency": 0},
        {"output_limit": 0},
        {"full": "yes"},
        {"id": ["other"]},
    ],
    ids=repr,
)
def test_a_malformed_refresh_is_refused(views: HttpClient, body: dict[str, Any]) -> None:
    assert_problem(views.post(f"{VIEW}/refresh", body), 400, 13)
    assert views.server.calls == []


def test_a_request_id_makes_refreshes_the_same(views: HttpClient) -> None:
    def key(headers: dict[str, str], who: str = "admin") -> str:
        views.server.calls.clear()
        views.post(f"{VIEW}/refresh", {}, headers=headers, key=who)
        return str(views.server.called("refresh_view")[5])

    views.authenticator.add("other", "read+write:*")
    mine = {"x-request-id": "r-1"}
    assert key(mine) == key(mine) == key({"idempotency-key": "r-1"})
    assert len({key(mine), key({"x-request-id": "r-2"}), key(mine, "other"), key({})}) == 4


def test_refresh_needs_rights_on_view_and_source(views: HttpClient) -> None:
    add_view(views.server, "code", defined=definition(ViewKind.UDTF))
    for grants, names, right in [
        (("read:*",), "v", "'write'"),
        (("write:*",), "v", "'read'"),
        (("write+read:*",), "code", "'execute_code'"),
    ]:
        views.authenticator.add("some", *grants)
        url = f"/v1/materialized_view/{names}/refresh"
        assert_problem(views.post(url, {}, key="some"), 403, 15, right)
    views.authenticator.add("some", "write+execute_code:default/code", "read:default/t")
    assert views.post("/v1/materialized_view/code/refresh", {}, key="some").status_code == 202


def test_cascade_needs_rights_on_every_view_below(views: HttpClient) -> None:
    over = definition(source_query="SELECT x FROM v")
    add_view(views.server, "over", defined=over)
    url = "/v1/materialized_view/over/refresh"
    views.authenticator.add("some", "write:default/over", "read:*")
    assert views.post(url, {}, key="some").status_code == 202
    response = views.post(url, {"cascade": True}, key="some")
    assert_problem(response, 403, 15, "'write'", "default/v")
    views.authenticator.add("some", "write:default/over", "write:default/v", "read:*")
    assert views.post(url, {"cascade": True}, key="some").status_code == 202


def test_a_table_cannot_be_refreshed(views: HttpClient) -> None:
    response = views.post("/v1/materialized_view/t/refresh", {})
    assert_problem(response, 400, InvalidTableState.code, "no materialized view")
    assert_problem(views.post("/v1/materialized_view/none/refresh", {}), 404, 4)


def test_description_says_what_the_view_is_and_how_current(views: HttpClient) -> None:
    body = views.post(f"{VIEW}/describe").json()
    result = {
        "mode": "rebuild",
        "rows_written": 7,
        "source_version": 3,
        "version": 2,
        "rows_read": 9,
        "rows_evicted": 0,
        "items": 1,
        "items_skipped": 0,
        "reason": "it is new",
    }
    refresh = {
        "job_id": "done",
        "state": "DONE",
        "trigger": "api",
        "created_ms": 100,
        "ended_ms": 250,
        "duration_ms": 100,
        "result": result,
    }
    assert body == {
        "source_table": "t",
        "source_namespace": [],
        "query": "SELECT `x` FROM `t`",
        "projections": [{"output_column": "x", "expression": "x"}],
        "filter": "x > 1",
        "limit": 7,
        "incarnation": "life-1",
        "kind": "query",
        "source_query": SOURCE_QUERY,
        "output_schema": base64.b64encode(definition().output_schema).decode(),
        "resources": {"num_cpus": 1.0, "num_gpus": 0.0},
        "version": 2,
        "num_rows": 7,
        "source_version": 3,
        "latest_source_version": 5,
        "lag_versions": 2,
        "lag_rows": 40,
        "refreshed_at_ms": 500,
        "refreshable": True,
        "auto_refresh": False,
        "suspended": False,
        "failures_in_a_row": 0,
        "last_success": refresh,
        "history": [refresh],
    }


def test_description_of_code_has_its_resources_and_not_its_text(views: HttpClient) -> None:
    add_view(views.server, "code", defined=definition(ViewKind.CHUNKER))
    body = views.post("/v1/materialized_view/code/describe", {}).json()
    assert body["resources"] == {"num_cpus": 1.0, "num_gpus": 2.0, "memory": 1_000}
    assert body["udtf"] == {"name": "f", "version": "1", "sha256": CODE.sha256, "batch": False}


def test_description_of_an_opaque_query_has_no_source(views: HttpClient) -> None:
    add_view(views.server, "opaque", defined=definition(source_query="whatever"))
    body = views.post("/v1/materialized_view/opaque/describe", {}).json()
    assert (body["source_table"], body["source_query"]) == ("", "whatever")
    assert "projections" not in body


def test_description_and_drop_need_their_rights(views: HttpClient) -> None:
    views.authenticator.add("some", "write+list:*")
    assert_problem(views.post(f"{VIEW}/describe", {}, key="some"), 403, 15, "'read'")
    assert_problem(views.post(f"{VIEW}/drop", {}, key="some"), 403, 15, "'drop'")
    assert_problem(views.post("/v1/materialized_view/none/describe", {}), 404, 4)


def test_drop_answers_an_empty_object(views: HttpClient) -> None:
    response = views.post(f"{VIEW}/drop")
    assert (response.status_code, response.json()) == (200, {})
    assert_problem(views.post(f"{VIEW}/drop"), 404, 4)


def test_views_are_listed_by_page(views: HttpClient) -> None:
    add_view(views.server, "ns", "inside")
    add_view(views.server, "w")
    url = "/v1/namespace/$/materialized_view/list"
    assert views.get(url).json() == {"views": ["v", "w"]}
    assert views.get(f"{url}?limit=1").json() == {"views": ["v"], "page_token": "v"}
    assert views.get(f"{url}?limit=1&page_token=v").json() == {"views": ["w"]}
    assert views.get("/v1/namespace/ns/materialized_view/list").json() == {"views": ["inside"]}
    assert_problem(views.get(f"{url}?limit=0"), 400, 13)
    views.authenticator.add("some", "read:*")
    assert_problem(views.get(url, key="some"), 403, 15, "'list'")


def test_a_slash_at_the_end_changes_nothing(views: HttpClient) -> None:
    assert views.post(f"{VIEW}/describe/").status_code == 200
    assert views.post(f"{VIEW}/refresh/", {}).status_code == 202
