"""Arrow schemas as JSON, in the two vocabularies of type names that clients understand."""

import json
from enum import Enum

import pyarrow as pa

from serve_app.wire.schemas import JsonArrowDataType, JsonArrowField, JsonArrowSchema
from udtf.view_record import shown_schema

Metadata = dict[bytes, bytes] | None

_EXTENSION_NAME = "ARROW:extension:name"
_EXTENSION_METADATA = "ARROW:extension:metadata"


class Dialect(Enum):
    """Whose type names to use.

    NAMESPACE are the names that Lance's own REST server sends to namespace clients; units, time
    zones and dictionaries have no place in them. LANCE are Lance's logical types, which LanceDB's
    client parses; it refuses NAMESPACE's `float32` or `utf8`.
    """

    NAMESPACE = "namespace"
    LANCE = "lance"


# The types whose name depends on nothing else: (NAMESPACE, LANCE).
_PLAIN_NAMES: dict[str, tuple[str, str]] = {
    "null": ("null", "null"),
    "bool": ("bool", "bool"),
    "int8": ("int8", "int8"),
    "int16": ("int16", "int16"),
    "int32": ("int32", "int32"),
    "int64": ("int64", "int64"),
    "uint8": ("uint8", "uint8"),
    "uint16": ("uint16", "uint16"),
    "uint32": ("uint32", "uint32"),
    "uint64": ("uint64", "uint64"),
    "halffloat": ("float16", "halffloat"),
    "float": ("float32", "float"),
    "double": ("float64", "double"),
    "string": ("utf8", "string"),
    "large_string": ("large_utf8", "large_string"),
    "string_view": ("utf8", "string"),
    "binary": ("binary", "binary"),
    "large_binary": ("large_binary", "large_binary"),
    "binary_view": ("binary", "binary"),
    "date32[day]": ("date32", "date32:day"),
    "date64[ms]": ("date64", "date64:ms"),
}


def schema_to_json(schema_ipc: bytes, dialect: Dialect) -> JsonArrowSchema:
    """The wire form of a schema that is given as an IPC message."""
    schema = shown_schema(pa.ipc.read_schema(pa.py_buffer(schema_ipc)))
    return JsonArrowSchema.model_construct(
        fields=[_field(field, dialect) for field in schema], metadata=_text(schema.metadata)
    )


def _field(field: pa.Field, dialect: Dialect) -> JsonArrowField:
    arrow_type = field.type
    metadata = _text(field.metadata) or {}
    if isinstance(arrow_type, pa.BaseExtensionType):
        # pyarrow moves the extension's keys out of the metadata; readers look for them there.
        metadata[_EXTENSION_NAME] = arrow_type.extension_name
        metadata[_EXTENSION_METADATA] = _extension_metadata(arrow_type)
        arrow_type = arrow_type.storage_type
    return JsonArrowField.model_construct(
        name=field.name,
        nullable=field.nullable,
        type=_type(arrow_type, dialect),
        metadata=metadata or None,
    )


def _extension_metadata(arrow_type: pa.BaseExtensionType) -> str:
    """The parameters of an extension type, as Arrow writes them into a field's metadata."""
    if isinstance(arrow_type, pa.ExtensionType):
        return str(arrow_type.__arrow_ext_serialize__().decode(errors="replace"))
    # The types that pyarrow brings along do not tell; of them these two have parameters.
    names: tuple[str, ...] = ()
    if isinstance(arrow_type, pa.FixedShapeTensorType):
        names = ("shape", "dim_names", "permutation")
    elif isinstance(arrow_type, pa.OpaqueType):
        names = ("type_name", "vendor_name")
    parameters = {name: getattr(arrow_type, name) for name in names}
    told = {name: value for name, value in parameters.items() if value is not None}
    return json.dumps(told, separators=(",", ":")) if told else ""


def _type(arrow_type: pa.DataType, dialect: Dialect) -> JsonArrowDataType:
    if dialect is Dialect.NAMESPACE and pa.types.is_dictionary(arrow_type):
        return _type(arrow_type.value_type, dialect)
    return JsonArrowDataType.model_construct(
        type=_name(arrow_type, dialect),
        fields=_children(arrow_type, dialect),
        length=_length(arrow_type, dialect),
    )


def _name(arrow_type: pa.DataType, dialect: Dialect) -> str:
    plain = _PLAIN_NAMES.get(str(arrow_type))
    if plain is not None:
        return plain[dialect is Dialect.LANCE]
    nested = _nested_name(arrow_type)
    if nested is not None:
        return nested
    return _sized_name(arrow_type) if dialect is Dialect.NAMESPACE else _lance_name(arrow_type)


def _nested_name(arrow_type: pa.DataType) -> str | None:
    if pa.types.is_fixed_size_list(arrow_type):
        return "fixed_size_list"
    if pa.types.is_large_list(arrow_type) or pa.types.is_large_list_view(arrow_type):
        return "large_list"
    if pa.types.is_list(arrow_type) or pa.types.is_list_view(arrow_type):
        return "list"
    if pa.types.is_struct(arrow_type):
        return "struct"
    if pa.types.is_map(arrow_type):
        return "map"
    return None


def _sized_name(arrow_type: pa.DataType) -> str:
    """The name without its parameters: `timestamp` of `timestamp[us, tz=UTC]`."""
    return str(arrow_type).partition("[")[0].partition("(")[0]


def _lance_name(arrow_type: pa.DataType) -> str:
    name = _sized_name(arrow_type)
    if pa.types.is_timestamp(arrow_type):
        return f"timestamp:{arrow_type.unit}:{arrow_type.tz or '-'}"
    if pa.types.is_time(arrow_type) or pa.types.is_duration(arrow_type):
        return f"{name}:{arrow_type.unit}"
    if pa.types.is_decimal(arrow_type):
        return f"decimal:{arrow_type.bit_width}:{arrow_type.precision}:{arrow_type.scale}"
    if pa.types.is_dictionary(arrow_type):
        value = _name(arrow_type.value_type, Dialect.LANCE)
        index = _name(arrow_type.index_type, Dialect.LANCE)
        return f"dict:{value}:{index}:{str(arrow_type.ordered).lower()}"
    return name


def _length(arrow_type: pa.DataType, dialect: Dialect) -> int | None:
    if pa.types.is_fixed_size_list(arrow_type):
        return int(arrow_type.list_size)
    if pa.types.is_fixed_size_binary(arrow_type):
        return int(arrow_type.byte_width)
    if pa.types.is_decimal(arrow_type) and dialect is Dialect.NAMESPACE:
        return int(arrow_type.precision) * 1000 + int(arrow_type.scale)
    return None


def _children(arrow_type: pa.DataType, dialect: Dialect) -> list[JsonArrowField] | None:
    if pa.types.is_map(arrow_type):
        entries = pa.struct([arrow_type.key_field, arrow_type.item_field])
        return [_field(pa.field("entries", entries, nullable=False), dialect)]
    if _nested_name(arrow_type) is None:
        return None
    return [_field(arrow_type.field(index), dialect) for index in range(arrow_type.num_fields)]


def _text(metadata: Metadata) -> dict[str, str] | None:
    if not metadata:
        return None
    return {
        key.decode(errors="replace"): value.decode(errors="replace")
        for key, value in metadata.items()
    }
