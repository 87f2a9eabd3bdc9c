"""Tables: their names, schema and life."""

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from actors.model import CreateMode, NewTable
from cluster.identifiers import parse_branch
from serve_app.dependencies import (
    ROOT,
    BranchQuery,
    Call,
    IncludeDeclared,
    Limit,
    ModeQuery,
    OnDatabase,
    OnObject,
    PageToken,
    read_arrow,
)
from serve_app.rights import Right
from serve_app.routers.namespaces import list_plain_names
from serve_app.routing import ARROW_BODY, OperationRouter
from serve_app.schema_json import Dialect
from serve_app.wire.base import check_map, check_page_limit, parse_mode
from serve_app.wire.namespaces import ListTablesResponse
from serve_app.wire.tables import (
    CreateTableResponse,
    DeclareTableRequest,
    DeclareTableResponse,
    DeregisterTableRequest,
    DeregisterTableResponse,
    DescribeTableRequest,
    DescribeTableResponse,
    DropTableResponse,
    GetTableStatsRequest,
    GetTableStatsResponse,
    RegisterMode,
    RegisterTableRequest,
    RegisterTableResponse,
    RenameTableRequest,
    RenameTableResponse,
    RestoreTableRequest,
    RestoreTableResponse,
    TableExistsRequest,
    check_properties,
    new_table,
)
from udtf.view_record import PRIVATE_METADATA

router = OperationRouter("/v1/table", ["Table"])


@router.get("")
async def list_all_tables(
    call: OnDatabase,
    page_token: PageToken = None,
    limit: Limit = None,
    include_declared: IncludeDeclared = True,
) -> ListTablesResponse:
    """List every table of the database; for LanceDB's client those of the root namespace."""
    call.namespace(Right.LIST)
    size = check_page_limit(limit, call.limits)
    token = page_token or None
    if call.is_lancedb:
        page = await list_plain_names(call.catalog, ROOT, token, size)
    else:
        page = await call.catalog.list_all_tables(token, size, include_declared=include_declared)
    return ListTablesResponse.of(page)


@router.post("/{id}/create", openapi_extra=ARROW_BODY)
async def create_table(
    call: OnObject,
    mode: ModeQuery = None,
    properties: Annotated[str | None, Query(description="A JSON object of strings.")] = None,
    storage_options: Annotated[str | None, Query(description="Refused unless empty.")] = None,
) -> CreateTableResponse:
    """Create a table from an Arrow IPC stream."""
    table = new_table(call.object_id, properties, storage_options, call.limits)
    return await create_from_stream(call, table, mode)


@router.post("/{id}/declare")
async def declare_table(call: OnObject, body: DeclareTableRequest) -> DeclareTableResponse:
    """Reserve a table's name; its data come with the first insert."""
    table = call.table(Right.WRITE)
    if body.location is not None:
        call.require_on_root(Right.MANAGE)
    properties = check_properties(body.properties, call.limits)
    record = await call.catalog.declare_table(table.id, body.location, properties)
    return DeclareTableResponse.of(record)


@router.post("/{id}/register")
async def register_table(call: OnObject, body: RegisterTableRequest) -> RegisterTableResponse:
    """Give a name to a table that is in the database's folder already."""
    mode = parse_mode(RegisterMode, body.mode, RegisterMode.CREATE, "mode")
    table = call.table(Right.WRITE)
    # The folder may be another table's, which the grants of that one would no longer guard.
    call.require_on_root(Right.MANAGE)
    properties = check_properties(body.properties, call.limits)
    record = await call.catalog.register_table(
        table.id, body.location, properties, overwrite=mode is RegisterMode.OVERWRITE
    )
    return RegisterTableResponse(location=body.location, properties=dict(record.properties))


@router.post("/{id}/describe")
async def describe_table(
    call: OnObject,
    body: DescribeTableRequest,
    with_table_uri: Annotated[bool, Query(description="As in the body.")] = False,
    load_detailed_metadata: Annotated[bool, Query(description="As in the body.")] = False,
    check_declared: Annotated[bool, Query(description="As in the body.")] = False,
) -> DescribeTableResponse:
    """Describe a table at one version; details are counts that take opening it."""
    table = call.table(Right.READ)
    detailed = load_detailed_metadata or bool(body.load_detailed_metadata)
    pin = call.pin(body.branch, body.version, body.tag)
    return DescribeTableResponse.of(
        await call.server.describe_table(table, pin, detailed=detailed),
        Dialect.LANCE if call.is_lancedb else Dialect.NAMESPACE,
        with_uri=with_table_uri or bool(body.with_table_uri),
        with_declared=detailed or check_declared or bool(body.check_declared),
    )


@router.post("/{id}/exists", response_class=Response)
async def table_exists(call: OnObject, body: TableExistsRequest) -> None:
    """Answer 200 if the table (at that version) exists, else 404."""
    table = call.table(Right.LIST)
    if body.version is None:
        await call.catalog.find_table(table.id)
    else:
        await call.server.describe_table(table, call.pin(None, body.version), detailed=False)


@router.post("/{id}/drop")
async def drop_table(call: OnObject) -> DropTableResponse:
    """Drop a table and delete its data."""
    return DropTableResponse.of(await call.catalog.drop_table(call.table(Right.DROP).id))


@router.post("/{id}/deregister")
async def deregister_table(call: OnObject, body: DeregisterTableRequest) -> DeregisterTableResponse:
    """Forget a table's name and keep its data."""
    dropped = await call.catalog.deregister_table(call.table(Right.DROP).id)
    return DeregisterTableResponse.of(dropped)


@router.post("/{id}/schema_metadata/update")
async def update_table_schema_metadata(
    call: OnObject, body: dict[str, str], branch: BranchQuery = None
) -> dict[str, str]:
    """Merge entries into the schema's metadata; answer all of it."""
    table = call.table(Right.ALTER)
    entries = check_map(body, "the body", call.limits)
    key = call.key(call.body)
    merged = await call.server.update_schema_metadata(table, parse_branch(branch), key, entries)
    return {name: value for name, value in merged.items() if name not in PRIVATE_METADATA}


@router.not_built("/{id}/restore", RestoreTableResponse)
async def restore_table(call: OnObject, body: RestoreTableRequest) -> None:
    """Make an older version current again, as a new one."""


@router.not_built("/{id}/rename", RenameTableResponse)
async def rename_table(call: OnObject, body: RenameTableRequest) -> None:
    """Give a table another name or namespace."""


@router.not_built("/{id}/stats", GetTableStatsResponse)
async def get_table_stats(call: OnObject, body: GetTableStatsRequest) -> None:
    """Sizes of a table and its fragments."""


async def create_from_stream(
    call: Call, table: NewTable, mode: str | None, *, empty_declares: bool = False
) -> CreateTableResponse:
    """Create `table` from the request's Arrow IPC stream, or declare it if there is none."""
    create_mode = parse_mode(CreateMode, mode, CreateMode.CREATE, "mode")
    call.table(Right.WRITE)
    if create_mode is CreateMode.OVERWRITE:
        call.table(Right.DROP)
    body = await read_arrow(call, may_be_empty=empty_declares)
    if body == b"":
        record = await call.catalog.declare_table(table.id, None, table.properties)
        return CreateTableResponse.of_declared(record)
    if isinstance(body, bytes):
        created = await call.server.create_table(
            call.database, table, create_mode, call.key(body), body
        )
    else:
        created = await body.feed_while(
            call.server.create_table(
                call.database, table, create_mode, call.key_of_stream(), body.reader
            )
        )
    return CreateTableResponse.of(created)
