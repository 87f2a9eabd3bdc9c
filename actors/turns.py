"""Turns of plans on Daft's workers: first come, first served.

A plan whose items find no free worker is not told by Daft when one becomes free; it looks once a
second. Two counts of 60 ms at the same time took 1.1 s, eight 7 s. So a plan begins when there are
workers for all of its items, or nothing else runs.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from cluster.errors import Throttling


class Turns:
    """Who may use the workers now; for threads."""

    def __init__(self, plans_max: int) -> None:
        self._plans_max = plans_max
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._running = 0
        self._workers_taken = 0

    @property
    def waiting(self) -> int:
        """How many plans wait for their turn."""
        return len(self._waiting)

    @contextmanager
    def take(self, items: int, workers: int, wait_s: float) -> Iterator[None]:
        """Hold `items` of `workers` workers, or all of them, for the length of the block.

        Raises:
            Throttling: too many plans run or wait, or the turn has not come after `wait_s`.
        """
        self._enter(items, workers, wait_s)
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._workers_taken -= items
                self._changed.notify_all()

    def _enter(self, items: int, workers: int, wait_s: float) -> None:
        ticket = object()

        def is_next() -> bool:
            has_room = self._workers_taken + items <= workers or not self._running
            return self._waiting[0] is ticket and has_room

        with self._changed:
            if self._running + len(self._waiting) >= self._plans_max:
                raise Throttling("too many distributed requests are running; slow down")
            self._waiting.append(ticket)
            try:
                if not self._changed.wait_for(is_next, wait_s):
                    raise Throttling("the cluster is busy with other requests; slow down")
                self._running += 1
                self._workers_taken += items
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()
