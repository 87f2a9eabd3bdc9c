"""Frozen values as JSON and back, by their declared types.

What is stored outlives the code that wrote it: keys that are not known are passed over, and what is
missing takes its default.
"""

import dataclasses
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """`value` (dataclasses, tuples, mappings, enums, plain values) as json.dumps takes it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    return value


def from_json(kind: type[T], value: Any) -> T:
    """The reverse of to_json for a value of type `kind`."""
    decoded: T = _decode(kind, value)
    return decoded


def _decode(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _decode(next(arg for arg in get_args(kind) if arg is not NoneType), value)
    if origin is tuple:
        return tuple(_decode(get_args(kind)[0], item) for item in value)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return kind(
            **{name: _decode(type_, value[name]) for name, type_ in _fields(kind) if name in value}
        )
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    return value


@lru_cache(maxsize=128)
def _fields(kind: type) -> list[tuple[str, Any]]:
    hints = get_type_hints(kind)
    return [(field.name, hints[field.name]) for field in dataclasses.fields(kind)]
