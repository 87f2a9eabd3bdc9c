"""Small inserts that wait for a commit: what arrives while one is under way is the next.

Each replica sends what its callers want as one call. Of two replicas, whose calls took turns, each
commit held the inserts of one; now a commit waits a moment for both.
"""

import asyncio

from actors.insert_turns import InsertTurns, Turn
from actors.model import Commit, InsertItem
from cluster.clock import Clock
from cluster.errors import DestrierError, Throttling
from cluster.settings import ActorSettings

# Of what the last commit took; a replica's callers come again within that time.
_PAUSE_SHARE = 1.0


class InsertQueue:
    """A bounded queue in front of `commit`, which gets the items of one branch at a time."""

    def __init__(self, limits: ActorSettings, clock: Clock, commit: Turn) -> None:
        self._limits = limits
        self._turns = InsertTurns(limits, clock, commit, _PAUSE_SHARE, ended=lambda: None)

    def put(self, item: InsertItem) -> "asyncio.Future[Commit]":
        """What the commit that holds the item will answer.

        Raises:
            Throttling: too many bytes wait.
        """
        if self._turns.waiting_bytes + len(item.body) > self._limits.pending_bytes_max:
            raise Throttling("too many bytes wait to be inserted into this table; slow down")
        return self._turns.put(item)

    def refuse_all(self, error: DestrierError) -> None:
        """Refuse what waits; what is being committed goes on."""
        self._turns.refuse_all(error)
