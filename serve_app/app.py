"""The ASGI app of one replica: every operation of the specification, and its documentation."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actors.ports import ServerOperations
from cluster.settings import Settings
from serve_app.auth import Authenticator
from serve_app.dependencies import Service
from serve_app.docs_page import docs_page
from serve_app.fast_path import FastPath
from serve_app.problems import answer_error
from serve_app.routers import (
    branches,
    columns,
    enterprise,
    indexes,
    jobs,
    namespaces,
    rows,
    tables,
    tags,
    transactions,
    versions,
    views,
)

# Order decides between paths that both match: `version/batch-create` is tried before `{id}/…` only
# because no verb of a table is named so.
ROUTERS = (
    namespaces.router,
    tables.router,
    rows.router,
    columns.router,
    indexes.router,
    versions.router,
    tags.router,
    branches.router,
    transactions.router,
    views.router,
    jobs.router,
    enterprise.router,
)

# The release of the Lance namespace specification whose operations these are.
SPECIFICATION_VERSION = "0.13.0"

# LanceDB's client decides by this what to send: from 0.3.0 structured full-text queries, from 0.4.0
# uploads in parts, which this release does not take.
DIALECT_HEADER = (b"phalanx-version", b"0.3.0")

_SECURITY: Mapping[str, Any] = {
    "BearerAuth": {"type": "http", "scheme": "bearer"},
    "ApiKeyAuth": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def create_app(
    settings: Settings,
    server: ServerOperations,
    authenticator: Authenticator,
    *,
    fast_path: bool = True,
) -> ASGIApp:
    """The app that answers `/v1/…`, `/docs` and `/openapi.json`.

    `fast_path` answers the most frequent operations without FastAPI; the answers are the same.
    """
    app: ASGIApp = build_api()
    if fast_path:
        app = FastPath(app)
    return _Entrance(app, Service(settings, server, authenticator))


class _Api(FastAPI):
    """The routes and their OpenAPI document."""

    def openapi(self) -> dict[str, Any]:
        """The document, with the two ways to authenticate."""
        document = super().openapi()
        document["components"]["securitySchemes"] = _SECURITY
        document["security"] = [{name: []} for name in _SECURITY]
        return document


@cache
def build_api() -> FastAPI:
    """The FastAPI app alone. It holds no state; its first request prepares the routes (70 ms)."""
    app = _Api(
        title="Destrier",
        description="Serves Lance tables over HTTP from a Ray cluster.",
        version=SPECIFICATION_VERSION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        strict_content_type=False,
        exception_handlers={HTTPException: _answer_http_error},
    )
    for router in ROUTERS:
        app.include_router(router)
    app.add_api_route("/docs", _docs, include_in_schema=False)
    return app


async def _docs(request: Request) -> Response:
    return HTMLResponse(docs_page(request.app.openapi()))


async def _answer_http_error(request: Request, error: Exception) -> Response:
    return answer_error(request, error)


class _Entrance:
    """Gives every request what the app serves with, and every answer the dialect's version."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_dialect(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), DIALECT_HEADER]
            await send(message)

        scope.setdefault("state", {})["service"] = self._service
        await self._app(scope, receive, send_with_dialect)
