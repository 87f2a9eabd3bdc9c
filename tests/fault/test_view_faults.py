"""Refreshes on a running server, and everything that can go wrong with one.

Whatever it is: the view shows its last good rows or the new ones, the job says what happened, the
bystander is answered rightly, and neither a process nor a resource of Ray's is left.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from cluster.errors import DestrierError
from tests.clients.plain_http import right
from tests.fault.served_views import (
    SETTINGS,
    Bystander,
    Processes,
    ServedViews,
    left_behind,
    serving_views,
    until,
)
from tests.fault.troubled_code import endless, slow, troubled
from udtf.view_jobs import RefreshJob

pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(180)]

NO_TROUBLE = "none"
GOOD = [0, 10, 20]
MANIFEST = '{"env_vars": {"MODE": "slow"}}'
STOPPING_S = float(SETTINGS["VIEWS_STOPPING_TIMEOUT_S"]) + 3


@pytest.fixture(scope="module")
def code_folder() -> Iterator[Path]:
    """Where the folders of code processes are; Ray's paths want a short name."""
    with tempfile.TemporaryDirectory(prefix="d", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory, code_folder: Path
) -> Iterator[tuple[ServedViews, Bystander]]:
    with (
        Processes() as processes,
        serving_views(tmp_path_factory.mktemp("faults"), processes, code_folder) as served,
        Bystander(served.database) as bystander,
    ):
        yield served, bystander


@pytest.fixture
def served(running: tuple[ServedViews, Bystander]) -> Iterator[ServedViews]:
    """The server, which must be at rest and well when a test is over."""
    served, bystander = running
    yield served
    served.check_settled()
    bystander.check()


def rows(first: int, count: int) -> pa.Table:
    return pa.table({"n": list(range(first, first + count))})


def view_of(served: ServedViews, name: str, source_rows: int) -> str:
    """A view of slow code, with the rows of three source rows, and more source rows to come."""
    served.database.create(f"src_{name}", rows(0, 3))
    job = served.views.create(name, slow, source=f"src_{name}", with_data=True, inherit=())
    assert job is not None
    served.done(job)
    assert served.shown(name) == GOOD
    served.database.insert(f"src_{name}", rows(3, source_rows))
    return name


def refreshed(served: ServedViews, name: str, **options: str) -> RefreshJob:
    return served.views.refresh(name, concurrency=1, source_task_size=1, **options)


def wanted(source_rows: int) -> list[int]:
    return [10 * number for number in range(3 + source_rows)]


@pytest.fixture(scope="module")
def troubled_view(running: tuple[ServedViews, Bystander]) -> str:
    """A view with good rows, whose code does what a row of the source says."""
    served, _ = running
    good = rows(0, 3).append_column("trouble", pa.array([NO_TROUBLE] * 3))
    served.database.create("src_troubled", good)
    job = served.views.create(
        "troubled", troubled, source="src_troubled", with_data=True, inherit=()
    )
    assert job is not None
    served.done(job)
    served.views.create("beside", source="SELECT n AS out FROM src_troubled WHERE n < 3")
    return "troubled"


@contextmanager
def trouble_in_source(served: ServedViews, trouble: str) -> Iterator[None]:
    """While the block runs there is a row in the source that makes trouble."""
    bad = rows(9, 1).append_column("trouble", pa.array([trouble]))
    served.database.insert("src_troubled", bad)
    try:
        yield
    finally:
        served.database.ask("src_troubled", "delete", predicate="n = 9")


@pytest.mark.parametrize(
    ("trouble", "kind", "message"),
    [
        ("raises", "ValueError", "this row is bad"),
        ("raises what no pickle holds", "Odd", "lambda"),
        ("exits", "ProcessCrashed", "exit code 3"),
        ("segfaults", "ProcessCrashed", "SIGSEGV"),
        ("hangs", "TimeoutError", "6 s"),
        ("allocates without end", "MemoryError", ""),
        ("gives another schema", "SchemaError", "out"),
        ("returns nothing", "SchemaError", "returned None"),
        ("prints a gigabyte", None, ""),
        ("forks", None, ""),
    ],
)
def test_code_harms_its_own_job_alone(
    served: ServedViews, troubled_view: str, trouble: str, kind: str | None, message: str
) -> None:
    with trouble_in_source(served, trouble):
        beside = served.views.refresh("beside", full=True)
        job = refreshed(served, troubled_view)
        status = served.over(job)
        served.done(beside)
        assert served.shown("beside") == [0, 1, 2]
        if kind is None:
            assert status.state == "DONE", status.answer
            assert served.shown(troubled_view) == [*GOOD, 90]
        else:
            assert status.state == "FAILED" and status.failure is not None
            assert (status.failure["phase"], status.failure["type"]) == ("compute", kind)
            assert message in status.failure["message"]
            (error,) = job.errors()
            assert (error["state"], error["type"]) == ("failed", kind)
            assert served.shown(troubled_view) == GOOD
    if kind is None:
        served.done(refreshed(served, troubled_view))
        assert served.shown(troubled_view) == GOOD


