"""A table that is written much stays cheap, and nobody notices how."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import lance
import lancedb
import pyarrow as pa
import pytest

from actors import maintenance
from actors.model import (
    LATEST,
    Assignment,
    Commit,
    InsertMode,
    RequestKey,
    ScanRequest,
)
from actors.server import Server
from cluster.settings import Settings
from tests.contract.domain import DATABASE, ipc, make_settings, make_table, new_key, ref
from tests.contract.view_domain import ViewServer, define, request, rows_of
from udtf.watermark import drift_reason, read_watermark

pytestmark = pytest.mark.anyio

T = ref("t")
VIEW = ref("v")
SMALL = {"small_fragments_max": 8}


def one(number: int) -> pa.Table:
    """A row that says which one it is."""
    return pa.table({"id": pa.array([number]), "n": pa.array([10 * number])})


def of(root: Path, **maintenance: Any) -> Settings:
    """Settings that join early."""
    return make_settings(root, maintenance={**SMALL, **maintenance})


async def insert(server: Server, number: int, key: RequestKey | None = None) -> Commit:
    return await server.insert_rows(T, None, InsertMode.APPEND, key or new_key(), ipc(one(number)))


async def shown(server: Server) -> list[tuple[int, int]]:
    stream = await server.scan(T, LATEST, ScanRequest(), None)
    rows = pa.Table.from_batches(stream.batches(), stream.schema).to_pylist()
    return [(row["id"], row["n"]) for row in rows]


async def dataset(server: Server) -> Any:
    return lance.dataset((await server.catalog(DATABASE).find_table(T.id)).location.uri)


async def make_tagged_table(server: Server) -> None:
    """A table with the rows 0 to 29, of which version 7 has a tag."""
    await make_table(server, T, one(0))
    for number in range(1, 30):
        await insert(server, number)
    (await dataset(server)).tags.create("kept", 7)


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    """Wait for maintenance, which says nothing."""
    for _ in range(1_000):
        if await look():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("maintenance did not do it")


async def few_fragments(server: Server, count: int) -> bool:
    return len((await dataset(server)).get_fragments()) <= count


async def test_small_fragments_are_joined_and_rows_stay_what_and_where_they_were(
    tmp_path: Path,
) -> None:
    server = Server.local(of(tmp_path))
    await make_table(server, T, one(0))
    for number in range(1, 100):
        await insert(server, number)
    # At most 7 of one row, and those that were inserted while the last were joined.
    await until(lambda: few_fragments(server, 8))
    assert sorted(await shown(server)) == [(number, 10 * number) for number in range(100)]
    lineage = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
    rows = (await dataset(server)).to_table(columns=["id", *lineage]).to_pylist()
    assert [row["_rowid"] for row in rows] == list(range(100))
    created = [row["_row_created_at_version"] for row in rows]
    assert created == sorted(set(created))
    assert created == [row["_row_last_updated_at_version"] for row in rows]
    await server.close()


async def test_nothing_is_joined_that_was_not_asked_to(tmp_path: Path) -> None:
    server = Server.local(of(tmp_path, enabled=False))
    await make_table(server, T, one(0))
    for number in range(1, 30):
        await insert(server, number)
    await server.close()
    assert len((await dataset(server)).get_fragments()) == 30


async def test_inserts_updates_and_deletes_go_on_meanwhile(tmp_path: Path) -> None:
    server = Server.local(of(tmp_path))
    await make_table(server, T, one(0))

    async def add(first: int) -> None:
        for number in range(first, first + 60):
            await insert(server, number)

    async def change(residue: int) -> None:
        for _ in range(15):
            answer, _ = await server.update_rows(
                T, None, new_key(), [Assignment(("n",), "n + 1")], f"id = {residue}", None, None
            )
            assert answer.rows == 1

    for number in range(1, 5):
        await insert(server, number)
    await asyncio.gather(add(100), add(200), *(change(number) for number in range(1, 4)))
    await server.delete_rows(T, None, new_key(), "id >= 200 AND id % 2 = 1", None)
    await until(lambda: few_fragments(server, 12))
    wanted = [(0, 0), (1, 25), (2, 35), (3, 45), (4, 40)]
    wanted += [(number, 10 * number) for number in range(100, 160)]
    wanted += [(number, 10 * number) for number in range(200, 260, 2)]
    assert sorted(await shown(server)) == wanted
    await server.close()


async def test_a_request_from_before_is_not_done_again_though_an_index_was_moved(
    tmp_path: Path,
) -> None:
    server = Server.local(of(tmp_path, enabled=False))
    await make_table(server, T, one(0))
    key = new_key()
    first = await insert(server, 1, key)
    for number in range(2, 20):
        await insert(server, number)
    (await dataset(server)).create_scalar_index("id", "BTREE")
    await server.close()
    server = Server.local(of(tmp_path))
    await insert(server, 20)
    await until(lambda: few_fragments(server, 2))
    await server.close()
    # The next owner reads the log back, over a version that pylance cannot decode.
    server = Server.local(of(tmp_path))
    again = await insert(server, 1, key)
    assert (again.repeated, again.version) == (True, first.version)
    counts = [(await server.count_rows(T, LATEST, f"id = {n}", None)).count for n in (0, 1, 19, 20)]
    assert counts == [1, 1, 1, 1]
    await server.close()


async def test_rows_are_written_anew_few_times(tmp_path: Path) -> None:
    """Joining everything each time would write a row as often as there are joinings."""
    server = Server.local(of(tmp_path))
    await make_table(server, T, pa.table({"id": range(2_000), "n": range(2_000)}))
    first = {
        file.path for item in (await dataset(server)).get_fragments() for file in item.data_files()
    }
    for number in range(100):
        await insert(server, number)
    await until(lambda: few_fragments(server, 9))
    now = {
        file.path for item in (await dataset(server)).get_fragments() for file in item.data_files()
    }
    assert first <= now
    await server.close()


@pytest.mark.parametrize("limit", ["versions_kept_max", "versions_kept_bytes_max"])
async def test_old_versions_go_and_those_with_a_tag_stay(tmp_path: Path, limit: str) -> None:
    bound = {"versions_kept_max": 40, "versions_kept_bytes_max": 200_000}[limit]
    server = Server.local(of(tmp_path, versions_grace_s=0.001, **{limit: bound}))
    await make_tagged_table(server)
    for number in range(30, 400):
        await insert(server, number)

    async def cleaned() -> bool:
        return len((await dataset(server)).versions()) < 340

    await until(cleaned)
    left = [entry["version"] for entry in (await dataset(server)).versions()]
    assert left[0] == 7 and left[1] > 200 and len(left) > 40
    assert lance.dataset(await uri_of(server), version="kept").count_rows() == 7
    assert sorted(await shown(server)) == [(number, 10 * number) for number in range(400)]
    names = {path.name for path in Path(await uri_of(server), "data").iterdir()}
    wanted = {
        file.path
        for version in left
        for item in lance.dataset(await uri_of(server), version=version).get_fragments()
        for file in item.data_files()
    }
    assert wanted <= names
    await server.close()


async def test_versions_of_rows_are_told_apart_by_those_that_are_there_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or each insert would make the manifest of every later one longer."""
    monkeypatch.setattr(maintenance, "_SIZES", (16, 128))
    server = Server.local(of(tmp_path, versions_grace_s=0.001, versions_kept_max=40))
    await make_tagged_table(server)
    for number in range(30, 500):
        await insert(server, number)
        if number % 100 == 0:
            change = [Assignment("n", f"{10 * number}")]
            await server.update_rows(T, None, new_key(), change, f"id < {number // 9}", None, None)
    await server.close()
    now = await dataset(server)
    there = [entry["version"] for entry in now.versions()]
    assert there[0] == 7 and there[1] > 200
    uri = await uri_of(server)
    for version in there:
        before = lance.dataset(uri, version=version).to_table(with_row_id=True).to_pylist()
        kept = {tuple(row.values()) for row in before}
        rows = now.to_table(
            with_row_id=True, filter=f"_row_last_updated_at_version > {version}"
        ).to_pylist()
        # Not one row that was as it is, and every other.
        changed = {tuple(row.values()) for row in rows}
        now_there = {tuple(row.values()) for row in now.to_table(with_row_id=True).to_pylist()}
        assert changed == now_there - kept
        assert len(kept) + now.count_rows(f"_row_created_at_version > {version}") == len(
            now.to_table()
        )
    made = now.to_table(columns=["_row_created_at_version"]).column(0).unique()
    # Of 500 that they were made in.
    assert len(made) < 350
    now.validate()
    assert sorted(row["id"] for row in now.to_table().to_pylist()) == list(range(500))


