"""The rights that views ask for beyond the one on the path, which depend on their definitions."""

import pyarrow as pa

from actors.model import LATEST
from cluster.errors import InvalidTableState
from cluster.identifiers import ObjectId, TableRef
from serve_app.dependencies import Call
from serve_app.rights import Right
from udtf.source_query import RecognisedQuery, recognise
from udtf.spec import ViewDefinition, ViewKind
from udtf.view_record import stored_view


def require_source(call: Call, source_query: str) -> RecognisedQuery | None:
    """What the source query says, if the caller may read the table that it names.

    Raises:
        PermissionDenied: they may not.
    """
    query = recognise(source_query)
    if query is not None:
        source = ObjectId.of(query.source_id)
        call.caller.require(Right.READ, call.database, source)
    return query


async def require_refresh(call: Call, view: TableRef, *, cascade: bool) -> None:
    """Refuse unless the caller may refresh the view, and with `cascade` the views that it reads.

    Raises:
        PermissionDenied: names the right and the object.
        InvalidTableState: the table is no view.
    """
    definition = await _definition(call, view)
    if definition is None:
        raise InvalidTableState(f"table {view.id} is no materialized view; name a view")
    seen: set[TableRef] = set()
    while definition is not None and view not in seen:
        seen.add(view)
        call.caller.require(Right.WRITE, view.database, view.id)
        if definition.kind is not ViewKind.QUERY:
            call.caller.require(Right.EXECUTE_CODE, view.database, view.id)
        query = require_source(call, definition.source_query)
        if not cascade or query is None or _is_pinned(query):
            return
        view = TableRef(call.database, ObjectId.of(query.source_id))
        definition = await _definition(call, view)


def _is_pinned(query: RecognisedQuery) -> bool:
    """Whether no refresh of the source changes what the query shows."""
    return not (query.version is None and query.tag is None and query.branch is None)


async def _definition(call: Call, table: TableRef) -> ViewDefinition | None:
    """The definition of a view; None of any other table."""
    described = await call.server.describe_table(table, LATEST, detailed=False)
    if described.schema_ipc is None:
        return None
    return stored_view(pa.ipc.read_schema(pa.py_buffer(described.schema_ipc)))
