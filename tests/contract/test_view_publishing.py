"""Publishing a refresh: one version, once per job, or nothing has changed; and LanceDB agrees."""

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import lancedb
import pyarrow as pa
import pytest

from actors import lance_store, view_publishing
from actors.model import Assignment, InsertMode
from cluster.errors import (
    ConcurrentModification,
    InvalidTableState,
    TableNotFound,
)
from tests.contract.domain import DATABASE, ipc, make_settings, make_table, new_key, ref
from tests.contract.view_domain import ViewServer, define, request, rows_of, stage
from udtf.refresh_model import Watermark
from udtf.view_files import ViewFolder
from udtf.watermark import drift_reason, read_watermark

pytestmark = pytest.mark.anyio

SOURCE = ref("src")
VIEW = ref("v")
ROWS = pa.table({"id": pa.array([1, 2, 3, 4]), "n": pa.array([10, 20, -3, 40])})


@pytest.fixture
async def server(tmp_path: Path) -> ViewServer:
    """A server with a source and an empty view of it."""
    server = ViewServer(make_settings(tmp_path / "root"))
    await make_table(server, SOURCE, ROWS)
    await server.create_view(VIEW, define(), new_key())
    return server


async def ids(server: ViewServer) -> list[int]:
    """The ids that the view shows."""
    return sorted((await server.dataset(VIEW)).to_table().column("id").to_pylist())


async def fill(server: ViewServer, job_id: str = "first") -> Any:
    """A full refresh."""
    source = await server.dataset(SOURCE)
    uri = await server.uri(VIEW)
    asked = request(uri, source, rows_of(source), job_id=job_id)
    return await server.on_table(VIEW, "publish_view", asked)


async def test_a_full_refresh_replaces_every_row(server: ViewServer) -> None:
    first = await fill(server)
    assert (first.version, first.commit.rows, first.rows_evicted) == (2, 3, 0)
    assert await ids(server) == [1, 2, 4]
    await server.delete_rows(SOURCE, None, new_key(), "id = 2", None)
    second = await fill(server, "second")
    assert (second.commit.rows, second.rows_evicted) == (2, 3)
    assert await ids(server) == [1, 4]


async def test_an_incremental_refresh_evicts_and_appends_in_one_version(
    server: ViewServer,
) -> None:
    await fill(server)
    await server.update_rows(
        SOURCE, None, new_key(), [Assignment(("n",), "100")], "id = 1", None, None
    )
    await server.delete_rows(SOURCE, None, new_key(), "id = 4", None)
    source = await server.dataset(SOURCE)
    changed = {row["__source_row_id"] for row in rows_of(source, lambda row: row["id"] == 1)}
    view = await server.dataset(VIEW)
    before = view.to_table().to_pylist()
    gone = changed | {row["__source_row_id"] for row in before if row["id"] == 4}
    new = rows_of(source, lambda row: row["id"] == 1)
    asked = request(await server.uri(VIEW), source, new, job_id="second", evict=sorted(gone))
    done = await server.on_table(VIEW, "publish_view", asked)
    assert (done.commit.rows, done.rows_evicted) == (1, 2)
    after = await server.dataset(VIEW)
    assert sorted(after.to_table().column("twice").to_pylist()) == [40, 200]
    assert after.checkout_version(done.version).count_rows() == 2
    assert after.checkout_version(done.version - 1).count_rows() == 3


async def test_every_child_of_a_parent_goes_with_it(server: ViewServer) -> None:
    source = await server.dataset(SOURCE)
    uri = await server.uri(VIEW)
    rows = rows_of(source) * 3
    await server.on_table(VIEW, "publish_view", request(uri, source, rows, job_id="first"))
    parent = rows[0]["__source_row_id"]
    asked = request(uri, source, [], job_id="second", evict=[parent, 10**12])
    done = await server.on_table(VIEW, "publish_view", asked)
    assert (done.commit.rows, done.rows_evicted) == (0, 3)
    assert await ids(server) == [2, 2, 2, 4, 4, 4]


async def test_a_refresh_without_rows_moves_the_watermark(server: ViewServer) -> None:
    await fill(server)
    await server.insert_rows(
        SOURCE, None, InsertMode.APPEND, new_key(), ipc(pa.table({"id": [5], "n": [-5]}))
    )
    source = await server.dataset(SOURCE)
    asked = request(await server.uri(VIEW), source, [], job_id="second", evict=[])
    await server.on_table(VIEW, "publish_view", asked)
    view = await server.dataset(VIEW)
    known = read_watermark(view)
    assert known is not None
    assert known[0].source_version == source.version == 2
    assert await ids(server) == [1, 2, 4]


