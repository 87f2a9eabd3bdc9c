"""The deployment: replicas of the whole server, started, checked and replaced by Ray Serve.

The composition root of a process: here, and nowhere else, the domain, the app, the gateway and the
HTTP server meet.
"""

import asyncio
import contextlib
import io
import logging
import math
import os
from typing import TYPE_CHECKING

from ray import serve
from ray.serve import Application

from cluster import telemetry
from cluster.errors import DestrierError, InvalidInput, ServiceUnavailable
from cluster.settings import Settings
from serve_app.gateway import Gateway
from serve_app.listener import Listener

if TYPE_CHECKING:
    from actors.server import Server

logger = logging.getLogger(__name__)

APPLICATION = "destrier"
DEPLOYMENT = "server"

# Beyond the time for accepted requests, for closing connections and handles.
_STOP_MARGIN_S = 10.0
# A turn of an event loop takes milliseconds; one that takes this long is stuck.
_LOOP_TURN_S_MAX = 10.0
_LOGGING = {"enable_access_log": False, "log_level": "WARNING"}


async def build_gateway(settings: Settings, replica: str) -> Gateway:
    """The whole server of one process, on the running event loop."""
    # Imported where they run: the driver deploys without loading Lance.
    from actors.server import Server
    from serve_app.app import create_app
    from serve_app.auth import build_authenticator

    server = Server.on_ray(settings)
    app = create_app(settings, server, build_authenticator(settings))
    resuming = asyncio.create_task(_resume_jobs(server))

    async def close() -> None:
        resuming.cancel()
        await server.close()

    return Gateway(
        app,
        settings,
        server.healthy,
        replica,
        close,
        tells_request_id=settings.http.ingress == "direct",
    )


async def _resume_jobs(server: "Server") -> None:
    try:
        await server.resume_jobs()
    except DestrierError as error:
        logger.warning("jobs go on when the next request asks for them: %s", error.message)


class ListeningReplica:
    """A replica that listens itself; Ray Serve starts, checks and replaces it."""

    def __init__(self, settings: Settings) -> None:
        telemetry.configure_logging()
        self._settings = settings
        replica = serve.get_replica_context().replica_id.unique_id
        self._listener = Listener(settings.http, lambda: build_gateway(settings, replica))
        self._listener.start()

    async def check_health(self) -> None:
        """Raise if this replica is to be replaced."""
        if not await asyncio.to_thread(self._listener.is_healthy, _LOOP_TURN_S_MAX):
            raise ServiceUnavailable("this replica can no longer answer; it is being replaced")

    async def __del__(self) -> None:
        await asyncio.to_thread(self._listener.stop, self._settings.http.drain_timeout_s)


@serve.ingress()
class ServedReplica:
    """A replica behind Ray Serve's own HTTP."""

    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc] # Serve awaits it
        telemetry.configure_logging()
        self._settings = settings
        replica = serve.get_replica_context().replica_id.unique_id
        self._gateway = await build_gateway(settings, replica)

    def __serve_build_asgi_app__(self) -> Gateway:
        return self._gateway

    async def check_health(self) -> None:
        """Raise if this replica is to be replaced."""
        if not self._gateway.is_healthy():
            raise ServiceUnavailable("this replica can no longer answer; it is being replaced")

    async def __del__(self) -> None:
        await self._gateway.drain(self._settings.http.drain_timeout_s)


def build(settings: Settings) -> Application:
    """The application for `serve.run`, or for a Serve config file (`serve_app.deployment:build`).

    Raises:
        InvalidInput: the settings cannot be served.
    """
    http = settings.http
    if http.ingress == "direct" and http.port == 0:
        raise InvalidInput("replicas share one port, so http.port cannot be 0 here; choose one")
    replica = ListeningReplica if http.ingress == "direct" else ServedReplica
    deploy = serve.deployment(
        name=DEPLOYMENT,
        num_replicas=http.replicas or default_replicas(),
        # Logical only: replicas and table actors must start on a machine whose cores are all taken.
        ray_actor_options={"num_cpus": 0},
        # Serve would let a request wait for its turn; the gateway refuses it at once.
        max_ongoing_requests=2 * http.requests_in_flight_max,
        graceful_shutdown_timeout_s=http.drain_timeout_s + _STOP_MARGIN_S,
        graceful_shutdown_wait_loop_s=0.1,
        # What fails at start, a wrong root above all, fails again.
        max_constructor_retry_count=2,
        logging_config=_LOGGING,
    )
    return deploy(replica).bind(settings)


def run(settings: Settings) -> None:
    """Start Serve, unless it runs, deploy, and wait until every replica is ready.

    Raises:
        ServiceUnavailable: the replicas did not start; the log says why.
    """
    http = settings.http
    # Serve tells each step of its own; what went wrong is enough.
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    if http.ingress == "direct":
        serve.start(proxy_location="Disabled", logging_config=_LOGGING)
    else:
        serve.start(
            proxy_location="HeadOnly",
            http_options={
                "host": http.host,
                "port": http.port,
                "keep_alive_timeout_s": math.ceil(http.keep_alive_s),
            },
            logging_config=_LOGGING,
        )
    try:
        serve.run(build(settings), name=APPLICATION, route_prefix=_route_prefix(settings))
    except RuntimeError as error:
        raise ServiceUnavailable(
            f"replicas did not start, the log above says why: {error}"
        ) from error


def stop(settings: Settings) -> None:
    """End the application, whose replicas finish what they have accepted, and our own Serve."""
    serve.delete(APPLICATION)
    if settings.ray.address is None:
        # Ray reports, on this process's standard output, that Serve's controller ended itself.
        with contextlib.redirect_stdout(io.StringIO()):
            serve.shutdown()  # type: ignore[no-untyped-call]


def default_replicas() -> int:
    """Two where there is a second core to use, else one."""
    return 2 if len(os.sched_getaffinity(0)) > 1 else 1


def _route_prefix(settings: Settings) -> str | None:
    return None if settings.http.ingress == "direct" else "/"
