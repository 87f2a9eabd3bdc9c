"""One request and its answer on their way between the HTTP server and the app.

The exchange knows whether the request's body was read to its end and whether the answer has begun.
That is enough to keep three promises: an answer never overtakes an unread body (a client that is
still sending would see a reset instead of the status), a request that times out is still answered,
and every answer carries the request id.
"""

import asyncio
import contextlib
import re
import uuid
from dataclasses import dataclass

from starlette.types import Message, Receive, Send

Headers = list[tuple[bytes, bytes]]

_REQUEST_ID = re.compile(rb"[\x20-\x7e]{1,128}")


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The headers that the gateway acts on."""

    request_id: bytes | None = None
    content_length: int | None = None
    origin: bytes | None = None
    expects_continue: bool = False
    is_chunked: bool = False

    @staticmethod
    def of(headers: Headers) -> "RequestHead":
        """Pick them from `headers`, whose names are in lower case."""
        found = {name: value for name, value in headers if name in _ACTED_ON}
        length = found.get(b"content-length", b"")
        return RequestHead(
            request_id=found.get(b"x-request-id"),
            content_length=int(length) if length.isdigit() else None,
            origin=found.get(b"origin"),
            expects_continue=found.get(b"expect", b"").lower() == b"100-continue",
            is_chunked=b"transfer-encoding" in found,
        )


_ACTED_ON = {
    b"content-length",
    b"expect",
    b"origin",
    b"transfer-encoding",
    b"x-request-id",
}


def chosen_request_id(sent: bytes | None) -> bytes:
    """The id that the client gave its request if that can be one, else a new one."""
    if sent is None or not _REQUEST_ID.fullmatch(sent):
        return str(uuid.uuid4()).encode()
    return sent


class Exchange:
    """The `receive` and `send` that the app gets for one request."""

    __slots__ = (
        "_body",
        "_drain_bytes_max",
        "_has_received",
        "_head",
        "_receive",
        "_request_id",
        "_send",
        "_timeout",
        "_timeout_s",
        "body_is_read",
        "closes",
        "is_complete",
        "is_disconnected",
        "status",
    )

    def __init__(
        self,
        receive: Receive,
        send: Send,
        head: RequestHead,
        request_id: bytes | None,
        timeout_s: float,
        drain_bytes_max: int,
    ) -> None:
        self._receive = receive
        self._send = send
        self._head = head
        self._request_id = request_id
        self._timeout_s = timeout_s
        self._drain_bytes_max = drain_bytes_max
        self._timeout: asyncio.Timeout | None = None
        self._body: bytes | None = None
        self._has_received = False
        self.body_is_read = False
        self.closes = False
        self.is_disconnected = False
        self.is_complete = False
        self.status: int | None = None

    def limit_by(self, timeout: asyncio.Timeout) -> None:
        """Let `timeout` run from each part of the body that arrives until the answer begins."""
        self._timeout = timeout

    async def read_body(self, bytes_max: int) -> bytes | None:
        """Read the whole body; None if it is longer than `bytes_max` or the client went away."""
        body = b""
        parts: list[bytes] = []
        size = 0
        while not self.body_is_read:
            message = await self.receive()
            if self.is_disconnected:
                return None
            body = message.get("body", b"")
            size += len(body)
            if size > bytes_max:
                return None
            parts.append(body)
        return body if len(parts) == 1 else b"".join(parts)

    def replay_body(self, body: bytes) -> None:
        """Make `body` what the app receives."""
        self._body = body

    async def receive(self) -> Message:
        """The next part of the body, or the client's disconnect."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        self._has_received = True
        message = await self._receive()
        if message["type"] == "http.request":
            self.body_is_read = not message.get("more_body", False)
            if not self.body_is_read and self.status is None:
                self._limit_until(asyncio.get_running_loop().time() + self._timeout_s)
        else:
            self.body_is_read = self.is_disconnected = True
        return message

    async def send(self, message: Message) -> None:
        """Pass a part of the answer on; before the first, read the request to its end."""
        if message["type"] == "http.response.start":
            if not self.body_is_read:
                await self._drain()
            self.status = message["status"]
            self._limit_until(None)
            message = {**message, "headers": self._answer_headers(message.get("headers", ()))}
        elif not message.get("more_body", False):
            self.is_complete = True
        await self._send(message)

    def abandon(self) -> None:
        """The app's time is over: the answer to come needs no more of the body and has no limit."""
        self._timeout = None
        self._abandon_body()

    def _abandon_body(self) -> None:
        if not self.body_is_read:
            self.body_is_read = self.closes = True

    def _limit_until(self, when: float | None) -> None:
        # An expiring timeout has cancelled the app already and cannot be moved.
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(when)

    def _answer_headers(self, headers: Headers) -> Headers:
        own = [(name, value) for name, value in headers if name != b"x-request-id"]
        if self._request_id is not None:
            own.append((b"x-request-id", self._request_id))
        if self.closes:
            own.append((b"connection", b"close"))
        return own

    async def _drain(self) -> None:
        """Read and drop the rest of the body, if it is of a bearable size."""
        length = self._head.content_length
        # A client that waits for `100 Continue` has sent nothing, and reading would ask it to.
        is_waiting = self._head.expects_continue and not self._has_received
        if not is_waiting and (length or 0) <= self._drain_bytes_max:
            left = self._drain_bytes_max
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    while not self.body_is_read and left >= 0:
                        left -= len((await self.receive()).get("body", b""))
        self._abandon_body()
