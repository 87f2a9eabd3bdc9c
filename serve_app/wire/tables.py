"""Tables on the wire."""

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import PurePosixPath
from urllib.parse import quote

from pydantic import Field, TypeAdapter, ValidationError

from actors.model import (
    STABLE_ROW_IDS_PROPERTY,
    CreatedTable,
    DroppedTable,
    NewTable,
    TableDescription,
    TableRecord,
)
from cluster.errors import InvalidInput, Unsupported
from cluster.identifiers import ObjectId
from cluster.settings import LimitSettings
from serve_app.schema_json import Dialect, schema_to_json
from serve_app.wire.base import (
    Branch,
    Count,
    ObjectRequest,
    OperationResponse,
    Properties,
    Version,
    WireModel,
    check_map,
)
from serve_app.wire.schemas import JsonArrowSchema

_STRING_MAP: TypeAdapter[dict[str, str]] = TypeAdapter(dict[str, str])


class TableBasicStats(WireModel):
    """Counts that a table keeps."""

    num_deleted_rows: Count
    num_fragments: Count


class CreateTableResponse(OperationResponse):
    """A table after its creation."""

    transaction_id: str | None = None
    location: str | None = None
    version: Version | None = None
    storage_options: dict[str, str] | None = None
    properties: Properties | None = None

    @classmethod
    def of(cls, table: CreatedTable) -> "CreateTableResponse":
        """From the domain's answer."""
        return cls(
            transaction_id=table.transaction_id,
            location=table.record.location.uri,
            version=table.version,
            properties=dict(table.record.properties),
        )

    @classmethod
    def of_declared(cls, record: TableRecord) -> "CreateTableResponse":
        """A table that has a name and no data yet."""
        return cls(location=record.location.uri, properties=dict(record.properties))


class DeclareTableRequest(ObjectRequest):
    """How to reserve a table's name."""

    location: str | None = None
    vend_credentials: bool | None = None
    properties: Properties | None = None


class DeclareTableResponse(OperationResponse):
    """A declared table."""

    transaction_id: str | None = None
    location: str | None = None
    storage_options: dict[str, str] | None = None
    properties: Properties | None = None
    managed_versioning: bool | None = None

    @classmethod
    def of(cls, record: TableRecord) -> "DeclareTableResponse":
        """From the catalog's record."""
        return cls(location=record.location.uri, properties=dict(record.properties))


class RegisterMode(StrEnum):
    """What RegisterTable does when the name is taken."""

    CREATE = "create"
    OVERWRITE = "overwrite"


class RegisterTableRequest(ObjectRequest):
    """Which data to give a name to."""

    location: str = Field(description="Folder of the table, relative to the database's.")
    mode: str | None = Field(None, description="Create (default) or Overwrite.")
    properties: Properties | None = None


class RegisterTableResponse(OperationResponse):
    """A registered table; `location` is as the request wrote it."""

    transaction_id: str | None = None
    location: str | None = None
    properties: Properties | None = None


class DescribeTableRequest(ObjectRequest):
    """Which state of a table to describe, and how closely."""

    version: Version | None = None
    tag: str | None = None
    branch: Branch | None = None
    with_table_uri: bool | None = None
    load_detailed_metadata: bool | None = None
    check_declared: bool | None = None
    vend_credentials: bool | None = None


class DescribeTableResponse(OperationResponse):
    """A table at one version."""

    table: str | None = None
    namespace: list[str] | None = None
    version: Version | None = None
    location: str | None = None
    table_uri: str | None = None
    json_schema: JsonArrowSchema | None = Field(None, alias="schema")
    storage_options: dict[str, str] | None = None
    stats: TableBasicStats | None = None
    metadata: dict[str, str] | None = None
    properties: Properties | None = None
    managed_versioning: bool | None = None
    is_only_declared: bool | None = None

    @classmethod
    def of(
        cls, found: TableDescription, dialect: Dialect, *, with_uri: bool, with_declared: bool
    ) -> "DescribeTableResponse":
        """From the domain's answer, with the type names that the caller understands."""
        record = found.record
        uri = record.location.uri
        # The values are checked; constructing skips validating every field of the schema again.
        return cls.model_construct(
            table=record.id.name,
            namespace=list(record.id.parent.parts),
            version=found.version,
            location=uri,
            table_uri=_full_uri(uri) if with_uri else None,
            json_schema=_schema_of(found, dialect),
            stats=_stats_of(found),
            metadata=_metadata_of(found),
            properties=dict(record.properties),
            is_only_declared=record.is_only_declared if with_declared else None,
        )


class TableExistsRequest(ObjectRequest):
    """Which version must exist; any when absent."""

    version: Version | None = None


