"""The HTTP server inside a replica's process, on its own thread and event loop.

All replicas of a node listen on one port (SO_REUSEPORT), and the kernel spreads connections.
Reading from a connection stops while the app does not take its body, so a client that uploads
faster than rows are written is slowed down instead of filling memory.
"""

import asyncio
import functools
import logging
import math
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar, cast

import uvicorn
import uvloop

from cluster.errors import InvalidInput, ServiceUnavailable
from cluster.settings import HttpSettings
from serve_app.connection import Connection
from serve_app.gateway import Gateway

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Connections that wait to be accepted; the loop accepts them all at each turn.
BACKLOG = 1024
# uvicorn looks this often whether it is to stop.
_STOP_MARGIN_S = 2.0


class Listener:
    """Serves what `build` makes; it is built on the listener's loop, to which its locks belong."""

    def __init__(self, settings: HttpSettings, build: Callable[[], Awaitable[Gateway]]) -> None:
        self._settings = settings
        self._build = build
        self._loop = uvloop.new_event_loop()
        # Reads and uploads block a thread each; the loop's own default would be six on two cores.
        self._loop.set_default_executor(
            ThreadPoolExecutor(settings.requests_in_flight_max, thread_name_prefix="request")
        )
        self._thread = threading.Thread(target=self._run_loop, name="http", daemon=True)
        self._gateway: Gateway | None = None
        self._server: uvicorn.Server | None = None
        self._serving: Future[None] | None = None

    def start(self) -> int:
        """Build the app and listen; returns the port.

        Raises:
            InvalidInput: the host is unknown.
            ServiceUnavailable: the address cannot be listened on.
        """
        listening = listen_shared(self._settings.host, self._settings.port)
        port: int = listening.getsockname()[1]
        self._thread.start()
        try:
            self._gateway = self.submit(self._build_gateway()).result()
            self._server = uvicorn.Server(self._config(self._gateway))
            self._serving = self.submit(self._server.serve(sockets=[listening]))
            self.submit(self._until_started(self._server)).result()
        except BaseException:
            listening.close()
            self._stop_loop()
            raise
        return port

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run `work` on the listener's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def is_healthy(self, timeout_s: float) -> bool:
        """Whether the loop still turns and the app is well; waits for at most `timeout_s`."""
        if self._gateway is None:
            return False
        try:
            return self.submit(self._ask_gateway()).result(timeout_s)
        except TimeoutError:
            return False

    def stop(self, drain_timeout_s: float) -> None:
        """Stop accepting, finish what is accepted within `drain_timeout_s`, end the thread."""
        if self._gateway is None or self._server is None or self._serving is None:
            return
        self._server.config.timeout_graceful_shutdown = math.ceil(drain_timeout_s)
        self._server.should_exit = True
        draining = self.submit(self._gateway.drain(drain_timeout_s))
        try:
            if not draining.result(drain_timeout_s + _STOP_MARGIN_S):
                logger.warning("requests were cut off after %s s", drain_timeout_s)
            self._serving.result(drain_timeout_s + _STOP_MARGIN_S)
        except TimeoutError:
            logger.warning("the HTTP server did not stop within its time")
        self._stop_loop()

    async def _build_gateway(self) -> Gateway:
        return await self._build()

    async def _ask_gateway(self) -> bool:
        return self._gateway is not None and self._gateway.is_healthy()

    async def _until_started(self, server: uvicorn.Server) -> None:
        while not server.started:
            if self._serving is not None and self._serving.done():
                self._serving.result()
                raise ServiceUnavailable("the HTTP server ended before it listened; see the log")
            await asyncio.sleep(0.005)

    def _config(self, app: Gateway) -> uvicorn.Config:
        settings = self._settings
        protocol = functools.partial(
            Connection,
            head_bytes_max=settings.head_bytes_max,
            stalled_timeout_s=settings.request_timeout_s,
        )
        return uvicorn.Config(
            app,
            http=cast(type[asyncio.Protocol], protocol),
            ws="none",
            lifespan="on",
            access_log=False,
            # Nothing here asks for a client's address, which these headers would only claim.
            proxy_headers=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=math.ceil(settings.keep_alive_s),
        )

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_MARGIN_S)


def listen_shared(host: str, port: int) -> socket.socket:
    """A listening socket on an address that other processes of this user may share.

    Raises:
        InvalidInput: the host is unknown.
        ServiceUnavailable: the address is taken.
    """
    opened = _bound(host, port, socket.SO_REUSEADDR, socket.SO_REUSEPORT)
    opened.listen(BACKLOG)
    opened.setblocking(False)
    return opened


def reserve_address(host: str, port: int) -> socket.socket:
    """Hold an address for replicas to share (port 0: any free one); nothing connects to it here.

    Bound alone, so that a port that anything else uses is refused, and made shareable then.

    Raises:
        InvalidInput: the host is unknown.
        ServiceUnavailable: the address is taken.
    """
    held = _bound(host, port, socket.SO_REUSEADDR)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return held


def _bound(host: str, port: int, *options: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        opened = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidInput(f"cannot listen on {host!r}: {error.strerror}") from None
    try:
        for option in options:
            opened.setsockopt(socket.SOL_SOCKET, option, 1)
        opened.bind(address)
    except OSError as error:
        opened.close()
        raise ServiceUnavailable(
            f"cannot listen on {host}:{port}: {error.strerror}; stop what uses it or set http.port"
        ) from None
    return opened
