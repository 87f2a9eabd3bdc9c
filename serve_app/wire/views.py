"""Materialized views on the wire."""

from typing import Any

from pydantic import Field

from serve_app.wire.base import FieldPath, ObjectRequest, OperationResponse, Version, WireModel


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
    """A view's definition."""

    kind: str = Field(description="query, udtf or chunker.")
    source_query: str
    output_schema: str = Field(description="Base64 of the Arrow schema of the view.")
    udtf_spec: MaterializedViewUdtfEntry | None = None
    with_no_data: bool | None = Field(None, description="false also starts a refresh.")
    auto_refresh: bool | None = None

    def udtf_fields(self) -> dict[str, Any] | None:
        """The fields of udtf_spec that the request gave a value."""
        return None if self.udtf_spec is None else self.udtf_spec.model_dump(exclude_none=True)


class CreateMaterializedViewResponse(OperationResponse):
    """The commit that created the view."""

    version: Version
    job_id: str | None = None


class RefreshMaterializedViewRequest(ObjectRequest):
    """How to refresh a view."""

    src_version: int | None = None
    max_rows_per_fragment: int | None = None
    concurrency: int | None = None
    intra_applier_concurrency: int | None = None
    source_task_size: int | None = None
    cluster: str | None = None
    output_limit: int | None = None
    manifest: str | None = None


class RefreshMaterializedViewResponse(OperationResponse):
    """The job that refreshes the view."""

    job_id: str
