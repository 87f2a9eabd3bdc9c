"""Jobs over HTTP, as LanceDB's client speaks of them."""

from typing import Any

import httpx
import pyarrow as pa
import pytest

from actors.jobs_model import (
    JobEvent,
    JobFailure,
    JobItemError,
    JobMetric,
    JobPhase,
    JobState,
)
from tests.http.conftest import HttpClient, assert_problem
from tests.http.view_values import RESULT, job
from udtf.refresh_model import (
    ItemError,
    ItemState,
    RefreshMode,
    RefreshOptions,
    RefreshSummary,
)

EVENT_COLUMNS = [
    "emitted_at",
    "state",
    "phase",
    "updated_by",
    "emitted_from",
    "emitted_by",
    "claim_entity",
    "message",
    "rows_processed",
]


@pytest.fixture
def jobs(client: HttpClient) -> HttpClient:
    """A client of a server with the job `j` of the view `v`, which runs."""
    add(client, job("j"))
    return client


def add(client: HttpClient, *made: Any) -> None:
    client.server.jobs |= {item.job_id: item for item in made}


def ask(client: HttpClient, operation: str, /, key: str = "admin", **body: Any) -> httpx.Response:
    return client.post(f"/v1/jobs/{operation}", {"job_id": "j", **body}, key=key)


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        (JobState.PENDING, "IN_PROGRESS"),
        (JobState.RUNNING, "IN_PROGRESS"),
        (JobState.PAUSED, "IN_PROGRESS"),
        (JobState.CANCELLING, "IN_PROGRESS"),
        (JobState.DONE, "DONE"),
        (JobState.FAILED, "FAILED"),
        (JobState.CANCELLED, "CANCELLED"),
    ],
)
def test_a_job_is_over_in_one_of_three_ways(
    client: HttpClient, state: JobState, shown: str
) -> None:
    add(client, job("j", state))
    body = ask(client, "describe").json()
    assert (body["job_state"], body["state"]) == (shown, state)
    assert client.post("/v1/jobs/list").json()["jobs"][0]["state"] == shown


def test_a_running_job_says_how_far_it_is(client: HttpClient) -> None:
    add(
        client,
        job(
            "j",
            attempt=1,
            waiting_for="1 GPU",
            heartbeat_ms=280,
            resolved=RefreshSummary(RefreshMode.INCREMENTAL, "3 rows changed", 4, 2, 3, "key"),
            metrics=(JobMetric("items_done", 1, 2), JobMetric("rows_read", 5)),
            options=RefreshOptions(source_version=4, manifest="{}"),
        ),
    )
    assert ask(client, "describe").json() == {
        "job_id": "j",
        "job_type": "refresh_materialized_view",
        "job_state": "IN_PROGRESS",
        "creation_ms": 100,
        "spec": {
            "id": ["v"],
            "full": False,
            "failed_only": False,
            "src_version": 4,
            "manifest_checksum": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
        },
        "table": "v",
        "state": "RUNNING",
        "phase": "compute",
        "pausing": False,
        "attempt": 1,
        "trigger": "api",
        "requested_by": "ada",
        "waiting_for": "1 GPU",
        "updated_ms": 300,
        "started_ms": 150,
        "heartbeat_ms": 280,
        "resolved": {
            "mode": "incremental",
            "reason": "3 rows changed",
            "source_version": 4,
            "items": 2,
            "rows": 3,
        },
        "metrics": [
            {"name": "items_done", "count": 1, "total": 2},
            {"name": "rows_read", "count": 5},
        ],
    }


def test_a_job_that_is_over_has_a_result_or_a_failure(client: HttpClient) -> None:
    add(client, job("j", JobState.DONE, result=RESULT))
    result = ask(client, "describe").json()["result"]
    told = ("mode", "rows_written", "source_version", "version")
    assert [result[name] for name in told] == ["rebuild", 7, 3, 2]
    failure = JobFailure(JobPhase.PLAN, "the column x is gone", False, "InvalidInput", "i")
    add(client, job("j", JobState.FAILED, failure=failure))
    assert ask(client, "describe").json()["failure"] == {
        "phase": "plan",
        "message": "the column x is gone",
        "retryable": False,
        "type": "InvalidInput",
        "item": "i",
    }


