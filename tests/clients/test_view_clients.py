"""Views and jobs through the clients of the specification and over plain HTTP."""

import base64
import time
from typing import Any

import httpx
import pyarrow as pa
import pytest
from lance.namespace import RestNamespace
from lance_namespace_urllib3_client import ApiClient, Configuration, MaterializedViewApi, models

from tests.clients.plain_http import Database, right
from tests.clients.running_server import DATABASE_HEADER, direct_only

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SOURCE = pa.table({"id": pa.array(range(4), pa.int64()), "v": pa.array(range(4), pa.int64())})
QUERY = "SELECT id, v * 2 AS twice FROM src WHERE v > 0"
SCHEMA = base64.b64encode(
    pa.schema({"id": pa.int64(), "twice": pa.int64()}).serialize().to_pybytes()
).decode()
DEFINITION = {"kind": "query", "source_query": QUERY, "output_schema": SCHEMA}
WAIT_S = 120


@pytest.fixture
def views(fresh_database: Database) -> Database:
    """A database with the table `src`."""
    fresh_database.create("src", SOURCE)
    return fresh_database


def view(views: Database, name: str, operation: str, /, **body: Any) -> httpx.Response:
    return views.post(f"materialized_view/{name}/{operation}", body)


def ended(views: Database, job_id: str) -> dict[str, Any]:
    """The job once it is over."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        job: dict[str, Any] = right(views.post("jobs/describe", {"job_id": job_id})).json()
        if job["job_state"] != "IN_PROGRESS":
            return job
        time.sleep(0.1)
    raise AssertionError(f"job {job_id} is not over after {WAIT_S} s: {job}")


def test_the_rust_client_creates_a_view_with_its_rows(views: Database) -> None:
    server = views.server
    headers = {f"header.{DATABASE_HEADER}": views.name, "header.x-api-key": server.admin_key}
    client = RestNamespace(uri=server.url, **headers)
    request = models.CreateMaterializedViewRequest(id=["v"], with_no_data=False, **DEFINITION)
    created = client.create_materialized_view(request)
    assert created.version == 1
    assert ended(views, created.job_id)["result"]["rows_written"] == 3
    again = client.refresh_materialized_view(models.RefreshMaterializedViewRequest(id=["v"]))
    assert ended(views, again.job_id)["result"]["mode"] == "no_op"


def test_the_generated_client_creates_and_refreshes_a_view(views: Database) -> None:
    server = views.server
    api = ApiClient(Configuration(host=server.url, api_key={"ApiKeyAuth": server.admin_key}))
    api.set_default_header(DATABASE_HEADER, views.name)
    client = MaterializedViewApi(api)
    request = models.CreateMaterializedViewRequest(with_no_data=False, **DEFINITION)
    created = client.create_materialized_view("v", request)
    assert created.version == 1
    assert ended(views, created.job_id)["job_state"] == "DONE"
    asked = models.RefreshMaterializedViewRequest(src_version=1)
    again = client.refresh_materialized_view("v", refresh_materialized_view_request=asked)
    assert ended(views, again.job_id)["result"]["mode"] == "no_op"
    api.rest_client.pool_manager.clear()


@direct_only
def test_a_view_is_described_as_it_falls_behind(views: Database) -> None:
    assert view(views, "v", "create", **DEFINITION).status_code == 200
    first = right(view(views, "v", "describe")).json()
    assert (first["source_table"], first["kind"], first["source_query"]) == ("src", "query", QUERY)
    assert "source_version" not in first
    started = view(views, "v", "refresh", full=True)
    assert started.status_code == 202
    assert ended(views, started.json()["job_id"])["job_state"] == "DONE"
    assert right(view(views, "v", "describe")).json()["lag_versions"] == 0

    views.insert("src", pa.table({"id": pa.array([9, 10]), "v": pa.array([9, 10])}))
    behind = right(view(views, "v", "describe")).json()
    told = ("source_version", "latest_source_version", "lag_versions", "lag_rows", "refreshable")
    assert [behind[name] for name in told] == [1, 2, 1, 2, True]
    assert behind["last_success"]["result"]["mode"] == "rebuild"
    assert [entry["state"] for entry in behind["history"]] == ["DONE"]


@direct_only
def test_a_repeated_refresh_is_the_same_job(views: Database) -> None:
    view(views, "v", "create", **DEFINITION)
    headers = {"idempotency-key": "once"}
    ids = {
        right(views.post("materialized_view/v/refresh", {}, headers=headers)).json()["job_id"]
        for _ in range(3)
    }
    (job_id,) = ids
    ended(views, job_id)
    repeated = views.post("materialized_view/v/refresh", {}, headers=headers)
    assert repeated.json()["job_id"] == job_id


@direct_only
def test_what_cannot_be_refreshed_is_refused(views: Database) -> None:
    view(views, "v", "create", **DEFINITION)
    for body in (
        {"src_version": 1, "source_version": 2},
        {"src_version": 99},
        {"cluster": "another"},
        {"output_limit": 5},
        {"concurrency": 0},
        {"manifest": "{}"},
    ):
        answer = view(views, "v", "refresh", **body)
        assert (answer.status_code, answer.json()["code"]) == (400, 13), answer.text
    opaque = {**DEFINITION, "source_query": "whatever"}
    assert view(views, "w", "create", **opaque, with_no_data=False).status_code == 400
    assert view(views, "w", "create", **opaque).status_code == 200
    described = right(view(views, "w", "describe")).json()
    assert (described["refreshable"], described["source_table"]) == (False, "")
    assert view(views, "w", "refresh").status_code == 400


@direct_only
def test_a_view_is_listed_dropped_and_gone_with_its_jobs(views: Database) -> None:
    created = right(view(views, "v", "create", **DEFINITION, with_no_data=False)).json()
    job = ended(views, created["job_id"])
    assert (job["table"], job["trigger"]) == ("v", "create")
    listing = "/v1/namespace/$/materialized_view/list"
    assert views.http.get(listing).json() == {"views": ["v"]}
    assert right(view(views, "v", "drop")).json() == {}
    assert views.http.get(listing).json() == {"views": []}
    gone = view(views, "v", "describe")
    assert (gone.status_code, gone.json()["code"]) == (404, 4)


@direct_only
def test_jobs_are_seen_by_whoever_may_read_their_views(views: Database) -> None:
    created = right(view(views, "v", "create", **DEFINITION, with_no_data=False)).json()
    job_id = created["job_id"]
    ended(views, job_id)
    listed = right(views.post("jobs/list", {})).json()["jobs"]
    assert [(job["job_id"], job["table"], job["state"]) for job in listed] == [
        (job_id, "v", "DONE")
    ]
    assert right(views.post("jobs/errors", {"job_id": job_id})).json() == {"errors": []}
    server = views.server
    key = server.make_key(f"blind-{views.name}", f"read:{views.name}/src")
    with Database(server, views.name, key) as blind:
        assert right(blind.post("jobs/list", {})).json() == {"jobs": []}
        hidden = blind.post("jobs/describe", {"job_id": job_id})
        assert (hidden.status_code, hidden.json()["code"]) == (404, 10)
        assert blind.post("materialized_view/v/refresh", {}).status_code == 403
