"""What a write promises: done once, seen by every later read, or nothing has changed."""

import asyncio
import base64
import shutil
from collections import Counter
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from actors.model import (
    LATEST,
    Assignment,
    Commit,
    CreateMode,
    InsertMode,
    NewTable,
    Pin,
    RequestKey,
    ScanRequest,
    VersionRange,
)
from actors.server import Server
from cluster.errors import (
    DestrierError,
    InvalidInput,
    InvalidTableState,
    TableAlreadyExists,
    TableBranchNotFound,
    TableColumnNotFound,
    TableNotFound,
    TableSchemaValidationError,
    TableVersionNotFound,
)
from cluster.identifiers import TableRef
from cluster.settings import LimitSettings, ViewSettings
from tests.contract.domain import DATABASE, ipc, make_settings, make_table, new_key, ref
from udtf.spec import check_view_definition

pytestmark = pytest.mark.anyio

T = ref("t")
ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3]),
        "n": pa.array([10, 20, 30]),
        "s": pa.array([{"x": 1, "y.z": 7}, None, {"x": 3, "y.z": None}]),
    }
)


async def rows(server: Server, table: TableRef, pin: Pin = LATEST) -> list[dict[str, object]]:
    """Every row, ordered by id."""
    stream = await server.scan(table, pin, ScanRequest(), None)
    found = pa.Table.from_batches(stream.batches(), stream.schema).to_pylist()
    return sorted(found, key=lambda row: (row["id"], row["n"]))


async def insert(
    server: Server,
    data: pa.Table,
    key: RequestKey | None = None,
    mode: InsertMode = InsertMode.APPEND,
    branch: str | None = None,
) -> Commit:
    return await server.insert_rows(T, branch, mode, key or new_key(), ipc(data))


async def test_an_insert_is_seen_by_the_next_count(server: Server) -> None:
    await make_table(server, T, ROWS)
    commit = await insert(server, ROWS.slice(0, 2))
    assert (commit.version, commit.rows) == (2, 2)
    counted = await server.count_rows(T, LATEST, None, None)
    assert (counted.count, counted.version) == (5, 2)
    assert (await server.count_rows(T, Pin(version=1), None, None)).count == 3


async def test_inserts_that_wait_together_share_a_commit(server: Server) -> None:
    await make_table(server, T, ROWS)
    commits = await asyncio.gather(*(insert(server, ROWS.slice(i % 3, 1)) for i in range(60)))
    versions = {commit.version for commit in commits}
    assert (await server.count_rows(T, LATEST, None, None)).count == 63
    assert len(versions) < 30
    assert (await server.count_rows(T, LATEST, None, None)).version == max(versions)


async def test_a_repeated_insert_is_answered_and_not_done_again(server: Server) -> None:
    await make_table(server, T, ROWS)
    key = new_key()
    first = await insert(server, ROWS, key)
    await insert(server, ROWS)
    again = await insert(server, ROWS, key)
    assert (again.version, again.transaction_id, again.rows) == (
        first.version,
        first.transaction_id,
        3,
    )
    assert again.repeated
    assert (await server.count_rows(T, LATEST, None, None)).count == 9


async def test_a_repeated_insert_is_known_from_the_manifest_alone(tmp_path: Path) -> None:
    """Commits flush no other file that tells of them; a power cut may take the others."""
    settings = make_settings(tmp_path / "root")
    server = Server.local(settings)
    await make_table(server, T, ROWS)
    key = new_key()
    first = await insert(server, ROWS, key)
    await insert(server, ROWS)
    await server.close()
    uri = (await server.catalog(DATABASE).find_table(T.id)).location.uri
    shutil.rmtree(f"{uri}/_transactions")
    again = await insert(Server.local(settings), ROWS, key)
    assert (again.repeated, again.version) == (True, first.version)


async def test_the_same_request_sent_twice_at_once_is_done_once(server: Server) -> None:
    await make_table(server, T, ROWS)
    key = new_key()
    commits = await asyncio.gather(*(insert(server, ROWS, key) for _ in range(8)))
    assert len({commit.version for commit in commits}) == 1
    assert (await server.count_rows(T, LATEST, None, None)).count == 6


