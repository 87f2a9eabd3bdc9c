"""Many writers at once: who wins is told, nobody loses, and the outcome is that of some order."""

import random
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import pyarrow as pa
import pytest

from tests.clients.plain_http import Database, refusal, right, stream
from tests.clients.running_server import direct_only

pytestmark = [
    pytest.mark.cluster,
    direct_only,
]

T = TypeVar("T")

WRITERS = 32
KEYS = 8


def at_once(count: int, call: Callable[[int], T]) -> list[T]:
    """The results of `call` from that many threads that begin together."""
    barrier = threading.Barrier(count)

    def run(number: int) -> T:
        barrier.wait()
        return call(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))


@dataclass
class Change:
    """One write of the test: what was asked for, and what was answered."""

    kind: str
    key: int
    rows: dict[str, int] = field(default_factory=dict)
    answer: dict[str, Any] = field(default_factory=dict)

    def send(self, database: Database, table: str) -> None:
        """Send it; any refusal fails the test."""
        where = f"k = {self.key}"
        if self.kind == "insert":
            made = {"id": list(self.rows), "k": [self.key] * len(self.rows), "n": [0, 0]}
            self.answer = database.insert(table, pa.table(made))
        elif self.kind == "update":
            self.answer = database.ask(table, "update", predicate=where, updates=[["n", "n + 1"]])
        else:
            self.answer = database.ask(table, "delete", predicate=where)

    def replay(self, rows: dict[str, tuple[int, int]]) -> int:
        """Do the same to id -> (k, n); returns how many rows it is about."""
        if self.kind == "insert":
            rows.update({id: (self.key, 0) for id in self.rows})
            return len(self.rows)
        chosen = [id for id, (key, _) in rows.items() if key == self.key]
        for id in chosen:
            if self.kind == "delete":
                del rows[id]
            else:
                rows[id] = (self.key, rows[id][1] + 1)
        return len(chosen)

    @property
    def counted(self) -> int:
        """The rows that the answer tells of."""
        names = ("num_inserted_rows", "updated_rows", "num_deleted_rows")
        return int(next(self.answer[name] for name in names if name in self.answer))


def test_mixed_writes_of_32_writers_amount_to_the_same_writes_in_order_of_version(
    database: Database, table: str
) -> None:
    start = {f"start-{number}": (number % KEYS, 0) for number in range(64)}
    keys = [key for key, _ in start.values()]
    database.create(table, pa.table({"id": list(start), "k": keys, "n": [0] * len(start)}))
    choice = random.Random(20_131_231)
    kinds = ["insert"] * 4 + ["update"] * 3 + ["delete"]
    plans = [
        [
            Change(
                choice.choice(kinds),
                choice.randrange(KEYS),
                {uuid.uuid4().hex: 0, uuid.uuid4().hex: 0},
            )
            for _ in range(4)
        ]
        for _ in range(WRITERS)
    ]

    def write(number: int) -> None:
        for change in plans[number]:
            change.send(database, table)

    at_once(WRITERS, write)
    changes = [change for plan in plans for change in plan]
    for plan in plans:
        versions = [change.answer["version"] for change in plan]
        assert versions == sorted(set(versions))
    # Inserts may share a commit; nothing else may.
    owners: dict[int, set[str]] = {}
    for change in changes:
        owners.setdefault(change.answer["version"], set()).add(change.kind)
    shared = [change.answer["version"] for change in changes if change.kind != "insert"]
    assert len(shared) == len(set(shared))
    assert all(len(kinds) == 1 for kinds in owners.values())
    assert sorted(owners) == list(range(2, database.version(table) + 1))

    rows = dict(start)
    for change in sorted(changes, key=lambda change: int(change.answer["version"])):
        assert change.replay(rows) == change.counted
    found = {row["id"]: (row["k"], row["n"]) for row in database.rows(table).to_pylist()}
    assert found == rows


def test_one_of_16_creators_of_a_table_wins(database: Database, table: str) -> None:
    def create(number: int) -> httpx.Response:
        return database.send_stream(table, "create", stream(pa.table({"creator": [number]})))

    answers = at_once(16, create)
    winners = [number for number, answer in enumerate(answers) if answer.is_success]
    assert len(winners) == 1
    refused = [refusal(answer) for answer in answers if not answer.is_success]
    assert refused == [(409, 5)] * 15
    assert database.rows(table).to_pydict() == {"creator": winners}
    assert database.version(table) == 1


def test_one_of_16_creators_of_a_namespace_wins(database: Database, table: str) -> None:
    answers = at_once(16, lambda _: database.post(f"namespace/{table}/create", {}))
    assert sum(answer.is_success for answer in answers) == 1
    refused = [refusal(answer) for answer in answers if not answer.is_success]
    assert refused == [(409, 2)] * 15


def test_metadata_that_16_writers_set_are_all_kept(database: Database, table: str) -> None:
    database.create(table, pa.table({"id": [1]}))
    at_once(16, lambda number: database.ask(table, "schema_metadata/update", **{f"k{number}": "v"}))
    merged = database.ask(table, "schema_metadata/update", last="v")
    assert merged == {"last": "v", **{f"k{number}": "v" for number in range(16)}}


def test_a_table_made_anew_holds_nothing_of_the_old_one(database: Database, table: str) -> None:
    """Writers keep on sending rows of the old schema while the table is dropped and made anew."""
    old = pa.table({"old": ["a", "b"]})
    new = pa.table({"id": [1, 2, 3], "name": ["x", "y", "z"]})
    database.create(table, old)
    database.insert(table, old)
    is_over = threading.Event()
    answers: list[httpx.Response] = []

    def keep_writing() -> None:
        while not is_over.is_set():
            answers.append(database.send_stream(table, "insert", stream(old)))

    writers = [threading.Thread(target=keep_writing) for _ in range(6)]
    for writer in writers:
        writer.start()
    while not answers:
        time.sleep(0.01)
    right(database.post(f"table/{table}/drop"))
    database.create(table, new)
    try:
        assert database.count(table) == 3
        assert database.insert(table, new)["version"] == 2
        changed = database.ask(table, "update", predicate="id = 2", updates=[["name", "'w'"]])
        assert changed["updated_rows"] == 2
        assert database.ask(table, "delete", predicate="id = 3")["num_deleted_rows"] == 2
    finally:
        is_over.set()
        for writer in writers:
            writer.join()
    assert answers[0].is_success
    assert {refusal(answer) for answer in answers if not answer.is_success} <= {(404, 4), (400, 20)}
    found = database.rows(table)
    assert found.schema.equals(new.schema)
    assert sorted(found["name"].to_pylist()) == ["w", "w", "x", "x"]
    assert refusal(database.post(f"table/{table}/count_rows", {"predicate": "old = 'a'"})) == (
        400,
        13,
    )
    assert database.version(table) == 4
