"""Columns on the wire."""

from typing import Annotated, Any

from pydantic import Field

from serve_app.wire.base import (
    Branch,
    FieldPath,
    ObjectRequest,
    OperationResponse,
    Version,
    WireModel,
)


class AddVirtualColumnOutputEntry(WireModel):
    """A column that a user function produces."""

    column: str
    struct_field: str
    data_type: dict[str, Any]
    nullable: bool
    metadata: dict[str, str] | None = None


class AddVirtualColumnEntry(WireModel):
    """The user function behind new columns."""

    input_columns: list[FieldPath]
    outputs: list[AddVirtualColumnOutputEntry]
    image: str
    udf: str
    udf_name: str
    udf_version: str
    udf_backend: str | None = None
    auto_backfill: bool | None = None
    manifest: str | None = None
    manifest_checksum: str | None = None
    field_metadata: dict[str, str] | None = None


class AddColumnsEntry(WireModel):
    """One new column."""

    name: str
    expression: str | None = None
    computed: str | None = None
    virtual_column: AddVirtualColumnEntry | None = None


class AlterTableAddColumnsRequest(ObjectRequest):
    """Columns to add."""

    branch: Branch | None = None
    new_columns: list[AddColumnsEntry]


class AlterTableAddColumnsResponse(OperationResponse):
    """The version with the new columns."""

    version: Version


class AlterVirtualColumnEntry(WireModel):
    """Changes to the user function behind a column."""

    input_columns: list[FieldPath] | None = None
    image: str | None = None
    udf: str | None = None
    udf_name: str | None = None
    udf_version: str | None = None
    udf_backend: str | None = None
    auto_backfill: bool | None = None
    manifest: str | None = None
    manifest_checksum: str | None = None
    field_metadata: dict[str, str] | None = None


class AlterColumnsEntry(WireModel):
    """Changes to one column."""

    path: FieldPath
    data_type: dict[str, Any] | None = None
    rename: str | None = None
    nullable: bool | None = None
    virtual_column: AlterVirtualColumnEntry | None = None


class AlterTableAlterColumnsRequest(ObjectRequest):
    """Columns to change."""

    branch: Branch | None = None
    alterations: list[AlterColumnsEntry]


class AlterTableAlterColumnsResponse(OperationResponse):
    """The version with the changed columns."""

    version: Version


class AlterTableDropColumnsRequest(ObjectRequest):
    """Columns to drop."""

    branch: Branch | None = None
    columns: list[FieldPath]


class AlterTableDropColumnsResponse(OperationResponse):
    """The version without the columns."""

    transaction_id: str | None = None
    version: Version


class UpdateFieldMetadataEntry(WireModel):
    """Metadata of one field; null removes a key."""

    path: FieldPath
    metadata: dict[str, str | None]
    replace: bool | None = None


class UpdateFieldMetadataRequest(ObjectRequest):
    """Fields whose metadata to change."""

    branch: Branch | None = None
    updates: list[UpdateFieldMetadataEntry]


class UpdateFieldMetadataResponse(OperationResponse):
    """The fields' metadata afterwards."""

    version: Version
    fields: dict[str, dict[str, str]] | None = None


class AlterTableBackfillColumnsRequest(ObjectRequest):
    """The computed column to fill, and how."""

    branch: Branch | None = None
    column: FieldPath
    where: str | None = None
    concurrency: int | None = None
    intra_applier_concurrency: int | None = None
    min_checkpoint_size: int | None = None
    max_checkpoint_size: int | None = None
    batch_checkpoint_flush_interval_seconds: Annotated[float, Field(ge=0)] | None = None
    read_version: int | None = None
    task_size: int | None = None
    num_frags: int | None = None
    checkpoint_size: int | None = None
    commit_granularity: int | None = None
    cluster: str | None = None
    manifest: str | None = None


class AlterTableBackfillColumnsResponse(OperationResponse):
    """The job that fills the column."""

    job_id: str
