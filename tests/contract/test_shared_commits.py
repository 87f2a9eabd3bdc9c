"""Inserts that wait together and cannot be committed together: each gets what is its own."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from actors import appending, storage
from actors.model import Commit, InsertItem, Pin, ScanRequest, TableLocation
from actors.owner_errors import OwnerGone
from actors.server import Server
from actors.table import Table
from cluster.errors import (
    DestrierError,
    InternalError,
    InvalidInput,
    OutcomeUnknown,
    TableSchemaValidationError,
)
from cluster.settings import Settings
from tests.contract.domain import DATABASE, ipc, make_settings, make_table, new_key, ref

T = ref("t")
ROWS = pa.table({"id": [1, 2]})
NAMES = pa.table({"name": ["a", "b"]})
NULL_IN_REQUIRED = pa.table(
    {"x": [1, None]}, schema=pa.schema([pa.field("x", pa.int64(), nullable=False)])
)

pytestmark = pytest.mark.anyio

Answers = list[Commit | DestrierError]


class Setup:
    """A table's owner, whoever else reads, and inserts that come in one call."""

    def __init__(self, settings: Settings) -> None:
        self.server = Server.local(settings)
        self._settings = settings
        self._location: TableLocation | None = None
        self._owner: Table | None = None

    async def owner(self) -> tuple[Table, TableLocation]:
        if self._owner is None or self._location is None:
            record = await self.server.catalog(DATABASE).find_table(T.id)
            self._location = record.location
            self._owner = Table(T, record.location, self._settings)
        return self._owner, self._location

    async def append(self, items: Sequence[InsertItem]) -> Answers:
        owner, location = await self.owner()
        return await owner.append(location, items)

    async def count(self) -> int:
        return (await self.server.count_rows(T, Pin(), None, None)).count

    async def names(self) -> set[str]:
        stream = await self.server.scan(T, Pin(), ScanRequest(), None)
        return set(stream.schema.names)


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(make_settings(tmp_path / "root"))


async def declare(setup: Setup) -> None:
    await setup.server.catalog(DATABASE).declare_table(T.id, None, {})


def inserts(*tables: pa.Table) -> list[InsertItem]:
    return [InsertItem(new_key(), ipc(table)) for table in tables]


def call(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str, before: Callable[..., Any]
) -> None:
    """Have `before` called with the same arguments in front of a function."""
    original = getattr(place, name)

    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        before(*arguments, **keywords)
        return original(*arguments, **keywords)

    monkeypatch.setattr(place, name, wrapped)


class Refusing:
    """Stands in front of the writing of rows: Lance refuses those of several inserts together."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        call(monkeypatch, appending, "_in_one_chunk", self)

    def __call__(self, members: Sequence[Any]) -> None:
        if len(members) > 1:
            raise InvalidInput("the rows cannot be joined; send fewer at a time")


class Failing:
    """Raises `error` in the call with that number, and in no other."""

    def __init__(self, number: int, error: Exception) -> None:
        self._number = number
        self._error = error

    def __call__(self, *arguments: Any, **keywords: Any) -> None:
        self._number -= 1
        if self._number == 0:
            raise self._error


class FailingFlush(Failing):
    """Fails in the flush with that number of those that hold a file with that ending."""

    def __init__(self, number: int, ending: str) -> None:
        super().__init__(number, OSError(5, "Input/output error"))
        self._ending = ending

    def __call__(self, *arguments: Any, **keywords: Any) -> None:
        if any(path.endswith(self._ending) for path in arguments[0]):
            super().__call__()


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (InternalError("the server failed while it worked on this: open"), InternalError),
        (OSError(5, "Input/output error"), OutcomeUnknown),
    ],
    ids=repr,
)
async def test_those_committed_alone_are_done_when_the_table_cannot_be_opened_for_another(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, error: Exception, answer: type[Exception]
) -> None:
    await make_table(setup.server, T, ROWS)
    Refusing(monkeypatch)
    # Once for all, and once for each.
    call(monkeypatch, appending.Target, "open", Failing(3, error))
    items = inserts(ROWS, ROWS, ROWS)
    answers = await setup.append(items)
    assert [type(it) for it in answers] == [Commit, answer, Commit]
    assert await setup.count() == 2 + 2 * 2
    again = await setup.append(items)
    assert [isinstance(it, Commit) and it.repeated for it in again] == [True, False, True]
    assert await setup.count() == 2 + 3 * 2


@pytest.mark.parametrize("ending", [".lance", ".manifest"])
@pytest.mark.parametrize("is_made", [True, False])
@pytest.mark.parametrize("together", [True, False])
async def test_no_row_is_there_twice_when_a_flush_failed_and_the_inserts_come_again(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, ending: str, is_made: bool, together: bool
) -> None:
    await declare(setup)
    if is_made:
        await setup.append(inserts(ROWS.slice(0, 0)))
    if not together:
        Refusing(monkeypatch)
    call(monkeypatch, storage.disk, "sync", FailingFlush(1 if together else 2, ending))
    items = inserts(ROWS, ROWS, ROWS)
    answers = await setup.append(items)
    if not together:
        assert [isinstance(answer, Commit) for answer in answers] == [True, False, True]
    again = await setup.append(items)
    assert all(isinstance(answer, Commit) for answer in again)
    assert await setup.count() == 6


async def test_an_insert_that_is_refused_gives_a_declared_table_no_columns(setup: Setup) -> None:
    await declare(setup)
    answers = await setup.append(inserts(NULL_IN_REQUIRED, NAMES, NAMES))
    assert [type(answer) for answer in answers] == [TableSchemaValidationError, Commit, Commit]
    assert "'x'" in str(answers[0])
    assert await setup.names() == {"name"}
    assert await setup.count() == 4


async def test_an_insert_that_lance_refuses_gives_a_declared_table_no_columns(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(rows: pa.Table, *_: Any) -> None:
        if "id" in rows.column_names:
            raise TableSchemaValidationError("the table cannot have these columns: 'id'")

    await declare(setup)
    call(monkeypatch, appending, "write_first_fragments", refuse)
    answers = await setup.append(inserts(ROWS, NAMES, ROWS, NAMES))
    refused = TableSchemaValidationError
    assert [type(answer) for answer in answers] == [refused, Commit, refused, Commit]
    assert "cannot have" in str(answers[0])
    assert "'id' is not in the table" in str(answers[2])
    assert await setup.names() == {"name"}
    assert await setup.count() == 4


async def test_nobody_is_measured_by_columns_when_it_is_unknown_whether_they_are_there(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    await declare(setup)
    unknown = OutcomeUnknown("storage failed")
    call(monkeypatch, appending, "commit_first", Failing(1, unknown))
    items = inserts(ROWS, NAMES)
    assert [type(answer) for answer in await setup.append(items)] == [OutcomeUnknown] * 2
    assert [type(answer) for answer in await setup.append(items)] == [
        Commit,
        TableSchemaValidationError,
    ]


async def test_an_owner_that_leaves_says_so_of_the_whole_call(setup: Setup) -> None:
    await make_table(setup.server, T, ROWS)
    owner, _ = await setup.owner()
    await owner.retire()
    with pytest.raises(OwnerGone):
        await setup.append(inserts(ROWS, ROWS))
    assert await setup.count() == 2
