"""Namespaces and the tables inside them."""

import re

from starlette.responses import Response

from actors.model import CreateMode, Page
from actors.ports import CatalogOperations
from cluster.identifiers import ObjectId
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

# What LanceDB's client accepts in a listing; one other name fails the whole of it.
_LANCEDB_NAME = re.compile(r"[A-Za-z0-9_.-]+")


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
    token = page_token or None
    if call.is_lancedb:
        page = await list_plain_names(call.catalog, namespace, token, size)
    else:
        page = await call.catalog.list_tables(
            namespace, token, size, include_declared=include_declared
        )
    return ListTablesResponse.of(page)


async def list_plain_names(
    catalog: CatalogOperations, namespace: ObjectId, token: str | None, size: int | None
) -> Page[str]:
    """A page of the tables of `namespace` that LanceDB's client can be told of."""
    names: list[str] = []
    while True:
        page = await catalog.list_tables(namespace, token, size, include_declared=True)
        names += [name for name in page.items if _LANCEDB_NAME.fullmatch(name)]
        token = page.page_token
        if size is not None and len(names) > size:
            return Page(tuple(names[:size]), names[size - 1])
        if token is None:
            return Page(tuple(names))
        if size is not None and len(names) == size:
            return Page(tuple(names), token)
