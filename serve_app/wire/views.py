"""Materialized views on the wire, in two dialects on the same paths.

The specification's clients send `kind` and `source_query`, LanceDB's client `query` alone. Fields
that the specification does not have are said to be Destrier's.
"""

import base64
from collections.abc import Sequence
from typing import Any, Self

import pyarrow as pa
from pydantic import Field

from actors.jobs_model import Job
from actors.model import Page
from actors.view_model import ViewDescription
from cluster.errors import InvalidInput
from cluster.settings import ViewSettings
from serve_app.wire.base import (
    AtLeastOne,
    FieldPath,
    ObjectRequest,
    OperationResponse,
    PagedResponse,
    Version,
    WireModel,
)
from serve_app.wire.jobs import JobFailureEntry, JobResultEntry
from udtf.refresh_model import RefreshOptions
from udtf.source_query import recognise
from udtf.spec import UdtfSpec
from udtf.view_record import INCARNATION


class MaterializedViewUdtfEntry(WireModel):
    """The code behind a view; what each kind of view needs is checked with the whole definition."""

    kind: str | None = None
    udtf: str | None = Field(None, description="Base64 of the code's JSON envelope.")
    udtf_sha: str | None = Field(None, description="SHA-256 of the envelope.")
    udtf_name: str | None = None
    udtf_version: str | None = None
    input_columns: list[FieldPath] | None = None
    partition_by: FieldPath | None = None
    partition_by_indexed_column: FieldPath | None = None
    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: float | None = Field(None, description="Bytes.")
    error_handling: dict[str, Any] | None = None
    batch: bool | None = None
    manifest: str | None = None
    manifest_checksum: str | None = None


class CreateMaterializedViewRequest(ObjectRequest):
    """A view's definition: `kind`, `source_query` and `output_schema`, or LanceDB's `query`."""

    kind: str | None = Field(None, description="query, udtf or chunker.")
    source_query: str | None = None
    output_schema: str | None = Field(
        None, description="Base64 of the Arrow schema of the view; required beside kind."
    )
    udtf_spec: MaterializedViewUdtfEntry | None = None
    with_no_data: bool | None = Field(
        None, description="false also starts the refresh that fills the view."
    )
    auto_refresh: bool | None = None
    query: str | None = Field(
        None, description="LanceDB's way to define a view of kind query, in place of kind."
    )

    @property
    def is_lancedb(self) -> bool:
        """Whether the view is defined the way LanceDB's client does."""
        return self.kind is None and self.query is not None

    def required(self, name: str) -> str:
        """A part of the definition that the specification's dialect requires.

        Raises:
            InvalidInput: it is missing.
        """
        value: str | None = getattr(self, name)
        if value is None:
            raise InvalidInput(f"body field '{name}': field required")
        return value

    def udtf_fields(self) -> dict[str, Any] | None:
        """The fields of udtf_spec that the request gave a value."""
        return None if self.udtf_spec is None else self.udtf_spec.model_dump(exclude_none=True)


class CreateMaterializedViewResponse(OperationResponse):
    """The commit that created the view; `job_id` is the refresh that fills it."""

    version: Version
    job_id: str | None = None