class DropTableResponse(OperationResponse):
    """The dropped table."""

    transaction_id: str | None = None
    id: list[str] | None = None
    location: str | None = None
    properties: Properties | None = None

    @classmethod
    def of(cls, dropped: DroppedTable) -> "DropTableResponse":
        """From the catalog's answer."""
        return cls(
            id=list(dropped.id.parts),
            location=dropped.location,
            properties=dict(dropped.properties),
        )


class DeregisterTableRequest(ObjectRequest):
    """Nothing but what every request may carry."""


class DeregisterTableResponse(OperationResponse):
    """The table whose name was forgotten."""

    transaction_id: str | None = None
    id: list[str] | None = None
    location: str | None = None
    properties: Properties | None = None

    @classmethod
    def of(cls, dropped: DroppedTable) -> "DeregisterTableResponse":
        """From the catalog's answer."""
        return cls(
            id=list(dropped.id.parts),
            location=dropped.location,
            properties=dict(dropped.properties),
        )


class RestoreTableRequest(ObjectRequest):
    """Which version to make current again."""

    version: Version
    branch: Branch | None = None


class RestoreTableResponse(OperationResponse):
    """The restoring transaction."""

    transaction_id: str | None = None


class RenameTableRequest(ObjectRequest):
    """The new name."""

    new_table_name: str
    new_namespace_id: list[str] | None = None


class RenameTableResponse(OperationResponse):
    """The renaming transaction."""

    transaction_id: str | None = None


class GetTableStatsRequest(ObjectRequest):
    """Which branch to look at."""

    branch: Branch | None = None


class FragmentSummary(WireModel):
    """Rows per fragment."""

    min: Count
    max: Count
    mean: Count
    p25: Count
    p50: Count
    p75: Count
    p99: Count


class FragmentStats(WireModel):
    """Fragments of a table."""

    num_fragments: Count
    num_small_fragments: Count
    lengths: FragmentSummary


class GetTableStatsResponse(OperationResponse):
    """Sizes of a table."""

    total_bytes: Count
    num_rows: Count
    num_indices: Count
    fragment_stats: FragmentStats


def new_table(
    table: ObjectId, properties: str | None, storage_options: str | None, limits: LimitSettings
) -> NewTable:
    """The table that CreateTable's query parameters ask for; both are JSON objects of strings.

    Raises:
        InvalidInput: one is not, or a property has a value that cannot be.
        Unsupported: storage options, which are the deployment's here.
    """
    if _parse_map(storage_options, "storage_options"):
        raise Unsupported("storage_options are set by the deployment; leave the parameter out")
    asked = check_properties(_parse_map(properties, "properties"), limits)
    return NewTable(
        table, asked, stable_row_ids=_stable_row_ids(asked.get(STABLE_ROW_IDS_PROPERTY))
    )


def check_properties(
    properties: Mapping[str, str] | None, limits: LimitSettings
) -> Mapping[str, str]:
    """The properties of a table that is to be.

    Raises:
        InvalidInput: they are too many or too long, or one has a value that cannot be.
    """
    asked = check_map(properties, "properties", limits)
    _stable_row_ids(asked.get(STABLE_ROW_IDS_PROPERTY))
    return asked


def _parse_map(text: str | None, field: str) -> dict[str, str]:
    if text is None:
        return {}
    try:
        return _STRING_MAP.validate_json(text, strict=True)
    except ValidationError:
        example = json.dumps({"owner": "alice"})
        raise InvalidInput(f"{field} is not a JSON object of strings such as {example}") from None


def _stable_row_ids(text: str | None) -> bool | None:
    if text is None:
        return None
    if text not in ("true", "false"):
        raise InvalidInput(f"property {STABLE_ROW_IDS_PROPERTY} {text!r} is not 'true' or 'false'")
    return text == "true"


def _full_uri(uri: str) -> str:
    return uri if "://" in uri else "file://" + quote(str(PurePosixPath(uri)))


def _schema_of(found: TableDescription, dialect: Dialect) -> JsonArrowSchema | None:
    return None if found.schema_ipc is None else schema_to_json(found.schema_ipc, dialect)


def _stats_of(found: TableDescription) -> TableBasicStats | None:
    if found.num_deleted_rows is None or found.num_fragments is None:
        return None
    return TableBasicStats(
        num_deleted_rows=found.num_deleted_rows, num_fragments=found.num_fragments
    )


def _metadata_of(found: TableDescription) -> dict[str, str] | None:
    counts = {
        "total_rows": found.num_rows,
        "total_fragments": found.num_fragments,
        "total_deletion_file_rows": found.num_deleted_rows,
        "total_files_size": found.total_bytes,
    }
    return {key: str(value) for key, value in counts.items() if value is not None} or None
