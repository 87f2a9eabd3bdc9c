"""How the rows of one materialized view are computed, and what its authors import.

Compute, no ownership: nothing here commits, schedules or answers a request.

The names below are loaded when they are first used: a worker of a view imports this package too,
and has no use for HTTP and progress bars.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from udtf.authoring import Source, chunker, udtf
    from udtf.client import ViewClient
    from udtf.on_error import (
        Fail,
        Retry,
        Skip,
        fail_fast,
        retry_all,
        retry_transient,
        skip_on_error,
    )

__all__ = [
    "Fail",
    "Retry",
    "Skip",
    "Source",
    "ViewClient",
    "chunker",
    "fail_fast",
    "retry_all",
    "retry_transient",
    "skip_on_error",
    "udtf",
]

_MODULES = {
    "Source": "authoring",
    "ViewClient": "client",
    "chunker": "authoring",
    "udtf": "authoring",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_MODULES.get(name, 'on_error')}")
    return getattr(module, name)
