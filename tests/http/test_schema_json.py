"""Arrow schemas as JSON: what Lance's own server sends, and what LanceDB's client understands."""

import contextlib
import http.server
import io
import json
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance.namespace
import lancedb
import pyarrow as pa
import pytest

from serve_app.schema_json import Dialect, schema_to_json

TYPES = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "uint64": pa.uint64(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "date32": pa.date32(),
    "date64": pa.date64(),
    "time32": pa.time32("s"),
    "time64": pa.time64("ns"),
    "timestamp": pa.timestamp("us"),
    "timestamp_utc": pa.timestamp("ms", "UTC"),
    "timestamp_offset": pa.timestamp("ns", "+02:00"),
    "duration": pa.duration("ms"),
    "decimal128": pa.decimal128(10, 2),
    "decimal256": pa.decimal256(40, 3),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "list": pa.list_(pa.int32()),
    "large_list": pa.large_list(pa.string()),
    "vector": pa.list_(pa.float32(), 4),
    "fixed_binary": pa.binary(16),
    "struct": pa.struct(
        [
            pa.field("x", pa.int32(), nullable=False, metadata={"k": "v"}),
            pa.field("y", pa.list_(pa.struct([("z", pa.date32())]))),
        ]
    ),
}
PLAIN = pa.schema(
    [pa.field(name, kind, metadata={"of": name}) for name, kind in TYPES.items()],
    metadata={"made": "here"},
)


def as_json(schema: pa.Schema, dialect: Dialect) -> Any:
    made = schema_to_json(schema.serialize().to_pybytes(), dialect)
    return json.loads(made.model_dump_json(exclude_none=True))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def test_names_for_namespace_clients_are_those_of_lances_own_server(tmp_path: Path) -> None:
    schema = pa.schema([*PLAIN, pa.field("map", pa.map_(pa.string(), pa.int32()))], PLAIN.metadata)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(schema.empty_table())
        writer.write_batch(pa.record_batch([pa.nulls(1, kind) for kind in schema.types], schema))
    with lance.namespace.RestAdapter("dir", {"root": str(tmp_path)}, port=free_port()) as peer:
        base = f"http://127.0.0.1:{peer.port}/v1/table/t"
        send(f"{base}/create", sink.getvalue(), "application/vnd.apache.arrow.stream")
        told = send(f"{base}/describe?load_detailed_metadata=true", b"{}", "application/json")
    assert as_json(schema, Dialect.NAMESPACE) == told["schema"]


def send(url: str, body: bytes, kind: str) -> Any:
    request = urllib.request.Request(url, body, {"content-type": kind})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())


@contextlib.contextmanager
def describing(schema: Any) -> Iterator[int]:
    """A server whose only answer is the description of a table."""
    body = json.dumps({"version": 1, "schema": schema, "location": "x"}).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        yield listener.server_address[1]
        listener.shutdown()
        thread.join()


def read_by_lancedb(schema: pa.Schema) -> pa.Schema:
    with describing(as_json(schema, Dialect.LANCE)) as port:
        address = f"http://127.0.0.1:{port}"
        database = lancedb.connect("db://x", api_key="k", region="r", host_override=address)
        return database.open_table("t").schema


def test_lancedb_reads_the_schema_back() -> None:
    assert read_by_lancedb(PLAIN).equals(PLAIN, check_metadata=True)


@pytest.mark.parametrize(
    "kind",
    [
        pa.uuid(),
        pa.json_(pa.string()),
        pa.bool8(),
        pa.opaque(pa.int32(), "a", "b"),
        pa.fixed_shape_tensor(pa.float32(), (2, 3)),
        pa.fixed_shape_tensor(pa.int8(), (2, 3), dim_names=["a", "b"], permutation=[1, 0]),
    ],
    ids=str,
)
def test_extension_types_keep_their_name_and_storage(kind: pa.DataType) -> None:
    schema = pa.schema([pa.field("x", kind, metadata={"k": "v"})])
    (field,) = as_json(schema, Dialect.LANCE)["fields"]
    assert field["metadata"]["ARROW:extension:name"] == kind.extension_name
    assert field["metadata"]["k"] == "v"
    assert read_by_lancedb(schema).field("x").type == kind


def test_unknown_extension_type_keeps_its_metadata() -> None:
    metadata = {"ARROW:extension:name": "some.thing", "ARROW:extension:metadata": ""}
    schema = pa.schema([pa.field("x", pa.large_binary(), metadata=metadata)])
    (field,) = as_json(schema, Dialect.NAMESPACE)["fields"]
    assert (field["type"], field["metadata"]) == ({"type": "large_binary"}, metadata)


def test_views_of_arrow_have_the_names_of_what_they_view() -> None:
    schema = pa.schema({"s": pa.string_view(), "b": pa.binary_view(), "l": pa.list_view(pa.int8())})
    names = [field["type"]["type"] for field in as_json(schema, Dialect.LANCE)["fields"]]
    assert names == ["string", "binary", "list"]


def test_metadata_that_is_no_text_does_not_break_the_answer() -> None:
    schema = pa.schema([pa.field("x", pa.int8(), metadata={b"\xff": b"\xfe"})])
    (field,) = as_json(schema, Dialect.NAMESPACE)["fields"]
    assert field["metadata"] == {"\ufffd": "\ufffd"}


def test_code_and_environment_of_a_view_are_not_part_of_its_schema() -> None:
    metadata = {"destrier.view.kind": "udtf", "destrier.view.udtf_spec": "secret", "mine": "1"}
    schema = pa.schema([("a", pa.int64())], metadata=metadata)
    shown = schema_to_json(bytes(schema.serialize()), Dialect.NAMESPACE)
    assert shown.metadata == {"destrier.view.kind": "udtf", "mine": "1"}
