"""Questions about Arrow types that pyarrow has no single answer to."""

import pyarrow as pa
from pyarrow import types


def is_text(type_: pa.DataType) -> bool:
    """Whether values are UTF-8 strings, in whichever layout."""
    return bool(
        types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_)
    )


def is_bytes(type_: pa.DataType) -> bool:
    """Whether values are bytes of varying length, in whichever layout."""
    return bool(
        types.is_binary(type_) or types.is_large_binary(type_) or types.is_binary_view(type_)
    )


def is_list(type_: pa.DataType) -> bool:
    """Whether values are lists of varying length, in whichever layout (maps are not lists)."""
    return bool(types.is_list(type_) or types.is_large_list(type_) or is_list_view(type_))


def is_list_view(type_: pa.DataType) -> bool:
    """Whether values are lists that may share their items."""
    return bool(types.is_list_view(type_) or types.is_large_list_view(type_))


def has_offsets(type_: pa.DataType) -> bool:
    """Whether values, or values inside them, are of varying length."""
    return (
        is_text(type_)
        or is_bytes(type_)
        or is_list(type_)
        or bool(types.is_map(type_))
        or any(has_offsets(child.type) for child in children_of(type_))
    )


def bare_type(type_: pa.DataType) -> pa.DataType:
    """The type of the values themselves: an extension's storage, a dictionary's values."""
    while True:
        if isinstance(type_, pa.BaseExtensionType):
            type_ = type_.storage_type
        elif types.is_dictionary(type_):
            type_ = type_.value_type
        else:
            return type_


def children_of(type_: pa.DataType) -> list[pa.Field]:
    """The fields directly inside a type."""
    bare = bare_type(type_)
    return [bare.field(i) for i in range(bare.num_fields)]


def has_dictionary(type_: pa.DataType) -> bool:
    """Whether values, or values inside them, are indices of a dictionary."""
    if isinstance(type_, pa.BaseExtensionType):
        return has_dictionary(type_.storage_type)
    return bool(types.is_dictionary(type_)) or any(
        has_dictionary(child.type) for child in children_of(type_)
    )


def decode_texts(fields: list[pa.Field]) -> None:
    """Decode every text of a schema; UnicodeDecodeError if one is not UTF-8.

    Arrow decodes them when they are asked for, and Lance ends its thread with a panic.
    """
    for field in fields:
        str(field.name)
        bare = bare_type(field.type)
        if types.is_timestamp(bare):
            str(bare.tz)
        decode_texts(children_of(bare))
