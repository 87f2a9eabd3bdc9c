"""The tables that are measured, and the requests about them as bytes."""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import lance
import numpy as np
import pyarrow as pa

from benchmarks.load import Request
from benchmarks.servers import RunningServer

ROW_SCHEMA = pa.schema(
    [("number", pa.int64()), ("name", pa.string()), ("price", pa.float64())],
)
_NAMES = pa.array([f"name {number}" for number in range(1_000)])
# A number that no request has, to find where its bytes are.
_MARK = 0x1122334455667788
_VECTOR_DIMENSIONS = 128
UPLOAD_SCHEMA = pa.schema(
    [("number", pa.int64()), ("vector", pa.list_(pa.float32(), _VECTOR_DIMENSIONS))]
)
_UPLOAD_BATCH_ROWS = 8_192
ARROW_TYPE = "application/vnd.apache.arrow.stream"
TIMEOUT_S = 120.0


class Tables:
    """The tables of one server, over HTTP."""

    def __init__(self, server: RunningServer) -> None:
        host, port = server.address
        self._server = server
        self._client = httpx.Client(
            base_url=f"http://{host}:{port}",
            headers={"x-api-key": server.api_key},
            timeout=TIMEOUT_S,
            trust_env=False,
        )

    def create(self, name: str, data: bytes) -> None:
        """Make a table of an Arrow stream."""
        self._post(name, "create", data, ARROW_TYPE)

    def insert(self, name: str, data: bytes) -> None:
        """Append an Arrow stream."""
        self._post(name, "insert", data, ARROW_TYPE)

    def drop(self, name: str) -> None:
        """Drop the table."""
        self._post(name, "drop", b"", "application/json")

    def count_rows(self, name: str) -> int:
        """The number of rows."""
        return int(self._post(name, "count_rows", b"{}", "application/json").text)

    def names(self, count: int) -> list[str]:
        """The names of the first tables."""
        answer = self._client.get("/v1/namespace/$/table/list", params={"limit": count})
        answer.raise_for_status()
        return list(answer.json()["tables"])

    def open(self, name: str) -> lance.LanceDataset:
        """The table as its files say, without the server."""
        described = self._post(name, "describe", b"{}", "application/json").json()
        return lance.dataset(described["location"])

    def _post(self, name: str, verb: str, body: bytes, content_type: str) -> httpx.Response:
        answer = self._client.post(
            f"/v1/table/{name}/{verb}", content=body, headers={"content-type": content_type}
        )
        if answer.status_code != 200:
            raise RuntimeError(f"{self._server.name}: {verb} {name}: {answer.text}")
        return answer


def stream_of(table: pa.Table) -> bytes:
    """An Arrow IPC stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def rows(numbers: Sequence[int] | np.ndarray) -> pa.Table:
    """Rows of the tables that are counted and inserted into."""
    numbers = np.asarray(numbers, dtype=np.int64)
    names = _NAMES.take(pa.array(numbers % len(_NAMES)))
    return pa.table([pa.array(numbers), names, pa.array(numbers / 7)], schema=ROW_SCHEMA)


def count_request(
    server: RunningServer, name: str, expected: int, predicate: str | None = None
) -> Request:
    """Count a table's rows, or those that a predicate selects, which are `expected`."""
    body = json.dumps({} if predicate is None else {"predicate": predicate}).encode()
    return _json_request(server, name, "count_rows", body, str(expected).encode())


def describe_request(server: RunningServer, name: str) -> Request:
    """Describe a table, with its version and its statistics."""
    return _json_request(server, name, "describe", b'{"load_detailed_metadata": true}')


def _json_request(
    server: RunningServer, name: str, verb: str, body: bytes, expected: bytes | None = None
) -> Request:
    head = _table_head(server, name, verb, "application/json", len(body))
    return Request(head, b"\r\n\r\n" + body, expected=expected)


def list_request(server: RunningServer, count: int) -> Request:
    """List the first tables of the root namespace."""
    head = _head(server, f"GET /v1/namespace/$/table/list?limit={count}")
    return Request(head, b"\r\n\r\n")


def insert_request(server: RunningServer, name: str) -> Request:
    """Insert one row, whose number is the request's."""
    body = stream_of(rows([_MARK]))
    before, mark, after = body.partition(_MARK.to_bytes(8, "little"))
    assert mark and mark not in after
    head = _table_head(server, name, "insert", ARROW_TYPE, len(body))
    return Request(head, b"\r\n\r\n" + before, after)


def upload_head(server: RunningServer, name: str, size: int) -> bytes:
    """The head of an insert of `size` bytes."""
    return _table_head(server, name, "insert", ARROW_TYPE, size) + b"0000000000000000\r\n\r\n"


def _table_head(server: RunningServer, name: str, verb: str, content_type: str, size: int) -> bytes:
    return _head(
        server,
        f"POST /v1/table/{name}/{verb}",
        f"content-type: {content_type}\r\n",
        f"content-length: {size}\r\n",
    )


def _head(server: RunningServer, target: str, *headers: str) -> bytes:
    """The head of a request up to the value of its last header, the request id."""
    host, port = server.address
    return (
        f"{target} HTTP/1.1\r\n"
        f"host: {host}:{port}\r\n"
        "user-agent: destrier-benchmark\r\n"
        "accept: */*\r\n"
        f"{''.join(headers)}"
        f"x-api-key: {server.api_key}\r\n"
        "x-request-id: "
    ).encode()


@dataclass(frozen=True, slots=True)
class UploadFile:
    """An Arrow IPC stream on disk, uncompressed."""

    path: Path
    rows: int
    bytes: int


def write_upload_file(path: Path, size: int) -> UploadFile:
    """Write a stream of at least `size` bytes of random vectors."""
    written = 0
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, UPLOAD_SCHEMA) as writer:
        for batch in _upload_batches(size):
            writer.write_batch(batch)
            written += batch.num_rows
    return UploadFile(path, written, path.stat().st_size)


def _upload_batches(size: int) -> Iterator[pa.RecordBatch]:
    random = np.random.default_rng(0)
    row_bytes = 8 + 4 * _VECTOR_DIMENSIONS
    for start in range(0, -(-size // row_bytes), _UPLOAD_BATCH_ROWS):
        numbers = pa.array(np.arange(start, start + _UPLOAD_BATCH_ROWS))
        values = random.random(_UPLOAD_BATCH_ROWS * _VECTOR_DIMENSIONS, dtype=np.float32)
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(values), _VECTOR_DIMENSIONS)
        yield pa.record_batch([numbers, vectors], schema=UPLOAD_SCHEMA)


def holds_upload(table: lance.LanceDataset, source: UploadFile) -> bool:
    """Whether a table holds the rows of the file in their order; compares a sample of vectors."""
    with pa.memory_map(str(source.path)) as file:
        expected = pa.ipc.open_stream(file).read_all()
        numbers = table.to_table(columns=["number"])
        if not numbers.equals(expected.select(["number"])):
            return False
        sample = np.random.default_rng(1).integers(0, source.rows, 1_000)
        return bool(table.take(sample.tolist()).equals(expected.take(pa.array(sample))))
