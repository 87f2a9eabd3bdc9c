"""`destrier routes`: every operation, its path, and the function that answers it."""

import argparse
from typing import Any

from fastapi.routing import APIRoute


def add_parser(subparsers: Any) -> None:
    """Add `routes`."""
    parser = subparsers.add_parser("routes", help="show every operation and where it is answered")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print one line per route; see the package for exit codes."""
    print("\n".join(route_lines()))
    return 0


def route_lines() -> list[str]:
    """`METHOD path OperationId module:function`, sorted by path."""
    # The app takes half a second to import, which the other commands do not need.
    from serve_app.app import ROUTERS

    rows = sorted(
        (route.path, method, route.operation_id or "", _name(route))
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    )
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        f"{method:<{widths[1]}} {path:<{widths[0]}} {operation:<{widths[2]}} {name}"
        for path, method, operation, name in rows
    ]


def _name(route: APIRoute) -> str:
    return f"{route.endpoint.__module__}:{route.endpoint.__name__}"
