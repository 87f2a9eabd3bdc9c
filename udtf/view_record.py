"""A view as it is stored: the schema of its table and what the schema's metadata say.

The layout is LanceDB's, whose clients then see a query view as a view of their own: projected
columns, all nullable, and `__source_row_id`; the definition in `mv.definition`. What LanceDB has no
place for is in keys of our own, which every view has.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from cluster.errors import InvalidInput, InvalidTableState
from udtf.checked import canonical_json, check_sha256
from udtf.source_query import LANCEDB_FORMAT, lancedb_query
from udtf.spec import (
    CHUNK_INDEX,
    LINEAGE_COLUMNS,
    SOURCE_ROW_ID,
    UdtfSpec,
    ViewDefinition,
    ViewKind,
    parse_kind,
)

LANCEDB_DEFINITION = "mv.definition"
INCARNATION = "mv.incarnation"
KIND = "destrier.view.kind"
SOURCE_QUERY = "destrier.view.source_query"
OUTPUT_SCHEMA = "destrier.view.output_schema"
AUTO_REFRESH = "destrier.view.auto_refresh"
UDTF_SPEC = "destrier.view.udtf_spec"

# The code of a view and its environment, whose variables may be secrets: for its refreshes alone,
# whoever may read its rows.
PRIVATE_METADATA = frozenset({UDTF_SPEC})

# Whoever could write these keys could make a view of any table, past every check.
RESERVED_METADATA_PREFIXES = ("mv.", "destrier.view.")


def shown_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of a table or view as everyone may see it who may read the rows."""
    metadata = {
        key: value
        for key, value in (schema.metadata or {}).items()
        if key.decode(errors="replace") not in PRIVATE_METADATA
    }
    return schema.with_metadata(metadata or None)


def view_schema(definition: ViewDefinition) -> pa.Schema:
    """The schema of the view's table, with the creator's own schema metadata.

    A row of a `query` or `chunker` view names the source row that it comes from; a `udtf` view is
    always computed whole and has no such column.
    """
    schema = pa.ipc.read_schema(pa.py_buffer(definition.output_schema))
    fields = list(schema)
    if definition.kind is ViewKind.QUERY:
        fields = [field.with_nullable(True) for field in fields]
    if definition.kind is not ViewKind.UDTF:
        fields.append(pa.field(SOURCE_ROW_ID, pa.uint64(), nullable=False))
    if definition.kind is ViewKind.CHUNKER:
        fields.append(pa.field(CHUNK_INDEX, pa.int32(), nullable=False))
    metadata = {
        key: value
        for key, value in (schema.metadata or {}).items()
        if not key.decode(errors="replace").startswith(RESERVED_METADATA_PREFIXES)
    }
    return pa.schema(fields, metadata=metadata)


def view_metadata(definition: ViewDefinition, incarnation: str) -> dict[str, str]:
    """The entries of schema metadata that make a table this view."""
    metadata = {
        INCARNATION: incarnation,
        KIND: definition.kind.value,
        SOURCE_QUERY: definition.source_query,
        OUTPUT_SCHEMA: base64.b64encode(definition.output_schema).decode(),
        AUTO_REFRESH: "true" if definition.auto_refresh else "false",
    }
    if definition.udtf is not None:
        metadata[UDTF_SPEC] = canonical_json(_udtf_record(definition.udtf))
    query = None
    if definition.kind is ViewKind.QUERY:
        names = pa.ipc.read_schema(pa.py_buffer(definition.output_schema)).names
        query = lancedb_query(definition.source_query, names)
    if query is not None:
        metadata[LANCEDB_DEFINITION] = json.dumps(
            {"format": LANCEDB_FORMAT, "kind": "query", "query": query}, separators=(",", ":")
        )
    return metadata


def is_view(metadata: Mapping[str, str]) -> bool:
    """Whether a table with this schema metadata is a view, made here or by LanceDB."""
    return KIND in metadata or LANCEDB_DEFINITION in metadata


def read_view(metadata: Mapping[str, str]) -> ViewDefinition | None:
    """The definition that `view_metadata` wrote; None of a table, or of a view that LanceDB made.

    Raises:
        InvalidTableState: the record is damaged, or the code is not what its digest says.
    """
    if KIND not in metadata:
        return None
    try:
        spec = metadata.get(UDTF_SPEC)
        return ViewDefinition(
            kind=parse_kind(metadata[KIND]),
            source_query=metadata[SOURCE_QUERY],
            output_schema=base64.b64decode(metadata[OUTPUT_SCHEMA], validate=True),
            udtf=None if spec is None else _read_udtf(json.loads(spec)),
            auto_refresh=metadata[AUTO_REFRESH] == "true",
        )
    except (InvalidInput, KeyError, TypeError, ValueError) as error:
        raise InvalidTableState(
            f"the view's record in the schema metadata is damaged: {error}"
        ) from None


def stored_view(schema: pa.Schema) -> ViewDefinition | None:
    """The definition of the view whose table has this schema; None if it is no view's.

    A view that LanceDB made is a query view, whose source query is LanceDB's definition.

    Raises:
        InvalidTableState: the record is damaged, or the code is not what its digest says.
    """
    metadata = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
    found = read_view(metadata)
    if found is not None or LANCEDB_DEFINITION not in metadata:
        return found
    fields = [field for field in schema if field.name not in LINEAGE_COLUMNS]
    output = bytes(pa.schema(fields).serialize())
    return ViewDefinition(ViewKind.QUERY, metadata[LANCEDB_DEFINITION], output)


def _udtf_record(spec: UdtfSpec) -> dict[str, Any]:
    """As the request spells it, so that a stored view can be created again from its record."""
    record: dict[str, Any] = {
        "udtf": base64.b64encode(spec.envelope).decode(),
        "udtf_sha": spec.sha256,
        "udtf_name": spec.name,
        "udtf_version": spec.version,
        "input_columns": None if spec.input_columns is None else list(spec.input_columns),
        "partition_by": spec.partition_by,
        "partition_by_indexed_column": spec.partition_by_indexed_column,
        "num_cpus": spec.num_cpus,
        "num_gpus": spec.num_gpus,
        "memory": spec.memory_bytes,
        "error_handling": json.loads(spec.error_handling) if spec.error_handling else None,
        "batch": spec.batch or None,
        "manifest": spec.manifest,
    }
    return {key: value for key, value in record.items() if value is not None}


def _read_udtf(record: Mapping[str, Any]) -> UdtfSpec:
    envelope = base64.b64decode(record["udtf"], validate=True)
    columns = record.get("input_columns")
    policy = record.get("error_handling")
    return UdtfSpec(
        envelope=envelope,
        sha256=check_sha256(record["udtf_sha"], "udtf_sha", envelope),
        name=record["udtf_name"],
        version=record["udtf_version"],
        input_columns=None if columns is None else tuple(columns),
        partition_by=record.get("partition_by"),
        partition_by_indexed_column=record.get("partition_by_indexed_column"),
        num_cpus=record.get("num_cpus"),
        num_gpus=record.get("num_gpus"),
        memory_bytes=record.get("memory"),
        error_handling=None if policy is None else canonical_json(policy),
        batch=record.get("batch", False),
        manifest=record.get("manifest"),
    )