async def test_a_request_id_with_another_body_is_refused(server: Server) -> None:
    await make_table(server, T, ROWS)
    key = new_key("a" * 32)
    await insert(server, ROWS, key)
    with pytest.raises(InvalidInput, match="another request body"):
        await insert(server, ROWS, RequestKey(key.id, "b" * 32))
    assert (await server.count_rows(T, LATEST, None, None)).count == 6


async def test_a_bad_member_of_a_batch_is_refused_alone(server: Server) -> None:
    await make_table(server, T, ROWS)
    bad = pa.table({"id": pa.array(["x"])})
    answers = await asyncio.gather(
        *(insert(server, ROWS if i % 2 else bad) for i in range(10)), return_exceptions=True
    )
    refused = [a for a in answers if isinstance(a, TableSchemaValidationError)]
    assert len(refused) == 5
    assert all("id" in str(error) for error in refused)
    assert (await server.count_rows(T, LATEST, None, None)).count == 3 + 5 * 3


def encoded(first: int) -> pa.Table:
    """A hundred numbers as words, in a dictionary whose indices name 128 values at most."""
    values = [str(number) for number in range(first, first + 100)]
    indices = pa.array(range(100), pa.int8())
    return pa.table({"word": pa.DictionaryArray.from_arrays(indices, values)})


async def test_dictionaries_of_small_indices_may_hold_more_values_together(server: Server) -> None:
    parts = [encoded(100 * part) for part in range(8)]
    await make_table(server, T, parts[0].slice(0, 0))
    await asyncio.gather(*(insert(server, part) for part in parts))
    await insert(server, pa.concat_tables(parts))
    stream = await server.scan(T, LATEST, ScanRequest(), None)
    found = pa.Table.from_batches(stream.batches()).column("word").to_pylist()
    assert Counter(found) == {str(number): 2 for number in range(800)}


async def test_rows_that_fit_one_by_one_only_are_committed_one_by_one(server: Server) -> None:
    await make_table(server, T, pa.table({"word": ["a"]}))
    record = await server.catalog(DATABASE).find_table(T.id)
    # Another program may keep indices of 8 bits.
    lance.write_dataset(encoded(0), record.location.uri, mode="overwrite")
    await asyncio.gather(*(insert(server, encoded(100 * part)) for part in range(1, 8)))
    stream = await server.scan(T, LATEST, ScanRequest(), None)
    found = [value for batch in stream.batches() for value in batch.column("word").to_pylist()]
    assert sorted(found) == sorted(str(number) for number in range(800))
    with pytest.raises(InvalidInput, match=r"larger index type.*send fewer"):
        await insert(server, pa.concat_tables([encoded(0), encoded(100)]))


async def test_an_empty_insert_commits_no_rows(server: Server) -> None:
    await make_table(server, T, ROWS)
    commit = await insert(server, ROWS.slice(0, 0))
    assert commit.rows == 0
    assert (await server.count_rows(T, LATEST, None, None)).count == 3


async def test_overwrite_replaces_rows_and_schema_and_versions_go_on(server: Server) -> None:
    await make_table(server, T, ROWS)
    commit = await insert(server, pa.table({"z": ["a"]}), mode=InsertMode.OVERWRITE)
    assert (commit.version, commit.rows) == (2, 1)
    stream = await server.scan(T, LATEST, ScanRequest(), None)
    assert pa.Table.from_batches(stream.batches()).to_pylist() == [{"z": "a"}]
    assert (await server.count_rows(T, Pin(version=1), None, None)).count == 3


async def test_insert_creates_a_declared_table(server: Server) -> None:
    await server.catalog(DATABASE).declare_table(T.id, None, {})
    with pytest.raises(TableNotFound):
        await server.count_rows(T, LATEST, None, None)
    assert (await server.describe_table(T, LATEST, detailed=False)).record.is_only_declared
    commit = await insert(server, ROWS)
    assert (commit.version, commit.rows) == (1, 3)
    described = await server.describe_table(T, LATEST, detailed=False)
    assert not described.record.is_only_declared
    assert described.version == 1


