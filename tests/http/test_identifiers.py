"""Which object a request is about: path, delimiter, body, databases."""

from typing import Any
from urllib.parse import quote

import pytest

from actors.model import Pin
from cluster.identifiers import TableRef
from tests.http.conftest import HttpClient, assert_problem
from tests.http.fakes import FakeServer, table_id

COUNT = "/v1/table/{}/count_rows"


def counted(server: FakeServer) -> TableRef:
    found = server.called("count_rows")[0]
    assert isinstance(found, TableRef)
    return found


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("t", ["t"]),
        ("ns$t", ["ns", "t"]),
        ("ns%24t", ["ns", "t"]),
        ("$ns$$t$", ["ns", "t"]),
        ("a%20b%24t%C3%A9", ["a b", "té"]),
        ("a.b$c.d?delimiter=.", ["a", "b$c", "d"]),
        ("ns%2Ft?delimiter=/", ["ns", "t"]),
        ("ns%2Ft?delimiter=%2F", ["ns", "t"]),
        ("a::b?delimiter=::", ["a", "b"]),
        ("a%2Bb", ["a+b"]),
        ("a%25b", ["a%b"]),
    ],
)
def test_path_names_the_table(
    client: HttpClient, server: FakeServer, path: str, names: list[str]
) -> None:
    segment, mark, query = path.partition("?")
    if "$" in "".join(names):
        assert_problem(client.post(COUNT.format(segment) + mark + query), 400, 13, "'$'")
        return
    server.add_table(*names, rows=None)
    assert client.post(COUNT.format(segment) + mark + query).status_code == 200
    assert counted(server) == TableRef("default", table_id(*names))


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("%FF", "UTF-8"),
        ("a%2", "hexadecimal"),
        ("a%zz", "hexadecimal"),
        ("$", "root namespace"),
        ("%24", "root namespace"),
        ("$$", "root namespace"),
        ("t?delimiter=", "delimiter is empty"),
        ("t?delimiter=123456789", "delimiter"),
        ("a%2Fb", "'/'"),
        ("%2E%2E", "dots"),
        ("a%00b", "control"),
        ("x" * 300, "230"),
    ],
)
def test_path_that_names_no_table_is_refused(
    client: HttpClient, server: FakeServer, path: str, word: str
) -> None:
    segment, mark, query = path.partition("?")
    assert_problem(client.post(COUNT.format(segment) + mark + query), 400, 13, word)
    assert server.calls == []


def test_body_may_repeat_the_path(client: HttpClient, server: FakeServer) -> None:
    server.add_table("ns", "t", rows=None)
    assert client.post(COUNT.format("ns$t"), {"id": ["ns", "t"]}).status_code == 200


@pytest.mark.parametrize("names", [["t"], ["ns", "u"], [], ["ns", "t", "x"], ["ns$t"]])
def test_body_that_names_another_object_is_refused(
    client: HttpClient, server: FakeServer, names: list[str]
) -> None:
    server.add_table("ns", "t", rows=None)
    response = client.post(COUNT.format("ns$t"), {"id": names})
    shown = ", ".join(names)
    assert_problem(response, 400, 13, f"request body names [{shown}], the route names [ns, t]")
    assert server.calls == []


@pytest.mark.parametrize("names", ["t", [1], {"a": 1}, [None]])
def test_body_id_that_is_no_list_of_names_is_refused(client: HttpClient, names: Any) -> None:
    assert_problem(client.post(COUNT.format("t"), {"id": names}), 400, 13)


def test_plus_is_a_space_when_the_body_says_so(client: HttpClient, server: FakeServer) -> None:
    server.add_table("a b", rows=None)
    assert client.post(COUNT.format("a+b"), {"id": ["a b"]}).status_code == 200
    assert counted(server).id == table_id("a b")


def test_plus_is_a_plus_when_the_body_says_so(client: HttpClient, server: FakeServer) -> None:
    server.add_table("a+b", rows=None)
    assert client.post(COUNT.format("a+b") + "?delimiter=$", {"id": ["a+b"]}).status_code == 200
    assert counted(server).id == table_id("a+b")


