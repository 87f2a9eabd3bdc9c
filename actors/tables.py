"""Writes on their way from a replica to the tables' owners: found, batched, and sent once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from actors.model import Commit, InsertItem, TableLocation, TableRecord
from actors.outbox import Outbox
from actors.owner_errors import OwnerGone, OwnerLost
from actors.owners import Owner, Owners, wait_a_little
from cluster.clock import Clock
from cluster.errors import DestrierError, OutcomeUnknown, ServiceUnavailable, TableNotFound
from cluster.identifiers import TableRef
from cluster.settings import ActorSettings


@dataclass(slots=True)
class _Known:
    owner: Owner
    location: TableLocation


@dataclass(slots=True)
class _Errand:
    """A change on its way, however many calls it takes; `meant` once the life is known."""

    deadline_s: float
    meant: TableLocation | None = None


class Tables:
    """The tables' owners, as one replica sees them."""

    def __init__(
        self,
        owners: Owners,
        find: Callable[[TableRef], Awaitable[TableRecord]],
        limits: ActorSettings,
        clock: Clock,
    ) -> None:
        self._owners = owners
        self._find = find
        self._limits = limits
        self._clock = clock
        self._known: dict[TableRef, _Known] = {}
        self._outboxes: dict[tuple[TableRef, str | None], Outbox] = {}

    async def call(self, table: TableRef, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a method of the table's owner with the location that is meant as first argument.

        A call that carries a request key is carried out once however often its owner dies.

        Raises:
            TableNotFound: the life of the table that was found first is over.
            OutcomeUnknown: no answer in time.
        """
        return await self._run(self._errand(), table, method, *arguments, **keywords)

    def _errand(self) -> _Errand:
        return _Errand(self._clock.monotonic() + self._limits.call_timeout_s)

    async def _run(
        self, errand: _Errand, table: TableRef, method: str, *arguments: Any, **keywords: Any
    ) -> Any:
        deadline_s = errand.deadline_s
        for attempt in range(1_000):
            known = await self._open(table, errand.meant)
            meant = errand.meant = known.location
            left_s = deadline_s - self._clock.monotonic()
            try:
                return await asyncio.wait_for(
                    known.owner.call(method, meant, *arguments, **keywords),
                    timeout=max(left_s, 0.01),
                )
            except (OwnerGone, OwnerLost) as error:
                self._known.pop(table, None)
                if self._clock.monotonic() > deadline_s:
                    raise _given_up(error) from error
                await wait_a_little(attempt)
            except TimeoutError:
                self._known.pop(table, None)
                raise OutcomeUnknown(
                    f"table {table.id} did not answer within {self._limits.call_timeout_s:g} s;"
                    " send the same request again with the same x-request-id to learn what happened"
                ) from None
        raise AssertionError("the deadline ends the loop")

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
        answers = await self._send(errand, table, items)
        for attempt in range(1_000):
            again = [i for i, a in zip(items, answers, strict=True) if isinstance(a, OwnerGone)]
            if not again:
                return answers
            # The owner left with these still waiting: the next one takes them.
            self._known.pop(table, None)
            if self._clock.monotonic() > errand.deadline_s:
                return [_given_up(a) if isinstance(a, OwnerGone) else a for a in answers]
            await wait_a_little(attempt)
            sent = iter(await self._send(errand, table, again))
            answers = [next(sent) if isinstance(a, OwnerGone) else a for a in answers]
        raise AssertionError("the deadline ends the loop")

    async def _send(
        self, errand: _Errand, table: TableRef, items: Sequence[InsertItem]
    ) -> Sequence[Commit | DestrierError]:
        try:
            answers: Sequence[Commit | DestrierError] = await self._run(
                errand, table, "append", items
            )
        except DestrierError as error:
            return [error] * len(items)
        return answers


def _given_up(error: DestrierError) -> DestrierError:
    if isinstance(error, OwnerGone):
        return ServiceUnavailable(
            "the table's owner is being moved; nothing was changed, try again"
        )
    return OutcomeUnknown(
        "the table's owner was lost; send the same request again with the same x-request-id to"
        " learn what happened"
    )
