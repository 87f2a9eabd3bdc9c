"""Tags of a table."""

from serve_app.dependencies import Limit, OnObject, PageToken
from serve_app.routing import OperationRouter
from serve_app.wire.tags import (
    CreateTableTagRequest,
    CreateTableTagResponse,
    DeleteTableTagRequest,
    DeleteTableTagResponse,
    GetTableTagVersionRequest,
    GetTableTagVersionResponse,
    ListTableTagsResponse,
    UpdateTableTagRequest,
    UpdateTableTagResponse,
)

router = OperationRouter("/v1/table/{id}/tags", ["Tag"])


@router.not_built("/list", ListTableTagsResponse)
async def list_table_tags(
    call: OnObject, page_token: PageToken = None, limit: Limit = None
) -> None:
    """List a table's tags."""


@router.not_built("/version", GetTableTagVersionResponse)
async def get_table_tag_version(call: OnObject, body: GetTableTagVersionRequest) -> None:
    """Find the version that a tag names."""


@router.not_built("/create", CreateTableTagResponse)
async def create_table_tag(call: OnObject, body: CreateTableTagRequest) -> None:
    """Name a version."""


@router.not_built("/delete", DeleteTableTagResponse)
async def delete_table_tag(call: OnObject, body: DeleteTableTagRequest) -> None:
    """Forget a tag."""


@router.not_built("/update", UpdateTableTagResponse)
async def update_table_tag(call: OnObject, body: UpdateTableTagRequest) -> None:
    """Let a tag name another version."""
