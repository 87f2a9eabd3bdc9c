"""Field paths: how a client names a column or a field inside a struct.

Dots separate the levels, `a.b`; a level that holds a dot or a backtick stands in backticks, with
backticks inside it doubled: a.`b.c`, a.`b``c`.
"""

import re
from collections.abc import Sequence

import pyarrow as pa

from cluster.errors import InvalidInput, TableColumnNotFound

_LEVEL = re.compile(r"`(?P<quoted>(?:[^`]|``)*)`|(?P<plain>[^.`]+)")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# Names that an error message lists at most.
_CANDIDATES_SHOWN_MAX = 20


def parse_field_path(text: str) -> tuple[str, ...]:
    """Split `text` into one name per level.

    Raises:
        InvalidInput: an empty level or a stray backtick.
    """
    parts: list[str] = []
    position = 0
    while True:
        match = _LEVEL.match(text, position)
        name = "" if match is None else match["plain"] or match["quoted"].replace("``", "`")
        if match is None or not name:
            raise InvalidInput(
                f"field path {text!r}: a name is missing or a backtick is not closed at character"
                f" {position + 1}; write names separated by single dots, such as a.b or a.`b.c`"
            )
        parts.append(name)
        position = match.end()
        if position == len(text):
            return tuple(parts)
        if text[position] != ".":
            raise InvalidInput(
                f"field path {text!r}: a dot is missing at character {position + 1}; put the whole"
                " name in backticks and double the backticks inside it"
            )
        position += 1


def format_field_path(parts: Sequence[str]) -> str:
    """The text that parse_field_path and Lance's SQL read as `parts`: every name in backticks."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def resolve_field_path(parts: Sequence[str], schema: pa.Schema) -> tuple[str, ...]:
    """The names of the field that `parts` means, in the schema's own case.

    At each level the name in exactly this case wins, else the only one that differs in case.

    Raises:
        TableColumnNotFound: no such field; lists those that there are.
        InvalidInput: several names differ from this one in case only.
    """
    return resolve_typed_field_path(parts, schema)[0]


def resolve_typed_field_path(
    parts: Sequence[str], schema: pa.Schema
) -> tuple[tuple[str, ...], pa.DataType]:
    """As resolve_field_path, with the field's type."""
    if not parts:
        raise InvalidInput("a field path is empty; name a column")
    field = _find_column(parts[0], schema)
    names = [field.name]
    for part in parts[1:]:
        field = find_struct_field(part, field.type, _shown(names))
        names.append(field.name)
    return tuple(names), field.type


def find_struct_field(name: str, parent: pa.DataType, parent_path: str) -> pa.Field:
    """The field `name` of a value of type `parent`; errors as in resolve_field_path.

    `parent_path` is how error messages name the parent.
    """
    storage = parent.storage_type if isinstance(parent, pa.BaseExtensionType) else parent
    if is_list(storage):
        raise TableColumnNotFound(
            f"{parent_path} is a list and has no field {name!r}; pick an element first, as in"
            f" {parent_path}[1].{_shown([name])}"
        )
    if not pa.types.is_struct(storage):
        raise TableColumnNotFound(f"{parent_path} is {parent} and has no fields, so no {name!r}")
    index = storage.get_field_index(name)
    if index < 0:
        index = _find_other_case(name, [field.name for field in storage], f"field of {parent_path}")
    if index < 0:
        fields = _listing([field.name for field in storage])
        raise TableColumnNotFound(f"{parent_path} has no field {name!r}; it has: {fields}")
    return storage.field(index)


def is_list(data_type: pa.DataType) -> bool:
    """Whether values of this type are lists of any kind."""
    return bool(
        pa.types.is_list(data_type)
        or pa.types.is_large_list(data_type)
        or pa.types.is_fixed_size_list(data_type)
    )


def _find_column(name: str, schema: pa.Schema) -> pa.Field:
    index = schema.get_field_index(name)
    if index < 0:
        index = _find_other_case(name, schema.names, "column")
    if index < 0:
        raise TableColumnNotFound(
            f"unknown column {name!r}; the table has: {_listing(schema.names)}"
        )
    return schema.field(index)


def _find_other_case(name: str, candidates: Sequence[str], what: str) -> int:
    """Index of the only candidate that differs from `name` in case; -1 if there is none."""
    wanted = name.lower()
    found = [index for index, candidate in enumerate(candidates) if candidate.lower() == wanted]
    if len(found) > 1:
        names = _listing([candidates[index] for index in found])
        raise InvalidInput(
            f"{what} {name!r} is ambiguous: write one of {names} in exactly its case"
        )
    return found[0] if found else -1


def _shown(parts: Sequence[str]) -> str:
    """A path as people write it: backticks only where they are needed."""
    return ".".join(
        part if _PLAIN_NAME.fullmatch(part) else format_field_path([part]) for part in parts
    )


def _listing(names: Sequence[str]) -> str:
    shown = ", ".join(_shown([name]) for name in names[:_CANDIDATES_SHOWN_MAX])
    more = len(names) - _CANDIDATES_SHOWN_MAX
    return f"{shown} and {more} more" if more > 0 else shown or "no columns"
