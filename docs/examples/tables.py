"""Tables over plain HTTP, as far as the examples need them; any client of Lance's protocol does."""

import io
import json
from typing import Any, Self

import httpx
import pyarrow as pa

ARROW_STREAM = "application/vnd.apache.arrow.stream"


class Tables:
    """The tables of the default database."""

    def __init__(self, url: str, api_key: str) -> None:
        self._http = httpx.Client(
            base_url=f"{url}/v1/table/", headers={"x-api-key": api_key}, timeout=120
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def create(self, name: str, rows: pa.Table) -> None:
        """Make a table of these rows."""
        self._send(f"{name}/create", _stream(rows), ARROW_STREAM)

    def insert(self, name: str, rows: pa.Table) -> None:
        """Add rows."""
        self._send(f"{name}/insert", _stream(rows), ARROW_STREAM)

    def update(self, name: str, predicate: str, **expressions: str) -> None:
        """Set columns to SQL expressions."""
        self._ask(f"{name}/update", predicate=predicate, updates=list(expressions.items()))

    def delete(self, name: str, predicate: str) -> None:
        """Delete rows."""
        self._ask(f"{name}/delete", predicate=predicate)

    def _ask(self, path: str, **body: Any) -> None:
        self._send(path, json.dumps(body).encode(), "application/json")

    def _send(self, path: str, body: bytes, content_type: str) -> None:
        answer = self._http.post(path, content=body, headers={"content-type": content_type})
        if not answer.is_success:
            raise SystemExit(f"{path} was refused: {answer.text}")


def _stream(rows: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()