@pytest.mark.parametrize("phase", ["environment", "plan", "compute", "publish"])
def test_driver_that_is_killed_is_replaced(served: ServedViews, phase: str) -> None:
    view = view_of(served, f"driver_{phase}", 4)
    waiting = set(served.processes.drivers())
    if phase == "environment":
        # With a manifest there is an environment to make, by a driver of its own.
        job = refreshed(served, view, manifest=MANIFEST)
        until(lambda: set(served.processes.drivers()) - waiting)
    else:
        job = refreshed(served, view)
        # Planning takes hundredths of a second, and may be over when it is seen.
        served.until_phase(job, *{"plan": ("plan", "compute")}.get(phase, (phase,)))
    for driver in served.processes.drivers():
        driver.kill()
    status = served.done(job)
    assert served.shown(view) == wanted(4)
    # In its last phase a driver has said all it had to say. The one that waited was killed as well,
    # and may have been taken for the second attempt before that was known.
    assert status.answer["attempt"] in ((1,) if phase == "publish" else (2, 3))
    if phase != "publish":
        lost = [text for text in served.events(job, "attempt") if "was lost" in text]
        assert len(lost) == 1 and "killed by signal 9" in lost[0]


def test_worker_that_is_killed_is_replaced(served: ServedViews) -> None:
    view = view_of(served, "worker", 5)
    job = refreshed(served, view)
    served.until_items(job, 1)
    killed = served.processes.named("ray::_do_items")
    assert killed
    for worker in killed:
        worker.kill()
    status = served.done(job)
    # Ray may start the worker again before the job's owner gives its driver up.
    if status.answer["attempt"] > 1:
        assert any("was lost" in text for text in served.events(job, "attempt"))
    assert served.shown(view) == wanted(5)


@pytest.mark.parametrize("moment", ["before the commit", "after the commit"])
def test_rows_are_put_in_once_when_the_owner_of_the_view_is_killed(
    served: ServedViews, moment: str
) -> None:
    view = view_of(served, f"owner_{moment.split()[0]}", 2)
    job = refreshed(served, view)
    owners = served.cluster.table_owners()
    if moment == "before the commit":
        served.until_items(job, 1)
        for owner in owners:
            owner.suspend()
        served.until_phase(job, "publish")
        # The call is on its way to a process that never answers it.
        time.sleep(0.5)
        assert served.shown(view) == GOOD
    else:
        until(lambda: served.database.count(view) > len(GOOD))
    for owner in owners:
        owner.kill()
    status = served.done(job)
    assert status.answer["attempt"] == 1, served.events(job, "attempt")
    assert served.shown(view) == wanted(2)
    assert served.events(job, "published")


@pytest.mark.parametrize("phase", ["compute", "publish"])
def test_jobs_outlive_their_owner(served: ServedViews, phase: str) -> None:
    view = view_of(served, f"jobs_{phase}", 4)
    job = refreshed(served, view)
    waiting = served.views.refresh(view, full=True)
    assert waiting.job_id != job.job_id
    done = served.until_items(job, 1).count("items_done")
    table_owners = served.cluster.table_owners()
    if phase == "publish":
        for owner in table_owners:
            owner.suspend()
        served.until_phase(job, phase)
    # What is known so far is stored by then.
    time.sleep(0.5)
    served.cluster.jobs_owner().kill()
    if phase == "publish":
        time.sleep(0.5)
        for owner in table_owners:
            owner.resume()
    status = served.done(job)
    tried = served.events(job, "attempt")
    assert status.answer["attempt"] == (1 if phase == "publish" else 2), tried
    assert status.count("items_done") == 4
    if phase == "compute":
        again = served.events(job, "planned")[-1]
        assert int(again.partition(" items, ")[2].split()[0]) >= done, again
    last = served.done(waiting)
    assert last.result is not None and last.result["mode"] == "rebuild"
    assert served.shown(view) == wanted(4)


def test_job_is_cancelled_in_time_whatever_its_code_does(served: ServedViews) -> None:
    served.database.create("src_endless", rows(0, 3))
    served.views.create("endless", endless, source="src_endless", inherit=())
    job = refreshed(served, "endless")
    until(left_behind)
    started = time.monotonic()
    job.cancel()
    status = served.over(job)
    assert time.monotonic() - started < STOPPING_S
    assert status.state == "CANCELLED"
    assert served.shown("endless") == []
    # Ray ends the workers of a driver that is gone, and they the code: within seconds.
    until(lambda: not left_behind(), 10)
    assert any("nothing was committed" in text for text in served.events(job, "state"))


def test_view_is_dropped_while_it_is_refreshed(served: ServedViews) -> None:
    view = view_of(served, "dropped", 40)
    job = refreshed(served, view)
    served.until_items(job, 1)
    served.views.drop(view)
    with pytest.raises(DestrierError):
        served.shown(view)
    assert served.over(job).state == "CANCELLED"
    # The name is free for another life, to which nothing of the first one comes.
    again = served.views.create(view, source=f"SELECT n AS out FROM src_{view}", with_data=True)
    assert again is not None
    served.done(again)
    assert served.shown(view) == list(range(43))


def test_source_is_dropped_while_its_view_is_refreshed(served: ServedViews) -> None:
    view = view_of(served, "orphan", 20)
    job = refreshed(served, view)
    served.until_items(job, 1)
    right(served.database.post(f"table/src_{view}/drop", {}))
    status = served.over(job)
    assert status.state == "FAILED" and status.failure is not None
    assert served.shown(view) == GOOD
    with pytest.raises(DestrierError, match="src_orphan"):
        served.views.refresh(view)
