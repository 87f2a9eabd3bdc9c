"""Materialized views."""

import base64

import pyarrow as pa
from starlette.responses import Response

from actors.model import Pin, ScanRequest
from cluster.errors import InvalidInput
from cluster.identifiers import ObjectId, TableRef
from serve_app.dependencies import Call, Limit, OnObject, PageToken
from serve_app.rights import Right
from serve_app.routing import OperationRouter
from serve_app.view_rights import require_refresh, require_source
from serve_app.wire.base import check_page_limit
from serve_app.wire.views import (
    CreateMaterializedViewRequest,
    CreateMaterializedViewResponse,
    DescribeMaterializedViewRequest,
    DescribeMaterializedViewResponse,
    DropMaterializedViewRequest,
    DropMaterializedViewResponse,
    ListMaterializedViewsResponse,
    RefreshMaterializedViewRequest,
    RefreshMaterializedViewResponse,
)
from udtf.source_query import why_not
from udtf.spec import ViewDefinition, ViewKind, check_view_definition

router = OperationRouter("/v1", ["MaterializedView"])


@router.post(
    "/materialized_view/{id}/create",
    responses={status: {"model": CreateMaterializedViewResponse} for status in (201, 202)},
)
async def create_materialized_view(
    call: OnObject, body: CreateMaterializedViewRequest, response: Response
) -> CreateMaterializedViewResponse:
    """Create a view, empty unless `with_no_data` is false; that starts the job that fills it.

    201 for clients made by OpenAPI Generator, 202 if LanceDB's client is to wait for a job.
    """
    view = call.table(Right.WRITE)
    with_data = body.with_no_data is False
    if body.is_lancedb:
        definition = await _lancedb_definition(call, body)
    else:
        definition = _definition(call, body)
    created = await call.server.create_view(
        view,
        definition,
        call.key(call.body),
        with_data=with_data,
        requested_by=call.caller.name,
    )
    if body.is_lancedb:
        response.status_code = 202 if with_data else 200
    else:
        # Those clients know the answer by the specification's 201 and drop the body of any other.
        response.status_code = 201 if call.is_generated_client else 200
    return CreateMaterializedViewResponse(version=created.commit.version, job_id=created.job_id)


def _definition(call: Call, body: CreateMaterializedViewRequest) -> ViewDefinition:
    """A view in the specification's dialect, if the caller may define it."""
    kind = body.required("kind")
    if kind != ViewKind.QUERY:
        call.table(Right.EXECUTE_CODE)
    definition = check_view_definition(
        kind,
        body.required("source_query"),
        body.required("output_schema"),
        body.udtf_fields(),
        body.auto_refresh,
        call.limits,
        call.service.settings.views,
    )
    require_source(call, definition.source_query)
    return definition


async def _lancedb_definition(call: Call, body: CreateMaterializedViewRequest) -> ViewDefinition:
    """A view in LanceDB's dialect: it has the columns that its query gives."""
    text = body.query or ""
    query = require_source(call, text)
    if query is None:
        raise InvalidInput(f"query: {why_not(text)}")
    rows = await call.server.scan(
        TableRef(call.database, ObjectId.of(query.source_id)),
        Pin(branch=query.branch, version=query.version, tag=query.tag),
        ScanRequest(columns=query.columns, limit=0),
        "lance",
    )
    # The source's own metadata say what the source is, not what the view is.
    schema = pa.schema(list(rows.schema))
    return check_view_definition(
        ViewKind.QUERY,
        text,
        base64.b64encode(schema.serialize()).decode(),
        None,
        body.auto_refresh,
        call.limits,
        call.service.settings.views,
    )


@router.post("/materialized_view/{id}/refresh", status_code=202)
async def refresh_materialized_view(
    call: OnObject, body: RefreshMaterializedViewRequest
) -> RefreshMaterializedViewResponse:
    """Start a job that brings a view up to date; a repeated request id gives the same job."""
    view = call.table(Right.WRITE)
    options = body.options()
    await require_refresh(call, view, cascade=body.cascade is True)
    job_id = await call.server.refresh_view(
        view,
        options,
        cascade=body.cascade is True,
        failed_only=body.failed_only is True,
        cluster=body.cluster,
        idempotency_key=call.key(call.body).id,
        requested_by=call.caller.name,
    )
    return RefreshMaterializedViewResponse(job_id=job_id)


@router.post("/materialized_view/{id}/describe")
async def describe_materialized_view(
    call: OnObject, body: DescribeMaterializedViewRequest
) -> DescribeMaterializedViewResponse:
    """Describe a view: its definition, how current it is, and how its refreshes went."""
    view = await call.server.describe_view(call.table(Right.READ))
    return DescribeMaterializedViewResponse.of(view, call.service.settings.views)


@router.post("/materialized_view/{id}/drop")
async def drop_materialized_view(
    call: OnObject, body: DropMaterializedViewRequest
) -> DropMaterializedViewResponse:
    """Drop a view with its rows, and end its jobs and its schedule."""
    await call.server.drop_view(call.table(Right.DROP))
    return DropMaterializedViewResponse()


@router.get("/namespace/{id}/materialized_view/list")
async def list_materialized_views(
    call: OnObject, page_token: PageToken = None, limit: Limit = None
) -> ListMaterializedViewsResponse:
    """List the views directly inside a namespace."""
    namespace = call.namespace(Right.LIST)
    size = check_page_limit(limit, call.limits)
    page = await call.server.list_views(call.database, namespace, page_token or None, size)
    return ListMaterializedViewsResponse.of(page)
