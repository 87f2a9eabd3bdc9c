"""Indexes of a table."""

from serve_app.dependencies import BranchQuery, OnIndex, OnObject
from serve_app.rights import Right
from serve_app.routing import OperationRouter
from serve_app.wire.indexes import (
    CreateTableIndexRequest,
    CreateTableIndexResponse,
    CreateTableScalarIndexResponse,
    DescribeTableIndexStatsRequest,
    DescribeTableIndexStatsResponse,
    DropTableIndexResponse,
    ListTableIndicesRequest,
    ListTableIndicesResponse,
)

router = OperationRouter("/v1/table/{id}", ["Index"])


@router.not_built("/create_index", CreateTableIndexResponse)
async def create_table_index(call: OnObject, body: CreateTableIndexRequest) -> None:
    """Build an index."""


@router.not_built("/create_scalar_index", CreateTableScalarIndexResponse)
async def create_table_scalar_index(call: OnObject, body: CreateTableIndexRequest) -> None:
    """Build an index of a scalar column."""


@router.not_built("/index/list", ListTableIndicesResponse)
async def list_table_indices(call: OnObject, body: ListTableIndicesRequest) -> None:
    """List a table's indexes."""


@router.post("/index/{index_name}/stats")
async def describe_table_index_stats(
    call: OnIndex, body: DescribeTableIndexStatsRequest
) -> DescribeTableIndexStatsResponse:
    """Describe what an index covers at one version."""
    table = call.table(Right.READ)
    pin = call.pin(body.branch, body.version)
    stats = await call.server.describe_index_stats(table, pin, call.index_name)
    return DescribeTableIndexStatsResponse.of(stats)


@router.not_built("/index/{index_name}/drop", DropTableIndexResponse)
async def drop_table_index(call: OnIndex, branch: BranchQuery = None) -> None:
    """Remove an index."""
