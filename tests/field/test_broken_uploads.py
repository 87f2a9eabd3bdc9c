"""Clients that leave in the middle of an upload, and more of them than the server works on."""

import contextlib
import socket
import time
from collections.abc import Iterator

import httpx
import pyarrow as pa
import pytest

from tests.clients.plain_http import ARROW_STREAM, Database, refusal, stream
from tests.clients.running_server import DATABASE_HEADER

pytestmark = pytest.mark.cluster

ROWS = pa.table({"id": range(300_000), "text": ["x" * 20] * 300_000})
# The default of two replicas, and what each works on at a time.
IN_FLIGHT_MAX = 2 * 256


def head(database: Database, table: str, *headers: str, key: str | None = None) -> bytes:
    """The head of an insert."""
    lines = [
        f"POST /v1/table/{table}/insert HTTP/1.1",
        "host: localhost",
        f"x-api-key: {key or database.server.admin_key}",
        f"{DATABASE_HEADER}: {database.name}",
        f"content-type: {ARROW_STREAM}",
        *headers,
        "",
        "",
    ]
    return "\r\n".join(lines).encode()


@contextlib.contextmanager
def connection(database: Database) -> Iterator[socket.socket]:
    """A connection to the server."""
    with socket.create_connection(("127.0.0.1", database.server.port), timeout=60) as opened:
        yield opened


def chunks(body: bytes) -> bytes:
    """The body in chunks of 64 kB, without the one that ends it."""
    parts = [body[start : start + 65_536] for start in range(0, len(body), 65_536)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)


def unchanged(database: Database, table: str) -> bool:
    """Whether the table stays as it was made, after time enough for a late commit."""
    time.sleep(0.3)
    return (database.count(table), database.version(table)) == (1, 1)


@pytest.fixture
def one_row(database: Database, table: str) -> str:
    """A table of one row, at version 1."""
    database.create(table, ROWS[:1])
    return table


@pytest.mark.parametrize("rows", [10, len(ROWS)])
def test_a_client_that_leaves_before_the_end_inserts_nothing(
    database: Database, one_row: str, rows: int
) -> None:
    body = stream(ROWS[:rows], rows=50_000)
    for sent in (0.1, 0.5, 1.0):
        part = body[: int(len(body) * sent)]
        with connection(database) as client:
            client.sendall(head(database, one_row, f"content-length: {len(body) + 1}") + part)
        with connection(database) as client:
            client.sendall(head(database, one_row, "transfer-encoding: chunked") + chunks(part))
    assert unchanged(database, one_row)


@pytest.mark.parametrize("rows", [10, len(ROWS)])
def test_a_stream_that_ends_early_inserts_nothing(
    database: Database, one_row: str, rows: int
) -> None:
    body = stream(ROWS[:rows], rows=50_000)
    end = b"\xff\xff\xff\xff\x00\x00\x00\x00"
    assert body.endswith(end)
    for part in (body.removesuffix(end), body[: len(body) // 2], body[:100], b"\0" * 100):
        answer = database.send_stream(one_row, "insert", part)
        assert refusal(answer) in {(400, 13), (400, 20)}
    assert unchanged(database, one_row)


def test_a_client_that_leaves_after_the_end_inserts_everything_or_nothing(
    database: Database, one_row: str
) -> None:
    body = stream(ROWS, rows=50_000)
    with connection(database) as client:
        client.sendall(head(database, one_row, f"content-length: {len(body)}") + body)
    deadline = time.monotonic() + 10
    while database.version(one_row) == 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    expected = {1: 1, 2: 1 + len(ROWS)}
    assert database.count(one_row) == expected[database.version(one_row)]
    # Either way the table goes on.
    database.insert(one_row, ROWS[:1])


def test_a_large_upload_that_is_refused_gets_its_answer(database: Database, one_row: str) -> None:
    """A server that answers and closes while the client still sends is seen as a broken line."""
    body = stream(ROWS)
    for headers, refused in (
        ({"x-api-key": "wrong"}, (401, 16)),
        ({DATABASE_HEADER: "../up"}, (400, 13)),
    ):
        answer = database.send_stream(one_row, "insert", body, headers)
        assert refusal(answer) == refused
    assert refusal(database.send_stream("nowhere", "insert", body)) == (404, 4)
    assert unchanged(database, one_row)


def test_more_requests_than_the_server_works_on_are_told_to_slow_down(
    database: Database, one_row: str
) -> None:
    """More uploads are begun than all replicas work on, so that one replica at least is full.

    Serve's HTTP passes uploads on at its own pace, and drops some on a busy machine: those that it
    lacks are begun anew.
    """
    begun = head(database, one_row, "content-length: 1000") + stream(ROWS[:1])[:100]
    with contextlib.ExitStack() as opened:

        def begin(uploads: int) -> None:
            for _ in range(uploads):
                opened.enter_context(connection(database)).sendall(begun)

        begin(IN_FLIGHT_MAX + 1)
        answers: list[httpx.Response] = []
        deadline = time.monotonic() + 30
        while 503 not in {answer.status_code for answer in answers}:
            assert time.monotonic() < deadline
            # Each on a connection of its own, which may lead to either replica.
            answers += [ask(database, one_row) for _ in range(24)]
            begin(16)
    assert {answer.status_code for answer in answers} <= {200, 503}
    for answer in answers:
        if answer.status_code == 503:
            assert refusal(answer) == (503, 17)
            assert answer.json()["title"] == "Slow down"
            assert int(answer.headers["retry-after"]) >= 1

    deadline = time.monotonic() + 10
    while any(not ask(database, one_row).is_success for _ in range(8)):
        assert time.monotonic() < deadline
    assert unchanged(database, one_row)


def ask(database: Database, table: str) -> httpx.Response:
    """The answer to a count over a new connection."""
    url = f"{database.server.url}/v1/table/{table}/count_rows"
    return httpx.post(url, json={}, headers=database.http.headers, timeout=30)
