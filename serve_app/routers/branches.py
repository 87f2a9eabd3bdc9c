"""Branches of a table."""

from serve_app.dependencies import Limit, OnObject, PageToken
from serve_app.routing import OperationRouter
from serve_app.wire.branches import (
    CreateTableBranchRequest,
    CreateTableBranchResponse,
    DeleteTableBranchRequest,
    DeleteTableBranchResponse,
    ListTableBranchesResponse,
)

router = OperationRouter("/v1/table/{id}/branches", ["Branch"])


@router.not_built("/list", ListTableBranchesResponse)
async def list_table_branches(
    call: OnObject, page_token: PageToken = None, limit: Limit = None
) -> None:
    """List a table's branches, main apart."""


@router.not_built("/create", CreateTableBranchResponse)
async def create_table_branch(call: OnObject, body: CreateTableBranchRequest) -> None:
    """Begin a branch at a version of another."""


@router.not_built("/delete", DeleteTableBranchResponse)
async def delete_table_branch(call: OnObject, body: DeleteTableBranchRequest) -> None:
    """Remove a branch."""