class RefreshMaterializedViewRequest(ObjectRequest):
    """How to refresh a view; what is absent takes the deployment's default."""

    src_version: Version | None = Field(None, description="Version of the source to show.")
    max_rows_per_fragment: AtLeastOne | None = None
    concurrency: AtLeastOne | None = Field(None, description="Workers.")
    intra_applier_concurrency: AtLeastOne | None = Field(
        None, description="Processes of each worker that run the view's code."
    )
    source_task_size: AtLeastOne | None = Field(
        None, description="Source rows of one work item of a chunker view."
    )
    cluster: str | None = Field(None, description="This deployment's, if given.")
    output_limit: AtLeastOne | None = Field(None, description="Rows of a chunker view at most.")
    manifest: str | None = Field(None, description="Environment of the code, this time only.")
    source_version: Version | None = Field(
        None, description="LanceDB's name of src_version; Destrier's."
    )
    full: bool | None = Field(None, description="Compute every row anew; Destrier's.")
    cascade: bool | None = Field(
        None, description="Refresh the views that this one reads first; Destrier's."
    )
    failed_only: bool | None = Field(
        None, description="Only what failed, was skipped or was not done the last time; Destrier's."
    )

    def options(self) -> RefreshOptions:
        """What the refresh is to do.

        Raises:
            InvalidInput: two names of one option say different things.
        """
        versions = {self.src_version, self.source_version} - {None}
        if len(versions) > 1:
            raise InvalidInput("src_version and source_version differ; send one of them")
        return RefreshOptions(
            source_version=versions.pop() if versions else None,
            full=bool(self.full),
            max_rows_per_fragment=self.max_rows_per_fragment,
            concurrency=self.concurrency,
            intra_applier_concurrency=self.intra_applier_concurrency,
            source_task_size=self.source_task_size,
            output_limit=self.output_limit,
            manifest=self.manifest,
        )


class RefreshMaterializedViewResponse(OperationResponse):
    """The job that refreshes the view."""

    job_id: str


class DescribeMaterializedViewRequest(ObjectRequest):
    """Nothing but what every request may carry."""


class ProjectionEntry(WireModel):
    """One column of a view."""

    output_column: str
    expression: str = Field(description="SQL over the source's columns.")


class ResourcesEntry(WireModel):
    """What one worker of a view asks the cluster for."""

    num_cpus: float
    num_gpus: float
    memory: int | None = Field(default=None, description="Bytes.")


class UdtfEntry(WireModel):
    """The code behind a view, without its text."""

    name: str
    version: str
    sha256: str
    input_columns: list[str] | None = None
    partition_by: str | None = None
    partition_by_indexed_column: str | None = None
    batch: bool

    @classmethod
    def of(cls, udtf: UdtfSpec) -> Self:
        """The entry of a view's code."""
        return cls(
            name=udtf.name,
            version=udtf.version,
            sha256=udtf.sha256,
            input_columns=None if udtf.input_columns is None else list(udtf.input_columns),
            partition_by=udtf.partition_by,
            partition_by_indexed_column=udtf.partition_by_indexed_column,
            batch=udtf.batch,
        )


class RefreshEntry(WireModel):
    """One refresh of a view."""

    job_id: str
    state: str
    trigger: str = Field(description="api, create, cascade or auto.")
    created_ms: int
    ended_ms: int | None = None
    duration_ms: int | None = Field(None, description="From its first start to its end.")
    result: JobResultEntry | None = None
    failure: JobFailureEntry | None = None

    @classmethod
    def of(cls, job: Job | None) -> Self | None:
        """The entry of a job; none of none."""
        if job is None:
            return None
        start, end = job.started_ms, job.ended_ms
        return cls(
            job_id=job.job_id,
            state=job.state,
            trigger=job.submission.trigger,
            created_ms=job.created_ms,
            ended_ms=end,
            duration_ms=None if start is None or end is None else end - start,
            result=JobResultEntry.of(job.result),
            failure=JobFailureEntry.of(job.failure),
        )


