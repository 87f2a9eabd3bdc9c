"""Columns of a table."""

from serve_app.dependencies import OnObject
from serve_app.routing import OperationRouter
from serve_app.wire.columns import (
    AlterTableAddColumnsRequest,
    AlterTableAddColumnsResponse,
    AlterTableAlterColumnsRequest,
    AlterTableAlterColumnsResponse,
    AlterTableBackfillColumnsRequest,
    AlterTableBackfillColumnsResponse,
    AlterTableDropColumnsRequest,
    AlterTableDropColumnsResponse,
    UpdateFieldMetadataRequest,
    UpdateFieldMetadataResponse,
)

router = OperationRouter("/v1/table/{id}", ["Table"])


@router.not_built("/add_columns", AlterTableAddColumnsResponse)
async def alter_table_add_columns(call: OnObject, body: AlterTableAddColumnsRequest) -> None:
    """Add columns."""


@router.not_built("/alter_columns", AlterTableAlterColumnsResponse)
async def alter_table_alter_columns(call: OnObject, body: AlterTableAlterColumnsRequest) -> None:
    """Rename columns, or change their type or nullability."""


@router.not_built("/drop_columns", AlterTableDropColumnsResponse)
async def alter_table_drop_columns(call: OnObject, body: AlterTableDropColumnsRequest) -> None:
    """Remove columns."""


@router.not_built("/update_field_metadata", UpdateFieldMetadataResponse)
async def update_field_metadata(call: OnObject, body: UpdateFieldMetadataRequest) -> None:
    """Change the metadata of fields."""


@router.not_built("/backfill_column", AlterTableBackfillColumnsResponse, status_code=202)
async def alter_table_backfill_columns(
    call: OnObject, body: AlterTableBackfillColumnsRequest
) -> None:
    """Start a job that fills a computed column."""
