"""Namespaces and the tables inside them."""

from starlette.responses import Response

from actors.model import CreateMode
from serve_app.dependencies import IncludeDeclared, Limit, OnObject, PageToken
from serve_app.rights import Right
from serve_app.routing import OperationRouter
from serve_app.wire.base import check_map, check_page_limit, parse_mode
from serve_app.wire.namespaces import (
    CreateNamespaceRequest,
    CreateNamespaceResponse,
    DescribeNamespaceRequest,
    DescribeNamespaceResponse,
    DropBehavior,
    DropMode,
    DropNamespaceRequest,
    DropNamespaceResponse,
    ListNamespacesResponse,
    ListTablesResponse,
    NamespaceExistsRequest,
)

router = OperationRouter("/v1/namespace/{id}", ["Namespace"])


@router.post("/create")
async def create_namespace(call: OnObject, body: CreateNamespaceRequest) -> CreateNamespaceResponse:
    """Create a namespace inside one that exists."""
    mode = parse_mode(CreateMode, body.mode, CreateMode.CREATE, "mode")
    namespace = call.namespace(Right.WRITE)
    if mode is CreateMode.OVERWRITE:
        call.namespace(Right.DROP)
    asked = check_map(body.properties, "properties", call.limits)
    properties = await call.catalog.create_namespace(namespace, mode, asked)
    return CreateNamespaceResponse(properties=dict(properties))


@router.get("/list")
async def list_namespaces(
    call: OnObject, page_token: PageToken = None, limit: Limit = None
) -> ListNamespacesResponse:
    """List the namespaces directly inside one."""
    namespace = call.namespace(Right.LIST)
    size = check_page_limit(limit, call.limits)
    return ListNamespacesResponse.of(
        await call.catalog.list_namespaces(namespace, page_token or None, size)
    )


@router.post("/describe")
async def describe_namespace(
    call: OnObject, body: DescribeNamespaceRequest
) -> DescribeNamespaceResponse:
    """Describe a namespace."""
    properties = await call.catalog.describe_namespace(call.namespace(Right.LIST))
    return DescribeNamespaceResponse(properties=dict(properties))


@router.post("/drop")
async def drop_namespace(call: OnObject, body: DropNamespaceRequest) -> DropNamespaceResponse:
    """Drop a namespace, with all that is inside if asked to."""
    mode = parse_mode(DropMode, body.mode, DropMode.FAIL, "mode")
    behavior = parse_mode(DropBehavior, body.behavior, DropBehavior.RESTRICT, "behavior")
    namespace = call.namespace(Right.DROP)
    if behavior is DropBehavior.CASCADE:
        # What is inside may be outside the caller's patterns, so DROP alone is not enough.
        call.namespace(Right.MANAGE)
    properties = await call.catalog.drop_namespace(
        namespace,
        skip_missing=mode is DropMode.SKIP,
        cascade=behavior is DropBehavior.CASCADE,
    )
    return DropNamespaceResponse(properties=dict(properties))


@router.post("/exists", response_class=Response)
async def namespace_exists(call: OnObject, body: NamespaceExistsRequest) -> None:
    """Answer 200 if the namespace exists, else 404."""
    await call.catalog.describe_namespace(call.namespace(Right.LIST))


@router.get("/table/list")
async def list_tables(
    call: OnObject,
    page_token: PageToken = None,
    limit: Limit = None,
    include_declared: IncludeDeclared = True,
) -> ListTablesResponse:
    """List the tables directly inside a namespace."""
    namespace = call.namespace(Right.LIST)
    size = check_page_limit(limit, call.limits)
    return ListTablesResponse.of(
        await call.catalog.list_tables(
            namespace, page_token or None, size, include_declared=include_declared
        )
    )