def test_neither_reading_of_a_plus_may_differ_from_the_body(client: HttpClient) -> None:
    response = client.post(COUNT.format("a+b"), {"id": ["a-b"]})
    assert_problem(response, 400, 13, "[a-b], the route names [a+b]")


@pytest.mark.parametrize(("query", "name"), [("", "a+b"), ("?delimiter=%24", "a b")])
def test_plus_without_a_body_is_a_space_from_the_rust_client_only(
    client: HttpClient, server: FakeServer, query: str, name: str
) -> None:
    server.add_table("a+b", rows=None)
    server.add_table("a b", rows=None)
    assert client.post(f"/v1/table/a+b/drop{query}").json()["id"] == [name]


@pytest.mark.parametrize("header", ["x-service-database", "x-lancedb-database"])
def test_header_names_the_database(client: HttpClient, server: FakeServer, header: str) -> None:
    server.add_table("t", rows=None, database="sales")
    assert client.post(COUNT.format("t"), headers={header: "sales"}).status_code == 200
    assert counted(server).database == "sales"


def test_context_may_stand_for_the_header(client: HttpClient, server: FakeServer) -> None:
    server.add_table("t", rows=None, database="sales")
    body = {"context": {"header.X-LanceDB-Database": "sales", "header.x-lancedb-min-version": "4"}}
    assert client.post(COUNT.format("t"), body).status_code == 200
    assert counted(server).database == "sales"
    assert server.last[1].version_min == 4


def test_real_header_wins_over_the_context(client: HttpClient, server: FakeServer) -> None:
    server.add_table("t", rows=None, database="sales")
    body = {"context": {"header.x-lancedb-database": "other"}}
    headers = {"x-lancedb-database": "sales"}
    assert client.post(COUNT.format("t"), body, headers=headers).status_code == 200
    assert counted(server).database == "sales"


def test_two_databases_in_one_request_are_refused(client: HttpClient) -> None:
    headers = {"x-lancedb-database": "a", "x-service-database": "b"}
    assert_problem(client.post(COUNT.format("t"), headers=headers), 400, 13, "differ")


@pytest.mark.parametrize("name", ["a/b", "..", "-a", "x" * 129])
def test_database_that_is_no_folder_is_refused(client: HttpClient, name: str) -> None:
    response = client.post(COUNT.format("t"), headers={"x-lancedb-database": name})
    assert_problem(response, 400, 13, "database")


def test_caller_of_one_database_need_not_name_it(client: HttpClient, server: FakeServer) -> None:
    client.authenticator.add("seller", "read:sales/*")
    server.add_table("t", rows=None, database="sales")
    assert client.post(COUNT.format("t"), key="seller").status_code == 200
    assert counted(server).database == "sales"


@pytest.mark.parametrize(
    "branch",
    [
        ".",
        "..",
        "../../../../.destrier/keys/0123456789ab",
        "a/../b",
        "a//b",
        "/a",
        "a/",
        "a\0",
        "a\x7f",
        "a\\b",
        "x" * 256,
        "é" * 128,
        "x/" * 512 + "x",
    ],
    ids=lambda branch: ascii(branch)[:24],
)
def test_branch_that_leads_out_of_its_folder_or_fits_in_none_is_refused(
    client: HttpClient, branch: str
) -> None:
    answers = [
        client.post(f"/v1/table/t/{operation}", {"branch": branch, "version": 1} | more)
        for operation, more in (
            ("count_rows", {}),
            ("describe", {}),
            ("query", {"vector": [], "k": 1}),
            ("delete", {"predicate": "id = 1"}),
            ("update", {"updates": [["id", "1"]]}),
        )
    ]
    quoted = quote(branch, safe="")
    answers.append(client.post(f"/v1/table/t/version/list?branch={quoted}", {}))
    answers.append(client.request("POST", f"/v1/table/t/insert?branch={quoted}", content=b""))
    for answer in answers:
        assert_problem(answer, 400, 13, "branch")
    assert client.server.calls == []


@pytest.mark.parametrize("branch", ["dev", "a.b-c_d/é", "x" * 255, "v" * 200 + "/" + "w" * 255])
def test_branch_that_lance_accepts_is_passed_on(client: HttpClient, branch: str) -> None:
    client.post("/v1/table/t/count_rows", {"branch": branch})
    assert client.server.last[1] == Pin(branch)
