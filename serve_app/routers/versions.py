"""Version records of a table."""

from typing import Annotated

from fastapi import Query

from cluster.identifiers import parse_branch
from serve_app.dependencies import BranchQuery, Limit, OnDatabase, OnObject, PageToken
from serve_app.rights import Right
from serve_app.routing import OperationRouter
from serve_app.wire.base import check_page_limit
from serve_app.wire.versions import (
    BatchCommitTablesRequest,
    BatchCommitTablesResponse,
    BatchCreateTableVersionsRequest,
    BatchCreateTableVersionsResponse,
    BatchDeleteTableVersionsRequest,
    BatchDeleteTableVersionsResponse,
    CreateTableVersionRequest,
    CreateTableVersionResponse,
    DescribeTableVersionRequest,
    DescribeTableVersionResponse,
    ListTableVersionsResponse,
    TableVersion,
)

router = OperationRouter("/v1/table", ["Table"])


@router.post("/{id}/version/list")
async def list_table_versions(
    call: OnObject,
    branch: BranchQuery = None,
    page_token: PageToken = None,
    limit: Limit = None,
    descending: Annotated[bool, Query(description="Newest first.")] = False,
) -> ListTableVersionsResponse:
    """List a table's version records."""
    table = call.table(Right.READ)
    size = check_page_limit(limit, call.limits)
    page = await call.server.list_versions(
        table, parse_branch(branch), page_token or None, size, descending=descending
    )
    return ListTableVersionsResponse.of(page)


@router.not_built("/{id}/version/create", CreateTableVersionResponse)
async def create_table_version(call: OnObject, body: CreateTableVersionRequest) -> None:
    """Record a version whose manifest the caller wrote."""


@router.post("/{id}/version/describe")
async def describe_table_version(
    call: OnObject, body: DescribeTableVersionRequest
) -> DescribeTableVersionResponse:
    """Describe one version record, the latest unless the request names another."""
    table = call.table(Right.READ)
    record = await call.server.describe_version(table, parse_branch(body.branch), body.version)
    return DescribeTableVersionResponse(version=TableVersion.of(record))


@router.post("/{id}/version/delete")
async def batch_delete_table_versions(
    call: OnObject, body: BatchDeleteTableVersionsRequest
) -> BatchDeleteTableVersionsResponse:
    """Delete version records, never data."""
    table = call.table(Right.ALTER)
    ranges = body.version_ranges(call.limits)
    count = await call.server.delete_versions(table, parse_branch(body.branch), ranges)
    return BatchDeleteTableVersionsResponse(deleted_count=count)


@router.not_built("/version/batch-create", BatchCreateTableVersionsResponse)
async def batch_create_table_versions(
    call: OnDatabase, body: BatchCreateTableVersionsRequest
) -> None:
    """Record versions of several tables at once."""


@router.not_built("/batch-commit", BatchCommitTablesResponse)
async def batch_commit_tables(call: OnDatabase, body: BatchCommitTablesRequest) -> None:
    """Change several tables at once."""
