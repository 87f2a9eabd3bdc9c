"""What stands between a replica's HTTP server and the app, in place of Ray Serve's proxy.

It routes on the path as sent (an identifier may hold an encoded slash), gives every request an id,
bounds what is in flight, answers probes, counts, and drains before the process ends.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from cluster import telemetry
from cluster.errors import ErrorCode
from cluster.settings import Settings
from serve_app.exchange import Exchange, RequestHead, chosen_request_id
from serve_app.metrics import CONTENT_TYPE, RequestMetrics
from serve_app.problems import Problem, problem, sent_path

logger = logging.getLogger(__name__)

PROBE_PREFIX = "/-/"
# For a client that went away; counted and never sent.
STATUS_CLIENT_GONE = 499

_LOOPBACK_NAMES = {"127.0.0.1", "::1", "localhost"}
_UPLOAD_VERBS = {"create", "insert", "merge_insert"}


_DRAINING = problem(
    ErrorCode.SERVICE_UNAVAILABLE, "this server is shutting down; send the request again"
)
_TIMED_OUT = problem(
    ErrorCode.SERVICE_UNAVAILABLE,
    "the request took too long; a write may have happened, the same x-request-id tells",
)


class Gateway:
    """An ASGI app around `app` that never has more in flight than `settings` allow.

    `is_healthy` is asked at each probe; an unhealthy or draining gateway answers probes with 503.
    `close` is awaited when the HTTP server has stopped. `tells_request_id` puts `x-request-id` on
    answers, which Ray Serve's own HTTP does by itself.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        is_healthy: Callable[[], bool] = lambda: True,
        replica: str = "local",
        close: Callable[[], Awaitable[None]] | None = None,
        *,
        tells_request_id: bool = True,
    ) -> None:
        self._app = app
        self._http = settings.http
        self._base_path = settings.http.base_path
        self._upload_bytes_held = settings.limits.insert_small_bytes_max
        self.is_healthy = is_healthy
        self._close = close
        self._tells_request_id = tells_request_id
        self._trusts_everyone = settings.auth.mode == "off"
        self._is_draining = False
        self._requests_in_flight = 0
        self._bytes_in_flight = 0
        self._nothing_in_flight = asyncio.Event()
        self.metrics = RequestMetrics(replica)
        self.metrics.gauge(
            "requests_in_flight", "Requests being worked on.", lambda: self._requests_in_flight
        )
        self.metrics.gauge(
            "bytes_in_flight", "Bytes of request bodies held.", lambda: self._bytes_in_flight
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = sent_path(scope)
        if path.startswith(PROBE_PREFIX):
            await self._answer_probe(path[len(PROBE_PREFIX) :], send)
            return
        started = time.perf_counter()
        head = RequestHead.of(scope["headers"])
        request_id = chosen_request_id(head.request_id)
        exchange = Exchange(
            receive,
            send,
            head,
            request_id if self._tells_request_id else None,
            self._http.request_timeout_s,
            self._http.refused_body_drain_bytes_max,
        )
        scope = dict(scope)
        scope["state"] = {**scope.get("state", {}), "request_id": request_id.decode()}
        telemetry.request_id.set(scope["state"]["request_id"])
        try:
            await self._admit(path, scope, head, exchange)
        finally:
            self.metrics.observe(
                _operation(scope),
                exchange.status or STATUS_CLIENT_GONE,
                time.perf_counter() - started,
            )

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests, wait for the accepted ones; False if `timeout_s` was too short."""
        self._is_draining = True
        if self._requests_in_flight == 0:
            return True
        self._nothing_in_flight.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._nothing_in_flight.wait()
        except TimeoutError:
            return False
        return True

    async def _live(self, receive: Receive, send: Send) -> None:
        """ASGI's lifespan: the app is ready when it is built, and is closed at the end."""
        while (await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        if self._close is not None:
            await self._close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _admit(self, path: str, scope: Scope, head: RequestHead, exchange: Exchange) -> None:
        """Refuse the request, or hold its share of the bounds while it runs."""
        routed = self._route(path, scope)
        is_upload = routed is None and _is_upload(scope)
        refusal = routed or self._refusal(head, is_upload)
        if refusal is not None:
            await self._refuse(exchange, scope, refusal)
            return
        held = self._bytes_held(head, is_upload)
        self._requests_in_flight += 1
        self._bytes_in_flight += held
        try:
            await self._run(scope, exchange, is_upload)
        finally:
            self._requests_in_flight -= 1
            self._bytes_in_flight -= held
            if self._is_draining and self._requests_in_flight == 0:
                self._nothing_in_flight.set()

    def _route(self, path: str, scope: Scope) -> Problem | None:
        """Make `path`, free of the base path and of slashes at its end, what the app routes on."""
        if not path.isascii():
            return problem(
                ErrorCode.INVALID_INPUT,
                "the path holds bytes that are not ASCII; percent-encode them",
            )
        if self._base_path:
            rest = path.removeprefix(self._base_path)
            if len(rest) == len(path) or not rest.startswith("/"):
                return problem(
                    ErrorCode.UNSUPPORTED, f"every path begins with {self._base_path}/; add it", 404
                )
            path = rest
        bare = path.rstrip("/") or "/"
        scope["path"] = bare
        scope["state"]["trailing_slash"] = len(bare) < len(path)
        return None

    def _refusal(self, head: RequestHead, is_upload: bool) -> Problem | None:
        """Why this request is not worked on now, if it is not."""
        http = self._http
        if self._is_draining:
            return _DRAINING
        if self._trusts_everyone and head.origin is not None and not _is_loopback(head.origin):
            return problem(
                ErrorCode.PERMISSION_DENIED,
                "auth.mode is off, so pages of other hosts may not call; turn authentication on",
            )
        if not is_upload and (head.content_length or 0) > http.json_body_bytes_max:
            return self._too_large()
        if self._requests_in_flight >= http.requests_in_flight_max:
            return problem(
                ErrorCode.SERVICE_UNAVAILABLE,
                f"{http.requests_in_flight_max} requests are being worked on; send this one again",
            )
        if self._bytes_in_flight + self._bytes_held(head, is_upload) > http.bytes_in_flight_max:
            return problem(
                ErrorCode.SERVICE_UNAVAILABLE,
                "the requests being worked on hold too many bytes; send this one again",
            )
        return None

    def _bytes_held(self, head: RequestHead, is_upload: bool) -> int:
        """Bytes that this request's body may take; of an upload only the start is held."""
        bound = self._upload_bytes_held if is_upload else self._http.json_body_bytes_max
        if head.content_length is not None:
            return min(head.content_length, bound)
        return bound if head.is_chunked else 0

    def _too_large(self) -> Problem:
        return problem(
            ErrorCode.INVALID_INPUT,
            f"the body is longer than {self._http.json_body_bytes_max} bytes; send a shorter one",
            413,
        )

    async def _run(self, scope: Scope, exchange: Exchange, is_upload: bool) -> None:
        """Run the app; whatever becomes of it, the client gets an answer."""
        try:
            async with asyncio.timeout(self._http.request_timeout_s) as timeout:
                exchange.limit_by(timeout)
                if is_upload or await self._take_json(scope, exchange):
                    await self._app(scope, exchange.receive, exchange.send)
        except TimeoutError:
            if exchange.status is None:
                logger.warning("%s %s timed out", scope["method"], scope["path"])
                exchange.abandon()
                await self._refuse(exchange, scope, _TIMED_OUT)
            elif not exchange.is_complete:
                raise
        except asyncio.CancelledError:
            # The server stops before the request is done.
            if exchange.status is None:
                exchange.abandon()
                await self._refuse(exchange, scope, _TIMED_OUT)
            raise
        except Exception:
            # The app answers and logs every error itself, then raises it again for its server.
            if not exchange.is_complete:
                raise

    async def _take_json(self, scope: Scope, exchange: Exchange) -> bool:
        """Read a JSON body and hand it to the app in one piece; False if that is not to be."""
        body = await exchange.read_body(self._http.json_body_bytes_max)
        if body is not None:
            exchange.replay_body(body)
        elif not exchange.is_disconnected:
            await self._refuse(exchange, scope, self._too_large())
        return body is not None

    async def _refuse(self, exchange: Exchange, scope: Scope, refusal: Problem) -> None:
        if refusal is _DRAINING:
            exchange.closes = True
        await refusal.response(sent_path(scope))(scope, exchange.receive, exchange.send)

    async def _answer_probe(self, name: str, send: Send) -> None:
        """Answer `/-/healthz`, `/-/readyz` and `/-/metrics`."""
        status, content_type = 200, b"text/plain; charset=utf-8"
        if name == "metrics":
            body, content_type = self.metrics.expose(), CONTENT_TYPE
        elif name not in ("healthz", "readyz"):
            status, body = 404, b"no such probe\n"
        elif self._is_draining:
            status, body = 503, b"draining\n"
        elif not self.is_healthy():
            status, body = 503, b"unhealthy\n"
        else:
            body = b"ok\n"
        headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _is_upload(scope: Scope) -> bool:
    """Whether the body is an Arrow stream, which may be of any size."""
    if scope["method"] != "POST":
        return False
    parts = scope["path"].split("/")
    if len(parts) == 5:
        return parts[2] == "table" and parts[4] in _UPLOAD_VERBS
    return len(parts) == 4 and parts[2] == "tables"


def _is_loopback(origin: bytes) -> bool:
    """Whether a browser's page with this origin came from this machine."""
    try:
        return urlsplit(origin.decode("latin-1")).hostname in _LOOPBACK_NAMES
    except ValueError:
        return False


def _operation(scope: Scope) -> str:
    """The operation's name for metrics; few, whatever clients send."""
    named = scope["state"].get("operation")
    route = scope.get("route")
    name = named or getattr(route, "operation_id", None) or getattr(route, "name", None)
    return name or "unmatched"
