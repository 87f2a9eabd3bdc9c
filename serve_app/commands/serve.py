"""`destrier serve`: the server as one command, from nothing to `ready` and back to nothing."""

import argparse
import contextlib
import ipaddress
import os
import signal
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

from cluster import distribution, runtime, telemetry
from cluster.errors import DestrierError, InvalidInput, ServiceUnavailable
from cluster.settings import ENVIRONMENT_PREFIX, Settings, load_settings
from serve_app.commands import failure
from serve_app.keys import ensure_admin_key
from serve_app.listener import reserve_address

_SIGNALS_S = 0.02
_READY_TIMEOUT_S = 30.0
_READY_POLL_S = 0.02
# Beyond the time for accepted requests: replicas, actors and Ray itself end within a few seconds.
_END_MARGIN_S = 30.0


def add_parser(subparsers: Any) -> None:
    """Add `serve`."""
    parser = subparsers.add_parser("serve", help="start a server")
    parser.add_argument("--root", help="folder or URI of the tables (storage.root)")
    parser.add_argument("--host", help="address to listen on (http.host)")
    parser.add_argument("--port", type=int, help="TCP port, 0 for a free one (http.port)")
    parser.add_argument("--database", help="database of requests that name none (storage.database)")
    parser.add_argument("--config", type=Path, help="settings file (TOML)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; see the package for exit codes."""
    telemetry.configure_logging()
    try:
        distribution.check_packages()
        with _reserved(_settings(args)) as settings, ThreadPoolExecutor(1) as executor:
            # In a thread, so that a signal never breaks into Ray's start: an exception between a
            # lock's taking and its release would hang the process. This thread has the signals.
            joined, stop = threading.Event(), threading.Event()
            life = executor.submit(_live, settings, joined, stop)
            while not (joined.is_set() or life.done()):
                # Ray's libraries take SIGTERM at some moment of their start: it is taken back.
                _set_on_signals(stop)
                joined.wait(_SIGNALS_S)
            _set_on_signals(stop)
            life.result()
    except DestrierError as error:
        return failure.report(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, operators get a sentence
        last_line = (str(error).splitlines() or [""])[-1]
        print(f"destrier: could not start: {type(error).__name__}: {last_line}", file=sys.stderr)
        return failure.REFUSED
    return 0


def _set_on_signals(stop: threading.Event) -> None:
    """The first SIGINT or SIGTERM sets `stop`; the second ends the process at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


def _settings(args: argparse.Namespace) -> Settings:
    """The settings, with an absolute root: replicas run in folders of their own.

    Raises:
        InvalidInput: they are wrong, or would let everyone in from outside.
    """
    given = {
        ("storage", "root"): args.root,
        ("storage", "database"): args.database,
        ("http", "host"): args.host,
        ("http", "port"): args.port,
    }
    overrides = {name: value for name, value in given.items() if value is not None}
    settings = load_settings(args.config, overrides=overrides).settings
    if settings.auth.mode == "off" and not _is_loopback(settings.http.host):
        raise InvalidInput(
            f"auth.mode is off and http.host is {settings.http.host}: everyone who reaches it would"
            " be administrator; turn authentication on or listen on 127.0.0.1"
        )
    if "://" not in settings.storage.root:
        root = str(Path(settings.storage.root).expanduser().absolute())
        settings = _replaced(settings, "storage", root=root)
    return settings


@contextlib.contextmanager
def _reserved(settings: Settings) -> Iterator[Settings]:
    """Hold the address from before anything starts; port 0 becomes the port that was found."""
    held = reserve_address(settings.http.host, settings.http.port)
    try:
        port: int = held.getsockname()[1]
        if settings.http.ingress == "serve":
            # HAProxy takes the port for itself alone.
            held.close()
        yield _replaced(settings, "http", port=port)
    finally:
        held.close()


def _live(settings: Settings, joined: threading.Event, stop: threading.Event) -> None:
    """Start everything, say so, wait for `stop`, end everything; `joined` tells that Ray runs."""
    url = f"http://{_authority(settings)}{settings.http.base_path}"
    _introduce_administrator(settings, url)
    _forget_environment()
    runtime.prepare_environment(settings)
    # Ray Serve takes a second to import, which Ray's own start leaves room for.
    importing = threading.Thread(target=_import_deployment, daemon=True)
    end_timeout_s = settings.http.drain_timeout_s + _END_MARGIN_S
    with runtime.ray_cluster(settings, importing.start, end_timeout_s) as cluster:
        joined.set()
        importing.join()
        if stop.is_set():
            return
        from serve_app import deployment

        try:
            deployment.run(settings)
            if _becomes_ready(f"http://{_authority(settings)}/-/readyz", stop):
                print(f"ready {url}", flush=True)
            stop.wait()
        finally:
            cluster.limit_end()
            deployment.stop(settings)
            runtime.end_actors(settings.ray.namespace)


def _forget_environment() -> None:
    """Keep settings out of the processes that Ray starts, which users' code could look into."""
    for name in [name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)]:
        del os.environ[name]


def _import_deployment() -> None:
    import serve_app.deployment  # noqa: F401


def _introduce_administrator(settings: Settings, url: str) -> None:
    """On the first start, make the administrator's key and show it, once."""
    key = ensure_admin_key(settings)
    if key is None:
        return
    print(
        "This is the administrator's key. It is stored as a hash and cannot be shown again:\n"
        f"  {key}\n"
        "When the server is ready, list its tables:\n"
        f"  curl -H 'x-api-key: {key}' {url}/v1/table",
        flush=True,
    )


def _becomes_ready(probe: str, stop: threading.Event) -> bool:
    """Wait for a replica's answer; False if `stop` comes first.

    Raises:
        ServiceUnavailable: neither came in time.
    """
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if stop.is_set():
            return False
        try:
            with urllib.request.urlopen(probe, timeout=_READY_TIMEOUT_S):  # noqa: S310 - our own
                return True
        except OSError:
            time.sleep(_READY_POLL_S)
    raise ServiceUnavailable(f"replicas started, but {probe} does not answer")


def _authority(settings: Settings) -> str:
    """Host and port for a client on this machine."""
    host = settings.http.host
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_unspecified:
            address = ipaddress.ip_address("::1" if address.version == 6 else "127.0.0.1")
        host = f"[{address}]" if address.version == 6 else str(address)
    return f"{host}:{settings.http.port}"


def _is_loopback(host: str) -> bool:
    """Whether every address of `host` reaches this machine alone."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(address[4][0]).is_loopback for address in found)


def _replaced(settings: Settings, section: str, **fields: Any) -> Settings:
    """`settings` with some fields of one section set anew."""
    changed = getattr(settings, section).model_copy(update=fields)
    return settings.model_copy(update={section: changed})
