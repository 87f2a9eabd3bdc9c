"""The most frequent operations without FastAPI's routing, dependency solving and serializing.

Those are most of what a small request costs. Nothing is decided here: the arguments come from the
same functions, the work from the same handlers and the errors from the same table as on the route.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from serve_app.dependencies import Call, identify, open_call
from serve_app.problems import answer_error
from serve_app.routers import rows
from serve_app.wire.base import WireModel
from serve_app.wire.queries import QueryTableRequest
from serve_app.wire.rows import CountTableRowsRequest, DeleteFromTableRequest, UpdateTableRequest

Handler = Callable[..., Awaitable[WireModel | Response]]


@dataclass(frozen=True, slots=True)
class FastOperation:
    """A POST operation on a table; one without a `model` takes an Arrow stream and `parameters`."""

    name: str
    handler: Handler
    model: type[WireModel] | None = None
    parameters: tuple[str, ...] = ()

    async def run(self, request: Request, segment: str) -> Response:
        """Answer one request."""
        body = b"" if self.model is None else await request.body()
        call = await open_call(request, body)
        query = request.query_params if request.scope["query_string"] else {}
        identify(call, segment, query.get("delimiter"))
        if self.model is None:
            arguments = {name: query.get(name) for name in self.parameters}
            return _render(await self.handler(call, **arguments))
        return _render(await self.handler(call, _read(self.model, call)))


OPERATIONS = {
    "count_rows": FastOperation("CountTableRows", rows.count_table_rows, CountTableRowsRequest),
    "query": FastOperation("QueryTable", rows.query_table, QueryTableRequest),
    "update": FastOperation("UpdateTable", rows.update_table, UpdateTableRequest),
    "delete": FastOperation("DeleteFromTable", rows.delete_from_table, DeleteFromTableRequest),
    "insert": FastOperation(
        "InsertIntoTable", rows.insert_into_table, parameters=("branch", "mode")
    ),
}


class FastPath:
    """An ASGI app that answers some operations itself and leaves the others to `app`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = _match(scope)
        if found is None:
            await self._app(scope, receive, send)
            return
        operation, segment = found
        request = Request(scope, receive)
        scope["state"]["operation"] = operation.name
        try:
            response = await operation.run(request, segment)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer
            response = answer_error(request, error)
        await response(scope, receive, send)


def _match(scope: Scope) -> tuple[FastOperation, str] | None:
    """The operation and the identifier's segment, for `POST /v1/table/{id}/<verb>`."""
    if scope["type"] != "http" or scope["method"] != "POST":
        return None
    match scope["path"].split("/"):
        case ["", "v1", "table", segment, verb] if segment and verb in OPERATIONS:
            return OPERATIONS[verb], segment
    return None


def _read(model: type[WireModel], call: Call) -> WireModel:
    try:
        return model.model_validate(call.json)
    except ValidationError as error:
        found: list[Any] = [
            {"loc": ("body", *item["loc"]), "msg": item["msg"]}
            for item in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        raise RequestValidationError(found) from None


def _render(result: WireModel | Response) -> Response:
    if isinstance(result, Response):
        return result
    return Response(result.model_dump_json(exclude_none=True), 200, None, "application/json")
