"""The two routes of LanceDB Enterprise that people try a connection with."""

from typing import Annotated

from fastapi import Depends, Path
from starlette.requests import Request

from serve_app.dependencies import (
    Call,
    Delimiter,
    IncludeDeclared,
    Limit,
    ModeQuery,
    OnDatabase,
    PageToken,
    identify,
)
from serve_app.rights import Right
from serve_app.routers.tables import create_from_stream
from serve_app.routing import ARROW_BODY, OperationRouter
from serve_app.wire.base import check_page_limit
from serve_app.wire.namespaces import ListTablesResponse
from serve_app.wire.tables import CreateTableResponse, new_table

router = OperationRouter("/v1/tables", ["Enterprise"])


async def on_name(
    request: Request,
    name: Annotated[str, Path(description="The table's names joined by the delimiter.")],
    delimiter: Delimiter = None,
) -> Call:
    """The call of a route that names a table."""
    return identify(request.state.call, name, delimiter)


@router.get("")
async def list_enterprise_tables(
    call: OnDatabase,
    page_token: PageToken = None,
    limit: Limit = None,
    include_declared: IncludeDeclared = True,
) -> ListTablesResponse:
    """List every table of the database."""
    call.namespace(Right.LIST)
    size = check_page_limit(limit, call.limits)
    return ListTablesResponse.of(
        await call.catalog.list_all_tables(
            page_token or None, size, include_declared=include_declared
        )
    )


@router.post("/{name}", openapi_extra=ARROW_BODY)
async def create_enterprise_table(
    call: Annotated[Call, Depends(on_name)], mode: ModeQuery = None
) -> CreateTableResponse:
    """Create a table from an Arrow IPC stream; with an empty body, declare it."""
    table = new_table(call.object_id, None, None, call.limits)
    return await create_from_stream(call, table, mode, empty_declares=True)
