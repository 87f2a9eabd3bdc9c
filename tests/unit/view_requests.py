"""Requests for views that are right, for tests to change one thing of."""

import base64
import hashlib
import json
import sys
from typing import Any

import pyarrow as pa

from cluster.settings import LimitSettings, ViewSettings
from udtf.spec import ViewDefinition, check_view_definition

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("label", pa.string())])
SOURCE = "def expand(source):\n    yield source\n"


def encoded(schema: pa.Schema) -> str:
    """A schema as a request carries it."""
    return base64.b64encode(schema.serialize()).decode()


def envelope(kind: str, /, **changes: Any) -> bytes:
    """A code envelope; a change to None removes the key."""
    value: dict[str, Any] = {
        "format": "lance-udtf",
        "version": 1,
        "kind": kind,
        "entrypoint": "expand",
        "artifact": {"encoding": "python-source", "data": SOURCE},
        "abi": {"name": "arrow-partition" if kind == "udtf" else "row-chunker", "version": 1},
        "runtime": {"python": PYTHON},
    }
    value |= changes
    return json.dumps({key: item for key, item in value.items() if item is not None}).encode()


def spec(view_kind: str, /, data: bytes | None = None, **changes: Any) -> dict[str, Any]:
    """A udtf_spec around the envelope `data`."""
    data = envelope(view_kind) if data is None else data
    return {
        "udtf": base64.b64encode(data).decode(),
        "udtf_sha": hashlib.sha256(data).hexdigest(),
        "udtf_name": "expand",
        "udtf_version": "1",
    } | changes


def check(
    kind: str = "query",
    source_query: str = "SELECT id, label FROM docs",
    output_schema: str = encoded(SCHEMA),
    udtf_spec: dict[str, Any] | None = None,
    auto_refresh: Any = None,
    limits: LimitSettings | None = None,
    views: ViewSettings | None = None,
) -> ViewDefinition:
    """Check a request that is right but for the arguments given."""
    return check_view_definition(
        kind,
        source_query,
        output_schema,
        udtf_spec,
        auto_refresh,
        limits or LimitSettings(),
        views or ViewSettings(),
    )