async def uri_of(server: Server) -> str:
    return (await server.catalog(DATABASE).find_table(T.id)).location.uri


async def test_young_versions_and_those_of_a_table_with_branches_stay(tmp_path: Path) -> None:
    server = Server.local(of(tmp_path, versions_kept_max=1))
    await make_table(server, T, one(0))
    for number in range(1, 300):
        await insert(server, number)
    await server.close()
    assert len((await dataset(server)).versions()) > 300
    (await dataset(server)).create_branch("other")
    server = Server.local(of(tmp_path, versions_kept_max=1, versions_grace_s=0.001))
    for number in range(300, 320):
        await insert(server, number)
    await until(lambda: few_fragments(server, 16))
    await server.close()
    assert len((await dataset(server)).versions()) > 300


async def test_young_versions_go_as_well_before_manifests_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_SHORT_GRACE_S", 0.001)
    server = Server.local(of(tmp_path, versions_kept_bytes_max=10_000))
    await make_table(server, T, one(0))
    for number in range(1, 500):
        await insert(server, number)
    await server.close()
    folder = Path(await uri_of(server), "_versions")
    sizes = [path.stat().st_size for path in folder.glob("*.manifest")]
    # Some more than 160 kB, since they are deleted many at a time.
    assert sum(sizes) > 100_000 and len(sizes) < 400
    assert sorted(await shown(server)) == [(number, 10 * number) for number in range(500)]