async def test_assignments_read_the_row_as_it_was(server: Server) -> None:
    await make_table(server, T, ROWS)
    commit, _ = await server.update_rows(
        T,
        None,
        new_key(),
        [Assignment(("id",), "n"), Assignment(("n",), "id")],
        None,
        None,
        None,
    )
    assert commit.rows == 3
    found = [(row["id"], row["n"]) for row in await rows(server, T)]
    assert found == [(10, 1), (20, 2), (30, 3)]


async def test_a_nested_target_keeps_siblings_and_null_parents(server: Server) -> None:
    await make_table(server, T, ROWS)
    commit, _ = await server.update_rows(
        T, None, new_key(), [Assignment(("s", "x"), "s.x + 100")], None, None, None
    )
    assert commit.rows == 3
    assert [row["s"] for row in await rows(server, T)] == [
        {"x": 101, "y.z": 7},
        None,
        {"x": 103, "y.z": None},
    ]


async def test_a_repeated_update_adds_once(server: Server) -> None:
    await make_table(server, T, ROWS)
    key = new_key()
    for _ in range(3):
        commit, _ = await server.update_rows(
            T, None, key, [Assignment(("n",), "n + 1")], "id = 1", None, None
        )
        assert (commit.rows, commit.version) == (1, 2)
    assert [row["n"] for row in await rows(server, T)] == [11, 20, 30]


async def test_update_properties_are_stored_and_merged(server: Server) -> None:
    await make_table(server, T, ROWS, properties={"a": "1"})
    _, properties = await server.update_rows(
        T, None, new_key(), [Assignment(("n",), "0")], "id = 1", {"b": "it's"}, None
    )
    assert properties == {"a": "1", "b": "it's"}
    assert (await server.catalog(DATABASE).find_table(T.id)).properties == properties


@pytest.mark.parametrize(
    ("target", "expression", "predicate", "error"),
    [
        (("nope",), "1", None, TableColumnNotFound),
        (("s", "nope"), "1", None, TableColumnNotFound),
        (("n",), "n +", None, InvalidInput),
        (("n",), "nope + 1", None, InvalidInput),
        (("n",), "n / 0", None, InvalidInput),
        (("n",), "'abc'", None, InvalidInput),
        (("n",), "1.5", None, InvalidInput),
        (("n",), "1", "nope = 1", InvalidInput),
        (("n",), "1", "id = 1; drop table t", InvalidInput),
    ],
)
async def test_a_refused_update_changes_nothing(
    server: Server,
    target: tuple[str, ...],
    expression: str,
    predicate: str | None,
    error: type[DestrierError],
) -> None:
    await make_table(server, T, ROWS)
    with pytest.raises(error):
        await server.update_rows(
            T, None, new_key(), [Assignment(target, expression)], predicate, {"p": "1"}, None
        )
    assert (await server.count_rows(T, LATEST, None, None)).version == 1
    assert (await server.catalog(DATABASE).find_table(T.id)).properties == {}


async def test_null_into_a_column_that_takes_none_names_the_column(server: Server) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])
    await make_table(server, T, pa.table({"id": [1], "n": [None]}, schema=schema))
    with pytest.raises(TableSchemaValidationError, match="id"):
        await server.update_rows(T, None, new_key(), [Assignment(("id",), "n")], None, None, None)
    assert (await server.count_rows(T, LATEST, None, None)).version == 1


async def test_delete_says_how_many(server: Server) -> None:
    await make_table(server, T, ROWS)
    commit = await server.delete_rows(T, None, new_key(), "id >= 2", None)
    assert (commit.rows, commit.version) == (2, 2)
    assert [row["id"] for row in await rows(server, T)] == [1]
    none = await server.delete_rows(T, None, new_key(), "id = 99", None)
    assert none.rows == 0
    everything = await server.delete_rows(T, None, new_key(), "true", None)
    assert everything.rows == 1
    assert (await server.count_rows(T, LATEST, None, None)).count == 0


