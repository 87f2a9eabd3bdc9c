"""The client of views: what it sends, and what it makes of the answers."""

import base64
import io
import json
import sys
from typing import Any

import httpx
import pyarrow as pa
import pytest
from tqdm import tqdm

from cluster.errors import InvalidInput, ServiceUnavailable, TableNotFound
from tests.unit.test_authoring import Counted, passages
from tests.unit.view_server import Server, rows
from udtf.client import ViewClient, source_query
from udtf.progress import ProgressBar, ProgressLines, description
from udtf.view_jobs import JobStatus, RefreshFailed


class Terminal(io.StringIO):
    """What is written to a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def views(server: Server, monkeypatch: pytest.MonkeyPatch) -> ViewClient:
    monkeypatch.setattr("time.sleep", lambda s: None)
    transport = httpx.MockTransport(server.handle)
    return ViewClient("http://host", api_key="k", database="d", transport=transport)


def schema_of(body: Any) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(body["output_schema"])))


def test_a_query_view_gets_the_columns_that_the_server_gives_its_query(
    views: ViewClient, server: Server
) -> None:
    server.give("/v1/materialized_view/v/create", {"version": 1})
    query = "SELECT id, upper(body) AS b FROM docs WHERE id > 3"
    found = pa.schema({"id": pa.int64(), "b": pa.string()})
    server.answers["/v1/table/docs/query"] = lambda body: rows(found.empty_table())
    assert views.create("v", source=query) is None
    asked = server.sent("/v1/table/docs/query")
    assert asked["k"] == 0
    assert list(asked["columns"]["column_aliases"]) == ["id", "b"]
    sent = server.sent("/v1/materialized_view/v/create")
    assert (sent["kind"], sent["source_query"], sent["with_no_data"]) == ("query", query, True)
    assert schema_of(sent) == found


def test_a_chunker_view_inherits_the_columns_of_its_source(
    views: ViewClient, server: Server
) -> None:
    server.give("/v1/materialized_view/v/create", {"version": 1, "job_id": "j"}, status=202)
    job = views.create("v", passages, source="docs", with_data=True)
    assert job is not None
    assert job.job_id == "j"
    sent = server.sent("/v1/materialized_view/v/create")
    assert sent["with_no_data"] is False
    assert sent["udtf_spec"]["input_columns"] == ["body"]
    assert schema_of(sent).names == ["id", "body", "number", "text", "vector"]
    views.create("v", passages, source="docs", inherit=["id"])
    narrowed = schema_of(server.sent("/v1/materialized_view/v/create"))
    assert narrowed.names == ["id", "number", "text", "vector"]
    with pytest.raises(InvalidInput, match="inherit names other"):
        views.create("v", passages, source="docs", inherit=["other"])


def test_a_udtf_view_has_the_columns_of_its_code_alone(views: ViewClient, server: Server) -> None:
    server.give("/v1/materialized_view/v/create", {"version": 1})
    views.create("v", Counted, source="docs", auto_refresh=True)
    sent = server.sent("/v1/materialized_view/v/create")
    assert schema_of(sent) == Counted.options.output_schema
    assert sent["auto_refresh"] is True
    with pytest.raises(InvalidInput, match="for views of chunkers"):
        views.create("v", Counted, source="docs", inherit=["id"])


def test_parameters_that_are_no_columns_are_told_before_anything_is_sent(
    views: ViewClient, server: Server
) -> None:
    server.answers["/v1/table/docs/query"] = lambda body: rows(pa.table({"id": [1]}))
    with pytest.raises(InvalidInput, match="parameters body, which are no columns"):
        views.create("v", passages, source="docs")
    assert [path for path, _, _ in server.requests] == ["/v1/table/docs/query"]


def test_sources_of_other_forms_are_refused(views: ViewClient) -> None:
    with pytest.raises(InvalidInput, match="does not execute the source_query"):
        views.create("v", source="SELECT a FROM b JOIN c")


def test_sources_are_sent_as_they_are_written() -> None:
    assert source_query(" select *  from t ") == " select *  from t "
    assert source_query('{"format": "lance-mv-query"}') == '{"format": "lance-mv-query"}'
    table = {"format": "lance-mv-query", "version": 1, "source": {"id": ["ns", "docs"]}}
    assert json.loads(source_query("ns$docs")) == table
    assert json.loads(source_query({"source": {"id": ["ns", "docs"]}})) == table
    with pytest.raises(InvalidInput, match="empty"):
        source_query(" ")


def test_every_request_says_who_asks_and_about_which_database(
    views: ViewClient, server: Server
) -> None:
    server.give("/v1/materialized_view/a%24b/describe", {"kind": "query"})
    assert views.describe("a$b") == {"kind": "query"}
    _, body, request = server.requests[0]
    assert body == {"id": ["a", "b"]}
    assert request.headers["x-api-key"] == "k"
    assert request.headers["x-lancedb-database"] == "d"


def test_refusals_are_the_errors_that_their_codes_stand_for(
    views: ViewClient, server: Server
) -> None:
    path = "/v1/materialized_view/v/describe"
    server.give(path, {"code": 4, "error": "no view v"}, status=404)
    with pytest.raises(TableNotFound, match="no view v"):
        views.describe("v")
    server.answers[path] = lambda body: httpx.Response(502, text="<html>bad gateway</html>")
    with pytest.raises(ServiceUnavailable, match="answered 502: <html>bad gateway"):
        views.describe("v")
    server.answers[path] = lambda body: httpx.Response(200, text="<html>")
    with pytest.raises(ServiceUnavailable, match="is it a Destrier server"):
        views.describe("v")


def test_a_busy_server_is_asked_again_with_the_same_request_id(
    views: ViewClient, server: Server
) -> None:
    path = "/v1/materialized_view/v/refresh"
    answers = [
        httpx.Response(503, json={"code": 17, "error": "busy"}),
        httpx.ReadError("lost"),
        httpx.Response(202, json={"job_id": "j"}),
    ]

    def answer(_: Any) -> httpx.Response:
        given = answers.pop(0)
        if isinstance(given, Exception):
            raise given
        return given

    server.answers[path] = answer
    assert views.refresh("v").job_id == "j"
    ids = {request.headers["x-request-id"] for _, _, request in server.requests}
    assert len(server.requests) == 3
    assert len(ids) == 1


def test_an_answer_that_stays_lost_is_an_unknown_outcome(views: ViewClient, server: Server) -> None:
    def lose(_: Any) -> httpx.Response:
        raise httpx.ReadError("lost")

    server.answers["/v1/materialized_view/v/drop"] = lose
    with pytest.raises(ServiceUnavailable, match="may have been done"):
        views.drop("v")
    assert len(server.requests) == 4


def test_refresh_sends_what_is_given_and_nothing_else(views: ViewClient, server: Server) -> None:
    server.give("/v1/materialized_view/v/refresh", {"job_id": "j"}, status=202)
    views.refresh("v")
    assert server.sent("/v1/materialized_view/v/refresh") == {"id": ["v"]}
    views.refresh("v", full=True, source_version=3, concurrency=2, processes_per_worker=4)
    assert server.sent("/v1/materialized_view/v/refresh") == {
        "id": ["v"],
        "full": True,
        "src_version": 3,
        "concurrency": 2,
        "intra_applier_concurrency": 4,
    }


def test_all_pages_of_a_listing_are_read(views: ViewClient, server: Server) -> None:
    path = "/v1/namespace/%24/materialized_view/list"
    server.give(path, {"views": ["a"], "page_token": "x y"})
    server.give(f"{path}?page_token=x+y", {"views": ["b"]})
    assert views.list() == ["a", "b"]


def running(items: int, state: str = "IN_PROGRESS", **fields: Any) -> dict[str, Any]:
    metrics = [
        {"name": "items", "count": items, "total": 4},
        {"name": "rows_read", "count": items * 10, "total": 40},
        {"name": "rows_written", "count": items * 1_000},
        {"name": "workers_active", "count": 2},
    ]
    answer = {"job_id": "j", "job_state": state, "phase": "compute", "metrics": metrics}
    return answer | fields


def test_wait_returns_what_the_refresh_did(
    views: ViewClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    result = {"mode": "rebuild", "rows_written": 4_000, "source_version": 3, "version": 2}
    pending = {"job_id": "j", "job_state": "PENDING", "phase": "queued"}
    server.give(
        "/v1/jobs/describe", pending, running(1), running(3), running(4, "DONE", result=result)
    )
    status = views.job("j").wait(progress=True)
    assert status.result == result
    assert isinstance(sys.stderr, Terminal)
    shown = sys.stderr.getvalue()
    assert "compute:  25%" in shown
    assert "3/4 items" in shown
    assert "2 workers" in shown
    assert "done: 100%" in shown
    assert "4,000 rows" in shown


def test_a_failed_job_says_where_and_why(views: ViewClient, server: Server) -> None:
    failure = {"phase": "compute", "message": "ValueError: bad row", "item": "kind=a"}
    server.give("/v1/jobs/describe", running(1, "FAILED", failure=failure))
    with pytest.raises(
        RefreshFailed, match=r"failed in phase compute \(item kind=a\): ValueError: bad row"
    ) as raised:
        views.job("j").wait()
    assert raised.value.status is not None
    assert raised.value.status.failure == failure
    server.give("/v1/jobs/describe", running(1, "CANCELLED"))
    with pytest.raises(RefreshFailed, match="was cancelled"):
        views.job("j").wait()


def test_wait_stops_at_its_deadline_and_not_the_job(views: ViewClient, server: Server) -> None:
    server.give("/v1/jobs/describe", running(1))
    with pytest.raises(ServiceUnavailable, match="is not over after 0 s"):
        views.job("j").wait(timeout_s=0)
    assert {path for path, _, _ in server.requests} == {"/v1/jobs/describe"}


def test_errors_and_cancel_name_the_job(views: ViewClient, server: Server) -> None:
    one, two = {"item": "a"}, {"item": "b"}
    server.give("/v1/jobs/errors", {"errors": [one], "page_token": "t"}, {"errors": [two]})
    assert views.job("j").errors() == [one, two]
    assert server.sent("/v1/jobs/errors") == {"job_id": "j", "page_token": "t"}
    server.give("/v1/jobs/cancel", {})
    views.job("j").cancel()
    assert server.sent("/v1/jobs/cancel") == {"job_id": "j"}


def test_the_bar_shows_what_a_job_waits_for() -> None:
    status = JobStatus.of(
        {"job_state": "PENDING", "phase": "queued", "waiting_for": "1 GPU, which others use"}
    )
    assert description(status) == "queued, waiting: 1 GPU, which others use"
    assert description(JobStatus.of(running(1) | {"state": "PAUSED"})) == "paused"
    assert description(JobStatus.of(running(1) | {"state": "RUNNING"})) == "compute"


def test_where_there_is_no_terminal_a_line_tells_of_each_phase_and_a_few_between() -> None:
    file, now = io.StringIO(), [0.0]
    lines = ProgressLines(file, lambda: now[0])
    for tenth in range(120):
        now[0] = tenth / 10
        lines.show(JobStatus.of(running(1 if tenth < 60 else 2)))
    now[0] = 12.0
    lines.show(JobStatus.of(running(4, "DONE")))
    assert file.getvalue().splitlines() == [
        "compute: 1/4 items, 1,000 rows, 2 workers",
        "compute: 2/4 items, 2,000 rows, 2 source rows/s, 2 workers",
        "compute: 2/4 items, 2,000 rows, 1 source rows/s, 2 workers",
        "done: 4/4 items, 4,000 rows, 2 source rows/s",
    ]


def test_a_log_gets_no_bar(
    views: ViewClient, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.give("/v1/jobs/describe", running(1), running(3), running(4, "DONE"))
    views.job("j").wait(progress=True)
    shown = capsys.readouterr().err
    assert "\r" not in shown
    assert [line.split(":")[0] for line in shown.splitlines()] == ["compute", "done"]


def test_the_bar_counts_rows_per_second_from_where_it_began() -> None:
    now = iter([10.0, 12.0])
    with tqdm(file=io.StringIO()) as bar:
        shown = ProgressBar(bar, lambda: next(now))
        shown.show(JobStatus.of(running(1)))
        assert "rows/s" not in bar.postfix
        shown.show(JobStatus.of(running(3)))
        assert "10 source rows/s" in bar.postfix
