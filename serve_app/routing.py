"""How an operation of the specification becomes a FastAPI route.

A handler is a function named as the operation, in snake case. Its route authenticates before
FastAPI validates anything, takes JSON whatever the Content-Type says (an empty body is `{}`), and
turns every error into an answer.
"""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from cluster.errors import Unsupported
from serve_app.dependencies import open_call
from serve_app.problems import answer_error
from serve_app.wire.base import ErrorResponse

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
F = TypeVar("F", bound=Callable[..., Any])

NOT_BUILT = "x-destrier-not-built"

# Given as `openapi_extra`: the operation reads an Arrow IPC stream itself.
ARROW_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/vnd.apache.arrow.stream": {
                "schema": {"type": "string", "format": "binary"}
            }
        },
    }
}

_ERRORS: dict[int | str, str] = {
    400: "Malformed request",
    401: "No valid credentials",
    403: "The caller lacks the right",
    404: "No such object",
    406: "Not built",
    409: "The object exists, or a precondition no longer holds",
    "4XX": "Any other refusal",
    503: "Slow down",
    "5XX": "A fault of the server",
}
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": description}
    for status, description in _ERRORS.items()
}


class JsonRequest(Request):
    """A request whose empty JSON body is an empty object."""

    async def body(self) -> bytes:
        """The whole body."""
        return await super().body() or b"{}"

    async def json(self) -> Any:
        """The body as it was parsed for authentication."""
        return self.state.call.json


class OperationRoute(APIRoute):
    """Authenticates, then lets FastAPI validate and call the handler; errors become answers."""

    def get_route_handler(self) -> Handler:
        """FastAPI's hook for what surrounds a route."""
        validate_and_call = super().get_route_handler()
        takes_json = self.body_field is not None
        is_built = NOT_BUILT not in (self.openapi_extra or {})

        async def handle(request: Request) -> Response:
            try:
                request = JsonRequest(_as_json(request.scope), request.receive)
                body = await request.body() if takes_json else b""
                request.state.operation = self.operation_id
                request.state.call = await open_call(request, body)
                if not is_built:
                    raise Unsupported(f"{self.operation_id} is not built in this release")
                return await validate_and_call(request)
            except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer
                return answer_error(request, error)

        return handle


class OperationRouter(APIRouter):
    """Routes of one resource."""

    def __init__(self, prefix: str = "", tags: list[str] | None = None) -> None:
        super().__init__(
            prefix=prefix,
            tags=list(tags or []),
            route_class=OperationRoute,
            responses=ERROR_RESPONSES,
            redirect_slashes=False,
            strict_content_type=False,
        )

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Add a handler under its operation's name; answers leave out fields without a value."""
        options["operation_id"] = operation_id(endpoint.__name__)
        options["response_model_exclude_none"] = True
        super().add_api_route(path, endpoint, **options)

    def not_built(
        self, path: str, response_model: Any, *, status_code: int = 200, takes_arrow: bool = False
    ) -> Callable[[F], F]:
        """Declare a POST operation that this release refuses, once the caller is authenticated."""
        return self.post(
            path,
            response_model=response_model,
            status_code=status_code,
            openapi_extra={NOT_BUILT: True, **(ARROW_BODY if takes_arrow else {})},
        )


def operation_id(function_name: str) -> str:
    """`count_table_rows` -> `CountTableRows`."""
    return "".join(word.capitalize() for word in function_name.split("_"))


def _as_json(scope: Any) -> Any:
    """`scope` without a Content-Type, so that FastAPI reads a body as JSON in any case."""
    headers = [pair for pair in scope["headers"] if pair[0] != b"content-type"]
    return {**scope, "headers": headers}
