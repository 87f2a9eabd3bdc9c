"""Which views are to be refreshed by themselves, and when.

A view with auto_refresh is refreshed when enough of its source has changed, or anything has and
long ago, but not before the cooldown since its last refresh is over, which doubles with every
failure in a row. A view that fails too often in a row is left alone until a refresh that someone
asks for succeeds. A view that reads a view follows by itself: its source moves when that is
refreshed.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from actors.jobs_model import ViewHistory, WatchedView
from cluster.clock import Clock
from cluster.errors import DestrierError, NamespaceNotFound, TableNotFound
from cluster.settings import JobSettings
from udtf.lance_errors import translate

logger = logging.getLogger(__name__)

# Doublings of the cooldown: 1,024 times 5 minutes are 3.5 days.
_DOUBLINGS_MAX = 10


@dataclass(frozen=True, slots=True)
class SourceChange:
    """What happened to a view's source since the view was refreshed.

    `rows_changed` counts rows that came, went or are different; maintenance changes none. A view
    that was never refreshed misses every row of its source.
    """

    rows_changed: int
    rows: int


class SourceChanges(Protocol):
    """Looks at the sources of views."""

    async def since_refresh(self, view: WatchedView) -> SourceChange:
        """What changed.

        Raises:
            TableNotFound: the view is gone.
            DestrierError: it cannot be told now.
        """
        ...


class AutoRefresh:
    """Decides and submits; `submit` gets the view and the reason."""

    def __init__(
        self,
        limits: JobSettings,
        changes: SourceChanges,
        clock: Clock,
        submit: Callable[[WatchedView, str], Awaitable[None]],
    ) -> None:
        self._limits = limits
        self._changes = changes
        self._clock = clock
        self._submit = submit
        # When a view's source was first seen to have changed.
        self._changed_at_s: dict[WatchedView, float] = {}
        self.watched: set[WatchedView] = set()

    def watch(self, view: WatchedView) -> None:
        """Refresh the view by itself from now on."""
        self.watched.add(view)

    def forget(self, view: WatchedView) -> None:
        """Leave the view alone."""
        self.watched.discard(view)
        self._changed_at_s.pop(view, None)

    async def look(self, history: Callable[[WatchedView], ViewHistory]) -> None:
        """Look at every view once and submit what is due."""
        for view in sorted(self.watched, key=lambda item: (item.database, item.view_id)):
            try:
                reason = await self._due(view, history(view))
                if reason is not None:
                    await self._submit(view, reason)
                    self._changed_at_s.pop(view, None)
            except (TableNotFound, NamespaceNotFound):
                # Dropping it says so too; this one may be in the middle of it.
                logger.info("view %s is not there; it is looked for again", view)
            except DestrierError as error:
                logger.warning("auto refresh of %s: %s", view, error)
            except BaseException as error:
                # A panic of Lance's is no Exception; the end of this task is raised as it is.
                fault = translate(error, context="read")
                logger.exception("auto refresh of %s: %s", view, fault)

    async def _due(self, view: WatchedView, history: ViewHistory) -> str | None:
        """Why the view is to be refreshed now; None if it is not."""
        if history.live is not None or history.suspended or not self._is_cool(history):
            return None
        change = await self._changes.since_refresh(view)
        now_s = self._clock.time()
        if change.rows_changed == 0:
            self._changed_at_s.pop(view, None)
            return None
        since_s = now_s - self._changed_at_s.setdefault(view, now_s)
        threshold = max(
            self._limits.auto_refresh_rows, self._limits.auto_refresh_fraction * change.rows
        )
        if change.rows_changed >= threshold:
            return f"{change.rows_changed} of {change.rows} source rows changed"
        if since_s >= self._limits.auto_refresh_staleness_s:
            return f"{change.rows_changed} source rows changed {since_s:.0f} s ago"
        return None

    def _is_cool(self, history: ViewHistory) -> bool:
        ended = [job.ended_ms for job in history.recent if job.ended_ms is not None]
        if not ended:
            return True
        doublings = min(history.failures_in_a_row, _DOUBLINGS_MAX)
        cooldown_s: float = self._limits.auto_refresh_cooldown_s * 2**doublings
        return self._clock.time() - max(ended) / 1000 >= cooldown_s
