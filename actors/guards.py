"""What a table's own metadata forbid, and which metadata nobody but us may write."""

from collections.abc import Iterable

import pyarrow as pa

from cluster.errors import InvalidInput, InvalidTableState
from cluster.identifiers import ObjectId
from udtf.view_record import RESERVED_METADATA_PREFIXES, is_view


def text_metadata(schema: pa.Schema) -> dict[str, str]:
    """The schema's own metadata as text."""
    metadata = (schema.metadata or {}).items()
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, value in metadata}


def refuse_view(schema: pa.Schema, table: ObjectId) -> None:
    """Refuse to write rows of a materialized view: only its refresh may.

    Raises:
        InvalidTableState: the schema of `table` is a view's.
    """
    if is_view(text_metadata(schema)):
        raise InvalidTableState(
            f"{table} is a materialized view, whose rows only a refresh changes; refresh it, or"
            " write to its source"
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
