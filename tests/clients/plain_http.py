"""Destrier over plain HTTP, with nothing between a test and the wire but httpx."""

import io
from typing import Any, Self

import httpx
import pyarrow as pa

from tests.clients.running_server import DATABASE_HEADER, RunningServer

ARROW_STREAM = "application/vnd.apache.arrow.stream"


def stream(table: pa.Table, compression: str | None = None, rows: int | None = None) -> bytes:
    """The table as an Arrow IPC stream, in batches of `rows`."""
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, rows)
    return sink.getvalue()


class Database:
    """One database of a running server, as one caller sees it."""

    def __init__(self, server: RunningServer, name: str, key: str | None = None) -> None:
        self.server = server
        self.name = name
        headers = {"x-api-key": key or server.admin_key, DATABASE_HEADER: name}
        self.http = httpx.Client(base_url=server.url, headers=headers, timeout=120)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def post(
        self,
        path: str,
        json: Any = None,
        *,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
        **query: str,
    ) -> httpx.Response:
        """POST to a path after `/v1/`."""
        return self.http.post(
            f"/v1/{path}", json=json, content=content, params=query, headers=headers
        )

    def ask(self, table: str, operation: str, /, **body: Any) -> Any:
        """The answer of a JSON operation on a table, which must succeed."""
        return right(self.post(f"table/{table}/{operation}", body)).json()

    def create(self, table: str, rows: pa.Table, **query: str) -> Any:
        """Create a table."""
        return self.send(table, "create", rows, **query)

    def insert(self, table: str, rows: pa.Table, **query: str) -> Any:
        """Insert rows."""
        return self.send(table, "insert", rows, **query)

    def send(self, table: str, operation: str, rows: pa.Table, **query: str) -> Any:
        """The answer of an operation that takes rows, which must succeed."""
        return right(self.send_stream(table, operation, stream(rows), None, **query)).json()

    def send_stream(
        self,
        table: str,
        operation: str,
        body: bytes,
        headers: dict[str, str] | None = None,
        **query: str,
    ) -> httpx.Response:
        """POST an Arrow IPC stream."""
        headers = {"content-type": ARROW_STREAM, **(headers or {})}
        return self.post(f"table/{table}/{operation}", content=body, headers=headers, **query)

    def count(self, table: str, predicate: str | None = None, **body: Any) -> int:
        """How many rows a predicate selects."""
        counted: int = self.ask(table, "count_rows", predicate=predicate, **body)
        return counted

    def rows(self, table: str, **body: Any) -> pa.Table:
        """The rows of a query."""
        answer = right(self.post(f"table/{table}/query", {"vector": [], **body}))
        return pa.ipc.open_file(answer.content).read_all()

    def version(self, table: str) -> int:
        """The latest version."""
        version: int = self.ask(table, "describe")["version"]
        return version


def right(answer: httpx.Response) -> httpx.Response:
    """The answer, which must be a success."""
    assert answer.is_success, f"{answer.status_code} {answer.text}"
    return answer


def refusal(answer: httpx.Response) -> tuple[int, int]:
    """Status and error code of a refusal, whose body must be whole."""
    body = answer.json()
    assert set(body) == {"type", "title", "status", "detail", "instance", "code", "error"}, body
    assert body["status"] == answer.status_code
    assert answer.headers["x-request-id"]
    assert body["instance"].startswith("/v1/")
    for private in ("Traceback", ".py", "/home/", "/tmp", ".rs", "panicked"):
        assert private not in answer.text
    return answer.status_code, body["code"]
