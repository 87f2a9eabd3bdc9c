"""The engines, and plain Python, give the same answers: to reads, updates and deletes.

Each seed makes a table of several inserts, with deleted rows and perhaps indexes, twice: one copy
is changed by Lance in process, the other by plans on Daft, and both are maintained as a server's
tables are. Whatever is asked of either, by either engine, must be what lists of rows in Python say.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import lance
import pyarrow as pa
import pytest

from actors.model import LATEST, Assignment, InsertMode, ScanRequest
from actors.server import Server
from cluster.errors import DestrierError
from cluster.settings import Engine, Settings
from tests.contract.domain import ipc, make_settings, make_table, new_key, ref
from tests.property import random_sql
from tests.property.native_plans import native_server
from tests.property.random_rows import Row, random_rows, random_schema, to_table
from tests.property.random_sql import Change, Sql

T = ref("t")
LINEAGE = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
INDEXED = ("n", "Name", "must", "m", "flag", "day")


@dataclass
class Copy:
    """One copy of the table, and the engine that changes it."""

    root: Path
    server: Server
    engine: Engine

    @property
    async def dataset(self) -> Any:
        record = await self.server.catalog(T.database).find_table(T.id)
        return lance.dataset(record.location.uri)


@dataclass
class World:
    """Two copies of a table, and what is in them according to Python."""

    random: Random
    schema: pa.Schema
    is_stable: bool
    lance: Copy
    daft: Copy
    rows: list[Row] = field(default_factory=list)
    indexed: list[str] = field(default_factory=list)
    next_id: int = 0
    is_over: bool = False

    async def insert(self, *copies: Copy) -> None:
        new = random_rows(self.random, self.schema, self.next_id)
        self.next_id += len(new)
        body = ipc(to_table(new, self.schema))
        for copy in copies:
            await copy.server.insert_rows(T, None, InsertMode.APPEND, new_key(), body)
        self.rows += new

    def predicate(self) -> Sql:
        """Any predicate, or one that an index answers."""
        if not self.indexed or self.random.random() < 0.5:
            return random_sql.random_predicate(self.random, self.schema)
        name = self.random.choice(self.indexed)
        values = [row[name] for row in self.rows]
        return random_sql.equals(name, self.random.choice(values) if values else None)

    def selected(self, predicate: Sql | None) -> list[Row]:
        return [row for row in self.rows if predicate is None or predicate.of(row) is True]


def settings_of(root: Path, scan_bytes: int) -> Settings:
    return Settings.model_validate(
        {
            # The disk is what these tests would wait for most.
            "storage": {"root": str(root), "durability": "none"},
            "engine": {"distributed_scan_bytes": scan_bytes},
        }
    )


async def make_world(tmp_path: Path, seed: int) -> World:
    random = Random(seed)
    schema = random_schema(random)
    first, second = tmp_path / "lance", tmp_path / "daft"
    scan_bytes = random.choice([400, 4_000, 64 << 20])
    in_process = Copy(first, native_server(settings_of(first, scan_bytes)), "lance")
    planned = Copy(second, native_server(settings_of(second, scan_bytes)), "daft")
    is_stable = random.random() < 0.5
    world = World(random, schema, is_stable, in_process, planned)
    await make_table(
        in_process.server, T, to_table([], schema), stable_row_ids=is_stable, properties={}
    )
    for _ in range(random.randint(1, 5)):
        await world.insert(in_process)
    if random.random() < 0.7:
        await delete(world, random_sql.random_predicate(random, schema), in_process)
    await make_indexes(world)
    if random.random() < 0.5:
        await world.insert(in_process)
    await in_process.server.close()
    shutil.copytree(first, second)
    return world


async def make_indexes(world: World) -> None:
    dataset = await world.lance.dataset
    for column in world.random.sample(INDEXED, world.random.randint(0, 3)):
        if column in world.schema.names and dataset.count_rows():
            dataset.create_scalar_index(column, world.random.choice(["BTREE", "BITMAP"]))
            world.indexed.append(column)


async def maintain(world: World) -> None:
    """What keeps a table fast, on both copies; it changes no row."""
    is_compaction = world.random.random() < 0.5
    for copy in (world.lance, world.daft):
        dataset = await copy.dataset
        if is_compaction:
            dataset.optimize.compact_files()
        else:
            dataset.optimize.optimize_indices()
    # What has nothing to do makes no version, and the copies differ in what there is to do.
    datasets = [await copy.dataset for copy in (world.lance, world.daft)]
    while datasets[0].version != datasets[1].version:
        min(datasets, key=lambda dataset: dataset.version).update_config({"padded": "yes"})
    await take_over_order(world)


async def take_over_order(world: World) -> None:
    """Compaction moves rows: from here on they come in another order."""
    orders = []
    for copy in (world.lance, world.daft):
        found = await read(copy, "lance", ScanRequest(columns=(("id", "id"),)))
        orders.append(found.column("id").to_pylist())
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(row["id"] for row in world.rows)
    rows = {row["id"]: row for row in world.rows}
    world.rows = [rows[number] for number in orders[0]]
    # The copies have fragments of other sizes, so it may not be the same in both.
    world.is_over = orders[0] != orders[1]


async def delete(world: World, predicate: Sql, *copies: Copy) -> None:
    doomed = world.selected(predicate)
    for copy in copies:
        commit = await copy.server.delete_rows(T, None, new_key(), predicate.text, copy.engine)
        assert commit.rows == len(doomed), predicate.text
    ids = {row["id"] for row in doomed}
    world.rows = [row for row in world.rows if row["id"] not in ids]


async def update(world: World, predicate: Sql | None, changes: list[Change]) -> None:
    assignments = [change.assignment for change in changes]
    text = None if predicate is None else predicate.text
    old = world.selected(predicate)
    for copy in (world.lance, world.daft):
        commit, _ = await copy.server.update_rows(
            T, None, new_key(), assignments, text, None, copy.engine
        )
        assert commit.rows == len(old), (text, assignments)
    ids = {row["id"] for row in old}
    kept = [row for row in world.rows if row["id"] not in ids]
    # Lance writes changed rows anew, behind the others.
    world.rows = kept + [random_sql.changed(row, changes) for row in old]


async def read(copy: Copy, engine: Engine, request: ScanRequest) -> pa.Table:
    stream = await copy.server.scan(T, LATEST, request, engine)
    return pa.Table.from_batches(stream.batches(), stream.schema)


async def check_reads(world: World) -> None:
    random = world.random
    predicate = random.choice([None, world.predicate(), world.predicate()])
    text = None if predicate is None else predicate.text
    expected = world.selected(predicate)
    offset = random.choice([None, 0, 1, random.randint(0, 40), 1_000])
    limit = random.choice([None, 0, 1, random.randint(0, 40), 1_000])
    columns = None
    if random.random() < 0.4:
        columns = (("id", "id"), ("twice", "n * 2"), ("name", "`Name`"))
    request = ScanRequest(text, columns, limit, offset, with_row_id=random.random() < 0.5)
    for copy in (world.lance, world.daft):
        tables = [await read(copy, engine, request) for engine in ("lance", "daft")]
        same(*tables, request)
        found = [_values(row, columns is None) for row in tables[0].to_pylist()]
        start = offset or 0
        end = len(expected) if limit is None else start + limit
        wanted = [_wanted(row, columns is None) for row in expected[start:end]]
        assert found == wanted, request
        if text is not None:
            for engine in ("lance", "daft"):
                counted = await copy.server.count_rows(T, LATEST, text, engine)
                assert counted.count == len(expected), text


def same(first: pa.Table, second: pa.Table, request: ScanRequest) -> None:
    """That two results are the same, in order, to the last detail of their schemas."""
    assert first.schema.serialize() == second.schema.serialize()
    assert first.combine_chunks().to_pylist() == second.combine_chunks().to_pylist(), request


def _values(row: Row, every_column: bool) -> Row:
    row = {name: value for name, value in row.items() if name != "_rowid"}
    return dict(sorted(row.items())) if every_column else row


def _wanted(row: Row, every_column: bool) -> Row:
    if every_column:
        return dict(sorted(row.items()))
    twice = None if row["n"] is None else row["n"] * 2
    return {"id": row["id"], "twice": twice, "name": row["Name"]}


async def check_copies(world: World) -> None:
    """That both copies hold the same, and what Python says."""
    expected = [dict(sorted(row.items())) for row in world.rows]
    datasets = [await copy.dataset for copy in (world.lance, world.daft)]
    for copy, dataset in zip((world.lance, world.daft), datasets, strict=True):
        dataset.validate()
        assert dataset.schema.serialize() == datasets[0].schema.serialize()
        assert dataset.version == datasets[0].version
        found = (await read(copy, "lance", ScanRequest())).to_pylist()
        assert [dict(sorted(row.items())) for row in found] == expected
        for name in world.schema.names:
            assert dataset.schema.field(name).nullable == world.schema.field(name).nullable
    if world.is_stable:
        columns = ["id", *LINEAGE]
        lineages = [item.scanner(columns=columns).to_table().to_pylist() for item in datasets]
        assert lineages[0] == lineages[1]


async def one_change(world: World) -> None:
    random = world.random
    predicate = random.choice([None, world.predicate(), world.predicate()])
    kind = random.randint(0, 6)
    if kind == 0:
        await world.insert(world.lance, world.daft)
    elif kind == 1:
        await delete(world, world.predicate(), world.lance, world.daft)
    elif kind == 3:
        await maintain(world)
    elif kind == 2:
        await update(world, predicate, random_sql.swap(world.schema))
    else:
        await update(world, predicate, random_sql.random_changes(random, world.schema))


async def agree(tmp_path: Path, seed: int) -> None:
    world = await make_world(tmp_path, seed)
    await check_copies(world)
    for _ in range(4):
        await check_reads(world)
        await check_reads(world)
        await one_change(world)
        if world.is_over:
            return
        await check_copies(world)
    await check_reads(world)


@pytest.mark.parametrize("seed", range(12))
def test_engines_and_python_agree(tmp_path: Path, seed: int) -> None:
    asyncio.run(agree(tmp_path, seed))


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_engines_and_python_agree_on_many_seeds(tmp_path: Path) -> None:
    for seed in range(1_000, 1_300):
        asyncio.run(agree(tmp_path / str(seed), seed))
        shutil.rmtree(tmp_path / str(seed))


Request = Callable[[Server, Engine], Awaitable[object]]


def counting(predicate: str) -> Request:
    return lambda server, engine: server.count_rows(T, LATEST, predicate, engine)


def scanning(**request: Any) -> Request:
    async def scan(server: Server, engine: Engine) -> object:
        stream = await server.scan(T, LATEST, ScanRequest(**request), engine)
        return list(stream.batches())

    return scan


def updating(target: str, expression: str, predicate: str | None = None) -> Request:
    assignments = [Assignment(tuple(target.split(".")), expression)]
    return lambda server, engine: server.update_rows(
        T, None, new_key(), assignments, predicate, None, engine
    )


def deleting(predicate: str) -> Request:
    return lambda server, engine: server.delete_rows(T, None, new_key(), predicate, engine)


REFUSED = [
    counting("nope = 1"),
    counting("n >"),
    counting("cast(name AS int) > 1"),
    scanning(filter="nope = 1"),
    scanning(columns=(("x", "nope + 1"),)),
    scanning(columns=(("x", "cast(name AS int)"),)),
    scanning(filter="cast(name AS int) > 1", limit=3),
    scanning(columns=(("x", "n / 0"),)),
    updating("nope", "1"),
    updating("s.nope", "1"),
    updating("n", "nope"),
    updating("n", "cast(name AS int)"),
    updating("must", "NULL"),
    updating("must", "NULL", "n = 39"),
    updating("n", "'text'"),
    updating("small", "n + 3000000000"),
    updating("s.x", "'text'", "n > 5"),
    updating("n", "1", "cast(name AS int) > 1"),
    deleting("nope = 1"),
    deleting("cast(name AS int) > 1"),
    deleting("n = "),
]


@pytest.mark.parametrize("request_", REFUSED)
def test_engines_refuse_the_same_and_change_nothing(tmp_path: Path, request_: Request) -> None:
    async def refuse() -> None:
        server = native_server(make_settings(tmp_path / "root"))
        schema = pa.schema(
            [
                pa.field("n", pa.int64()),
                pa.field("small", pa.int32()),
                pa.field("name", pa.utf8()),
                pa.field("must", pa.utf8(), nullable=False),
                pa.field("s", pa.struct([pa.field("x", pa.int64())])),
            ]
        )
        await make_table(server, T, to_table([], schema))
        for first in range(0, 40, 10):
            numbers = range(first, first + 10)
            rows = [
                {"n": n, "small": n, "name": f"name {n}", "must": "x", "s": {"x": n}}
                for n in numbers
            ]
            body = ipc(to_table(rows, schema))
            await server.insert_rows(T, None, InsertMode.APPEND, new_key(), body)
        before = await server.count_rows(T, LATEST, None, None)
        errors = []
        for engine in ("lance", "daft"):
            with pytest.raises(DestrierError) as raised:
                await request_(server, engine)
            errors.append(raised.value)
        assert type(errors[0]) is type(errors[1])
        assert errors[0].message == errors[1].message
        assert errors[0].code not in (17, 18)
        assert await server.count_rows(T, LATEST, None, None) == before

    asyncio.run(refuse())
