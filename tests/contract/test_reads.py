"""What a read answers: pinned versions, branches, tags, names of columns, statistics of indexes."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from actors.model import LATEST, Assignment, InsertMode, Pin, ScanRequest, VersionRange
from actors.server import Server
from cluster.errors import (
    InvalidInput,
    ServiceUnavailable,
    TableBranchNotFound,
    TableIndexNotFound,
    TableNotFound,
    TableTagNotFound,
    TableVersionNotFound,
)
from cluster.settings import Settings
from tests.clients.manual_clock import ManualClock
from tests.contract.domain import DATABASE, ipc, make_table, new_key, ref

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("home", ["local"], indirect=True)]

T = ref("t")
ROWS = pa.table(
    {
        "id": pa.array(range(300)),
        "imageId": pa.array([i % 3 for i in range(300)]),
        "a": [1] * 300,
        "A": [2] * 300,
        "s": pa.array([{"x": i, "y.z": -i} for i in range(300)]),
        "vector": pa.FixedSizeListArray.from_arrays(
            pa.array(np.random.default_rng(1).random(300 * 4, dtype=np.float32)), 4
        ),
    }
)


async def dataset(server: Server) -> lance.LanceDataset:
    """The table, opened behind the server's back."""
    return lance.dataset((await server.catalog(DATABASE).find_table(T.id)).location.uri)


async def scan(server: Server, request: ScanRequest, pin: Pin = LATEST) -> pa.Table:
    stream = await server.scan(T, pin, request, None)
    return pa.Table.from_batches(stream.batches(), stream.schema)


@pytest.mark.parametrize(
    ("predicate", "count"),
    [
        ("imageId = 1", 100),
        ("`imageId` = 1", 100),
        ("IMAGEID = 1", 100),
        ('"imageId" = 1', 100),
        ("a = 1", 300),
        ("A = 2", 300),
        ("a = 2", 0),
        ("s.x < 10", 10),
        ("s.`y.z` > -10", 10),
        ("`s`.`y.z` > -10 AND id IN (1, 2, 400)", 2),
        ("NOT (id >= 5)", 5),
    ],
)
async def test_predicates_name_columns_exactly(server: Server, predicate: str, count: int) -> None:
    await make_table(server, T, ROWS)
    assert (await server.count_rows(T, LATEST, predicate, None)).count == count
    assert (await scan(server, ScanRequest(filter=predicate))).num_rows == count


async def test_reads_of_a_table_that_does_not_change_open_it_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_table(server, T, ROWS)
    opened: list[int] = []
    monkeypatch.setattr(lance, "dataset", counted(opened, lance.dataset))
    for name in ("checkout_version", "checkout_latest"):
        method = counted(opened, getattr(lance.LanceDataset, name))
        monkeypatch.setattr(lance.LanceDataset, name, method)
    found = []
    for _ in range(3):
        assert (await server.count_rows(T, LATEST, None, None)).count == 300
        assert (await server.count_rows(T, LATEST, "id < 7", None)).count == 7
        assert (await scan(server, ScanRequest(filter="id < 7"))).num_rows == 7
        assert (await server.describe_table(T, LATEST, detailed=True)).num_rows == 300
        found.append(len(opened))
    # The first time round, the catalog is opened and the table.
    assert found == [2, 2, 2]


