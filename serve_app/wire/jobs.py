"""Jobs on the wire, as LanceDB's client reads them; what it does not know of is Destrier's."""

from typing import Annotated, Any, Self

from pydantic import Field

from actors.jobs_model import Job, JobFailure, JobItemError, JobState
from actors.model import Page
from cluster.errors import InvalidInput
from cluster.identifiers import ObjectId
from cluster.settings import LimitSettings
from serve_app.wire.base import (
    OperationRequest,
    OperationResponse,
    PagedResponse,
    WireModel,
    check_page_limit,
)
from udtf.manifest import manifest_checksum
from udtf.refresh_model import RefreshOptions, RefreshResult, RefreshSummary

EVENTS_DEFAULT = 1_000
EVENTS_MAX = 10_000

IN_PROGRESS = "IN_PROGRESS"

JobId = Annotated[str, Field(min_length=1, max_length=256)]


def job_state(job: Job) -> str:
    """The state as LanceDB's client knows it: over in one of three ways, or not."""
    return job.state.value if job.state.is_over else IN_PROGRESS


class JobRequest(OperationRequest):
    """A request about one job."""

    job_id: JobId


class ListJobsRequest(OperationRequest):
    """Which page of the jobs."""

    page_token: str | None = None
    limit: int | None = None

    def page_size(self, limits: LimitSettings) -> int:
        """Jobs of one page."""
        return check_page_limit(self.limit, limits) or limits.page_size_default


class JobEntry(WireModel):
    """One job of a listing."""

    job_id: str
    table: str = Field(description="The view: names joined by `$`.")
    job_type: str
    state: str = Field(description="DONE, FAILED, CANCELLED or IN_PROGRESS.")
    phase: str
    created_at_millis: int

    @classmethod
    def of(cls, job: Job) -> Self:
        """The entry of a job."""
        return cls(
            job_id=job.job_id,
            table=ObjectId(job.view_id).stored,
            job_type=job.job_type,
            state=job_state(job),
            phase=job.phase,
            created_at_millis=job.created_ms,
        )


class ListJobsResponse(PagedResponse):
    """Jobs, newest first."""

    jobs: list[JobEntry]


class JobMetricEntry(WireModel):
    """A count, and what it will count up to where that is known."""

    name: str
    count: int
    total: int | None = None


class JobResultEntry(WireModel):
    """What a refresh did; the first four are LanceDB's."""

    mode: str = Field(description="rebuild, incremental or no_op.")
    rows_written: int
    source_version: int
    version: int = Field(description="The view's version that the refresh left.")
    rows_read: int
    rows_evicted: int
    items: int
    items_skipped: int
    reason: str = Field(description="Why it was of this mode.")
    details: dict[str, Any] | None = None

    @classmethod
    def of(cls, result: RefreshResult | None) -> Self | None:
        """The entry of a result; none of none."""
        if result is None:
            return None
        return cls(
            mode=result.mode,
            rows_written=result.rows_written,
            source_version=result.source_version,
            version=result.version,
            rows_read=result.rows_read,
            rows_evicted=result.rows_evicted,
            items=result.items,
            items_skipped=result.items_skipped,
            reason=result.reason,
            details=dict(result.details) or None,
        )


class JobFailureEntry(WireModel):
    """Why a job failed."""

    phase: str
    message: str
    retryable: bool
    type: str | None = Field(None, description="Class of the error.")
    item: str | None = Field(None, description="The work item that failed, if one did.")

    @classmethod
    def of(cls, failure: JobFailure | None) -> Self | None:
        """The entry of a failure; none of none."""
        if failure is None:
            return None
        return cls(
            phase=failure.phase,
            message=failure.message,
            retryable=failure.retryable,
            type=failure.type or None,
            item=failure.item,
        )


class JobPlanEntry(WireModel):
    """What a refresh found that it has to do."""

    mode: str
    reason: str
    source_version: int
    items: int
    rows: int | None = None

    @classmethod
    def of(cls, summary: RefreshSummary | None) -> Self | None:
        """The entry of a plan; none of none."""
        if summary is None:
            return None
        return cls(
            mode=summary.mode,
            reason=summary.reason,
            source_version=summary.source_version,
            items=summary.items,
            rows=summary.rows,
        )


