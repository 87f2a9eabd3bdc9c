"""Jobs: what refreshes of views do in the background.

A job belongs to its view: whoever may not read the view is told that there is no such job, and to
change the job takes the right to write the view.
"""

import io

import pyarrow as pa
from starlette.responses import Response

from actors.job_events import event_table
from actors.jobs_model import Job, JobPhase, JobState
from cluster.errors import InvalidInput, TransactionNotFound
from cluster.identifiers import ObjectId
from serve_app.dependencies import Call, OnDatabase
from serve_app.rights import Right
from serve_app.routing import OperationRouter
from serve_app.wire.jobs import (
    EVENTS_MAX,
    CancelJobResponse,
    DescribeJobResponse,
    JobEntry,
    JobRequest,
    ListJobErrorsRequest,
    ListJobErrorsResponse,
    ListJobsRequest,
    ListJobsResponse,
    PauseJobResponse,
    QueryJobEventsRequest,
    ResumeJobResponse,
)

ARROW_STREAM = "application/vnd.apache.arrow.stream"

router = OperationRouter("/v1/jobs", ["Job"])


@router.post("/list")
async def list_jobs(call: OnDatabase, body: ListJobsRequest) -> ListJobsResponse:
    """List the jobs of the views that the caller may read, newest first."""
    size = asked = body.page_size(call.limits)
    jobs: list[Job] = []
    token = body.page_token or None
    while len(jobs) < size:
        page = await call.server.list_jobs(call.database, token, asked)
        jobs += [job for job in page.items if _may(call, Right.READ, job)]
        token = page.page_token
        if token is None:
            break
        # Whoever may read few of many jobs is not to cost a look at each.
        asked = min(2 * asked, call.limits.page_size_max)
    if len(jobs) > size:
        jobs = jobs[:size]
        token = jobs[-1].job_id
    return ListJobsResponse(jobs=[JobEntry.of(job) for job in jobs], page_token=token)


@router.post("/describe")
async def describe_job(call: OnDatabase, body: JobRequest) -> DescribeJobResponse:
    """Describe a job: how far it is, or how it ended."""
    return DescribeJobResponse.of(await _job(call, body.job_id))


@router.post("/cancel")
async def cancel_job(call: OnDatabase, body: JobRequest) -> CancelJobResponse:
    """Ask a job to end; its view keeps the rows that it has. One that is over stays as it is."""
    await _job_to_change(call, body.job_id)
    return CancelJobResponse.of(await call.server.cancel_job(call.database, body.job_id))


@router.post("/pause")
async def pause_job(call: OnDatabase, body: JobRequest) -> PauseJobResponse:
    """Stop a job now; items that are done are kept, those being done are done again."""
    before = await _job_to_change(call, body.job_id)
    if before.state.is_over or before.state is JobState.CANCELLING:
        raise InvalidInput(f"job {body.job_id!r} is {before.state} and cannot be paused")
    if before.pausing or before.state is JobState.PAUSED:
        return PauseJobResponse()
    after = await call.server.pause_job(call.database, body.job_id)
    if after.pausing or after.state is JobState.PAUSED:
        return PauseJobResponse(paused=True)
    if after.phase is JobPhase.PUBLISH or after.state is JobState.DONE:
        return PauseJobResponse(committing=True)
    raise InvalidInput(f"job {body.job_id!r} is {after.state} and cannot be paused")


@router.post("/resume")
async def resume_job(call: OnDatabase, body: JobRequest) -> ResumeJobResponse:
    """Let a paused job go on with the items that are left."""
    before = await _job_to_change(call, body.job_id)
    is_pausing = before.pausing and not before.state.is_over
    if before.state is not JobState.PAUSED:
        return ResumeJobResponse(still_pausing=True if is_pausing else None)
    after = await call.server.resume_job(call.database, body.job_id)
    if after.state is JobState.PAUSED:
        return ResumeJobResponse(still_pausing=True)
    return ResumeJobResponse(resumed=True)


@router.post(
    "/query_events",
    response_class=Response,
    responses={200: {"content": {ARROW_STREAM: {"schema": {"type": "string"}}}}},
)
async def query_job_events(call: OnDatabase, body: QueryJobEventsRequest) -> Response:
    """What happened to a job, oldest first, as an Arrow IPC stream."""
    count = body.count()
    job = await _job(call, body.job_id)
    # A predicate chooses among all that there are, and the newest of those are answered.
    looked_at = count if body.filter is None else EVENTS_MAX
    page = await call.server.job_events(call.database, body.job_id, looked_at)
    events = event_table(job, page.items)
    if body.filter is not None:
        events = await call.server.select_events(events, body.filter)
    return Response(_stream(events[-count:]), media_type=ARROW_STREAM)


@router.post("/errors")
async def list_job_errors(call: OnDatabase, body: ListJobErrorsRequest) -> ListJobErrorsResponse:
    """List the work items of a job that failed or were skipped, each with what happened."""
    size = body.page_size(call.limits)
    await _job(call, body.job_id)
    page = await call.server.job_errors(call.database, body.job_id, body.page_token or None, size)
    return ListJobErrorsResponse.of(page)


def _may(call: Call, right: Right, job: Job) -> bool:
    return call.caller.may(right, job.database, ObjectId(job.view_id))


async def _job(call: Call, job_id: str) -> Job:
    """The job, if the caller may read its view.

    Raises:
        TransactionNotFound: there is none, or they may not.
    """
    job = await call.server.describe_job(call.database, job_id)
    if not _may(call, Right.READ, job):
        raise TransactionNotFound(f"there is no job {job_id!r}")
    return job


async def _job_to_change(call: Call, job_id: str) -> Job:
    """The job, if the caller may also write its view.

    Raises:
        TransactionNotFound: as `_job`.
        PermissionDenied: they may only read it.
    """
    job = await _job(call, job_id)
    call.caller.require(Right.WRITE, job.database, ObjectId(job.view_id))
    return job


def _stream(rows: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()
