"""Materialized views and jobs through LanceDB's remote client."""

from collections.abc import Iterator

import lancedb
import pyarrow as pa
import pytest
from lancedb.exceptions import JobFailedError
from lancedb.remote.errors import HttpError

from tests.clients.plain_http import Database
from tests.clients.running_server import direct_only

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    # LanceDB's client speaks to either ingress in test_lancedb_remote.py; refreshes take long.
    direct_only,
]

HIGH = {"id": "id", "double": "v * 2"}


@pytest.fixture
def db(fresh_database: Database) -> Iterator[lancedb.DBConnection]:
    """The administrator's connection to a database with the table `src`: ids 0 to 9, v ten times
    as much."""
    ids = pa.array(range(10), pa.int64())
    fresh_database.create(
        "src", pa.table({"id": ids, "v": pa.array(range(0, 100, 10), pa.int64())})
    )
    server = fresh_database.server
    yield lancedb.connect(
        f"db://{fresh_database.name}",
        api_key=server.admin_key,
        region="local",
        host_override=server.url,
    )


def rows(view: lancedb.materialized_view.MaterializedView) -> list[tuple[int, int]]:
    """The rows of a view with the columns of HIGH."""
    found = view.table.search().select(["id", "double"]).limit(1_000).to_arrow().to_pylist()
    return sorted((row["id"], row["double"]) for row in found)


def test_a_view_is_created_with_its_rows_and_follows_its_source(db: lancedb.DBConnection) -> None:
    view = db.create_materialized_view("high", "src", select=HIGH, where="v >= 50")
    assert rows(view) == [(n, n * 20) for n in range(5, 10)]
    assert db.list_materialized_views() == ["high"]
    assert "v >= 50" in view.definition.query

    source = db.open_table("src")
    source.delete("id = 9")
    source.update(where="id = 5", values={"v": 500})
    source.add([{"id": 10, "v": 100}, {"id": 11, "v": 1}])
    done = db.open_materialized_view("high").refresh()
    assert (done.mode, done.source_version) == ("incremental", source.version)
    expected = [(5, 1000), (6, 120), (7, 140), (8, 160), (10, 200)]
    assert rows(view) == expected
    assert view.refresh().mode == "no_op"
    assert view.refresh(full=True).mode == "rebuild"
    assert rows(view) == expected

    db.drop_materialized_view("high")
    assert db.list_materialized_views() == []
    with pytest.raises(ValueError, match="not found"):
        db.open_materialized_view("high")


def test_a_view_is_created_without_rows_and_shows_an_old_version(db: lancedb.DBConnection) -> None:
    view = db.create_materialized_view("copy", "src", select=HIGH, with_no_data=True)
    assert rows(view) == []
    db.open_table("src").delete("id > 3")
    assert view.refresh(source_version=1).source_version == 1
    assert len(rows(view)) == 10
    view.refresh()
    assert [id for id, _ in rows(view)] == [0, 1, 2, 3]


def test_a_refresh_is_followed_as_a_job(db: lancedb.DBConnection) -> None:
    view = db.create_materialized_view("copy", "src", select=HIGH, with_no_data=True)
    job = view.refresh_async()
    result = job.wait()
    assert (result.mode, result.rows_written) == ("rebuild", 10)
    assert job.status() == "finished"

    assert job.id is not None
    found = db.open_job(job.id)
    found.refresh()
    assert (found.job_type, found.state) == ("refresh_materialized_view", "finished")
    listed = {info.job_id: info for info in db.list_jobs()}
    assert listed[job.id].table == "copy"

    events = job.events()
    assert {"emitted_at", "state", "phase", "message", "rows_processed"} <= set(events.column_names)
    assert events["state"].to_pylist()[-1] == "DONE"
    last = job.events(filter="state = 'DONE'", limit=1)
    assert last.num_rows == 1
    # What is over stays as it is; what never was cannot be cancelled.
    assert db.cancel_job(job.id) is True
    assert job.status() == "finished"
    assert db.cancel_job("none") is False
    assert db.resume_job(job.id) == "not_paused"


def test_refusals_are_told(db: lancedb.DBConnection) -> None:
    with pytest.raises(HttpError, match=r"400.*nope"):
        db.create_materialized_view("bad", "src", select={"x": "nope + 1"})
    with pytest.raises(HttpError, match=r"400.*random"):
        db.create_materialized_view("bad", "src", select={"x": "v + random()"})
    with pytest.raises(HttpError, match=r"404.*nowhere"):
        db.create_materialized_view("bad", "nowhere", select=HIGH)
    assert db.list_materialized_views() == []
    view = db.create_materialized_view("copy", "src", select=HIGH)
    with pytest.raises(HttpError, match=r"400.*materialized view"):
        view.table.delete("id = 1")
    assert len(rows(view)) == 10


def test_a_refresh_that_fails_says_why(db: lancedb.DBConnection, fresh_database: Database) -> None:
    view = db.create_materialized_view("copy", "src", select=HIGH)
    db.drop_table("src")
    fresh_database.create("src", pa.table({"other": [1]}))
    with pytest.raises(JobFailedError, match=r"\bid\b|\bv\b"):
        view.refresh()
    assert len(rows(view)) == 10
