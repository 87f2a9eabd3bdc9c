"""What HTTP tests put behind the app for views and jobs: what a test says there is."""

from dataclasses import replace
from typing import Any

import pyarrow as pa

from actors.job_events import select_events
from actors.jobs_model import EventPage, Job, JobEvent, JobItemError, JobPage
from actors.model import Commit, DroppedTable, Page, RequestKey
from actors.view_model import CreatedView, ViewDescription
from cluster.errors import TableNotFound, TransactionNotFound
from cluster.identifiers import ObjectId, TableRef
from cluster.settings import LimitSettings
from udtf.refresh_model import RefreshOptions
from udtf.spec import ViewDefinition


class FakeViews:
    """Views and jobs that a test has put there; `changes` are made to a job by whatever changes
    it."""

    def __init__(self) -> None:
        self.views: dict[ObjectId, ViewDescription] = {}
        self.jobs: dict[str, Job] = {}
        self.changes: dict[str, Any] = {}
        self.events: list[JobEvent] = []
        self.errors: list[JobItemError] = []

    def saw(self, method: str, *arguments: Any) -> None:
        """Remember a call and fail if the test wants it to."""
        raise NotImplementedError

    async def create_view(
        self,
        view: TableRef,
        definition: ViewDefinition,
        key: RequestKey,
        *,
        with_data: bool = False,
        requested_by: str = "",
    ) -> CreatedView:
        self.saw("create_view", view, definition, key, with_data, requested_by)
        return CreatedView(Commit(1, "txn-view"), "job-1" if with_data else None)

    async def describe_view(self, view: TableRef) -> ViewDescription:
        self.saw("describe_view", view)
        if view.id not in self.views:
            raise TableNotFound(f"there is no table {view.id}")
        return self.views[view.id]

    async def list_views(
        self, database: str, namespace: ObjectId, page_token: str | None, limit: int | None
    ) -> Page[str]:
        self.saw("list_views", database, namespace, page_token, limit)
        names = sorted(view.name for view in self.views if view.parent == namespace)
        rest = [name for name in names if page_token is None or name > page_token]
        shown = rest if limit is None else rest[:limit]
        return Page(tuple(shown), shown[-1] if len(shown) < len(rest) else None)

    async def drop_view(self, view: TableRef) -> DroppedTable:
        self.saw("drop_view", view)
        record = (await self.describe_view(view)).record
        del self.views[view.id]
        return DroppedTable(view.id, record.location.uri, record.properties)

    async def refresh_view(
        self,
        view: TableRef,
        options: RefreshOptions,
        *,
        cascade: bool = False,
        failed_only: bool = False,
        cluster: str | None = None,
        idempotency_key: str | None = None,
        requested_by: str = "",
    ) -> str:
        self.saw(
            "refresh_view",
            view,
            options,
            cascade,
            failed_only,
            cluster,
            idempotency_key,
            requested_by,
        )
        return "job-1"

    async def list_jobs(self, database: str, page_token: str | None, limit: int) -> JobPage:
        self.saw("list_jobs", database, page_token, limit)
        every = [job for job in self.jobs.values() if job.database == database]
        ids = [job.job_id for job in every]
        rest = every[0 if page_token is None else ids.index(page_token) + 1 :]
        found = tuple(rest[:limit])
        return Page(found, found[-1].job_id if len(rest) > limit else None)

    async def describe_job(self, database: str, job_id: str) -> Job:
        self.saw("describe_job", database, job_id)
        return self._job(database, job_id)

    async def cancel_job(self, database: str, job_id: str) -> Job:
        self.saw("cancel_job", database, job_id)
        return self._change(database, job_id)

    async def pause_job(self, database: str, job_id: str) -> Job:
        self.saw("pause_job", database, job_id)
        return self._change(database, job_id)

    async def resume_job(self, database: str, job_id: str) -> Job:
        self.saw("resume_job", database, job_id)
        return self._change(database, job_id)

    def _job(self, database: str, job_id: str) -> Job:
        job = self.jobs.get(job_id)
        if job is None or job.database != database:
            raise TransactionNotFound(f"there is no job {job_id!r}")
        return job

    def _change(self, database: str, job_id: str) -> Job:
        """The job as `changes` says it becomes."""
        return replace(self._job(database, job_id), **self.changes)

    async def job_events(self, database: str, job_id: str, limit: int) -> EventPage:
        self.saw("job_events", database, job_id, limit)
        self._job(database, job_id)
        return Page(tuple(self.events[-limit:]))

    async def select_events(self, events: pa.Table, predicate: str) -> pa.Table:
        self.saw("select_events", predicate)
        return select_events(events, predicate, LimitSettings())

    async def job_errors(
        self, database: str, job_id: str, page_token: str | None, limit: int
    ) -> Page[JobItemError]:
        self.saw("job_errors", database, job_id, page_token, limit)
        self._job(database, job_id)
        return Page(tuple(self.errors[:limit]), "more" if len(self.errors) > limit else None)
