"""Rows of a table: insert, merge, update, delete, count and query."""

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from actors.model import InsertMode
from cluster.identifiers import parse_branch
from serve_app.arrow_result import ARROW_FILE, VERSION_HEADER, answer_rows
from serve_app.dependencies import BranchQuery, ModeQuery, OnObject, read_arrow
from serve_app.rights import Right
from serve_app.routing import ARROW_BODY, OperationRouter
from serve_app.wire.base import check_map, check_sql, parse_mode
from serve_app.wire.queries import (
    AnalyzeTableQueryPlanRequest,
    ExplainTableQueryPlanRequest,
    QueryTableRequest,
)
from serve_app.wire.rows import (
    CountTableRowsRequest,
    DeleteFromTableRequest,
    DeleteFromTableResponse,
    InsertIntoTableResponse,
    MergeInsertIntoTableResponse,
    UpdateTableRequest,
    UpdateTableResponse,
)

router = OperationRouter("/v1/table/{id}", ["Table"])

Flag = Annotated[bool, Query()]
Text = Annotated[str | None, Query()]


@router.post("/insert", openapi_extra=ARROW_BODY)
async def insert_into_table(
    call: OnObject, branch: BranchQuery = None, mode: ModeQuery = None
) -> InsertIntoTableResponse:
    """Insert the rows of an Arrow IPC stream; a declared table is created by it."""
    insert_mode = parse_mode(InsertMode, mode, InsertMode.APPEND, "mode")
    table = call.table(Right.WRITE)
    target = parse_branch(branch)
    body = await read_arrow(call)
    if isinstance(body, bytes):
        commit = await call.server.insert_rows(table, target, insert_mode, call.key(body), body)
    else:
        commit = await body.feed_while(
            call.server.insert_stream(
                table, target, insert_mode, call.key_of_stream().id, body.reader
            )
        )
    return InsertIntoTableResponse.of(commit)


@router.not_built("/merge_insert", MergeInsertIntoTableResponse, takes_arrow=True)
async def merge_insert_into_table(
    call: OnObject,
    branch: BranchQuery = None,
    on: Annotated[list[str] | None, Query()] = None,
    when_matched_update_all: Flag = False,
    when_matched_update_all_filt: Text = None,
    when_not_matched_insert_all: Flag = False,
    when_not_matched_by_source_delete: Flag = False,
    when_not_matched_by_source_delete_filt: Text = None,
    timeout: Text = None,  # noqa: ASYNC109 - the specification's name
    use_index: Flag = True,
) -> None:
    """Insert, update and delete by comparing an Arrow IPC stream with the table's rows."""


@router.post("/update")
async def update_table(call: OnObject, body: UpdateTableRequest) -> UpdateTableResponse:
    """Assign SQL expressions to fields of the rows that a predicate selects."""
    table = call.table(Right.WRITE)
    if body.properties:
        call.table(Right.ALTER)
    commit, properties = await call.server.update_rows(
        table,
        parse_branch(body.branch),
        call.key(call.body),
        body.assignments(call.limits),
        check_sql(body.predicate, "predicate", call.limits),
        check_map(body.properties, "properties", call.limits) or None,
        call.engine(),
    )
    return UpdateTableResponse.of(commit, properties)


@router.post("/delete")
async def delete_from_table(
    call: OnObject, body: DeleteFromTableRequest
) -> DeleteFromTableResponse:
    """Delete the rows that a predicate selects."""
    table = call.table(Right.WRITE)
    check_sql(body.predicate, "predicate", call.limits)
    commit = await call.server.delete_rows(
        table, parse_branch(body.branch), call.key(call.body), body.predicate, call.engine()
    )
    return DeleteFromTableResponse.of(commit)


@router.post("/count_rows", response_model=int)
async def count_table_rows(call: OnObject, body: CountTableRowsRequest) -> Response:
    """Count the rows of a table, or those that a predicate selects; the answer is a bare number."""
    table = call.table(Right.READ)
    predicate = check_sql(body.predicate, "predicate", call.limits)
    pin = call.pin(body.branch, body.version)
    counted = await call.server.count_rows(table, pin, predicate, call.engine())
    headers = {VERSION_HEADER: str(counted.version)}
    return Response(str(counted.count), 200, headers, "application/json")


@router.post(
    "/query",
    response_class=Response,
    responses={200: {"content": {ARROW_FILE: {"schema": {"type": "string", "format": "binary"}}}}},
)
async def query_table(call: OnObject, body: QueryTableRequest) -> Response:
    """Scan a table; the rows are answered as an Arrow IPC file."""
    table = call.table(Right.READ)
    pin = call.pin(body.branch, body.version)
    rows = await call.server.scan(table, pin, body.scan(call.limits), call.engine())
    return await answer_rows(rows, call.limits)


@router.not_built("/explain_plan", str)
async def explain_table_query_plan(call: OnObject, body: ExplainTableQueryPlanRequest) -> None:
    """Explain how a query would be run."""


@router.not_built("/analyze_plan", str)
async def analyze_table_query_plan(call: OnObject, body: AnalyzeTableQueryPlanRequest) -> None:
    """Run a query and report how that went."""
