"""No file is left behind by what dies in a refresh, and none is missing.

Elsewhere an abort deleted files that had been committed, and failed writes left theirs for ever.
"""

import asyncio
from pathlib import Path

import lance
import pytest

from actors.jobs_model import JobState
from actors.model import InsertMode
from actors.server import Server
from tests.contract.domain import DATABASE, ipc, make_table, new_key
from tests.fault.test_refreshes import (
    QUICK,
    SOURCE,
    VIEW,
    chunker,
    over,
    rows,
    serving,
    shown,
    until_items,
    wanted,
)
from tests.processes import OwnProcesses

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]


async def folder(server: Server) -> Path:
    return Path((await server.catalog(DATABASE).find_table(VIEW.id)).location.uri)


async def orphans(server: Server) -> set[str]:
    """Data files that no version names, once every version's files are found to be there."""
    view = lance.dataset(await folder(server))
    named = {
        file.path
        for entry in view.versions()
        for fragment in view.checkout_version(int(entry["version"])).get_fragments()
        for file in fragment.data_files()
    }
    there = {path.name for path in (await folder(server) / "data").glob("*")}
    assert named <= there
    return there - named


async def test_a_driver_that_is_killed_leaves_no_file_behind(
    tmp_path: Path, own: OwnProcesses
) -> None:
    async with serving(tmp_path) as server:
        await make_table(server, SOURCE, rows(0, 12))
        await server.create_view(VIEW, chunker(0.2), new_key())
        job_id = await server.refresh_view(VIEW, QUICK)
        for items in (1, 3):
            await until_items(server, job_id, items)
            own.kill("actors.view_driver")
        job = await over(server, job_id)
        assert job.state is JobState.DONE and job.attempt == 3, job.failure
        assert await shown(server) == wanted(range(12))
        assert await orphans(server) == set()
        assert not (await folder(server) / "_refresh").exists()


async def test_a_cancelled_refresh_leaves_no_file_behind(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await make_table(server, SOURCE, rows(0, 4))
        await server.create_view(VIEW, chunker(0.2), new_key())
        await over(server, await server.refresh_view(VIEW, QUICK))
        await server.insert_rows(SOURCE, None, InsertMode.APPEND, new_key(), ipc(rows(4, 20)))
        job_id = await server.refresh_view(VIEW, QUICK)
        await until_items(server, job_id, 2)
        assert len(await orphans(server)) >= 2
        await server.cancel_job(DATABASE, job_id)
        assert (await over(server, job_id)).state is JobState.CANCELLED
        uri = await folder(server)
        for _ in range(200):
            if not (uri / "_refresh").exists():
                break
            await asyncio.sleep(0.05)
        assert await orphans(server) == set()
        assert await shown(server) == wanted(range(4))
        job = await over(server, await server.refresh_view(VIEW, QUICK))
        assert job.state is JobState.DONE, job.failure
        assert await shown(server) == wanted(range(24))
        assert await orphans(server) == set()


async def test_a_process_of_code_that_is_killed_leaves_no_file_behind(
    tmp_path: Path, own: OwnProcesses
) -> None:
    async with serving(tmp_path) as server:
        await make_table(server, SOURCE, rows(0, 8))
        await server.create_view(VIEW, chunker(0.2), new_key())
        job_id = await server.refresh_view(VIEW, QUICK)
        await until_items(server, job_id, 1)
        own.kill("child.py")
        job = await over(server, job_id)
        assert job.state is JobState.FAILED and job.failure is not None
        assert await shown(server) == []
        again = await over(server, await server.refresh_view(VIEW, QUICK, failed_only=True))
        assert again.state is JobState.DONE, again.failure
        assert await shown(server) == wanted(range(8))
        assert await orphans(server) == set()
