"""What a table's own metadata forbid, and which metadata nobody but us may write."""

from collections.abc import Iterable

import pyarrow as pa

from cluster.errors import InvalidInput, InvalidTableState
from udtf.view_record import RESERVED_METADATA_PREFIXES, is_view


def refuse_view(schema: pa.Schema) -> None:
    """Refuse to write rows of a materialized view: only its refresh may.

    Raises:
        InvalidTableState: the schema is a view's.
    """
    metadata = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
    if is_view(metadata):
        raise InvalidTableState(
            "this table is a materialized view; its rows change by a refresh only"
        )


def refuse_reserved(keys: Iterable[str]) -> None:
    """Refuse metadata that would make a table a view, or another view, past every check.

    Raises:
        InvalidInput: names the key.
    """
    for key in keys:
        if key.startswith(RESERVED_METADATA_PREFIXES):
            raise InvalidInput(f"schema metadata {key!r} is reserved for views; use another key")


def without_reserved(schema: pa.Schema) -> pa.Schema:
    """A new table's schema: rows copied out of a view bring its metadata, but make no view."""
    metadata = {
        key: value
        for key, value in (schema.metadata or {}).items()
        if not key.decode(errors="replace").startswith(RESERVED_METADATA_PREFIXES)
    }
    return schema.with_metadata(metadata or None)