async def test_a_job_is_published_once(server: ViewServer, tmp_path: Path) -> None:
    source = await server.dataset(SOURCE)
    uri = await server.uri(VIEW)
    asked = request(uri, source, rows_of(source))
    answers = await asyncio.gather(
        *(server.on_table(VIEW, "publish_view", asked) for _ in range(3))
    )
    another = ViewServer(make_settings(tmp_path / "root"))
    answers.append(await another.on_table(VIEW, "publish_view", asked))
    assert {answer.version for answer in answers} == {2}
    assert answers[-1].commit.repeated
    assert await ids(server) == [1, 2, 4]


async def test_an_answer_that_is_repeated_tells_what_was_evicted(server: ViewServer) -> None:
    await fill(server)
    source = await server.dataset(SOURCE)
    parent = rows_of(source)[0]["__source_row_id"]
    asked = request(await server.uri(VIEW), source, [], job_id="second", evict=[parent])
    for _ in range(2):
        assert (await server.on_table(VIEW, "publish_view", asked)).rows_evicted == 1


async def test_the_watermark_is_in_the_very_commit(server: ViewServer) -> None:
    done = await fill(server)
    view = await server.dataset(VIEW)
    properties = view.read_transaction(done.version).transaction_properties
    mark = Watermark.from_json(json.loads(properties["destrier.refresh"]))
    assert (mark.job_id, mark.source_version) == ("first", 1)
    known = read_watermark(view)
    assert known is not None
    assert known[0] == mark
    assert drift_reason(view) is None


async def test_a_crash_before_the_stamp_is_made_good_by_publishing_again(
    server: ViewServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*arguments: object) -> None:
        raise OSError("killed")

    source = await server.dataset(SOURCE)
    asked = request(await server.uri(VIEW), source, rows_of(source))
    with monkeypatch.context() as patch:
        patch.setattr("actors.view_publishing._stamp", die)
        done = await server.on_table(VIEW, "publish_view", asked)
    view = await server.dataset(VIEW)
    assert view.version == done.version
    assert drift_reason(view) is None
    another = ViewServer(make_settings(tmp_path / "root"))
    await another.on_table(VIEW, "publish_view", asked)
    stamped = await server.dataset(VIEW)
    assert stamped.version == done.version + 1
    assert stamped.schema.metadata[b"mv.view_version"] == str(stamped.version).encode()


async def test_files_that_are_gone_are_not_committed(server: ViewServer) -> None:
    await fill(server)
    source = await server.dataset(SOURCE)
    uri = await server.uri(VIEW)
    asked = request(uri, source, rows_of(source), job_id="second")
    for file in json.loads(asked.fragments[0])["files"]:
        (Path(uri) / "data" / file["path"]).unlink()
    with pytest.raises(ConcurrentModification, match=r"view v\b"):
        await server.on_table(VIEW, "publish_view", asked)
    gone = request(uri, source, [], job_id="third", evict=[1])
    assert gone.evict is not None
    Path(gone.evict).unlink()
    with pytest.raises(ConcurrentModification, match=r"view v\b"):
        await server.on_table(VIEW, "publish_view", gone)
    assert await ids(server) == [1, 2, 4]


async def test_rows_that_another_program_changed_are_not_taken_for_the_refreshs(
    server: ViewServer,
) -> None:
    await fill(server)
    source = await server.dataset(SOURCE)
    uri = await server.uri(VIEW)
    asked = request(uri, source, [], job_id="second", evict=[0])
    (await server.dataset(VIEW)).delete("id = 2")
    with pytest.raises(ConcurrentModification, match="view v changed"):
        await server.on_table(VIEW, "publish_view", asked)
    await fill(server, "third")
    assert await ids(server) == [1, 2, 4]
    assert drift_reason(await server.dataset(VIEW)) is None


async def test_a_refresh_that_lancedb_overtook_is_planned_anew(server: ViewServer) -> None:
    await fill(server)
    uri = await server.uri(VIEW)
    await server.insert_rows(
        SOURCE, None, InsertMode.APPEND, new_key(), ipc(pa.table({"id": [5], "n": [50]}))
    )
    source = await server.dataset(SOURCE)
    new = rows_of(source, lambda row: row["id"] == 5)
    planned = request(uri, source, new, job_id="second", evict=[])
    lancedb.connect(Path(uri).parent).open_materialized_view("v").refresh()
    assert drift_reason(await server.dataset(VIEW)) is None
    with pytest.raises(ConcurrentModification, match="view v changed while it was refreshed"):
        await server.on_table(VIEW, "publish_view", planned)
    assert await ids(server) == [1, 2, 4, 5]