async def test_concurrent_metadata_updates_all_land(server: Server) -> None:
    await make_table(server, T, ROWS)
    await asyncio.gather(
        *(server.update_schema_metadata(T, None, new_key(), {f"k{i}": str(i)}) for i in range(20))
    )
    merged = await server.update_schema_metadata(T, None, new_key(), {"last": "1"})
    assert merged == {**{f"k{i}": str(i) for i in range(20)}, "last": "1"}


async def test_mixed_writers_all_succeed_and_versions_are_a_serial_order(server: Server) -> None:
    await make_table(server, T, pa.table({"id": [0], "n": [0]}))

    async def work(i: int) -> Commit:
        if i % 3 == 0:
            commit, _ = await server.update_rows(
                T, None, new_key(), [Assignment(("n",), "n + 1")], "id = 0", None, None
            )
            return commit
        if i % 3 == 1:
            return await insert(server, pa.table({"id": [i], "n": [i]}))
        return await server.delete_rows(T, None, new_key(), f"id = {i - 1}", None)

    commits = await asyncio.gather(*(work(i) for i in range(32)))
    serial = sorted(range(32), key=lambda i: (commits[i].version, i % 3 != 1))
    present: dict[int, int] = {0: 0}
    for i in serial:
        if i % 3 == 0:
            present[0] += 1
        elif i % 3 == 1:
            present[i] = i
        else:
            assert commits[i].rows == int(i - 1 in present), "a delete missed an earlier version"
            present.pop(i - 1, None)
    assert {row["id"]: row["n"] for row in await rows(server, T)} == present


async def test_an_unconditional_update_sees_every_row_of_earlier_versions(server: Server) -> None:
    await make_table(server, T, pa.table({"id": pa.array(range(1000)), "n": [0] * 1000}))
    inserts = [insert(server, pa.table({"id": [1000 + i], "n": [0]})) for i in range(40)]
    updates = [
        server.update_rows(T, None, new_key(), [Assignment(("n",), "n + 1")], "true", None, None)
        for _ in range(8)
    ]
    answers = await asyncio.gather(*inserts, *updates)
    added = {1000 + i: answers[i].version for i in range(40)}
    made = [answer[0].version for answer in answers[40:]]
    for row in await rows(server, T):
        born = added.get(row["id"], 0)
        assert row["n"] == sum(1 for version in made if version > born)


async def test_writes_go_to_the_branch_that_is_named(server: Server) -> None:
    await make_table(server, T, ROWS)
    location = (await server.catalog(DATABASE).find_table(T.id)).location
    lance.dataset(location.uri).create_branch("dev")
    on_dev = Pin(branch="dev")
    await insert(server, ROWS, branch="dev")
    await server.update_rows(T, "dev", new_key(), [Assignment(("n",), "0")], "id = 1", None, None)
    await server.delete_rows(T, "dev", new_key(), "id = 3", None)
    assert await server.update_schema_metadata(T, "dev", new_key(), {"k": "v"}) == {"k": "v"}
    assert [(row["id"], row["n"]) for row in await rows(server, T, on_dev)] == [
        (1, 0),
        (1, 0),
        (2, 20),
        (2, 20),
    ]
    assert (await server.count_rows(T, LATEST, None, None)).version == 1
    assert [(row["id"], row["n"]) for row in await rows(server, T)] == [(1, 10), (2, 20), (3, 30)]
    with pytest.raises(TableBranchNotFound):
        await insert(server, ROWS, branch="nope")
    with pytest.raises(TableBranchNotFound):
        await server.delete_rows(T, "nope", new_key(), "true", None)


async def versions(server: Server) -> list[int]:
    page = await server.list_versions(T, None, None, None, descending=False)
    return [record.version for record in page.items]


