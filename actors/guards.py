"""What a table's own metadata forbid."""

import pyarrow as pa

from cluster.errors import InvalidTableState
from udtf.view_record import is_view


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