class DescribeMaterializedViewResponse(OperationResponse):
    """A view: how it is defined, how current it is, and how its refreshes went.

    The first seven are LanceDB's. `source_table` is empty if the source query is not recognised.
    """

    source_table: str
    source_namespace: list[str]
    query: str | None = Field(None, description="The source query as SQL, if it can be said so.")
    projections: list[ProjectionEntry] | None = Field(None, description="Absent: every column.")
    filter: str | None = None
    limit: int | None = None
    incarnation: str | None = Field(None, description="Another one is another view of this name.")
    kind: str
    source_query: str = Field(description="As it was sent.")
    output_schema: str = Field(description="Base64 of the Arrow schema of the view.")
    source_branch: str | None = None
    pinned_source_version: int | None = None
    pinned_source_tag: str | None = None
    udtf: UdtfEntry | None = None
    resources: ResourcesEntry
    version: Version
    num_rows: int
    source_version: int | None = Field(
        None, description="The source's version that the view shows; absent if none exactly."
    )
    latest_source_version: int | None = Field(None, description="What a refresh would read.")
    lag_versions: int | None = None
    lag_rows: int | None = Field(None, description="Source rows that changed since.")
    refreshed_at_ms: int | None = None
    drift: str | None = Field(None, description="How the rows came to differ from a refresh's.")
    refreshable: bool
    reason: str | None = Field(None, description="Why it is not refreshable.")
    auto_refresh: bool
    suspended: bool = Field(description="Not refreshed by itself, as that failed too often.")
    failures_in_a_row: int
    live: RefreshEntry | None = Field(None, description="The refresh that runs or waits.")
    last_success: RefreshEntry | None = None
    last_failure: RefreshEntry | None = None
    history: list[RefreshEntry] = Field(description="The newest first.")

    @classmethod
    def of(cls, view: ViewDescription, settings: ViewSettings) -> Self:
        """The answer about a view."""
        definition, history = view.definition, view.history
        found = recognise(definition.source_query)
        source: Sequence[str] = () if found is None else found.source_id
        columns = None if found is None else found.columns
        return cls(
            source_table=source[-1] if source else "",
            source_namespace=list(source[:-1]),
            query=view.query,
            projections=None
            if columns is None
            else [ProjectionEntry(output_column=name, expression=sql) for name, sql in columns],
            filter=None if found is None else found.filter,
            limit=None if found is None else found.limit,
            incarnation=_incarnation(view),
            kind=definition.kind,
            source_query=definition.source_query,
            output_schema=base64.b64encode(definition.output_schema).decode(),
            source_branch=None if found is None else found.branch,
            pinned_source_version=None if found is None else found.version,
            pinned_source_tag=None if found is None else found.tag,
            udtf=None if definition.udtf is None else UdtfEntry.of(definition.udtf),
            resources=_resources(definition.udtf, settings),
            version=view.version,
            num_rows=view.num_rows,
            source_version=view.source_version,
            latest_source_version=view.latest_source_version,
            lag_versions=None if view.lag is None else view.lag.versions,
            lag_rows=None if view.lag is None else view.lag.rows,
            refreshed_at_ms=view.refreshed_at_ms,
            drift=view.drift,
            refreshable=view.refreshable,
            reason=view.reason,
            auto_refresh=view.auto_refresh,
            suspended=view.suspended,
            failures_in_a_row=history.failures_in_a_row,
            live=RefreshEntry.of(history.live),
            last_success=RefreshEntry.of(history.last_success),
            last_failure=RefreshEntry.of(history.last_failure),
            history=[entry for job in view.recent if (entry := RefreshEntry.of(job))],
        )


def _incarnation(view: ViewDescription) -> str | None:
    metadata = pa.ipc.read_schema(pa.py_buffer(view.schema_ipc)).metadata or {}
    found = metadata.get(INCARNATION.encode())
    return view.record.location.incarnation if found is None else found.decode()


def _resources(udtf: UdtfSpec | None, settings: ViewSettings) -> ResourcesEntry:
    """What a view's code asks for, or the deployment's default."""
    if udtf is None:
        return ResourcesEntry(num_cpus=settings.code_num_cpus, num_gpus=0.0)
    return ResourcesEntry(
        num_cpus=udtf.num_cpus or settings.code_num_cpus,
        num_gpus=udtf.num_gpus or 0.0,
        memory=udtf.memory_bytes,
    )


class DropMaterializedViewRequest(ObjectRequest):
    """Nothing but what every request may carry."""


class DropMaterializedViewResponse(OperationResponse):
    """The view is gone, with its jobs and its schedule."""


class ListMaterializedViewsResponse(PagedResponse):
    """Names of views."""

    views: list[str]

    @classmethod
    def of(cls, page: Page[str]) -> Self:
        """The answer that holds a page."""
        return cls(views=list(page.items), page_token=page.page_token)