async def test_a_refresh_that_another_refresh_overtook_is_planned_anew(server: ViewServer) -> None:
    await fill(server)
    source = await server.dataset(SOURCE)
    uri = await server.uri(VIEW)
    planned = request(uri, source, rows_of(source)[:1], job_id="second", evict=[])
    await fill(server, "third")
    with pytest.raises(ConcurrentModification, match=r"version \d+ was committed by"):
        await server.on_table(VIEW, "publish_view", planned)
    assert await ids(server) == [1, 2, 4]
    # What replaces every row mixes nothing.
    await server.on_table(VIEW, "publish_view", replace(planned, replace_all=True, job_id="last"))
    assert await ids(server) == [1]


async def test_compaction_and_indexes_do_not_disturb_a_refresh(server: ViewServer) -> None:
    await fill(server)
    source = await server.dataset(SOURCE)
    uri = await server.uri(VIEW)
    for number in range(2):
        parent = rows_of(source)[number]["__source_row_id"]
        again = rows_of(source)[number : number + 1]
        part = request(uri, source, again, job_id=f"part-{number}", evict=[parent])
        await server.on_table(VIEW, "publish_view", part)
    planned = request(uri, source, [], job_id="second", evict=[])
    view = await server.dataset(VIEW)
    view.create_scalar_index("id", "BTREE")
    view.optimize.compact_files()
    latest = await server.dataset(VIEW)
    assert len(latest.get_fragments()) == 1
    assert latest.version > planned.view_version + 1
    await server.on_table(VIEW, "publish_view", planned)
    assert await ids(server) == [1, 2, 4]
    assert drift_reason(await server.dataset(VIEW)) is None


@pytest.mark.parametrize("replace_all", [True, False])
async def test_rows_that_another_program_adds_at_the_same_moment_are_noticed(
    server: ViewServer, monkeypatch: pytest.MonkeyPatch, *, replace_all: bool
) -> None:
    await fill(server)
    source = await server.dataset(SOURCE)
    uri = await server.uri(VIEW)
    asked = request(uri, source, [], job_id="second", evict=None if replace_all else [0])
    with monkeypatch.context() as patch:

        def late(*arguments: Any) -> Any:
            patch.setattr(view_publishing, "commit", lance_store.commit)
            foreign = {"id": 9, "twice": 9, "__source_row_id": 10**6}
            lance.write_dataset(
                pa.Table.from_pylist([foreign], lance.dataset(uri).schema), uri, mode="append"
            )
            return lance_store.commit(*arguments)

        patch.setattr(view_publishing, "commit", late)
        await server.on_table(VIEW, "publish_view", asked)
    assert 9 in await ids(server)
    assert drift_reason(await server.dataset(VIEW)) is not None
    assert read_watermark(await server.dataset(VIEW)) is None
    await fill(server, "third")
    assert await ids(server) == [1, 2, 4]
    assert drift_reason(await server.dataset(VIEW)) is None


async def test_indexes_keep_their_definitions_and_right_answers(server: ViewServer) -> None:
    await fill(server)
    (await server.dataset(VIEW)).create_scalar_index("id", "BTREE")
    await fill(server, "second")
    view = await server.dataset(VIEW)
    assert [index.field_names for index in view.describe_indices()] == [["id"]]
    assert view.to_table(filter="id = 2").column("twice").to_pylist() == [40]


async def test_what_was_stored_for_the_refresh_alone_is_removed(server: ViewServer) -> None:
    await fill(server)
    source = await server.dataset(SOURCE)
    uri = await server.uri(VIEW)
    asked = request(uri, source, [], job_id="second", evict=[0])
    assert (Path(uri) / "_refresh" / "second").is_dir()
    await server.on_table(VIEW, "publish_view", asked)
    assert not (Path(uri) / "_refresh").exists()


async def test_only_views_are_published_to(server: ViewServer) -> None:
    source = await server.dataset(SOURCE)
    asked = request(await server.uri(VIEW), source, [])
    with pytest.raises(InvalidTableState, match="table src is no materialized view"):
        await server.on_table(SOURCE, "publish_view", asked)


async def test_a_refresh_of_a_dropped_view_is_refused(server: ViewServer) -> None:
    source = await server.dataset(SOURCE)
    asked = request(await server.uri(VIEW), source, rows_of(source))
    record, owner = await server.owners.open_table(VIEW)
    await server.drop_view(VIEW)
    await server.create_view(VIEW, define(), new_key())
    with pytest.raises(TableNotFound):
        await owner.call("publish_view", record.location, asked)
    assert await ids(server) == []


def data_files(uri: str) -> set[str]:
    """Names of all data files, whoever wrote them."""
    return {path.name for path in (Path(uri) / "data").iterdir()}


def files_of(fragments: Sequence[str]) -> set[str]:
    """Names of the data files of staged fragments."""
    return {file["path"] for text in fragments for file in json.loads(text)["files"]}