class DescribeJobResponse(OperationResponse):
    """A job at this moment."""

    job_id: str
    job_type: str
    job_state: str = Field(description="DONE, FAILED or CANCELLED once it is over; IN_PROGRESS.")
    creation_ms: int
    spec: dict[str, Any] = Field(description="What was asked for.")
    result: JobResultEntry | None = None
    failure: JobFailureEntry | None = None
    table: str = Field(description="The view: names joined by `$`.")
    state: str = Field(description="PENDING, RUNNING, PAUSED, CANCELLING, or as job_state.")
    phase: str = Field(
        description="queued, admission, environment, plan, compute, publish or done."
    )
    pausing: bool = Field(description="Was paused and is about to stop.")
    attempt: int
    trigger: str
    requested_by: str
    waiting_for: str | None = Field(None, description="What a job that does not get on waits for.")
    updated_ms: int
    started_ms: int | None = None
    ended_ms: int | None = None
    heartbeat_ms: int | None = None
    resolved: JobPlanEntry | None = None
    metrics: list[JobMetricEntry]

    @classmethod
    def of(cls, job: Job) -> Self:
        """The answer about a job."""
        metrics = [
            JobMetricEntry(name=metric.name, count=metric.count, total=metric.total)
            for metric in job.metrics
        ]
        return cls(
            job_id=job.job_id,
            job_type=job.job_type,
            job_state=job_state(job),
            creation_ms=job.created_ms,
            spec=_spec(job),
            result=JobResultEntry.of(job.result),
            failure=JobFailureEntry.of(job.failure),
            table=ObjectId(job.view_id).stored,
            state=job.state,
            phase=job.phase,
            pausing=job.pausing and job.state is JobState.RUNNING,
            attempt=job.attempt,
            trigger=job.submission.trigger,
            requested_by=job.submission.requested_by,
            waiting_for=job.waiting_for,
            updated_ms=job.updated_ms,
            started_ms=job.started_ms,
            ended_ms=job.ended_ms,
            heartbeat_ms=job.heartbeat_ms,
            resolved=JobPlanEntry.of(job.resolved),
            metrics=metrics,
        )


def _spec(job: Job) -> dict[str, Any]:
    """What was asked for; of a manifest only its checksum, as it may name secrets."""
    options: RefreshOptions = job.submission.options
    asked: dict[str, Any] = {
        "id": list(job.view_id),
        "full": options.full,
        "failed_only": job.submission.failed_only,
        "src_version": options.source_version,
        "max_rows_per_fragment": options.max_rows_per_fragment,
        "concurrency": options.concurrency,
        "intra_applier_concurrency": options.intra_applier_concurrency,
        "source_task_size": options.source_task_size,
        "output_limit": options.output_limit,
        "after": list(job.submission.after) or None,
    }
    if options.manifest is not None:
        asked["manifest_checksum"] = manifest_checksum(options.manifest)
    return {name: value for name, value in asked.items() if value is not None}


class CancelJobResponse(OperationResponse):
    """The job after it was asked to end."""

    job_id: str
    job_state: str
    state: str

    @classmethod
    def of(cls, job: Job) -> Self:
        """The answer about a job."""
        return cls(job_id=job.job_id, job_state=job_state(job), state=job.state)


class PauseJobResponse(OperationResponse):
    """Neither is there if the job was paused already."""

    paused: bool | None = Field(default=None, description="It stops now.")
    committing: bool | None = Field(
        default=None, description="Too late: its result is being committed."
    )


class ResumeJobResponse(OperationResponse):
    """Neither is there if the job was not paused."""

    resumed: bool | None = None
    still_pausing: bool | None = Field(
        default=None, description="It has not stopped yet; ask again."
    )


class QueryJobEventsRequest(JobRequest):
    """Which events of a job; the newest are kept if there are more."""

    limit: int | None = Field(None, description="1,000 unless given, 10,000 at most.")
    filter: str | None = Field(None, description="SQL over the columns of the events.")

    def count(self) -> int:
        """How many events to answer.

        Raises:
            InvalidInput: none.
        """
        if self.limit is None:
            return EVENTS_DEFAULT
        if self.limit < 1:
            raise InvalidInput(f"limit {self.limit} is not a positive number")
        return min(self.limit, EVENTS_MAX)


class ListJobErrorsRequest(JobRequest):
    """Which page of a job's errors."""

    page_token: str | None = None
    limit: int | None = None

    def page_size(self, limits: LimitSettings) -> int:
        """Errors of one page."""
        return check_page_limit(self.limit, limits) or limits.page_size_default


class JobErrorEntry(WireModel):
    """A work item that failed or was skipped, and why."""

    item: str
    label: str = Field(description="The partition's value, or the range of source rows.")
    state: str = Field(description="failed or skipped.")
    attempts: int
    rows_in: int
    kind: str = Field(description="user, crash, timeout, memory, schema or system.")
    type: str = Field(description="Class of the exception.")
    message: str
    traceback: str = Field(description="Of the view's code, shortened.")

    @classmethod
    def of(cls, found: JobItemError) -> Self:
        """The entry of an item."""
        return cls(
            item=found.item,
            label=found.label,
            state=found.state,
            attempts=found.attempts,
            rows_in=found.rows_in,
            kind=found.error.kind,
            type=found.error.type,
            message=found.error.message,
            traceback=found.error.traceback,
        )


class ListJobErrorsResponse(PagedResponse):
    """Work items of a job, in the order in which they ended."""

    errors: list[JobErrorEntry]

    @classmethod
    def of(cls, page: Page[JobItemError]) -> Self:
        """The answer that holds a page."""
        return cls(
            errors=[JobErrorEntry.of(found) for found in page.items], page_token=page.page_token
        )
