"""The HTTP layer in process: gateway, app and a fake server, with and without the fast path."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import pytest

from cluster.settings import Settings
from serve_app.app import create_app
from serve_app.gateway import Gateway
from tests.http.fakes import FakeAuthenticator, FakeServer

T = TypeVar("T")

ARROW = "application/vnd.apache.arrow.stream"


@dataclass
class HttpClient:
    """Sends requests as the administrator unless `key` says otherwise; None sends no key."""

    server: FakeServer
    authenticator: FakeAuthenticator
    fast_path: bool
    settings: Settings = field(default_factory=Settings)

    def post(self, path: str, json: Any = None, **options: Any) -> httpx.Response:
        """POST; `json` is left out for a request without a body."""
        if json is not None:
            options["json"] = json
        return self.request("POST", path, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        """GET."""
        return self.request("GET", path, **options)

    def request(
        self,
        method: str,
        path: str,
        *,
        key: str | None = "admin",
        headers: dict[str, str] | None = None,
        **options: Any,
    ) -> httpx.Response:
        """Send one request on an event loop of its own."""
        sent = {} if key is None else {"x-api-key": key}

        async def send() -> httpx.Response:
            app = create_app(
                self.settings, self.server, self.authenticator, fast_path=self.fast_path
            )
            transport = httpx.ASGITransport(Gateway(app, self.settings))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(
                    method, path, headers={**sent, **(headers or {})}, **options
                )

        return run(send())


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end, failing what hangs."""

    async def bounded() -> T:
        async with asyncio.timeout(20):
            return await work

    return asyncio.run(bounded())


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def authenticator() -> FakeAuthenticator:
    return FakeAuthenticator()


@pytest.fixture(params=[True, False], ids=["fast path", "FastAPI"])
def client(
    request: pytest.FixtureRequest, server: FakeServer, authenticator: FakeAuthenticator
) -> HttpClient:
    return HttpClient(server, authenticator, request.param)


def assert_problem(response: httpx.Response, status: int, code: int, *words: str) -> dict[str, Any]:
    """The answer is this error, with the one body that all errors have."""
    assert response.status_code == status, response.text
    body: dict[str, Any] = response.json()
    assert response.headers["content-type"] == "application/json"
    assert set(body) == {"type", "title", "status", "detail", "instance", "code", "error"}
    assert (body["status"], body["code"]) == (status, code), body
    assert body["detail"] == body["error"]
    for word in words:
        assert word in body["error"], body["error"]
    return body