async def test_discarding_deletes_what_was_not_published(server: ViewServer) -> None:
    source = await server.dataset(SOURCE)
    uri = await server.uri(VIEW)
    published = request(uri, source, rows_of(source), job_id="first")
    await server.on_table(VIEW, "publish_view", published)
    # What the first refresh wrote is of an older version only.
    await fill(server, "second")
    shown = data_files(uri)
    left, used = stage(uri, rows_of(source), "third"), stage(uri, rows_of(source), "third")
    folder = ViewFolder(uri, "third", "driver", (), fsync=False)
    for name in files_of(published.fragments):
        # Whoever reuses what another wrote may be taken for its writer.
        folder.note_written(name)
    kept = sorted(files_of(used))
    assert await server.on_table(VIEW, "discard_refresh", "third", kept) == 1
    assert data_files(uri) == shown | files_of(used)
    assert not files_of(left) & data_files(uri)
    assert lance.dataset(uri, version=2).to_table().num_rows == 3
    assert await ids(server) == [1, 2, 4]
    assert await server.on_table(VIEW, "discard_refresh", "third", []) == 0


async def test_what_a_lost_worker_wrote_goes_with_the_publication(server: ViewServer) -> None:
    source = await server.dataset(SOURCE)
    uri = await server.uri(VIEW)
    asked = request(uri, source, rows_of(source), job_id="first")
    stage(uri, rows_of(source), "first")
    assert len(data_files(uri)) == 2
    await server.on_table(VIEW, "publish_view", asked)
    assert data_files(uri) == files_of(asked.fragments)
    assert await ids(server) == [1, 2, 4]


async def test_files_that_a_process_died_over_go_when_they_are_old(server: ViewServer) -> None:
    uri = await server.uri(VIEW)
    await fill(server)
    shown = data_files(uri)
    old, new = Path(uri) / "data" / ".tmpOLD", Path(uri) / "data" / ".tmpNEW"
    for path in (old, new):
        path.write_bytes(b"half a file")
    os.utime(old, (0, 0))
    await server.on_table(VIEW, "discard_refresh", "third", [])
    assert data_files(uri) == shown | {new.name}


# --- LanceDB on the same folder -------------------------------------------------------------------


async def test_lancedb_sees_a_refresh_of_ours_and_goes_on_from_it(server: ViewServer) -> None:
    await fill(server)
    root = Path(await server.uri(VIEW)).parent
    assert root.name == DATABASE
    database = lancedb.connect(root)
    assert list(database.list_materialized_views()) == ["v"]
    view = database.open_materialized_view("v")
    assert view.refresh().mode == "no_op"
    await server.insert_rows(
        SOURCE, None, InsertMode.APPEND, new_key(), ipc(pa.table({"id": [5], "n": [50]}))
    )
    again = database.open_materialized_view("v").refresh()
    assert (again.mode, again.rows_written) == ("incremental", 1)
    assert await ids(server) == [1, 2, 4, 5]
    shown = await server.dataset(VIEW)
    assert drift_reason(shown) is None


async def test_lancedb_refreshes_a_view_of_some_columns_of_every_one(server: ViewServer) -> None:
    view = ref("some")
    ids_only = pa.schema([("id", pa.int64())])
    await server.create_view(view, define("SELECT * FROM src", output=ids_only), new_key())
    database = lancedb.connect(Path(await server.uri(view)).parent)
    assert database.open_materialized_view("some").refresh().rows_written == 4
    await server.insert_rows(
        SOURCE, None, InsertMode.APPEND, new_key(), ipc(pa.table({"id": [5], "n": [50]}))
    )
    assert database.open_materialized_view("some").refresh().mode == "incremental"
    shown = (await server.dataset(view)).to_table(columns=["id"])
    assert sorted(shown.column("id").to_pylist()) == [1, 2, 3, 4, 5]


async def test_ours_goes_on_after_a_refresh_of_lancedb(server: ViewServer) -> None:
    await fill(server)
    database = lancedb.connect(Path(await server.uri(VIEW)).parent)
    await server.insert_rows(
        SOURCE, None, InsertMode.APPEND, new_key(), ipc(pa.table({"id": [5], "n": [50]}))
    )
    database.open_materialized_view("v").refresh()
    known = read_watermark(await server.dataset(VIEW))
    assert known is None or known[0].source_version == 2
    source = await server.dataset(SOURCE)
    new = rows_of(source, lambda row: row["id"] == 5)
    evict = [row["__source_row_id"] for row in new]
    asked = request(await server.uri(VIEW), source, new, job_id="second", evict=evict)
    done = await server.on_table(VIEW, "publish_view", asked)
    assert done.rows_evicted == 1
    assert await ids(server) == [1, 2, 4, 5]
    assert database.open_materialized_view("v").refresh().mode == "no_op"
