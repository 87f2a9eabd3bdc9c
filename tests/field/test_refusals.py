"""What is refused, and how: the caller's mistakes are never called faults of the server."""

import re
from pathlib import Path

import pytest

from tests.clients.plain_http import Database, refusal

pytestmark = pytest.mark.cluster

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize(
    "predicate",
    [
        "",
        " ",
        "alt >",
        "alt = 1 OR",
        "(alt = 1",
        "alt = 1; DROP TABLE airports",
        "alt = 1 -- and the rest",
        "runways = 1",
        "alt",
        "name + 1 > 2",
        "alt = 'high'",
        "alt = 1 / 0",
        "1 / (alt - alt) = 1",
        "no_such_function(alt) = 1",
        "count(alt) > 1",
        "alt IN (SELECT alt FROM airports)",
        "alt = ?",
        "name LIKE 'a",
        "cast(name AS bigint) = 1",
        "name = 'a' 'b'",
        "alt = 1" + " OR alt = 1" * 100_000,
        "(" * 1_000 + "alt = 1" + ")" * 1_000,
        "NOT " * 5_000 + "true",
        "abs(" * 500 + "alt" + ")" * 500 + " = 1",
    ],
    ids=lambda predicate: predicate[:30],
)
def test_a_predicate_that_cannot_be_evaluated_is_the_callers_mistake(
    database: Database, airports_table: str, predicate: str
) -> None:
    version = database.version(airports_table)
    for operation, body in (
        ("count_rows", {"predicate": predicate}),
        ("query", {"vector": [], "filter": predicate}),
        ("delete", {"predicate": predicate}),
        ("update", {"predicate": predicate, "updates": [["alt", "0"]]}),
    ):
        status, code = refusal(database.post(f"table/{airports_table}/{operation}", body))
        assert (status, code) in {(400, 12), (400, 13)}
    assert database.version(airports_table) == version


@pytest.mark.parametrize(
    "expression",
    ["", "alt +", "runways", "1 / 0", "'high'", "max(alt)", "name", "alt; DROP TABLE airports"],
)
def test_a_value_that_cannot_be_assigned_is_the_callers_mistake(
    database: Database, airports_table: str, expression: str
) -> None:
    version = database.version(airports_table)
    body = {"updates": [["alt", expression]]}
    status, code = refusal(database.post(f"table/{airports_table}/update", body))
    assert (status, code) in {(400, 12), (400, 13)}
    assert database.version(airports_table) == version


def test_operations_that_are_not_built_say_so_and_the_readme_lists_them(
    database: Database, airports_table: str
) -> None:
    document = database.http.get("/openapi.json").json()
    not_built = {
        operation["operationId"]: path
        for path, methods in document["paths"].items()
        for operation in methods.values()
        if operation.get("x-destrier-not-built")
    }
    listed = README.read_text().partition("answer 406, code 0")[2].partition("\n- ")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == set(not_built)
    for path in not_built.values():
        path = path.removeprefix("/v1/").replace("{id}", airports_table)
        answer = database.post(path.replace("{index_name}", "by_altitude"), content=b"{}")
        assert refusal(answer) == (406, 0), path


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nowhere", 404),
        ("POST", "/v1/table/t/nothing", 404),
        ("GET", "/v1/table/t/count_rows", 405),
        ("DELETE", "/v1/table/t/drop", 405),
        ("POST", "/v1/table/%FF/count_rows", 400),
        ("POST", "/v1/table/t%2Fu/count_rows", 400),
        ("POST", "/v1/table/$/count_rows", 400),
        ("POST", "/v1/table/none/count_rows", 404),
        ("POST", "/v1/table/none/insert", 400),
    ],
)
def test_every_refusal_has_the_same_body(
    database: Database, method: str, path: str, status: int
) -> None:
    answer = database.http.request(method, path)
    assert refusal(answer)[0] == status
    assert answer.json()["instance"] == path
