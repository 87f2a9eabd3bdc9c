"""A server of which nothing is left, killed while a view is refreshed, and the next one's work."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from tests.fault.served_views import Processes, ServedViews, is_alive, serving_views, until
from tests.fault.troubled_code import slow

pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(240)]

ROWS = 16
# What is known of a job is stored this often; see SETTINGS of served_views.
FLUSHED_S = 1.0


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Ray's paths want a short name."""
    with tempfile.TemporaryDirectory(prefix="d", dir="/tmp") as name:
        yield Path(name)


def kill_all(served: ServedViews) -> list[psutil.Process]:
    """Kill every process of the server at once, as far as that goes; returns them."""
    processes = served.processes.below()
    for process in processes:
        process.kill()
    return processes


def test_refresh_goes_on_by_itself_when_a_killed_server_is_started_again(
    tmp_path: Path, temporary: Path
) -> None:
    numbers = pa.table({"n": list(range(ROWS))})
    with Processes() as processes:
        with (
            pytest.raises(AssertionError, match="the server ended with -9"),
            serving_views(tmp_path, processes, temporary) as first,
        ):
            first.database.create("src", numbers)
            first.views.create("v", slow, source="src", inherit=())
            job_id = first.views.refresh("v", concurrency=1, source_task_size=1).job_id
            done = first.until_items(first.views.job(job_id), 4).count("items_done")
            time.sleep(FLUSHED_S)
            assert first.shown("v") == []
            killed = kill_all(first)
        assert psutil.wait_procs(killed, timeout=10)[1] == []
        assert not any(is_alive(process) for process in processes.escaped())
        with serving_views(tmp_path, processes, temporary) as second:
            # Nobody asks for jobs: the new server goes on with what it finds.
            until(lambda: second.database.count("v") == ROWS)
            job = second.views.job(job_id)
            status = second.done(job)
            assert status.answer["attempt"] == 2
            assert status.count("items_done") == ROWS
            assert second.shown("v") == [10 * number for number in range(ROWS)]
            again = second.events(job, "planned")[-1]
            kept = int(again.partition(" items, ")[2].split()[0])
            assert done <= kept < ROWS, again
            assert any("server was started again" in e for e in second.events(job, "attempt"))
            second.check_settled()
            # The view is as good as any other.
            second.database.insert("src", pa.table({"n": [ROWS]}))
            last = second.done(second.views.refresh("v"))
            assert last.result is not None and last.result["mode"] == "incremental"
            assert second.shown("v") == [10 * number for number in range(ROWS + 1)]
