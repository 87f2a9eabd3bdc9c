"""What becomes of a submission before it is a job: is it possible, is it there already."""

from dataclasses import fields, replace

from actors.job_book import JobBook, can_go_on
from actors.job_journal import Journal
from actors.job_ports import Capacity
from actors.job_store import JobStore
from actors.jobs_model import Job, JobPhase, JobState, Submission
from cluster.errors import InvalidInput, Throttling
from cluster.settings import JobSettings, Settings
from udtf.refresh_model import ItemState, ItemStatus, RefreshOptions
from udtf.resources import admission

# Phases before a driver has looked at the source.
_UNDECIDED = (JobPhase.QUEUED, JobPhase.ADMISSION, JobPhase.ENVIRONMENT)


def new_job(submission: Submission, job_id: str, now_ms: int) -> Job:
    """A job that waits."""
    return Job(job_id, submission, JobState.PENDING, JobPhase.QUEUED, now_ms, now_ms)


async def admit(submission: Submission, capacity: Capacity | None, settings: Settings) -> None:
    """Refuse what no machine can ever run.

    Raises:
        ImpossibleResources: says what is asked for and what there is.
    """
    asked = submission.resources
    nodes = None if capacity is None or asked is None else await capacity.totals()
    if nodes is None or asked is None:
        return
    wanted = submission.options.concurrency or settings.views.concurrency
    admission(asked, wanted, nodes, submission.code_name or "the view")


def check_room(submission: Submission, book: JobBook, limits: JobSettings) -> None:
    """Refuse what makes too many jobs wait.

    Raises:
        Throttling: says of what there are too many.
    """
    waiting = [entry.job for entry in book if entry.job.state is JobState.PENDING]
    if len(waiting) >= limits.queued_max:
        raise Throttling(
            f"{len(waiting)} jobs wait, the most that jobs.queued_max allows; try again later"
        )
    view = (submission.database, submission.view_id)
    of_view = sum((job.database, job.view_id) == view for job in waiting)
    if of_view >= limits.queued_per_view_max:
        raise Throttling(
            f"{of_view} refreshes of this view wait, the most that jobs.queued_per_view_max"
            " allows; try again later, or cancel one"
        )


def may_share(job: Job, submission: Submission) -> bool:
    """Whether a live job may be the answer to a submission.

    One that runs has decided what to read: it is, if the source has not moved since.
    """
    same = (
        job.submission.options == submission.options
        and job.submission.view == submission.view
        and job.submission.failed_only == submission.failed_only
    )
    going_on = job.state in (JobState.PENDING, JobState.RUNNING) and not job.pausing
    return same and going_on and (job.phase in _UNDECIDED or job.resolved is not None)


async def again(
    submission: Submission, previous: Job | None, journal: Journal, store: JobStore
) -> tuple[Submission, list[ItemStatus], str]:
    """A submission that does what `previous` left undone, with the items to reuse.

    Raises:
        InvalidInput: there are none.
    """
    planned = None if previous is None else previous.resolved
    if previous is None or planned is None or not can_go_on(previous):
        raise InvalidInput(
            "failed_only: the view's last refresh left no failed or skipped items, and nothing else"
            " to go on from; refresh without failed_only"
        )
    # What was committed without them is computed whole again, from the same source version.
    options = replace(
        _merged(previous.submission.options, submission.options),
        full=previous.state is JobState.DONE or previous.submission.options.full,
        source_version=planned.source_version,
    )
    items = await journal.ask(store.items, previous.job_id, planned.checkpoint_key)
    done = [item for item in items if item.state is ItemState.DONE]
    return replace(submission, options=options), done, planned.checkpoint_key


def _merged(first: RefreshOptions, second: RefreshOptions) -> RefreshOptions:
    """The options of `first` where `second` chooses nothing."""
    chosen = {
        item.name: value
        for item in fields(second)
        if (value := getattr(second, item.name)) not in (None, False)
    }
    return replace(first, **chosen)
