"""Jobs as callers see them: what was asked, how far it is, how it ended.

Frozen and picklable; they cross processes and are stored as JSON (stored_json.py). Times are
milliseconds since 1970. Nothing here holds a credential.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from actors.model import Page, TableLocation
from cluster.identifiers import ObjectId, TableRef
from udtf.refresh_model import (
    ItemError,
    ItemState,
    PublishRequest,
    RefreshOptions,
    RefreshResult,
    RefreshSummary,
)
from udtf.resources import WorkerResources


class JobType(StrEnum):
    """What a job does."""

    REFRESH = "refresh_materialized_view"


class JobState(StrEnum):
    """Where a job stands; the last three are final."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    CANCELLING = "CANCELLING"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_over(self) -> bool:
        """Whether nothing will change any more."""
        return self in (JobState.DONE, JobState.FAILED, JobState.CANCELLED)


class JobPhase(StrEnum):
    """What a job is busy with, or was when it ended."""

    QUEUED = "queued"
    ADMISSION = "admission"
    ENVIRONMENT = "environment"
    PLAN = "plan"
    COMPUTE = "compute"
    PUBLISH = "publish"
    DONE = "done"


class Trigger(StrEnum):
    """What made the job: a request, the creation of its view, a refresh of a view that reads it,
    or the schedule."""

    API = "api"
    CREATE = "create"
    CASCADE = "cascade"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Submission:
    """A refresh that is asked for.

    `view` is the life of the name that is meant. `resources` are what one worker asks for;
    `code_name` is the UDTF's name for messages, None of query views. `after` are jobs that must be
    done first; when one of them is not done in the end, this job fails. `failed_only` runs the
    items of the view's last job again that failed or were skipped, and if that job failed, those
    that it had not done. `idempotency_key` is any text that a repeated submission repeats.
    """

    database: str
    view_id: tuple[str, ...]
    view: TableLocation
    options: RefreshOptions = field(default_factory=RefreshOptions)
    resources: WorkerResources | None = None
    code_name: str | None = None
    failed_only: bool = False
    after: tuple[str, ...] = ()
    trigger: Trigger = Trigger.API
    requested_by: str = ""
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class JobMetric:
    """One count of a job; `total` is None while, or if, it is not known."""

    name: str
    count: int
    total: int | None = None


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Why a job failed.

    `message` is a sentence. `retryable` says whether the same request may succeed later as things
    stand. `type` is the class of the error, `item` the work item that failed, if one did.
    """

    phase: JobPhase
    message: str
    retryable: bool
    type: str = ""
    item: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A job at one moment.

    `attempt` counts the drivers that were started. `waiting_for` says in a sentence what a job that
    does not get on waits for. `pausing` is a job that was paused and is about to stop. `resolved`
    is known from the phase `compute` on.
    """

    job_id: str
    submission: Submission
    state: JobState
    phase: JobPhase
    created_ms: int
    updated_ms: int
    attempt: int = 0
    started_ms: int | None = None
    ended_ms: int | None = None
    heartbeat_ms: int | None = None
    waiting_for: str | None = None
    pausing: bool = False
    resolved: RefreshSummary | None = None
    metrics: tuple[JobMetric, ...] = ()
    result: RefreshResult | None = None
    failure: JobFailure | None = None
    job_type: JobType = JobType.REFRESH

    @property
    def database(self) -> str:
        """The database that the job belongs to."""
        return self.submission.database

    @property
    def view_id(self) -> tuple[str, ...]:
        """The names of the view's path."""
        return self.submission.view_id

    def metric(self, name: str) -> int:
        """A count; 0 if there is none of this name."""
        return next((item.count for item in self.metrics if item.name == name), 0)


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job and what its owner needs to go on with it.

    `publish` is set once all is computed; `forgotten` says that the view is gone, `is_cleared` that
    no file is left that the job wrote in vain. `checkpoint_key` names the plan that its items are
    of, which may be another job's before this one has a plan.
    """

    job: Job
    publish: PublishRequest | None = None
    forgotten: bool = False
    is_cleared: bool = False
    checkpoint_key: str | None = None


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something that happened to a job.

    `kind` is one of `submitted`, `state`, `phase`, `planned`, `attempt`, `progress`, `waiting`,
    `stalled`, `item`, `published`. `sequence` counts the events of one job from 1.
    """

    job_id: str
    sequence: int
    at_ms: int
    kind: str
    state: JobState
    phase: JobPhase
    attempt: int
    message: str
    rows_processed: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobItemError:
    """A work item that failed or was skipped, and why."""

    job_id: str
    item: str
    label: str
    state: ItemState
    attempts: int
    rows_in: int
    error: ItemError


@dataclass(frozen=True, slots=True)
class ViewHistory:
    """The refreshes of one view, newest first in `recent`.

    `live` is the job that runs or waits. `suspended` says that the view is not refreshed by itself
    any more because that failed `failures_in_a_row` times.
    """

    live: Job | None = None
    last_success: Job | None = None
    last_failure: Job | None = None
    recent: tuple[Job, ...] = ()
    failures_in_a_row: int = 0
    suspended: bool = False


@dataclass(frozen=True, slots=True)
class WatchedView:
    """A view with auto_refresh, as its creator told the owner of jobs."""

    database: str
    view_id: tuple[str, ...]

    @property
    def table(self) -> TableRef:
        """The view's table."""
        return TableRef(self.database, ObjectId(self.view_id))


JobPage: TypeAlias = Page[Job]
EventPage: TypeAlias = Page[JobEvent]
