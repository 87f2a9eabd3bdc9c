"""Writes on their way from a replica to the tables' owners: found, batched, and sent once."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from actors.model import Commit, InsertItem, TableLocation, TableRecord
from actors.outbox import Outbox
from actors.owner_errors import OwnerGone, OwnerLost
from actors.owners import Owner, Owners, wait_a_little
from cluster.clock import Clock
from cluster.errors import (
    DestrierError,
    InvalidInput,
    InvalidTableState,
    OutcomeUnknown,
    ServiceUnavailable,
    TableColumnNotFound,
    TableNotFound,
    TableSchemaValidationError,
    Unsupported,
)
from cluster.identifiers import TableRef
from cluster.settings import ActorSettings


@dataclass(slots=True)
class _Known:
    owner: Owner
    location: TableLocation


class Tables:
    """The tables' owners, as one replica sees them."""

    def __init__(
        self,
        owners: Owners,
        find: Callable[[TableRef], Awaitable[TableRecord]],
        is_over: Callable[[TableLocation], Awaitable[bool]],
        limits: ActorSettings,
        clock: Clock,
    ) -> None:
        self._owners = owners
        self._find = find
        self._is_over = is_over
        self._limits = limits
        self._clock = clock
        self._known: dict[TableRef, _Known] = {}
        self._outboxes: dict[tuple[TableRef, str | None], Outbox] = {}

    async def call(self, table: TableRef, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a method of the table's owner with the location that is meant as first argument.

        A call that carries a request key is carried out once however often its owner dies.

        Raises:
            TableNotFound: the life of the table that was found first is over.
            OutcomeUnknown: no answer in time, or an owner was lost and the next one cannot tell
                what it did.
        """
        return await self._send(self._errand(), table, method, *arguments, **keywords)

    def _errand(self) -> "_Errand":
        return _Errand(self._clock.monotonic() + self._limits.call_timeout_s)

    async def _send(
        self, errand: "_Errand", table: TableRef, method: str, *arguments: Any, **keywords: Any
    ) -> Any:
        while True:
            try:
                known = await self._open(table, errand.meant)
                errand.meant = known.location
                left_s = errand.deadline_s - self._clock.monotonic()
                return await asyncio.wait_for(
                    self._ask(errand, known.owner, method, *arguments, **keywords),
                    timeout=max(left_s, 0.01),
                )
            except (OwnerGone, OwnerLost):
                await self._wait_for_next(errand, table)
            except TimeoutError:
                self._known.pop(table, None)
                raise OutcomeUnknown(
                    f"table {table.id} did not answer within {self._limits.call_timeout_s:g} s;"
                    " send the same request again with the same x-request-id to learn what happened"
                ) from None
            except DestrierError as error:
                if errand.proves(error) or await self._was_dropped(errand, error):
                    raise
                raise _owner_was_lost() from error

    async def _was_dropped(self, errand: "_Errand", error: DestrierError) -> bool:
        """Whether the table is not there because it was dropped, with whatever a lost owner did to
        it. Of one that was deregistered, that may come to light again."""
        if not isinstance(error, TableNotFound) or errand.meant is None:
            return False
        return await self._is_over(errand.meant)

    async def _ask(
        self, errand: "_Errand", owner: Owner, method: str, *arguments: Any, **keywords: Any
    ) -> Any:
        """One attempt; an owner that is lost before, while it is asked for, has done nothing."""
        try:
            return await owner.call(method, errand.meant, *arguments, **keywords)
        except OwnerLost:
            errand.is_lost = True
            raise

    async def _wait_for_next(self, errand: "_Errand", table: TableRef) -> None:
        """Let the owner be replaced.

        Raises:
            OutcomeUnknown: it is too late, and one of the owners was lost.
            ServiceUnavailable: it is too late, and nothing was done.
        """
        self._known.pop(table, None)
        if self._clock.monotonic() > errand.deadline_s:
            raise _owner_was_lost() if errand.is_lost else _owner_is_moving()
        await wait_a_little(errand.waits)
        errand.waits += 1

    async def prepare(self, table: TableRef) -> None:
        """Start the table's owner, which may take a second, for a call that comes soon.

        Whatever is wrong, that call says it.
        """
        with suppress(DestrierError):
            await self._open(table, None)

    async def _open(self, table: TableRef, meant: TableLocation | None) -> _Known:
        record = await self._find(table)
        known = self._known.get(table)
        if (
            known is None
            or known.location.uri != record.location.uri
            or record.location.incarnation not in (None, known.location.incarnation)
        ):
            known = await self._ask_for_owner(table)
        if meant is not None and known.location.incarnation != meant.incarnation:
            raise TableNotFound(f"table {table.id} is not there")
        return known

    async def _ask_for_owner(self, table: TableRef) -> _Known:
        record, owner = await self._owners.open_table(table)
        location = record.location
        if location.incarnation is None:
            incarnation = await owner.call("incarnation", location)
            location = replace(location, incarnation=incarnation)
        known = self._known[table] = _Known(owner, location)
        return known

    async def add_properties(
        self, table: TableRef, properties: Mapping[str, str] | None
    ) -> TableRecord:
        """The second part of a change whose rows are committed: add to the table's properties.

        Raises:
            OutcomeUnknown: whatever fails; the same request sent again completes the change.
        """
        try:
            if properties:
                catalog = self._owners.catalog(table.database)
                await catalog.call("merge_properties", table.id, dict(properties))
            return await self._find(table)
        except DestrierError as error:
            raise OutcomeUnknown(
                f"the rows of table {table.id} are changed, but its properties may not be; send the"
                " same request again with the same x-request-id to complete it"
            ) from error

    async def append(self, table: TableRef, item: InsertItem) -> Commit:
        """Send a small insert with whatever else waits for the same branch of the table."""
        goal = (table, item.branch)
        outbox = self._outboxes.get(goal)
        if outbox is None:
            outbox = self._outboxes[goal] = Outbox(
                self._limits,
                self._clock,
                send=partial(self._send_batch, table),
                ended=partial(self._forget_outbox, goal),
            )
        return await outbox.put(item)

    def _forget_outbox(self, goal: tuple[TableRef, str | None]) -> None:
        self._outboxes.pop(goal, None)

    async def _send_batch(
        self, table: TableRef, items: Sequence[InsertItem]
    ) -> Sequence[Commit | DestrierError]:
        errand = self._errand()
        found: dict[int, Commit | DestrierError] = {}
        waiting = dict(enumerate(items))
        while waiting:
            try:
                sent = await self._send(errand, table, "append", list(waiting.values()))
                answers = dict(zip(waiting, sent, strict=True))
                # An owner left with these still waiting: the next one takes them.
                left = {n for n, answer in answers.items() if isinstance(answer, OwnerGone)}
                found |= {n: errand.told(answers[n]) for n in answers.keys() - left}
                waiting = {n: item for n, item in waiting.items() if n in left}
                if waiting:
                    await self._wait_for_next(errand, table)
            except DestrierError as error:
                found |= dict.fromkeys(waiting, error)
                break
        return [found[n] for n in range(len(items))]


@dataclass(slots=True)
class _Errand:
    """A call on its way to an owner, and to the next one if that leaves.

    `is_lost` says that an owner went away with the call, so that it may have been carried out.
    """

    deadline_s: float
    meant: TableLocation | None = None
    is_lost: bool = False
    waits: int = 0

    def proves(self, error: DestrierError) -> bool:
        """Whether an error says for sure what became of the call: if no owner was lost with it, or
        if it is refused for what it asks.

        An owner refuses nothing for that before it has looked for the request among those that
        were carried out.
        """
        return not self.is_lost or isinstance(error, (OutcomeUnknown, *_REFUSALS))

    def told(self, answer: Commit | DestrierError) -> Commit | DestrierError:
        """What the caller may be told; see `proves`."""
        if isinstance(answer, Commit) or self.proves(answer):
            return answer
        return _owner_was_lost()


_REFUSALS = (
    InvalidInput,
    InvalidTableState,
    TableColumnNotFound,
    TableSchemaValidationError,
    Unsupported,
)


def _owner_is_moving() -> ServiceUnavailable:
    return ServiceUnavailable("the table's owner is being moved; nothing was changed, try again")


def _owner_was_lost() -> OutcomeUnknown:
    return OutcomeUnknown(
        "the table's owner was lost; send the same request again with the same x-request-id to"
        " learn what happened"
    )
