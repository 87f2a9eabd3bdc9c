"""What a materialized view is: its kind, its source query, its output and the code behind it.

A definition is checked whole when the view is created, before anything is written; nothing here
opens a table, runs code or looks into the source query.
"""

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa

from cluster.errors import InvalidInput, PermissionDenied, Unsupported
from cluster.settings import LimitSettings, ViewSettings
from udtf.checked import (
    check_sha256,
    normal_sha256,
    read_amount,
    read_base64,
    read_flag,
    read_list,
    read_object,
    read_text,
    utf8,
)
from udtf.envelope import parse_envelope
from udtf.error_policy import check_error_policy

SOURCE_ROW_ID = "__source_row_id"
CHUNK_INDEX = "__chunk_index"
LINEAGE_COLUMNS = frozenset({SOURCE_ROW_ID, CHUNK_INDEX})

# Labels are shown in listings and errors.
LABEL_BYTES_MAX = 256
# A path names one level of nesting per part, and schemas end long before this.
FIELD_PATH_BYTES_MAX = 4_096

_UDTF_KEYS = frozenset(
    {
        "kind",
        "udtf",
        "udtf_sha",
        "udtf_name",
        "udtf_version",
        "input_columns",
        "partition_by",
        "partition_by_indexed_column",
        "num_cpus",
        "num_gpus",
        "memory",
        "error_handling",
        "batch",
        "manifest",
        "manifest_checksum",
    }
)
_UDTF_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
# Lance answers these names itself and refuses to store columns so called.
_LANCE_COLUMNS = frozenset(
    {
        "_rowid",
        "_rowaddr",
        "_rowoffset",
        "_row_created_at_version",
        "_row_last_updated_at_version",
    }
)


class ViewKind(StrEnum):
    """How the rows of a view come from its source."""

    QUERY = "query"
    UDTF = "udtf"
    CHUNKER = "chunker"


# LanceDB's older name of a chunker.
_KIND_ALIASES = {"scalar_udtf": ViewKind.CHUNKER}