def test_jobs_are_listed_by_page(client: HttpClient) -> None:
    add(client, job("a", JobState.DONE, view_id=("ns", "v")), job("b"), job("c", database="other"))
    entry = {"job_type": "refresh_materialized_view", "created_at_millis": 100}
    first = {"job_id": "a", "table": "ns$v", "state": "DONE", "phase": "done", **entry}
    second = {"job_id": "b", "table": "v", "state": "IN_PROGRESS", "phase": "compute", **entry}
    assert client.post("/v1/jobs/list", {}).json() == {"jobs": [first, second]}
    page = client.post("/v1/jobs/list", {"limit": 1}).json()
    assert page == {"jobs": [first], "page_token": "a"}
    page = client.post("/v1/jobs/list", {"limit": 1, "page_token": "a"}).json()
    assert page == {"jobs": [second]}
    assert_problem(client.post("/v1/jobs/list", {"limit": 0}), 400, 13)


def test_only_jobs_of_views_that_one_may_read_are_seen(client: HttpClient) -> None:
    add(client, *(job(f"{n}", view_id=(f"v{n % 2}",)) for n in range(6)), job("j"))
    client.authenticator.add("some", "read:default/v1")
    page = client.post("/v1/jobs/list", {"limit": 2}, key="some").json()
    assert [item["job_id"] for item in page["jobs"]] == ["1", "3"]
    rest = {"limit": 2, "page_token": page["page_token"]}
    page = client.post("/v1/jobs/list", rest, key="some").json()
    assert ([item["job_id"] for item in page["jobs"]], page.get("page_token")) == (["5"], None)
    unknown = assert_problem(ask(client, "describe", job_id="none"), 404, 10)["error"]
    for operation in ("describe", "cancel", "pause", "resume", "query_events", "errors"):
        told = assert_problem(ask(client, operation, key="some"), 404, 10)["error"]
        assert told == unknown.replace("none", "j")


def test_listing_few_of_many_jobs_looks_at_few_pages(client: HttpClient) -> None:
    add(client, *(job(f"j{n:03}", view_id=("w" if n % 100 == 99 else "v",)) for n in range(400)))
    client.authenticator.add("some", "read:default/w")
    found: list[str] = []
    token: str | None = None
    while token is not None or not found:
        body = {"limit": 1, "page_token": token}
        page = client.post("/v1/jobs/list", body, key="some").json()
        found += [item["job_id"] for item in page["jobs"]]
        token = page.get("page_token")
    assert found == ["j099", "j199", "j299", "j399"]
    assert len([call for call in client.server.calls if call[0] == "list_jobs"]) < 40


@pytest.mark.parametrize("operation", ["cancel", "pause", "resume"])
def test_changing_a_job_takes_the_right_to_write_its_view(jobs: HttpClient, operation: str) -> None:
    jobs.authenticator.add("reader", "read:*")
    assert_problem(ask(jobs, operation, key="reader"), 403, 15, "'write'", "default/v")
    assert [name for name, _ in jobs.server.calls] == ["describe_job"]
    assert_problem(ask(jobs, operation, job_id="none"), 404, 10)
    assert_problem(jobs.post(f"/v1/jobs/{operation}", {}), 400, 13, "'job_id'")


def test_a_job_is_cancelled(jobs: HttpClient) -> None:
    jobs.server.changes = {"state": JobState.CANCELLING}
    response = ask(jobs, "cancel")
    assert response.status_code == 200
    assert response.json() == {"job_id": "j", "job_state": "IN_PROGRESS", "state": "CANCELLING"}
    assert jobs.server.called("cancel_job") == ("default", "j")


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({"pausing": True}, {"paused": True}),
        ({"state": JobState.PAUSED}, {"paused": True}),
        ({"phase": JobPhase.PUBLISH}, {"committing": True}),
        ({"state": JobState.DONE}, {"committing": True}),
    ],
)
def test_a_job_is_paused_or_commits(
    jobs: HttpClient, changes: dict[str, Any], answer: dict[str, bool]
) -> None:
    jobs.server.changes = changes
    response = ask(jobs, "pause")
    assert (response.status_code, response.json()) == (200, answer)


def test_a_job_that_is_paused_or_over_is_not_paused_again(jobs: HttpClient) -> None:
    for paused in (job("j", JobState.PAUSED), job("j", pausing=True)):
        add(jobs, paused)
        assert ask(jobs, "pause").json() == {}
    for state in (JobState.DONE, JobState.CANCELLING):
        add(jobs, job("j", state))
        assert_problem(ask(jobs, "pause"), 400, 13, state)


def test_a_paused_job_goes_on(jobs: HttpClient) -> None:
    assert ask(jobs, "resume").json() == {}
    add(jobs, job("j", pausing=True))
    assert ask(jobs, "resume").json() == {"still_pausing": True}
    add(jobs, job("j", JobState.DONE, pausing=True))
    assert ask(jobs, "resume").json() == {}
    add(jobs, job("j", JobState.PAUSED))
    assert ask(jobs, "resume").json() == {"still_pausing": True}
    jobs.server.changes = {"state": JobState.PENDING}
    assert ask(jobs, "resume").json() == {"resumed": True}


