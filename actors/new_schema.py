"""What a new table's schema may hold: what Lance 14.0.2 can store, read back and name.

Layouts that Lance lacks (views, narrow dictionary indices) become the nearest that it has; the
values are the same. Anything else that it cannot store is refused here with the column's name,
for some of it Lance accepts and then cannot read.
"""

from collections import Counter
from typing import NoReturn

import pyarrow as pa
from pyarrow import types

from actors.arrow_types import children_of, is_bytes, is_list, is_text
from actors.column_text import TYPE_CHARACTERS_MAX, child_path, shorten
from actors.extension_values import JSON_EXTENSION
from cluster.errors import TableSchemaValidationError
from cluster.settings import LimitSettings

RESERVED_NAMES = frozenset(
    {
        "_rowid",
        "_rowaddr",
        "_rowoffset",
        "_row_created_at_version",
        "_row_last_updated_at_version",
        "_distance",
        "_score",
    }
)
"""Columns that Lance adds to what a scan returns."""
DEPTH_MAX = 60
"""Levels of nesting. Arrow's interface to Lance refuses more than 64 when the table is read."""
RAW_JSON_EXTENSION = "lance.json"


def check_new_schema(schema: pa.Schema, limits: LimitSettings) -> pa.Schema:
    """The schema that a table created from `schema` gets.

    TableSchemaValidationError, naming the column, for names and types that a table cannot have
    and for more fields or metadata than `limits` allow.
    """
    if len(schema) == 0:
        raise TableSchemaValidationError("The schema has no columns; a table needs one or more.")
    _check_count(list(schema), limits.columns_max)
    _check_metadata(schema.metadata, "The schema", limits)
    _check_names(schema.names, None)
    for name in schema.names:
        _check_column_name(name)
    fields = [_store(field, None, 1, limits) for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def _check_count(fields: list[pa.Field], count_max: int) -> None:
    count, level = 0, fields
    while level:
        count += len(level)
        if count > count_max:
            raise TableSchemaValidationError(
                f"The schema has more than {count_max} fields, nested ones counted."
            )
        level = [child for field in level for child in children_of(field.type)]


def _check_metadata(metadata: dict[bytes, bytes] | None, owner: str, limits: LimitSettings) -> None:
    entries = metadata or {}
    if len(entries) > limits.metadata_entries_max:
        raise TableSchemaValidationError(
            f"{owner} has more than {limits.metadata_entries_max} metadata entries."
        )
    if sum(len(key) + len(value) for key, value in entries.items()) > limits.metadata_bytes_max:
        raise TableSchemaValidationError(
            f"{owner} has more than {limits.metadata_bytes_max} bytes of metadata."
        )
    for text in (text for entry in entries.items() for text in entry):
        try:
            text.decode()
        except UnicodeDecodeError:
            raise TableSchemaValidationError(
                f"{owner} has metadata that are not UTF-8; encode bytes as base64."
            ) from None


def _check_names(names: list[str], parent: str | None) -> None:
    place = "The schema" if parent is None else f"Column {parent}"
    for name, count in Counter(names).items():
        if count > 1:
            raise TableSchemaValidationError(
                f"Column {child_path(parent, name)} occurs {count} times; names must differ."
            )
        if name == "":
            raise TableSchemaValidationError(f"{place} has a field without a name; name it.")
        if "\0" in name:
            raise TableSchemaValidationError(
                f"{place} has a field whose name contains the character NUL; rename it."
            )


def _check_column_name(name: str) -> None:
    """Nested names may hold what Lance cannot resolve in a column's name."""
    for character in ("`", "."):
        if character in name:
            raise TableSchemaValidationError(
                f"Column {child_path(None, name)} must not have {character} in its name; rename it."
            )
    if name.lower() in RESERVED_NAMES:
        raise TableSchemaValidationError(
            f"Column {child_path(None, name)} has a name that is reserved; rename it."
        )


def _store(field: pa.Field, parent: str | None, depth: int, limits: LimitSettings) -> pa.Field:
    path = child_path(parent, field.name)
    if depth > DEPTH_MAX:
        raise TableSchemaValidationError(
            f"Column {path} is nested more than {DEPTH_MAX} levels deep."
        )
    _check_metadata(field.metadata, f"Column {path}", limits)
    if (field.metadata or {}).get(b"ARROW:extension:name") == RAW_JSON_EXTENSION.encode():
        raise TableSchemaValidationError(
            f"Column {path} has type {RAW_JSON_EXTENSION}, Lance's own form; send {JSON_EXTENSION}."
        )
    return field.with_type(_store_type(field.type, path, depth, limits))


def _store_type(type_: pa.DataType, path: str, depth: int, limits: LimitSettings) -> pa.DataType:
    if isinstance(type_, pa.BaseExtensionType):
        return _store_extension(type_, path, depth, limits)
    if types.is_string_view(type_):
        return pa.string()
    if types.is_binary_view(type_):
        return pa.binary()
    if types.is_dictionary(type_):
        return _store_dictionary(type_, path)
    if types.is_struct(type_):
        return _store_struct(type_, path, depth, limits)
    if is_list(type_):
        is_large = types.is_large_list(type_) or types.is_large_list_view(type_)
        item = _store(type_.value_field, path, depth + 1, limits)
        return pa.large_list(item) if is_large else pa.list_(item)
    if types.is_fixed_size_list(type_):
        return _store_fixed_size_list(type_, path, depth, limits)
    if types.is_map(type_):
        # Sorted maps hold the same entries; Lance knows no such flag.
        key = _store(type_.key_field, path, depth + 2, limits)
        item = _store(type_.item_field, path, depth + 2, limits)
        return pa.map_(key.with_nullable(False), item)
    if _is_storable_leaf(type_):
        return type_
    _refuse(type_, path)


def _is_storable_leaf(type_: pa.DataType) -> bool:
    return is_text(type_) or is_bytes(type_) or _is_fixed_width(type_)


def _is_fixed_width(type_: pa.DataType) -> bool:
    return bool(
        types.is_null(type_)
        or types.is_boolean(type_)
        or types.is_integer(type_)
        or types.is_floating(type_)
        or types.is_date(type_)
        or types.is_time(type_)
        or types.is_timestamp(type_)
        or types.is_duration(type_)
        or _is_storable_decimal(type_)
        or types.is_fixed_size_binary(type_)
    )


def _is_storable_decimal(type_: pa.DataType) -> bool:
    is_wide = types.is_decimal128(type_) or types.is_decimal256(type_)
    return bool(is_wide and -128 <= type_.scale <= 127)


def _store_extension(
    type_: pa.BaseExtensionType, path: str, depth: int, limits: LimitSettings
) -> pa.DataType:
    if type_.extension_name == JSON_EXTENSION:
        return pa.json_()
    if _store_type(type_.storage_type, path, depth, limits) != type_.storage_type:
        _refuse(type_, path)
    return type_


def _store_dictionary(type_: pa.DictionaryType, path: str) -> pa.DataType:
    """Lance joins dictionaries of a file and then needs wider indices than 8 or 16 bits.

    It writes them whatever the column's type says, and cannot read them back.
    """
    values = type_.value_type
    if types.is_string_view(values):
        values = pa.string()
    elif types.is_binary_view(values):
        values = pa.binary()
    elif not (
        is_text(values)
        or is_bytes(values)
        or types.is_integer(values)
        or types.is_floating(values)
        or types.is_boolean(values)
    ):
        _refuse(type_, path)
    indices = pa.int32() if type_.index_type.bit_width < 32 else type_.index_type
    return pa.dictionary(indices, values)


def _store_struct(
    type_: pa.StructType, path: str, depth: int, limits: LimitSettings
) -> pa.DataType:
    if type_.num_fields == 0:
        raise TableSchemaValidationError(f"Column {path} is a struct without fields; add one.")
    _check_names([field.name for field in type_], path)
    return pa.struct([_store(field, path, depth + 1, limits) for field in type_])


def _store_fixed_size_list(
    type_: pa.FixedSizeListType, path: str, depth: int, limits: LimitSettings
) -> pa.DataType:
    """Lance writes some of structs that it cannot read, and keeps nothing of the item's field."""
    item = type_.value_type
    if type_.list_size == 0 or not (_is_fixed_width(item) or types.is_fixed_size_list(item)):
        _refuse(type_, path)
    stored = _store(type_.value_field, path, depth + 1, limits)
    return pa.list_(stored.with_nullable(True).remove_metadata(), type_.list_size)


def _refuse(type_: pa.DataType, path: str) -> NoReturn:
    raise TableSchemaValidationError(
        f"Column {path} has type {shorten(str(type_), TYPE_CHARACTERS_MAX)}, which a table cannot"
        " store."
    )
