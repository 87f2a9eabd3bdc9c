"""A server of views that answers what a test gives it, without a network."""

import io
import json
from collections.abc import Callable
from typing import Any

import httpx
import pyarrow as pa

SOURCE = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("body", pa.string())])


class Server:
    """Answers each path with what a test gives it, and remembers the requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Any, httpx.Request]] = []
        self.answers: dict[str, Callable[[Any], httpx.Response]] = {
            "/v1/table/docs/query": lambda body: rows(SOURCE.empty_table())
        }

    def give(self, path: str, *answers: Any, status: int = 200) -> None:
        """Answer a path with these objects in turn, the last for ever."""
        left = list(answers)

        def answer(_: Any) -> httpx.Response:
            return httpx.Response(status, json=left.pop(0) if len(left) > 1 else left[0])

        self.answers[path] = answer

    def handle(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else None
        path = request.url.raw_path.decode()
        self.requests.append((path, body, request))
        return self.answers[path](body)

    def sent(self, path: str) -> Any:
        """The body of the last request to a path."""
        return [body for asked, body, _ in self.requests if asked == path][-1]


def rows(table: pa.Table) -> httpx.Response:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return httpx.Response(200, content=sink.getvalue())