async def test_versions_are_listed_less_often_the_more_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[int] = []

    def clean_and_note(*arguments: Any) -> tuple[int, int]:
        there, stay = clean(*arguments)
        listed.append(stay)
        return there, stay

    clean = maintenance.clean
    monkeypatch.setattr(maintenance, "clean", clean_and_note)
    server = Server.local(of(tmp_path))
    await make_table(server, T, one(0))
    for number in range(1, 400):
        await insert(server, number)
    await server.close()
    assert len(listed) > 10
    # Some of the versions that were made are listed only once more of them have been made.
    assert all(later - sooner >= sooner // 8 for sooner, later in pairwise(listed))
    assert listed[-1] > 300


async def test_a_table_that_is_dropped_meanwhile_leaves_nothing(tmp_path: Path) -> None:
    server = Server.local(of(tmp_path))
    for _ in range(5):
        await make_table(server, T, one(0))
        uri = await uri_of(server)
        for number in range(1, 9):
            await insert(server, number)
        await server.catalog(DATABASE).drop_table(T.id)
        await asyncio.sleep(0.05)
        assert not os.path.exists(uri)
    await server.close()


async def test_a_view_is_joined_and_lancedb_still_knows_it(tmp_path: Path) -> None:
    server = ViewServer(of(tmp_path))
    source = ref("src")
    await make_table(server, source, pa.table({"id": range(1, 41), "n": range(1, 41)}))
    await server.create_view(VIEW, define(), new_key())
    data, uri = await server.dataset(source), await server.uri(VIEW)
    # A fragment for each row, as of so many items.
    asked = [
        request(uri, data, rows_of(data, lambda row, n=number: row["id"] == n), job_id="first")
        for number in range(1, 41)
    ]
    fragments = tuple(text for part in asked for text in part.fragments)
    whole = replace(asked[0], fragments=fragments, rows_written=40)
    published = await server.on_table(VIEW, "publish_view", whole)

    async def joined() -> bool:
        view = await server.dataset(VIEW)
        return len(view.get_fragments()) <= 2

    await until(joined)
    view = await server.dataset(VIEW)
    assert drift_reason(view) is None
    found = read_watermark(view)
    assert found is not None and found[1] == published.version
    await server.close()
    opened = lancedb.connect(Path(uri).parent).open_materialized_view("v")
    assert opened.refresh().mode == "no_op"
    rows = (await server.dataset(VIEW)).to_table(columns=["id", "twice"]).to_pylist()
    assert sorted((row["id"], row["twice"]) for row in rows) == [(n, 2 * n) for n in range(1, 41)]
