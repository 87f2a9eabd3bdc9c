"""What a materialized view is: its kind, its source query, its output and the code behind it.

A definition is checked whole when the view is created, before anything is written; nothing here
opens a table, runs code or looks at the source query.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cluster.settings import LimitSettings, ViewSettings


class ViewKind(StrEnum):
    """How the rows of a view come from its source."""

    QUERY = "query"
    UDTF = "udtf"
    CHUNKER = "chunker"


@dataclass(frozen=True, slots=True)
class UdtfSpec:
    """The code of a `udtf` or `chunker` view and how to run it.

    `envelope` is the decoded code envelope and `sha256` its lower-case hexadecimal digest. Resources
    that are None take the deployment's; `memory_bytes` is what one worker asks Ray for.
    `error_handling` is canonical JSON.
    """

    envelope: bytes
    sha256: str
    name: str
    version: str
    input_columns: tuple[str, ...] | None = None
    partition_by: str | None = None
    partition_by_indexed_column: str | None = None
    num_cpus: float | None = None
    num_gpus: float | None = None
    memory_bytes: int | None = None
    error_handling: str | None = None
    batch: bool = False
    manifest: str | None = None


@dataclass(frozen=True, slots=True)
class ViewDefinition:
    """A view as its creator asked for it.

    `source_query` is kept byte for byte. `output_schema` is an Arrow IPC schema message without the
    lineage columns, which every view of its kind has anyway.
    """

    kind: ViewKind
    source_query: str
    output_schema: bytes
    udtf: UdtfSpec | None = None
    auto_refresh: bool = False


def check_view_definition(
    kind: str,
    source_query: str,
    output_schema: str,
    udtf_spec: Mapping[str, Any] | None,
    auto_refresh: bool | None,
    limits: LimitSettings,
    views: ViewSettings,
) -> ViewDefinition:
    """Check what a CreateMaterializedView request says of the view.

    Raises:
        InvalidInput: a field is malformed; the message names it.
        Unsupported: the deployment accepts no user code.
        PermissionDenied: the deployment accepts listed code only, and this is not listed.
    """
    raise NotImplementedError
