"""Which column or field a name in SQL means."""

from collections.abc import Sequence

import pyarrow as pa
from sqlglot.tokens import Token

from actors.field_paths import find_struct_field, format_field_path, resolve_typed_field_path
from actors.sql_tokens import place
from cluster.errors import InvalidInput, TableColumnNotFound


class SqlNames:
    """Resolves names against a schema and remembers which columns were named."""

    def __init__(self, schema: pa.Schema, system_columns: frozenset[str]) -> None:
        self._schema = schema
        self._system_columns = system_columns
        self.columns: set[str] = set()

    def column(
        self, token: Token, parts: Sequence[str], *, double_quoted: bool
    ) -> tuple[str, pa.DataType | None]:
        """The exact path of the field that `parts` means, and its type if it is known.

        `token` is where the path begins.

        Raises:
            InvalidInput: no such column or field, or several that differ in case only.
        """
        if len(parts) == 1 and parts[0] in self._system_columns:
            return format_field_path(parts), None
        try:
            names, data_type = resolve_typed_field_path(parts, self._schema)
        except TableColumnNotFound as error:
            hint = "; text stands in single quotes, not double ones" if double_quoted else ""
            raise InvalidInput(f"{error.message}{hint} ({place(token)})") from error
        self.columns.add(names[0])
        return format_field_path(names), data_type

    def is_column(self, name: str) -> bool:
        """Whether `name` means a column of the table."""
        try:
            resolve_typed_field_path([name], self._schema)
        except TableColumnNotFound:
            return False
        return True


def field_of_value(token: Token, value_type: pa.DataType | None) -> tuple[str, pa.DataType | None]:
    """The exact name of the field `token` of a value, and its type, as far as they are known.

    Raises:
        InvalidInput: values of this type have no such field.
    """
    name = str(token.text)
    if value_type is None:
        return name, None
    try:
        field = find_struct_field(name, value_type, "the value before the dot")
    except TableColumnNotFound as error:
        raise InvalidInput(f"{error.message} ({place(token)})") from error
    return field.name, field.type
