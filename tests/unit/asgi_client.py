"""A client of an ASGI app that sees, and decides, each message that passes.

Apps here are a few lines of ASGI, so that a test sees exactly what the gateway hands on.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import httpx

from cluster.settings import Settings
from serve_app.gateway import Gateway

Message = dict[str, Any]
Headers = dict[str, str]


@dataclass
class Answer:
    """What a client got, and what the app was given."""

    status: int = 0
    headers: Headers = field(default_factory=dict)
    body: bytes = b""
    scope: dict[str, Any] = field(default_factory=dict)
    parts_read: int = 0

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def settings(**http: Any) -> Settings:
    return Settings(http=http)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with what it was given."""
    body = b""
    more = True
    while more:
        message = await receive()
        body += message["body"]
        more = message["more_body"]
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    told = {"path": scope["path"], "body": body.decode(), "headers": headers}
    await answer(send, 200, json.dumps({**told, "state": scope["state"]}).encode())


async def answer(send: Any, status: int, body: bytes, headers: Any = ()) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


async def call(
    gateway: Gateway,
    path: str = "/v1/table/t/count_rows",
    parts: tuple[bytes, ...] = (b"",),
    headers: Headers | None = None,
    method: str = "POST",
    ends: bool = True,
) -> Answer:
    """Send one request whose body arrives in `parts`; without `ends` the client then goes away."""
    got = Answer()
    left = list(parts)

    async def receive() -> Message:
        await asyncio.sleep(0)
        if not left:
            if got.body or ends:
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}
        got.parts_read += 1
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left) or not ends}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            got.status = message["status"]
            got.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            got.body += message.get("body", b"")

    got.scope = {
        "type": "http",
        "method": method,
        "path": httpx.URL(path).path,
        "raw_path": path.encode("latin-1"),
        "query_string": b"",
        "headers": [(k.encode(), v.encode()) for k, v in (headers or {}).items()],
        "state": {},
    }
    await gateway(got.scope, receive, send)
    return got


@dataclass
class HeldApp:
    """Answers nothing until it is released."""

    released: asyncio.Event = field(default_factory=asyncio.Event)
    running: int = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.running += 1
        await self.released.wait()
        await answer(send, 200, b"done")


async def turn_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)
