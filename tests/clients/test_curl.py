"""The curl program, as people type it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.clients import airports, lance_folder, view_request
from tests.clients.plain_http import ARROW_STREAM, Database, stream

pytestmark = pytest.mark.cluster


class Curl:
    """Runs curl against one database; `key` None sends no key."""

    def __init__(self, database: Database, folder: Path, key: str | None) -> None:
        self._database = database
        self._folder = folder
        self._key = key

    def __call__(self, path: str, *options: str) -> tuple[int, Any]:
        """Status and JSON of the answer."""
        status, body = self.bytes(path, *options)
        return status, json.loads(body) if body else None

    def bytes(self, path: str, *options: str) -> tuple[int, bytes]:
        """Status and bytes of the answer."""
        answer = self._folder / "answer"
        answer.unlink(missing_ok=True)
        headers = ["-H", f"x-lancedb-database: {self._database.name}"]
        if self._key is not None:
            headers += ["-H", f"x-api-key: {self._key}"]
        url = f"{self._database.server.url}/v1/{path}"
        run = subprocess.run(
            ["curl", "-sS", "-w", "%{http_code}", "-o", answer, *headers, *options, url],
            check=True,
            capture_output=True,
            text=True,
        )
        return int(run.stdout), answer.read_bytes() if answer.exists() else b""

    def send(self, path: str, rows: pa.Table, *options: str) -> tuple[int, Any]:
        """Status and JSON of the answer to rows from a file."""
        file = self._folder / "rows.arrow"
        file.write_bytes(stream(rows))
        typed = ("-H", f"content-type: {ARROW_STREAM}")
        return self(path, "--data-binary", f"@{file}", *typed, *options)

    def ask(self, path: str, /, **body: Any) -> tuple[int, Any]:
        """Status and JSON of the answer to JSON, with the content type that curl makes up."""
        return self(path, "-d", json.dumps(body))


@pytest.fixture
def curl(database: Database, tmp_path: Path) -> Curl:
    """The administrator's curl."""
    return Curl(database, tmp_path, database.server.admin_key)


def code(answer: tuple[int, Any]) -> tuple[int, int]:
    """Status and error code of a refusal."""
    status, body = answer
    assert body["status"] == status
    return status, body["code"]


def test_rows_are_created_inserted_updated_deleted_and_read_back(curl: Curl, table: str) -> None:
    first, rest = airports.first_and_rest()
    status, created = curl.send(f"table/{table}/create", first)
    assert (status, created["version"]) == (200, 1)
    status, inserted = curl.send(f"table/{table}/insert", rest, "-H", "transfer-encoding: chunked")
    assert (status, inserted["version"], inserted["num_inserted_rows"]) == (200, 2, rest.num_rows)
    assert curl(f"table/{table}/count_rows", "-X", "POST") == (200, airports.ROWS)
    assert curl.ask(f"table/{table}/count_rows", predicate="tzone IS NULL") == (200, 3)

    status, updated = curl.ask(
        f"table/{table}/update", predicate=airports.IN_HONOLULU, updates=airports.RAISED
    )
    assert (status, updated["updated_rows"], updated["version"]) == (200, 18, 3)
    status, deleted = curl.ask(f"table/{table}/delete", predicate=airports.UNKNOWN_DST)
    assert (status, deleted["version"]) == (200, 4)
    status, rows = curl.bytes(f"table/{table}/query", "-d", '{"vector": []}')
    assert status == 200
    assert airports.same_rows(pa.ipc.open_file(rows).read_all(), airports.changed())
    assert curl.ask(f"table/{table}/count_rows", version=1) == (200, first.num_rows)


def test_metadata_indexes_versions_and_the_end_of_a_table(
    curl: Curl, database: Database, table: str
) -> None:
    first, rest = (lance_folder.with_places(part) for part in airports.first_and_rest())
    curl.send(f"table/{table}/create", first)
    _, described = curl(f"table/{table}/describe", "-X", "POST")
    lance_folder.index_altitudes(described["location"])
    lance_folder.index_places(described["location"])
    curl.send(f"table/{table}/insert", rest)
    status, stats = curl(f"table/{table}/index/by_altitude/stats", "-X", "POST")
    assert (status, stats) == (
        200,
        {
            "index_type": "BTree",
            "num_indexed_rows": first.num_rows,
            "num_unindexed_rows": rest.num_rows,
            "num_indices": 1,
        },
    )
    _, stats = curl(f"table/{table}/index/by_place/stats", "-X", "POST")
    assert (stats["index_type"], stats["distance_type"]) == ("IVF_FLAT", "cosine")
    assert code(curl(f"table/{table}/index/none/stats", "-X", "POST")) == (404, 6)

    assert curl.ask(f"table/{table}/schema_metadata/update", year="2013")[1] == {"year": "2013"}
    merged = {"source": "FAA", "year": "2013"}
    assert curl.ask(f"table/{table}/schema_metadata/update", source="FAA") == (200, merged)

    everything = [{"start_version": 0, "end_version": -1}]
    status, removed = curl.ask(f"table/{table}/version/delete", ranges=everything)
    assert (status, removed) == (200, {"deleted_count": database.version(table)})
    assert curl.ask(f"table/{table}/count_rows") == (200, airports.ROWS)

    status, dropped = curl(f"table/{table}/drop", "-X", "POST")
    assert (status, dropped["id"]) == (200, [table])
    assert (dropped["location"], dropped["properties"]) == (described["location"], {})
    assert not Path(described["location"]).exists()
    assert code(curl.ask(f"table/{table}/count_rows")) == (404, 4)


