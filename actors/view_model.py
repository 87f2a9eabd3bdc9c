"""Views as callers see them: what is defined, how current it is, how its refreshes went.

Frozen and picklable, as in model.py; apart from it because jobs are described with those values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from actors.jobs_model import Job, JobFailure, ViewHistory
from actors.model import Commit, TableRecord
from cluster.identifiers import ObjectId
from udtf.refresh_model import RefreshResult
from udtf.spec import ViewDefinition


@dataclass(frozen=True, slots=True)
class CreatedView:
    """A view after CreateMaterializedView; `job_id` is the refresh that fills it, if one does."""

    commit: Commit
    job_id: str | None = None


@dataclass(frozen=True, slots=True)
class ViewLag:
    """How far a view is behind its source: versions of the source, and rows of it that came, went
    or changed since the view was refreshed."""

    versions: int
    rows: int


@dataclass(frozen=True, slots=True)
class ViewDescription:
    """A view at its latest version; `schema_ipc` is the Arrow schema as an IPC message.

    `query` is the source query as SQL that LanceDB reads, if it can be said so. `source` is None if
    the source query is not recognised. `source_version` and `refreshed_at_ms` are those of the last
    refresh, None if there was none or the view's rows have drifted from it; `drift` says how.
    `latest_source_version` is the version that a refresh would read now; it and `lag` are None if
    the source is not there. `reason` says why the view is not `refreshable`.
    """

    record: TableRecord
    definition: ViewDefinition
    version: int
    schema_ipc: bytes
    num_rows: int
    query: str | None = None
    source: ObjectId | None = None
    source_version: int | None = None
    refreshed_at_ms: int | None = None
    drift: str | None = None
    latest_source_version: int | None = None
    lag: ViewLag | None = None
    refreshable: bool = True
    reason: str | None = None
    history: ViewHistory = field(default_factory=ViewHistory)

    @property
    def auto_refresh(self) -> bool:
        """Whether the view is refreshed by itself when its source changes."""
        return self.definition.auto_refresh

    @property
    def suspended(self) -> bool:
        """Whether that has stopped, because it failed too often in a row."""
        return self.history.suspended

    @property
    def last_result(self) -> RefreshResult | None:
        """What the last refresh that succeeded did."""
        job = self.history.last_success
        return None if job is None else job.result

    @property
    def last_failure(self) -> JobFailure | None:
        """Why the last refresh that failed did."""
        job = self.history.last_failure
        return None if job is None else job.failure

    @property
    def recent(self) -> Sequence[Job]:
        """The newest refreshes, newest first."""
        return self.history.recent
