"""What the caller of a table's owner learns when one is lost with the call."""

from collections.abc import Sequence
from typing import Any

import pytest

from actors import tables
from actors.model import Commit, InsertItem, RequestKey, TableLocation, TableRecord
from actors.owner_errors import OwnerGone, OwnerLost
from actors.owners import Owner
from actors.tables import Tables
from cluster.errors import (
    ConcurrentModification,
    DestrierError,
    InternalError,
    InvalidInput,
    OutcomeUnknown,
    ServiceUnavailable,
    TableBranchNotFound,
    TableNotFound,
    TableSchemaValidationError,
    Throttling,
)
from cluster.identifiers import ObjectId, TableRef
from cluster.settings import ActorSettings
from tests.clients.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

T = TableRef("db", ObjectId.of(["t"]))
DONE = Commit(2, "tx", 1)
LOST = OwnerLost("the owner died")
GONE = OwnerGone("the table is moving")
RECORD = TableRecord(T.id, TableLocation("/db/t.lance", "first life"))
FULL = ServiceUnavailable("too many tables are being written to")
UNKNOWN = "the same x-request-id to learn what happened"

# Nothing that can be said of the next owner, or by it, tells what the lost one did.
TELL_NOTHING: list[DestrierError] = [
    Throttling("too many requests wait"),
    InternalError("an owner failed"),
    FULL,
    TableNotFound("table t is not there"),
    TableBranchNotFound("branch b is not there"),
    ConcurrentModification("the rows changed"),
]


class Script:
    """Owners whose answers are written down: one list for being asked for, one for calls.

    An exception is raised, any other answer is returned; when a list ends, all goes well.
    """

    def __init__(self, *calls: Any, opened: Sequence[Any] = ()) -> None:
        self._calls = list(calls)
        self._opened = list(opened)
        self.sent: list[tuple[Any, ...]] = []

    async def open_table(self, table: TableRef) -> tuple[TableRecord, Owner]:
        answer = self._opened.pop(0) if self._opened else RECORD
        if isinstance(answer, Exception):
            raise answer
        return answer, self

    async def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        self.sent.append(arguments)
        answer = self._calls.pop(0) if self._calls else DONE
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """A clock that moves a second while a replaced owner is waited for."""
    clock = ManualClock()

    async def wait(attempt: int) -> None:
        clock.advance(1)

    monkeypatch.setattr(tables, "wait_a_little", wait)
    return clock


def tables_of(script: Script, clock: ManualClock, *, dropped: bool = False) -> Tables:
    async def find(table: TableRef) -> TableRecord:
        return RECORD

    async def is_over(location: TableLocation) -> bool:
        return dropped

    limits = ActorSettings.model_validate({"call_timeout_s": 5})
    return Tables(script, find, is_over, limits, clock)  # type: ignore[arg-type]


def item(name: str) -> InsertItem:
    return InsertItem(RequestKey(name, ""), b"rows")


async def outcome(script: Script, clock: ManualClock) -> Commit | DestrierError:
    try:
        answer: Commit = await tables_of(script, clock).call(T, "delete", "key")
    except DestrierError as error:
        return error
    return answer


async def outcomes(
    script: Script, clock: ManualClock, items: Sequence[InsertItem]
) -> list[Commit | DestrierError]:
    return list(await tables_of(script, clock)._send_batch(T, items))


@pytest.mark.parametrize("error", TELL_NOTHING, ids=lambda error: type(error).__name__)
async def test_an_error_after_an_owner_was_lost_is_an_unknown_outcome(
    clock: ManualClock, error: DestrierError
) -> None:
    for script in (Script(LOST, error), Script(LOST, opened=[RECORD, error])):
        found = await outcome(script, clock)
        assert isinstance(found, OutcomeUnknown)
        assert UNKNOWN in found.message


async def test_a_table_that_was_dropped_is_not_there_whatever_a_lost_owner_did(
    clock: ManualClock,
) -> None:
    gone = TableNotFound("table t is not there")
    with pytest.raises(TableNotFound):
        await tables_of(Script(LOST, gone), clock, dropped=True).call(T, "delete", "key")
    # Of one insert of a batch as of any other call.
    dropped = tables_of(Script(LOST, gone), clock, dropped=True)
    assert await dropped._send_batch(T, [item("a")]) == [gone]
    # Of another error it says nothing.
    with pytest.raises(OutcomeUnknown):
        await tables_of(Script(LOST, FULL), clock, dropped=True).call(T, "delete", "key")


async def test_an_owner_that_leaves_later_does_not_make_the_outcome_known(
    clock: ManualClock,
) -> None:
    found = await outcome(Script(LOST, GONE, Throttling("slow down")), clock)
    assert isinstance(found, OutcomeUnknown)


async def test_a_write_is_answered_by_the_owner_after_a_lost_one(clock: ManualClock) -> None:
    assert await outcome(Script(LOST, GONE, LOST, DONE), clock) == DONE


@pytest.mark.parametrize("error", TELL_NOTHING, ids=lambda error: type(error).__name__)
async def test_an_error_after_an_owner_has_left_is_the_answer(
    clock: ManualClock, error: DestrierError
) -> None:
    assert await outcome(Script(GONE, error), clock) is error
    assert await outcome(Script(GONE, opened=[RECORD, error]), clock) is error


@pytest.mark.parametrize(
    "error", [InvalidInput("predicate: syntax"), TableSchemaValidationError("column x")]
)
async def test_a_request_that_is_refused_for_what_it_asks_was_not_done_by_a_lost_owner(
    clock: ManualClock, error: DestrierError
) -> None:
    assert await outcome(Script(LOST, error), clock) is error


async def test_an_owner_that_is_lost_before_it_is_called_has_done_nothing(
    clock: ManualClock,
) -> None:
    nameless = TableRecord(T.id, TableLocation(RECORD.location.uri))
    error = Throttling("slow down")
    assert await outcome(Script(LOST, error, opened=[nameless, RECORD]), clock) is error
    assert await outcome(Script(opened=[LOST, RECORD]), clock) == DONE


@pytest.mark.parametrize(("first", "known"), [(GONE, True), (LOST, False)])
async def test_a_write_that_no_owner_takes_in_time_is_unknown_if_one_was_lost(
    clock: ManualClock, first: DestrierError, known: bool
) -> None:
    found = await outcome(Script(first, *[GONE] * 20), clock)
    assert isinstance(found, ServiceUnavailable)
    assert not isinstance(found, OwnerGone)
    assert isinstance(found, OutcomeUnknown) is not known


async def test_the_members_of_a_batch_are_unknown_one_by_one_after_an_owner_was_lost(
    clock: ManualClock,
) -> None:
    bad = InvalidInput("no column x")
    script = Script(LOST, [DONE, Throttling("slow down"), bad])
    done, unknown, refused = await outcomes(script, clock, [item("a"), item("b"), item("c")])
    assert done == DONE
    assert isinstance(unknown, OutcomeUnknown)
    assert refused is bad


async def test_a_member_that_an_owner_left_behind_is_unknown_if_one_before_was_lost(
    clock: ManualClock,
) -> None:
    script = Script(LOST, [DONE, GONE], opened=[RECORD, RECORD, FULL])
    done, unknown = await outcomes(script, clock, [item("a"), item("b")])
    assert done == DONE
    assert isinstance(unknown, OutcomeUnknown)
    assert [len(sent[1]) for sent in script.sent] == [2, 2]
