"""The jobs of a deployment as their owner has them in memory, by id, by view and by key."""

from collections.abc import Iterator

from actors.job_journal import JobEntry
from actors.jobs_model import Job, JobPage, JobState, Submission, ViewHistory
from actors.model import Page
from udtf.refresh_model import RefreshMode

# Jobs of a view that its history shows.
_RECENT = 20


class JobBook:
    """Finds jobs; those of views that are gone are found by id alone."""

    def __init__(self) -> None:
        self._entries: dict[str, JobEntry] = {}
        self._views: dict[tuple[str, tuple[str, ...]], list[JobEntry]] = {}
        self._keys: dict[tuple[str, tuple[str, ...], str], str] = {}

    def __iter__(self) -> Iterator[JobEntry]:
        return iter(list(self._entries.values()))

    def add(self, entry: JobEntry) -> None:
        """Take in a job that is newer than those that are there."""
        job = entry.job
        self._entries[job.job_id] = entry
        if not entry.stored.forgotten:
            self._views.setdefault((job.database, job.view_id), []).append(entry)
            key = job.submission.idempotency_key
            if key is not None:
                self._keys[job.database, job.view_id, key] = job.job_id

    def forget(self, entry: JobEntry) -> None:
        """Find the job by id alone from now on."""
        job = entry.job
        view = (job.database, job.view_id)
        left = [other for other in self.of_view(*view) if other is not entry]
        self._views.pop(view, None)
        if left:
            self._views[view] = left
        key = (*view, job.submission.idempotency_key or "")
        if self._keys.get(key) == job.job_id:
            del self._keys[key]

    def drop(self, entry: JobEntry) -> None:
        """Find the job no more."""
        self.forget(entry)
        self._entries.pop(entry.job.job_id, None)

    def find(self, job_id: str) -> JobEntry | None:
        """The job of an id."""
        return self._entries.get(job_id)

    def newest_id(self) -> str:
        """The highest id; empty if there is none."""
        return max(self._entries, default="")

    def of_view(self, database: str, view_id: tuple[str, ...]) -> list[JobEntry]:
        """A view's jobs, oldest first."""
        return list(self._views.get((database, view_id), ()))

    def with_key(self, submission: Submission) -> str | None:
        """The job that the same submission made before."""
        if submission.idempotency_key is None:
            return None
        key = submission.idempotency_key
        return self._keys.get((submission.database, submission.view_id, key))

    def last_with_items(self, database: str, view_id: tuple[str, ...]) -> Job | None:
        """The newest of a view's jobs whose items ended in a way that counts: all of them, or some
        before the job failed. One that had nothing to do, failed before any item had ended or was
        cancelled changed nothing."""
        for entry in self.of_view(database, view_id)[::-1]:
            job = entry.job
            if job.state is JobState.FAILED and can_go_on(job):
                return job
            did_nothing = job.result is None or job.result.mode is RefreshMode.NO_OP
            if job.state is JobState.DONE and not did_nothing:
                return job
        return None

    def page(self, database: str, page_token: str | None, limit: int) -> JobPage:
        """A database's jobs, newest first."""
        ids = sorted((i for i, e in self._entries.items() if e.job.database == database))[::-1]
        if page_token is not None:
            ids = [job_id for job_id in ids if job_id < page_token]
        items = tuple(self._entries[job_id].job for job_id in ids[:limit])
        return Page(items, ids[limit - 1] if len(ids) > limit else None)

    def history(
        self, database: str, view_id: tuple[str, ...], failures_max: int | None
    ) -> ViewHistory:
        """The refreshes of a view; it is suspended after `failures_max` failures in a row."""
        jobs = [entry.job for entry in self.of_view(database, view_id)][::-1]
        failures = 0
        for job in jobs:
            if job.state is JobState.DONE:
                break
            failures += job.state is JobState.FAILED
        return ViewHistory(
            live=next((job for job in jobs[::-1] if not job.state.is_over), None),
            last_success=next((job for job in jobs if job.state is JobState.DONE), None),
            last_failure=next((job for job in jobs if job.state is JobState.FAILED), None),
            recent=tuple(jobs[:_RECENT]),
            failures_in_a_row=failures,
            suspended=failures_max is not None and failures >= failures_max,
        )

    def spent(self) -> list[str]:
        """Jobs whose finished items are of no more use: over, and not the last of their view, from
        whose items another can go on."""
        spent = []
        for entry in self:
            job = entry.job
            last = self.last_with_items(job.database, job.view_id)
            is_of_use = last is job and can_go_on(job)
            if job.state.is_over and not is_of_use:
                spent.append(job.job_id)
        return spent


def can_go_on(job: Job) -> bool:
    """Whether another job can do what this one, which is over, left undone: its items that failed
    or were skipped, and those that it had not done when it failed, for whatever reason."""
    if job.resolved is None:
        return False
    missing = job.metric("items_failed") + job.metric("items_skipped")
    return missing > 0 or (job.state is JobState.FAILED and job.metric("items_done") > 0)
