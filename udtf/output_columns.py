"""The columns that a NamedTuple, dataclass or TypedDict stands for.

    class Passage(NamedTuple):
        number: int
        text: str
        vector: Annotated[list[float], pa.list_(pa.float32(), 384)]

All are nullable; who wants other nullability gives a `pa.schema`.
"""

import collections.abc
import dataclasses
import datetime
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias, Union

import pyarrow as pa

from cluster.errors import InvalidInput

SchemaLike: TypeAlias = Any  # a pa.Schema, a mapping of names to types, or a record class

_SCALARS: dict[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.date: pa.date32(),
    datetime.datetime: pa.timestamp("us"),
    datetime.timedelta: pa.duration("us"),
}
_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable)
_ITERABLES = (
    list,
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.Generator,
    collections.abc.Sequence,
)


def read_schema(value: SchemaLike, field: str = "output_schema") -> pa.Schema:
    """The Arrow schema that an author gave in one of its forms.

    Raises:
        InvalidInput: it is none of them, or has a type without an Arrow type of its own.
    """
    if isinstance(value, pa.Schema):
        schema = value
    elif isinstance(value, Mapping):
        schema = pa.schema([(str(name), _arrow(kind, name)) for name, kind in value.items()])
    elif is_record(value):
        schema = pa.schema(_fields(value))
    else:
        raise InvalidInput(
            f"{field} must be a pyarrow schema, a dict of names and types, or a NamedTuple,"
            f" dataclass or TypedDict, not {value!r}"
        )
    if not schema.names:
        raise InvalidInput(f"{field} has no columns; a view needs at least one")
    return schema


def is_record(value: object) -> bool:
    """Whether the value is a class whose annotations name columns."""
    if not isinstance(value, type):
        return False
    is_tuple = issubclass(value, tuple) and hasattr(value, "_fields")
    return is_tuple or dataclasses.is_dataclass(value) or typing.is_typeddict(value)


def returned_record(function: Any) -> type | None:
    """The record class of `-> Iterator[Passage]` or `-> list[Passage]`; None of anything else.

    Raises:
        InvalidInput: the annotation names something that is not there.
    """
    name = getattr(function, "__name__", repr(function))
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, AttributeError, TypeError) as error:
        raise InvalidInput(f"the annotations of {name} cannot be read: {error}") from None
    returned = hints.get("return")
    arguments = typing.get_args(returned)
    if typing.get_origin(returned) in _ITERABLES and arguments and is_record(arguments[0]):
        record: type = arguments[0]
        return record
    return None


def _fields(record: Any) -> list[pa.Field]:
    try:
        hints = typing.get_type_hints(record, include_extras=True)
    except (NameError, TypeError) as error:
        raise InvalidInput(
            f"the fields of {record.__name__} cannot be read: {error}; define it at the top level"
            " of its module, with every type that it names"
        ) from None
    return [pa.field(name, _arrow(kind, name)) for name, kind in hints.items()]


def _arrow(kind: Any, name: object) -> pa.DataType:
    if isinstance(kind, pa.DataType):
        return kind
    if kind in _SCALARS:
        return _SCALARS[kind]
    if is_record(kind):
        return pa.struct(_fields(kind))
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        given = [extra for extra in arguments[1:] if isinstance(extra, pa.DataType)]
        return given[0] if given else _arrow(arguments[0], name)
    if origin in (Union, types.UnionType):
        others = [argument for argument in arguments if argument is not types.NoneType]
        if len(others) == 1:
            return _arrow(others[0], name)
    if origin in _LISTS and len(arguments) == 1:
        return pa.list_(_arrow(arguments[0], name))
    raise InvalidInput(
        f"column {name!r}: {kind!r} has no Arrow type of its own; write"
        " Annotated[..., <pyarrow type>], or give output_schema as a pyarrow schema"
    )