def counted(calls: list[int], function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with a mark for each of its calls."""

    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        return function(*arguments, **named)

    return call


@pytest.mark.parametrize("where", ["id >= 5000 AND id < 15000", "id = 12345", "id < 0", "id >= 0"])
async def test_counts_by_an_index_are_those_without_it(server: Server, where: str) -> None:
    ids = np.random.default_rng(1).permutation(100_000)
    await make_table(server, T, pa.table({"id": ids[:90_000]}))
    made = await dataset(server)
    made.create_scalar_index("id", "BTREE")
    # Some rows go, others come that the index has not seen.
    made.delete("id % 10 = 3")
    rest = ipc(pa.table({"id": ids[90_000:]}))
    await server.insert_rows(T, None, InsertMode.APPEND, new_key(), rest)
    gone = (ids % 10 == 3) & (np.arange(len(ids)) < 90_000)
    bounds = {
        "id >= 5000 AND id < 15000": (ids >= 5_000) & (ids < 15_000),
        "id = 12345": ids == 12_345,
        "id < 0": ids < 0,
        "id >= 0": ids >= 0,
    }
    expected = int(np.count_nonzero(bounds[where] & ~gone))
    assert (await server.count_rows(T, LATEST, where, None)).count == expected
    (await dataset(server)).drop_index("id_idx")
    assert (await server.count_rows(T, LATEST, where, None)).count == expected


@pytest.mark.parametrize(
    "predicate", ["n % 7 = 3", "n % 7 = 3 AND flag", "name < 'name 2'", "true"]
)
async def test_rows_of_many_batches_are_counted_once(server: Server, predicate: str) -> None:
    n = np.arange(200_000)
    flag, name = n % 3 == 0, np.char.add("name ", n.astype(str))
    await make_table(server, T, pa.table({"n": n, "flag": flag, "name": name}))
    (await dataset(server)).delete("n < 1000")
    selected = {
        "n % 7 = 3": n % 7 == 3,
        "n % 7 = 3 AND flag": (n % 7 == 3) & flag,
        "name < 'name 2'": name < "name 2",
        "true": n >= 0,
    }[predicate]
    expected = int(np.count_nonzero(selected & (n >= 1000)))
    assert (await server.count_rows(T, LATEST, predicate, None)).count == expected


@pytest.mark.parametrize(
    "predicate",
    [
        "",
        "id =",
        "nope = 1",
        "id = 1; drop table t",
        "id",
        "id = 'x' AND",
        '"nope" = 1',
        "id / 0 = 1",
    ],
)
async def test_a_bad_predicate_is_the_callers_error(server: Server, predicate: str) -> None:
    await make_table(server, T, ROWS)
    with pytest.raises(InvalidInput):
        await server.count_rows(T, LATEST, predicate, None)
    with pytest.raises(InvalidInput):
        await scan(server, ScanRequest(filter=predicate))


async def test_scans_choose_rows_and_columns(server: Server) -> None:
    await make_table(server, T, ROWS)
    columns = (("twice", "id * 2"), ("x", "s.x"), ("id", "id"))
    request = ScanRequest(filter="id >= 10", columns=columns, limit=3, offset=2, with_row_id=True)
    found = await scan(server, request)
    assert found.select(["twice", "x", "id"]).to_pylist() == [
        {"twice": 24, "x": 12, "id": 12},
        {"twice": 26, "x": 13, "id": 13},
        {"twice": 28, "x": 14, "id": 14},
    ]
    assert found["_rowid"].to_pylist() == [12, 13, 14]
    assert (await scan(server, ScanRequest(limit=5, offset=298))).num_rows == 2
    assert (await scan(server, ScanRequest(limit=5, offset=400))).num_rows == 0
    assert (await scan(server, ScanRequest(limit=0))).num_rows == 0
    with pytest.raises(InvalidInput):
        await scan(server, ScanRequest(columns=(("z", "nope"),)))


async def test_a_list_of_names_means_columns_whatever_their_characters(server: Server) -> None:
    names = ["a", "b", "a-b", "first name", "1st", "null", "case", "x+1", "count(a)", "'t'"]
    rows = pa.table({name: [number] for number, name in enumerate(names)})
    await make_table(server, T, rows)
    for name in [*names, "`a-b`"]:
        found = await scan(server, ScanRequest(names=(name,)))
        assert found.to_pydict() == {name: rows[name.strip("`")].to_pylist()}
    assert (await scan(server, ScanRequest(names=tuple(names)))).equals(rows)
    for name in ("a + b", "b-a", "upper(a)", "1", "`a", "a."):
        with pytest.raises(InvalidInput, match="a list holds names of columns"):
            await scan(server, ScanRequest(names=(name,)))


async def test_a_list_of_names_reaches_fields_and_keeps_how_they_are_written(
    server: Server,
) -> None:
    await make_table(server, T, ROWS)
    found = await scan(server, ScanRequest(names=("s.x", "s.`y.z`", "IMAGEID", "A"), limit=3))
    assert found.to_pydict() == {
        "s.x": [0, 1, 2],
        "s.`y.z`": [0, -1, -2],
        "IMAGEID": [0, 1, 2],
        "A": [2] * 3,
    }


async def test_batches_of_a_scan_have_some_megabytes_when_rows_are_wide(server: Server) -> None:
    wide = pa.table({"n": range(160), "b": [bytes([n]) * 250_000 for n in range(160)]})
    await make_table(server, T, wide)
    uri = (await dataset(server)).uri
    for storage_version in (None, "2.0", "legacy"):
        if storage_version is not None:
            rewritten = {"mode": "overwrite", "data_storage_version": storage_version}
            lance.write_dataset(wide, uri, **rewritten)
        for predicate in (None, "n >= 0"):
            request = ScanRequest(filter=predicate)
            stream = await server.scan(T, LATEST, request, None)
            found = list(stream.batches())
            assert pa.Table.from_batches(found, stream.schema) == wide
            # A filter's batches are joined by two.
            assert max(batch.nbytes for batch in found) < 17 << 20, (storage_version, predicate)


async def test_narrow_rows_are_scanned_many_at_a_time(server: Server) -> None:
    await make_table(server, T, pa.table({"n": range(100_000)}))
    stream = await server.scan(T, LATEST, ScanRequest(), None)
    assert next(stream.batches()).num_rows == 8_192


async def test_scans_that_lance_does_not_let_go_of_make_the_process_unhealthy(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    server = Server.local(settings, clock)
    await make_table(server, T, ROWS)
    lets_go = threading.Event()
    waiting = threading.Semaphore(0)
    read = lance.LanceScanner.to_batches

    def held(scanner: lance.LanceScanner) -> Iterator[pa.RecordBatch]:
        waiting.release()
        lets_go.wait()
        yield from read(scanner)

    monkeypatch.setattr(lance.LanceScanner, "to_batches", held)
    scans = settings.engine.stuck_threads_max + 1
    streams = [await server.scan(T, LATEST, ScanRequest(), None) for _ in range(scans)]
    reading = [asyncio.create_task(asyncio.to_thread(list, it.batches())) for it in streams]
    try:
        for _ in range(scans):
            await asyncio.to_thread(waiting.acquire)
        clock.advance(settings.engine.read_timeout_s - 1)
        assert server.healthy()
        clock.advance(1)
        assert not server.healthy()
    finally:
        lets_go.set()
    assert [sum(batch.num_rows for batch in found) for found in await asyncio.gather(*reading)] == [
        300
    ] * scans
    assert server.healthy()


async def test_scan_whose_rows_nobody_takes_is_not_stuck(settings: Settings) -> None:
    clock = ManualClock()
    server = Server.local(settings, clock)
    await make_table(server, T, ROWS)
    scans = settings.engine.stuck_threads_max + 1
    begun = [(await server.scan(T, LATEST, ScanRequest(), None)).batches() for _ in range(scans)]
    assert all(next(it).num_rows == 300 for it in begun)
    clock.advance(10 * settings.engine.read_timeout_s)
    assert server.healthy()


async def test_reads_see_the_version_that_is_named(server: Server) -> None:
    await make_table(server, T, ROWS)
    await server.insert_rows(T, None, InsertMode.APPEND, new_key(), ipc(ROWS))
    (await dataset(server)).tags.create("first", 1)
    (await dataset(server)).create_branch("dev", 1)
    assert (await server.count_rows(T, Pin(version=1), None, None)).count == 300
    assert (await server.count_rows(T, Pin(tag="first"), "id < 10", None)).count == 10
    assert (await server.count_rows(T, Pin(branch="dev"), None, None)).count == 300
    assert (await server.count_rows(T, Pin(version_min=2), None, None)).count == 600
    for pin, error in (
        (Pin(version=0), TableVersionNotFound),
        (Pin(version=99), TableVersionNotFound),
        (Pin(tag="nope"), TableTagNotFound),
        (Pin(branch="nope"), TableBranchNotFound),
        (Pin(branch="dev", version=2), TableVersionNotFound),
        (Pin(version_min=3), ServiceUnavailable),
    ):
        with pytest.raises(error):
            await server.count_rows(T, pin, None, None)
    described = await server.describe_table(T, Pin(version=1), detailed=True)
    assert (described.version, described.num_rows, described.num_fragments) == (1, 300, 1)
    assert pa.ipc.read_schema(pa.py_buffer(described.schema_ipc)).equals(ROWS.schema)


async def test_index_statistics(server: Server) -> None:
    await make_table(server, T, ROWS)
    made = await dataset(server)
    made.create_scalar_index("id", "BTREE", name="by id")
    made = made.create_index("vector", "IVF_FLAT", name="v", metric="cosine", num_partitions=2)
    await server.insert_rows(T, None, InsertMode.APPEND, new_key(), ipc(ROWS.slice(0, 7)))
    stats = await server.describe_index_stats(T, LATEST, "by id")
    assert (stats.index_type, stats.distance_type) == ("BTree", None)
    assert (stats.num_indexed_rows, stats.num_unindexed_rows, stats.num_indices) == (300, 7, 1)
    stats = await server.describe_index_stats(T, LATEST, "v")
    assert (stats.index_type, stats.distance_type) == ("IVF_FLAT", "cosine")
    assert (await server.describe_index_stats(T, Pin(version=3), "v")).num_unindexed_rows == 0
    (await dataset(server)).create_branch("dev", 3)
    on_branch = await server.describe_index_stats(T, Pin(branch="dev"), "v")
    assert on_branch.num_unindexed_rows == 0
    for pin, name in ((LATEST, "nope"), (Pin(version=1), "by id")):
        with pytest.raises(TableIndexNotFound):
            await server.describe_index_stats(T, pin, name)
    with pytest.raises(TableVersionNotFound):
        await server.describe_index_stats(T, Pin(version=50), "v")
    with pytest.raises(TableNotFound):
        await server.describe_index_stats(ref("nope"), LATEST, "v")


async def test_updates_and_indexes_agree(server: Server) -> None:
    await make_table(server, T, ROWS)
    made = await dataset(server)
    made.create_scalar_index("imageId", "BITMAP")
    made.create_scalar_index("s.x", "BTREE")
    for assignments, predicate in (
        ([Assignment(("imageId",), "7")], "id < 10"),
        ([Assignment(("s", "x"), "s.x + 1000")], "id < 20"),
        ([Assignment(("imageId",), "8")], "imageId = 7"),
    ):
        await server.update_rows(T, None, new_key(), assignments, predicate, None, None)
    for predicate, flat, count in (
        ("imageId = 8", "imageId + 0 = 8", 10),
        ("imageId = 7", "imageId + 0 = 7", 0),
        ("s.x >= 1000", "s.x + 0 >= 1000", 20),
        ("s.x < 20", "s.x + 0 < 20", 0),
    ):
        assert (await server.count_rows(T, LATEST, predicate, None)).count == count
        assert (await server.count_rows(T, LATEST, flat, None)).count == count


async def page_of_versions(
    server: Server, branch: str | None, page_token: str | None, *, descending: bool
) -> tuple[list[int], str | None]:
    page = await server.list_versions(T, branch, page_token, 2, descending=descending)
    return [record.version for record in page.items], page.page_token


async def delete_version(server: Server, version: int, branch: str | None = None) -> None:
    assert await server.delete_versions(T, branch, [VersionRange(version, version + 1)]) == 1


@pytest.mark.parametrize("branch", [None, "dev"])
async def test_pages_of_versions_go_on_when_records_are_deleted_between_them(
    server: Server, branch: str | None
) -> None:
    await make_table(server, T, ROWS)
    if branch is not None:
        (await dataset(server)).create_branch(branch, 1)
    for _ in range(8):
        await server.insert_rows(T, branch, InsertMode.APPEND, new_key(), ipc(ROWS.slice(0, 1)))
    everything = await server.list_versions(T, branch, None, None, descending=False)
    assert [record.version for record in everything.items] == list(range(1, 10))
    assert everything.page_token is None

    assert await page_of_versions(server, branch, None, descending=False) == ([1, 2], "2")
    await delete_version(server, 2, branch)
    await delete_version(server, 3, branch)
    assert await page_of_versions(server, branch, "2", descending=False) == ([4, 5], "5")
    await delete_version(server, 9, branch)
    assert await page_of_versions(server, branch, "5", descending=False) == ([6, 7], "7")
    assert await page_of_versions(server, branch, "7", descending=False) == ([8], None)

    assert await page_of_versions(server, branch, None, descending=True) == ([8, 7], "7")
    await delete_version(server, 7, branch)
    await delete_version(server, 5, branch)
    assert await page_of_versions(server, branch, "7", descending=True) == ([6, 4], "4")
    assert await page_of_versions(server, branch, "4", descending=True) == ([1], None)
    with pytest.raises(InvalidInput):
        await page_of_versions(server, branch, "x", descending=True)


async def test_one_version_is_described(server: Server) -> None:
    with pytest.raises(TableNotFound):
        await server.describe_version(T, None, None)
    await make_table(server, T, ROWS)
    (await dataset(server)).create_branch("dev", 1)
    for _ in range(2):
        await server.insert_rows(T, None, InsertMode.APPEND, new_key(), ipc(ROWS))
    listed = (await server.list_versions(T, None, None, None, descending=False)).items
    for version, record in zip((1, 2, 3), listed, strict=True):
        assert await server.describe_version(T, None, version) == record
    assert await server.describe_version(T, None, None) == listed[-1]
    on_dev = await server.describe_version(T, "dev", None)
    assert (on_dev.version, on_dev.manifest_path.split("/")[:2]) == (1, ["tree", "dev"])

    await delete_version(server, 3)
    assert await server.describe_version(T, None, None) == listed[1]
    await server.delete_versions(T, None, [VersionRange(0, -1)])
    for missing in (0, 2, 3, 4, 2**63 - 1):
        with pytest.raises(TableVersionNotFound, match=f"no record of version {missing}"):
            await server.describe_version(T, None, missing)
    with pytest.raises(TableVersionNotFound, match="no version records"):
        await server.describe_version(T, None, None)
    with pytest.raises(TableBranchNotFound):
        await server.describe_version(T, "nope", None)