async def test_deleting_version_records_leaves_the_table_as_it_is(server: Server) -> None:
    await make_table(server, T, ROWS)
    for _ in range(4):
        await insert(server, ROWS)
    ranges = [VersionRange(2, 4), VersionRange(3, 5), VersionRange(9, 3)]
    assert await server.delete_versions(T, None, ranges) == 3
    assert await server.delete_versions(T, None, ranges) == 0
    assert await versions(server) == [1, 5]
    with pytest.raises(TableVersionNotFound):
        await server.count_rows(T, Pin(version=3), None, None)
    assert await server.delete_versions(T, None, [VersionRange(0, -1)]) == 2
    assert (await server.count_rows(T, LATEST, None, None)).count == 15
    assert (await insert(server, ROWS)).version == 6
    assert await versions(server) == [6]
    with pytest.raises(InvalidInput):
        await server.delete_versions(T, None, [VersionRange(-2, 3)])


async def test_a_table_made_anew_shows_nothing_of_the_old_one(server: Server) -> None:
    for life in range(3):
        data = pa.table({"id": pa.array([life] * (life + 1)), f"c{life}": ["x"] * (life + 1)})
        await make_table(server, T, data)
        await insert(server, data)
        assert (await server.count_rows(T, LATEST, None, None)).count == 2 * (life + 1)
        stream = await server.scan(T, LATEST, ScanRequest(), None)
        assert stream.schema.names == ["id", f"c{life}"]
        await server.catalog(DATABASE).drop_table(T.id)
        with pytest.raises(TableNotFound):
            await server.count_rows(T, LATEST, None, None)
        with pytest.raises(TableNotFound):
            await insert(server, data)


async def test_of_many_creators_one_wins(server: Server) -> None:
    answers = await asyncio.gather(
        *(make_table(server, T, ROWS.slice(0, 1)) for _ in range(16)), return_exceptions=True
    )
    assert sum(answer is None for answer in answers) == 1
    assert sum(isinstance(answer, TableAlreadyExists) for answer in answers) == 15
    assert (await server.count_rows(T, LATEST, None, None)).count == 1


async def test_create_modes(server: Server) -> None:
    await make_table(server, T, ROWS)
    new = NewTable(T.id, {"p": "1"})
    kept = await server.create_table(DATABASE, new, CreateMode.EXIST_OK, new_key(), ipc(ROWS))
    assert (kept.created, kept.version) == (False, 1)
    replaced = await server.create_table(
        DATABASE, new, CreateMode.OVERWRITE, new_key(), ipc(pa.table({"z": [1]}))
    )
    assert (replaced.created, replaced.version) == (True, 2)
    assert (await server.count_rows(T, LATEST, None, None)).count == 1


async def test_rows_of_a_view_are_not_written(server: Server) -> None:
    definition = check_view_definition(
        "query",
        "SELECT id FROM src",
        base64.b64encode(pa.schema([("id", pa.int64())]).serialize()).decode(),
        None,
        None,
        LimitSettings(),
        ViewSettings(),
    )
    await make_table(server, ref("src"), ROWS)
    assert (await server.create_view(T, definition, new_key())).commit.version == 1
    with pytest.raises(TableAlreadyExists):
        await server.create_view(T, definition, new_key())
    for write in (
        insert(server, ROWS),
        insert(server, ROWS, mode=InsertMode.OVERWRITE),
        server.delete_rows(T, None, new_key(), "true", None),
        server.update_rows(T, None, new_key(), [Assignment(("id",), "0")], None, None, None),
    ):
        with pytest.raises(InvalidTableState, match="view"):
            await write
    counted = await server.count_rows(T, LATEST, None, None)
    assert (counted.count, counted.version) == (0, 1)


async def test_nobody_makes_a_view_by_metadata(server: Server) -> None:
    forged = {"mv.definition": '{"format":1,"kind":"query","query":"SELECT 1"}', "kept": "1"}
    await make_table(server, T, ROWS.replace_schema_metadata(forged))
    with pytest.raises(InvalidInput, match="reserved"):
        await server.update_schema_metadata(T, None, new_key(), {"destrier.view.kind": "udtf"})
    merged = await server.update_schema_metadata(T, None, new_key(), {"mine": "2"})
    assert merged == {"kept": "1", "mine": "2"}
    assert (await insert(server, ROWS)).rows == 3
