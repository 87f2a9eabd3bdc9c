"""What the owner of jobs offers and what it needs: small interfaces, faked in tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from actors.jobs_model import (
    EventPage,
    Job,
    JobItemError,
    JobPage,
    Submission,
    ViewHistory,
    WatchedView,
)
from actors.model import Page, TableLocation
from cluster.identifiers import TableRef
from udtf.refresh_model import PublishRequest, SourceLocation


class JobOperations(Protocol):
    """The methods of jobs.Jobs that callers use through `owners.jobs().call(method, ...)`.

    A job of another database is TransactionNotFound, as one that is not there.
    """

    async def submit(self, submission: Submission) -> str:
        """Queue a refresh and return its job's id.

        The same idempotency key, or the same view with the same options while its job is live,
        gives the job that is there.

        Raises:
            InvalidInput: no machine can ever hold a worker; the message says what there is.
            Throttling: too many jobs wait.
        """
        ...

    async def describe(self, database: str, job_id: str) -> Job:
        """The job as it is now."""
        ...

    async def list(self, database: str, page_token: str | None, limit: int) -> JobPage:
        """Jobs, newest first."""
        ...

    async def cancel(self, database: str, job_id: str) -> Job:
        """Ask the job to end; one that is being published, or is over, stays as it is."""
        ...

    async def pause(self, database: str, job_id: str) -> Job:
        """Stop now; items that are done are kept, those being done are done again."""
        ...

    async def resume(self, database: str, job_id: str) -> Job:
        """Let a paused job go on."""
        ...

    async def events(self, database: str, job_id: str, limit: int) -> EventPage:
        """The newest `limit` events, oldest first."""
        ...

    async def errors(
        self, database: str, job_id: str, page_token: str | None, limit: int
    ) -> Page[JobItemError]:
        """The items that failed or were skipped."""
        ...

    async def view_history(self, database: str, view_id: tuple[str, ...]) -> ViewHistory:
        """The refreshes of a view."""
        ...

    async def forget_view(self, database: str, view_id: tuple[str, ...]) -> None:
        """Cancel the view's jobs and drop its schedule; returns when no driver of it is left."""
        ...

    async def watch(self, view: WatchedView) -> None:
        """Refresh the view by itself from now on."""
        ...


@dataclass(frozen=True, slots=True)
class FoundView:
    """A view as an attempt finds it: its life and version, the metadata of its schema, and its
    source."""

    location: TableLocation
    metadata: Mapping[str, str]
    source: SourceLocation
    version: int


@dataclass(frozen=True, slots=True)
class PublishedView:
    """What the commit of a refresh did."""

    version: int
    rows_evicted: int


class JobViews(Protocol):
    """The views that jobs refresh, and the way to the owners of their tables."""

    async def find(self, view: TableRef) -> FoundView:
        """The view and its source.

        Raises:
            DestrierError: one of them is not there, or the view cannot be refreshed.
        """
        ...

    async def source_version(self, view: TableRef) -> int:
        """The version of the source that a refresh would read now."""
        ...

    async def submission(self, view: TableRef) -> Submission:
        """A refresh of the view with the deployment's defaults.

        Raises:
            DestrierError: the view is not there or cannot be refreshed.
        """
        ...

    async def publish(
        self, view: TableRef, location: TableLocation, request: PublishRequest
    ) -> PublishedView:
        """Commit what a refresh computed, once per job however often this is called.

        Raises:
            DestrierError: nothing was committed, or (OutcomeUnknown) call again.
        """
        ...

    async def discard(self, submission: Submission, job_id: str, kept: Sequence[str]) -> int:
        """Delete the data files that the job wrote and nobody committed, but those named in `kept`;
        returns how many.

        Raises:
            DestrierError: the view is gone, or its owner cannot do so now.
        """
        ...


class Driver(Protocol):
    """A process that runs one attempt of one job."""

    async def next(self) -> Mapping[str, Any] | None:
        """The next message; None once the process has ended and all was read."""
        ...

    async def cancel(self) -> None:
        """Ask it to end by itself."""
        ...

    async def release(self) -> None:
        """Let go of it after its last message: it is ended, unless it is kept for the next job."""
        ...

    async def kill(self) -> None:
        """End it and everything it started; returns when they are gone."""
        ...

    def ending(self) -> str:
        """How it ended, in words, with the last it said."""
        ...


class Drivers(Protocol):
    """Starts drivers."""

    async def start(self, task: Mapping[str, Any]) -> Driver:
        """Start a driver on a task (view_driver.py says what is in it)."""
        ...

    async def get_ready(self) -> None:
        """Have a driver that is kept get ready for its next task; a job has just ended."""
        ...

    async def close(self) -> None:
        """Let go of what is kept for tasks to come."""
        ...


class Capacity(Protocol):
    """What the machines of the cluster have."""

    async def totals(self) -> Sequence[Mapping[str, float]] | None:
        """Resources of each node by Ray's names; None where workers ask for none."""
        ...

    async def free(self) -> Sequence[Mapping[str, float]] | None:
        """What of them is free now, node by node."""
        ...