@dataclass(frozen=True, slots=True)
class UdtfSpec:
    """The code of a `udtf` or `chunker` view and how to run it.

    `envelope` is the decoded code envelope and `sha256` its lower-case hexadecimal digest. What is
    None takes the deployment's default. `memory_bytes` is what one worker asks Ray for.
    `error_handling` is canonical JSON, see udtf/error_policy.py.
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
    view_kind = parse_kind(kind)
    return ViewDefinition(
        kind=view_kind,
        source_query=read_text(source_query, "source_query", limits.source_query_bytes_max),
        output_schema=_output_schema(output_schema, limits),
        udtf=_udtf(view_kind, udtf_spec, limits, views),
        auto_refresh=read_flag(auto_refresh, "auto_refresh"),
    )


def parse_kind(text: object, field: str = "kind") -> ViewKind:
    """The kind that `text` names; `scalar_udtf` is another name of `chunker`.

    Raises:
        InvalidInput: no such kind.
    """
    if isinstance(text, str):
        if text in _KIND_ALIASES:
            return _KIND_ALIASES[text]
        if text in list(ViewKind):
            return ViewKind(text)
    raise InvalidInput(f"{field} must be one of {', '.join(ViewKind)}, not {text!r}")


def _output_schema(text: object, limits: LimitSettings) -> bytes:
    data = read_base64(text, "output_schema", limits.output_schema_bytes_max)
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError):
        raise InvalidInput(
            "output_schema is not an Arrow schema; send the base64 of an Arrow IPC schema message"
        ) from None
    fields = [field for field in schema if field.name not in LINEAGE_COLUMNS]
    if not fields:
        raise InvalidInput("output_schema has no columns; a view needs at least one")
    _check_fields(fields, "", limits.columns_max)
    for field in fields:
        if not field.name:
            raise InvalidInput("output_schema has a column without a name; name it")
        if field.name in _LANCE_COLUMNS:
            raise InvalidInput(f"output_schema: the column name {field.name!r} is reserved")
        if "." in field.name:
            raise InvalidInput(
                f"output_schema: the column name {field.name!r} holds a dot; use a struct column"
            )
    return bytes(pa.schema(fields, metadata=schema.metadata).serialize())


def _check_fields(fields: list[pa.Field], path: str, fields_max: int) -> int:
    """Check the names at every level; returns how many fields there are."""
    names: set[str] = set()
    count = 0
    for field in fields:
        full_name = f"{path}{field.name}"
        if field.name in names:
            raise InvalidInput(f"output_schema has two fields {full_name!r}; rename one")
        names.add(field.name)
        children = [field.type.field(n) for n in range(field.type.num_fields)]
        count += 1 + _check_fields(children, f"{full_name}.", fields_max)
        if count > fields_max:
            raise InvalidInput(f"output_schema has more than {fields_max} fields; use fewer")
    return count


def _udtf(
    kind: ViewKind,
    value: Mapping[str, Any] | None,
    limits: LimitSettings,
    views: ViewSettings,
) -> UdtfSpec | None:
    if kind is ViewKind.QUERY:
        if value is not None:
            raise InvalidInput("udtf_spec must be null when kind is query; leave it out")
        return None
    if value is None:
        raise InvalidInput(f"udtf_spec is required when kind is {kind}")
    _check_code_is_on(kind, views)
    spec = read_object(value, "udtf_spec", _UDTF_KEYS)
    if spec.get("kind") is not None and parse_kind(spec["kind"], "udtf_spec.kind") is not kind:
        raise InvalidInput(
            f"udtf_spec.kind is {spec['kind']!r}, but kind is {kind}; make them agree"
        )
    # Before anything looks into the envelope: what was sent is what was meant.
    envelope, sha256 = _checked_envelope(spec, limits)
    _check_allowed(sha256, views)
    batch = _batch(spec, kind)
    partition_by, indexed = _partition(spec, kind)
    udtf = UdtfSpec(
        envelope=envelope,
        sha256=sha256,
        name=_name(spec),
        version=read_text(spec.get("udtf_version"), "udtf_spec.udtf_version", LABEL_BYTES_MAX),
        input_columns=_input_columns(spec.get("input_columns"), limits),
        partition_by=partition_by,
        partition_by_indexed_column=indexed,
        num_cpus=read_amount(spec.get("num_cpus"), "udtf_spec.num_cpus"),
        num_gpus=_gpus(spec),
        memory_bytes=_memory(spec),
        error_handling=_error_handling(spec, kind),
        batch=batch,
        manifest=_manifest(spec, limits),
    )
    _check_envelope(udtf, kind, limits, views)
    return udtf


def _checked_envelope(spec: Mapping[str, Any], limits: LimitSettings) -> tuple[bytes, str]:
    text = spec.get("udtf")
    envelope = read_base64(text, "udtf_spec.udtf", limits.udtf_envelope_bytes_max)
    # The specification does not say whether the digest is of the bytes or of their base64.
    sha256 = check_sha256(spec.get("udtf_sha"), "udtf_spec.udtf_sha", envelope, str(text).encode())
    return envelope, sha256


def check_code_allowed(definition: ViewDefinition, views: ViewSettings) -> None:
    """Refuse to run code of a stored view that this deployment would not accept any more.

    Raises:
        Unsupported: it runs no user code.
        PermissionDenied: this code is not on its list.
    """
    if definition.udtf is not None:
        _check_code_is_on(definition.kind, views)
        _check_allowed(definition.udtf.sha256, views)


def _check_code_is_on(kind: ViewKind, views: ViewSettings) -> None:
    if views.user_code == "off":
        raise Unsupported(
            f"this deployment accepts no user code, so no view of kind {kind};"
            " its operator can change the setting views.user_code"
        )


def _check_allowed(sha256: str, views: ViewSettings) -> None:
    if views.user_code != "allow-list":
        return
    if sha256 not in {normal_sha256(listed) for listed in views.user_code_sha256}:
        raise PermissionDenied(
            f"the code with SHA-256 {sha256} is not on this deployment's list;"
            " its operator can add it to the setting views.user_code_sha256"
        )


def _name(spec: Mapping[str, Any]) -> str:
    name = read_text(spec.get("udtf_name"), "udtf_spec.udtf_name", LABEL_BYTES_MAX)
    if not _UDTF_NAME.fullmatch(name):
        raise InvalidInput(
            f"udtf_spec.udtf_name {name!r}: use letters, digits, '_', '.' and '-',"
            " the first a letter or '_'"
        )
    return name


def _input_columns(value: object, limits: LimitSettings) -> tuple[str, ...] | None:
    if value is None:
        return None
    field = "udtf_spec.input_columns"
    columns = read_list(value, field, limits.columns_max)
    seen: set[str] = set()
    for column in columns:
        if read_text(column, field, FIELD_PATH_BYTES_MAX) in seen:
            raise InvalidInput(f"{field} names {column!r} twice; name each column once")
        seen.add(column)
    return tuple(columns)


def _partition(spec: Mapping[str, Any], kind: ViewKind) -> tuple[str | None, str | None]:
    keys = ("partition_by", "partition_by_indexed_column")
    paths = [
        None
        if spec.get(key) is None
        else read_text(spec[key], f"udtf_spec.{key}", FIELD_PATH_BYTES_MAX)
        for key in keys
    ]
    for key, path in zip(keys, paths, strict=True):
        if path is not None and kind is not ViewKind.UDTF:
            raise InvalidInput(f"udtf_spec.{key} is for kind udtf only; leave it out")
    if None not in paths:
        raise InvalidInput(f"udtf_spec has both {keys[0]} and {keys[1]}; keep one")
    return paths[0], paths[1]


def _batch(spec: Mapping[str, Any], kind: ViewKind) -> bool:
    batch = read_flag(spec.get("batch"), "udtf_spec.batch")
    if batch and kind is not ViewKind.CHUNKER:
        raise InvalidInput("udtf_spec.batch is for kind chunker only; leave it out")
    return batch


def _gpus(spec: Mapping[str, Any]) -> float | None:
    gpus = read_amount(spec.get("num_gpus"), "udtf_spec.num_gpus")
    # Ray shares one GPU between workers, but cannot give a worker one and a half.
    if gpus is not None and gpus > 1 and not gpus.is_integer():
        raise InvalidInput(f"udtf_spec.num_gpus must be whole when above 1, not {gpus}")
    return gpus


def _memory(spec: Mapping[str, Any]) -> int | None:
    memory = read_amount(spec.get("memory"), "udtf_spec.memory")
    return None if memory is None else math.ceil(memory)


def _error_handling(spec: Mapping[str, Any], kind: ViewKind) -> str | None:
    value = spec.get("error_handling")
    if value is None:
        return None
    if kind is not ViewKind.UDTF:
        raise InvalidInput("udtf_spec.error_handling is for kind udtf only; leave it out")
    return check_error_policy(value, "udtf_spec.error_handling")


def _manifest(spec: Mapping[str, Any], limits: LimitSettings) -> str | None:
    field = "udtf_spec.manifest"
    checksum = spec.get("manifest_checksum")
    if spec.get("manifest") is None:
        if checksum is not None:
            raise InvalidInput("udtf_spec.manifest_checksum is given without a manifest")
        return None
    manifest = read_text(spec["manifest"], field, limits.udtf_manifest_bytes_max)
    if checksum is not None:
        check_sha256(checksum, "udtf_spec.manifest_checksum", utf8(manifest, field))
    return manifest


def _check_envelope(
    udtf: UdtfSpec, kind: ViewKind, limits: LimitSettings, views: ViewSettings
) -> None:
    served = (sys.version_info.major, sys.version_info.minor)
    envelope = parse_envelope(udtf.envelope, kind, udtf.batch, limits, views, served)
    for field, said, inside in (
        ("udtf_name", udtf.name, envelope.name),
        ("udtf_version", udtf.version, envelope.udtf_version),
    ):
        if inside not in (None, said):
            raise InvalidInput(
                f"udtf_spec.{field} is {said!r}, but the envelope says {inside!r}; make them agree"
            )
