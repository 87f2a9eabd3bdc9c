"""What domain tests need: Arrow streams, keys, and a server with a table in it."""

import io
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa

from actors.model import CreateMode, NewTable, RequestKey
from actors.server import Server
from cluster.identifiers import ObjectId, TableRef
from cluster.settings import Settings

DATABASE = "db"


def ipc(table: pa.Table) -> bytes:
    """The table as an Arrow IPC stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def new_key(digest: str = "0" * 32) -> RequestKey:
    """A request that nobody has made yet."""
    return RequestKey(uuid.uuid4().hex, digest)


def ref(*parts: str) -> TableRef:
    """A table of the tests' database."""
    return TableRef(DATABASE, ObjectId.of(parts))


def make_settings(root: Path, **sections: dict[str, Any]) -> Settings:
    """Settings over a temporary folder."""
    return Settings.model_validate({"storage": {"root": str(root)}, **sections})


async def make_table(server: Server, table: TableRef, rows: pa.Table, **new: Any) -> None:
    """Create a table with rows."""
    await server.create_table(
        table.database, NewTable(table.id, **new), CreateMode.CREATE, new_key(), ipc(rows)
    )