def event(sequence: int, kind: str, **fields: Any) -> JobEvent:
    values = {"message": f"event {sequence}", "attempt": 1, "phase": JobPhase.COMPUTE, **fields}
    return JobEvent("j", sequence, 1_000 + sequence, kind, JobState.RUNNING, **values)


def events(response: httpx.Response) -> pa.Table:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/vnd.apache.arrow.stream"
    return pa.ipc.open_stream(response.content).read_all()


def test_events_are_an_arrow_stream(jobs: HttpClient) -> None:
    nothing = events(ask(jobs, "query_events"))
    assert (nothing.num_rows, nothing.column_names[:9]) == (0, EVENT_COLUMNS)
    assert nothing.schema.field("emitted_at").type == pa.timestamp("ms", "UTC")
    done = event(2, "item", details={"item": "i-1"}, rows_processed=7)
    jobs.server.events = [event(1, "state"), done]
    last = events(ask(jobs, "query_events")).select(EVENT_COLUMNS[1:]).to_pylist()[1]
    assert last == {
        "state": "RUNNING",
        "phase": "compute",
        "updated_by": "ada",
        "emitted_from": "attempt-1",
        "emitted_by": "destrier",
        "claim_entity": "i-1",
        "message": "event 2",
        "rows_processed": 7,
    }


@pytest.mark.parametrize(
    ("asked", "limit", "expected"),
    [
        ({}, 1_000, [1, 2, 3, 4]),
        ({"limit": 3}, 3, [2, 3, 4]),
        ({"limit": 20_000}, 10_000, [1, 2, 3, 4]),
        ({"filter": "kind = 'item'"}, 10_000, [2, 4]),
        ({"filter": "kind = 'item'", "limit": 1}, 10_000, [4]),
        ({"filter": "rows_processed > 2 AND phase LIKE 'comp%'"}, 10_000, [3, 4]),
        ({"filter": "claim_entity IS NULL or state = 'DONE'"}, 10_000, [1, 3]),
        ({"filter": "emitted_at > TIMESTAMP '1970-01-01 00:00:01.002'"}, 10_000, [3, 4]),
    ],
)
def test_events_are_filtered_and_limited(
    jobs: HttpClient, asked: dict[str, Any], limit: int, expected: list[int]
) -> None:
    kinds = {1: "state", 2: "item", 3: "state", 4: "item"}
    jobs.server.events = [
        event(n, kind, rows_processed=n, details={"item": "i"} if kind == "item" else {})
        for n, kind in kinds.items()
    ]
    found = events(ask(jobs, "query_events", **asked))
    assert found["sequence"].to_pylist() == expected
    assert jobs.server.called("job_events") == ("default", "j", limit)


@pytest.mark.parametrize(
    "asked",
    [{"filter": "nope = 1"}, {"filter": "state ="}, {"filter": ""}, {"limit": 0}, {"limit": "2"}],
    ids=repr,
)
def test_a_malformed_question_for_events_is_refused(
    jobs: HttpClient, asked: dict[str, Any]
) -> None:
    jobs.server.events = [event(1, "state")]
    assert_problem(ask(jobs, "query_events", **asked), 400, 13)


def test_items_that_failed_are_listed_with_their_errors(jobs: HttpClient) -> None:
    error = ItemError("user", "ValueError", "bad", "line 3")
    jobs.server.errors = [
        JobItemError("j", f"i-{n}", "kind=a", ItemState.SKIPPED, 2, 9, error) for n in range(2)
    ]
    body = ask(jobs, "errors", limit=1).json()
    assert body == {
        "errors": [
            {
                "item": "i-0",
                "label": "kind=a",
                "state": "skipped",
                "attempts": 2,
                "rows_in": 9,
                "kind": "user",
                "type": "ValueError",
                "message": "bad",
                "traceback": "line 3",
            }
        ],
        "page_token": "more",
    }
    assert len(ask(jobs, "errors").json()["errors"]) == 2
    assert_problem(ask(jobs, "errors", limit=-1), 400, 13)


def test_jobs_are_of_one_database(jobs: HttpClient) -> None:
    headers = {"x-lancedb-database": "other"}
    response = jobs.post("/v1/jobs/describe", {"job_id": "j"}, headers=headers)
    assert_problem(response, 404, 10)


def test_a_slash_at_the_end_changes_nothing(jobs: HttpClient) -> None:
    assert jobs.post("/v1/jobs/describe/", {"job_id": "j"}).status_code == 200
