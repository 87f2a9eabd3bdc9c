"""An answer that is lost after the commit: who sends the request again changes nothing twice."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import lancedb
import pyarrow as pa
import pytest

from tests.clients.plain_http import ARROW_STREAM, Database, refusal, right, stream
from tests.clients.running_server import DATABASE_HEADER
from tests.field.dropping_proxy import BAD_GATEWAY, DroppingProxy, dropping_proxy

pytestmark = pytest.mark.cluster

ROWS = pa.table({"id": [1, 2, 3], "n": [0, 0, 0]})


@pytest.fixture
def proxy(database: Database) -> Iterator[DroppingProxy]:
    """A proxy in front of the server."""
    with dropping_proxy(database.server.port) as proxy:
        yield proxy


class Caller:
    """Sends through the proxy, with or without losing the answer."""

    def __init__(self, proxy: DroppingProxy, database: Database) -> None:
        self._proxy = proxy
        self._url = f"{proxy.url}/v1/table"
        self._headers = {"x-api-key": database.server.admin_key, DATABASE_HEADER: database.name}

    def __call__(self, path: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
        """One request over a connection of its own."""
        return httpx.post(
            f"{self._url}/{path}", content=body, headers=self._headers | headers, timeout=60
        )

    def lose(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        """One request whose answer is lost."""
        self._proxy.lose(1)
        with pytest.raises(httpx.TransportError):
            self(path, body, headers)
        self._proxy.lose(0)


@pytest.fixture
def call(proxy: DroppingProxy, database: Database) -> Caller:
    """Sends through the proxy."""
    return Caller(proxy, database)


def update(expression: str) -> bytes:
    """The body of an update of every row."""
    return json.dumps({"updates": [["n", expression]]}).encode()


def counters(database: Database, table: str) -> list[Any]:
    """The column `n`, in order of `id`."""
    counted: list[Any] = database.rows(table).sort_by("id")["n"].to_pylist()
    return counted


@pytest.mark.parametrize("header", ["x-request-id", "idempotency-key"])
def test_an_update_sent_again_is_applied_once_and_answered_the_same(
    database: Database, call: Caller, table: str, header: str
) -> None:
    database.create(table, ROWS)
    key = {header: f"{table}-1"}
    call.lose(f"{table}/update", update("n + 1"), key)
    assert counters(database, table) == [1, 1, 1]
    version = database.version(table)
    answers = [right(call(f"{table}/update", update("n + 1"), key)).json() for _ in range(3)]
    assert [answer["version"] for answer in answers] == [version] * 3
    assert [answer["updated_rows"] for answer in answers] == [3, 3, 3]
    assert len({answer["transaction_id"] for answer in answers}) == 1
    assert counters(database, table) == [1, 1, 1]

    # The same key with another body is a mistake, and another key another request.
    assert refusal(call(f"{table}/update", update("n + 5"), key)) == (400, 13)
    assert database.version(table) == version
    right(call(f"{table}/update", update("n + 1"), {header: f"{table}-2"}))
    assert counters(database, table) == [2, 2, 2]


@pytest.mark.parametrize("header", ["x-request-id", "idempotency-key"])
def test_rows_sent_again_are_inserted_once(
    database: Database, call: Caller, table: str, header: str
) -> None:
    database.create(table, ROWS)
    key = {header: f"{table}-1", "content-type": ARROW_STREAM}
    for mode, count in (("append", 6), ("overwrite", 3)):
        path = f"{table}/insert?mode={mode}"
        call.lose(path, stream(ROWS), key)
        assert database.count(table) == count
        version = database.version(table)
        again = right(call(path, stream(ROWS), key)).json()
        assert (again["version"], again["num_inserted_rows"]) == (version, 3)
        assert refusal(call(path, stream(ROWS[:1]), key)) == (400, 13)
        assert (database.count(table), database.version(table)) == (count, version)


def test_a_large_body_sent_again_is_inserted_once(
    database: Database, call: Caller, table: str
) -> None:
    database.create(table, ROWS)
    large = pa.table({"id": range(200_000), "n": range(200_000)})
    key = {"x-request-id": f"{table}-1", "content-type": ARROW_STREAM}
    call.lose(f"{table}/insert", stream(large), key)
    assert database.count(table) == 200_003
    again = right(call(f"{table}/insert", stream(large), key)).json()
    assert (again["version"], again["num_inserted_rows"]) == (2, 200_000)
    assert refusal(call(f"{table}/insert", stream(large[1:]), key)) == (400, 13)
    assert (database.count(table), database.version(table)) == (200_003, 2)


def test_other_changes_sent_again_are_made_once(
    database: Database, call: Caller, table: str
) -> None:
    key = {"x-request-id": f"{table}-1", "content-type": ARROW_STREAM}
    call.lose(f"{table}/create", stream(ROWS), key)
    assert right(call(f"{table}/create", stream(ROWS), key)).json()["version"] == 1
    assert refusal(call(f"{table}/create", stream(ROWS), key | {"x-request-id": "2"})) == (409, 5)

    for path, body in (
        (f"{table}/delete", b'{"predicate": "id = 1"}'),
        (f"{table}/schema_metadata/update", b'{"k": "v"}'),
    ):
        call.lose(path, body, key)
        version = database.version(table)
        again = right(call(path, body, key)).json()
        assert again.get("version", version) == version
        assert database.version(table) == version
    assert database.count(table) == 2


def test_keys_of_different_callers_and_tables_do_not_meet(
    database: Database, call: Caller, table: str
) -> None:
    """Clients count their requests from one; the second must not get the first one's answer."""
    database.create(table, ROWS)
    database.create(f"{table}-b", ROWS)
    writer = {"x-api-key": database.server.make_key(table, "read+write:*"), "x-request-id": "1"}
    for path in (f"{table}/update", f"{table}-b/update"):
        right(call(path, update("n + 1"), {"x-request-id": "1"}))
        right(call(path, update("n + 1"), writer))
    assert counters(database, table) == counters(database, f"{table}-b") == [2, 2, 2]


def test_lancedb_that_hears_no_answer_changes_rows_once(
    database: Database, proxy: DroppingProxy, table: str
) -> None:
    database.create(table, ROWS)
    connection = lancedb.connect(
        f"db://{database.name}",
        api_key=database.server.admin_key,
        region="local",
        host_override=proxy.url,
    )
    rows = connection.open_table(table)
    proxy.lose(1, BAD_GATEWAY)
    updated = rows.update(where="id < 3", values_sql={"n": "n + 1"})
    assert (updated.rows_updated, updated.version) == (2, 2)
    assert counters(database, table) == [1, 1, 0]
    proxy.lose(1, BAD_GATEWAY)
    deleted = rows.delete("id = 1")
    assert (deleted.num_deleted_rows, deleted.version) == (1, 3)
    assert proxy.lost == 2
    assert database.version(table) == 3