def test_a_view_is_created_once(curl: Curl, table: str, airports_table: str) -> None:
    view = {
        "kind": "query",
        "source_query": view_request.SOURCE_QUERY,
        "output_schema": view_request.OUTPUT_SCHEMA,
    }
    status, created = curl.ask(f"materialized_view/{table}/create", **view)
    assert (status, created) == (200, {"version": 1})
    assert curl.ask(f"table/{table}/count_rows") == (200, 0)
    again = curl.ask(f"materialized_view/{table}/create", **view)
    assert code(again) == (409, 5)
    assert again[1]["title"] == "The namespace has been concurrently modified"


def test_a_branch_is_changed_alone(curl: Curl, table: str) -> None:
    first, rest = airports.first_and_rest()
    curl.send(f"table/{table}/create", first)
    _, described = curl(f"table/{table}/describe", "-X", "POST")
    lance_folder.branch(described["location"], "trial")
    assert curl.send(f"table/{table}/insert?branch=trial", rest)[0] == 200
    change = {"branch": "trial", "predicate": airports.IN_HONOLULU, "updates": airports.RAISED}
    assert curl.ask(f"table/{table}/update", **change)[1]["updated_rows"] == 18
    curl.ask(f"table/{table}/delete", branch="trial", predicate=airports.UNKNOWN_DST)
    metadata = curl.ask(f"table/{table}/schema_metadata/update?branch=trial", on="trial")
    assert metadata == (200, {"on": "trial"})
    changed = lance_folder.open_branch(described["location"], "trial").to_table()
    assert airports.same_rows(changed, airports.changed())
    assert curl.ask(f"table/{table}/count_rows") == (200, first.num_rows)


def test_refusals_say_what_and_where(
    curl: Curl, database: Database, tmp_path: Path, reader_key: str, airports_table: str
) -> None:
    count = f"table/{airports_table}/count_rows"
    assert code(curl.ask("table/nowhere/count_rows")) == (404, 4)
    rows = airports.first_and_rest()[0]
    assert code(curl.send(f"table/{airports_table}/create", rows)) == (409, 5)
    status, body = curl.ask(count, predicate="alt >")
    assert status == 400
    assert body == {
        "type": "/errors/bad-request",
        "title": "Malformed request",
        "status": 400,
        "detail": body["error"],
        "instance": f"/v1/{count}",
        "code": 13,
        "error": body["error"],
    }
    assert code(curl(count, "-d", "{}{}")) == (400, 13)
    assert code(curl.ask(count, branch="none")) == (404, 22)
    assert code(Curl(database, tmp_path, None).ask(count)) == (401, 16)
    assert code(Curl(database, tmp_path, "wrong").ask(count)) == (401, 16)
    reader = Curl(database, tmp_path, reader_key)
    assert reader.ask(count) == (200, airports.ROWS)
    assert code(reader(f"table/{airports_table}/drop", "-X", "POST")) == (403, 15)


def test_identifiers_are_read_with_their_delimiter(curl: Curl, table: str) -> None:
    namespace = f"ns {table}"
    assert curl.ask(f"namespace/ns%20{table}/create")[0] == 200
    rows = airports.first_and_rest()[0]
    # Written as `+`, a plus may be a space: Lance's Rust client writes spaces so.
    path = f"table/ns%20{table}%2F%C3%A9t%C3%A9%2B1"
    assert curl.send(f"{path}/create?delimiter=/", rows)[0] == 200
    assert curl.ask(f"{path}/count_rows?delimiter=%2F", id=[namespace, "été+1"]) == (200, 1_400)
    assert code(curl.ask(f"{path}/count_rows?delimiter=%2F", id=["other"])) == (400, 13)
    listed = curl(f"namespace/ns%20{table}/table/list")
    assert listed == (200, {"tables": ["été+1"]})


def test_identity_and_context_travel_in_the_body(
    database: Database, tmp_path: Path, reader_key: str, airports_table: str
) -> None:
    nobody = Curl(database, tmp_path, None)
    count = f"table/{airports_table}/count_rows"
    for identity in ({"api_key": reader_key}, {"auth_token": reader_key}):
        assert nobody.ask(count, identity=identity) == (200, airports.ROWS)
    assert code(nobody.ask(count, identity={"api_key": "wrong"})) == (401, 16)
    bearer = ("-H", f"authorization: Bearer {reader_key}", "-d", "{}")
    assert nobody(count, *bearer) == (200, airports.ROWS)
    # Two headers that name a database must agree, wherever they are.
    context = {"header.x-service-database": "another"}
    refused = nobody.ask(count, identity={"api_key": reader_key}, context=context)
    assert code(refused) == (400, 13)


def test_answers_carry_the_request_id_and_the_version(
    curl: Curl, tmp_path: Path, airports_table: str
) -> None:
    heads = tmp_path / "heads"
    curl(
        f"table/{airports_table}/count_rows", "-d", "{}", "-D", str(heads), "-H", "x-request-id: 7"
    )
    head = dict(line.split(": ", 1) for line in heads.read_text().splitlines() if ": " in line)
    assert head["x-request-id"] == "7"
    assert head["x-lancedb-version"] == "1"
    assert head["content-type"] == "application/json"


def test_the_connection_check_of_lancedb_enterprise_works(curl: Curl, table: str) -> None:
    typed = ("-H", f"content-type: {ARROW_STREAM}")
    assert curl(f"tables/{table}", "-X", "POST", *typed)[0] == 200
    status, listed = curl("tables", "-H", "content-type: application/json")
    assert status == 200
    assert table in listed["tables"]
    first, _ = airports.first_and_rest()
    assert curl.send(f"table/{table}/insert", first)[1]["version"] == 1
    assert curl.ask(f"table/{table}/count_rows") == (200, first.num_rows)
