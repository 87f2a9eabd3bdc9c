"""Small inserts of one process into one branch, on their way to its owner: one call at a time.

A call costs up to 1.5 ms and a commit 5 ms, whatever they hold. What arrives while a call is under
way shares the next one.
"""

from collections.abc import Callable

from actors.insert_turns import InsertTurns, Turn
from actors.model import Commit, InsertItem
from cluster.clock import Clock
from cluster.settings import ActorSettings

# Of what the last call took: one whose companions stay away takes half as long again, once, and 32
# callers that do come back share two commits in place of three.
_PAUSE_SHARE = 0.5


class Outbox:
    """A queue in front of `send`; `ended` is called when nothing waits and nobody came again."""

    def __init__(
        self, limits: ActorSettings, clock: Clock, send: Turn, ended: Callable[[], None]
    ) -> None:
        self._turns = InsertTurns(limits, clock, send, _PAUSE_SHARE, ended)

    async def put(self, item: InsertItem) -> Commit:
        """Wait for the answer to an item."""
        return await self._turns.put(item)
