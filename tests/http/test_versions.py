"""Version records over HTTP."""

from typing import Any

import pytest

from actors.model import VersionRange, VersionRecord
from cluster.identifiers import TableRef
from cluster.settings import LimitSettings, Settings
from tests.http.conftest import HttpClient, assert_problem
from tests.http.fakes import FakeServer, table_id

T = TableRef("default", table_id("t"))


def record(version: int) -> VersionRecord:
    return VersionRecord(version, f"t.lance/_versions/{version}.manifest", 100, 1_700_000_000_000)


def shown(version: int) -> dict[str, Any]:
    return {
        "version": version,
        "manifest_path": f"t.lance/_versions/{version}.manifest",
        "manifest_size": 100,
        "timestamp_millis": 1_700_000_000_000,
        "metadata": {},
    }


@pytest.fixture(autouse=True)
def _table(server: FakeServer) -> None:
    server.add_table("t", rows=None)
    server.versions = [record(version) for version in (1, 2, 4, 7)]


def listed(client: HttpClient, query: str = "") -> tuple[list[int], str | None]:
    response = client.post(f"/v1/table/t/version/list{query}")
    assert response.status_code == 200, response.text
    body = response.json()
    return [item["version"] for item in body["versions"]], body.get("page_token")


@pytest.mark.parametrize("slash", ["", "/"])
def test_records_are_listed_in_order(client: HttpClient, slash: str) -> None:
    response = client.post(f"/v1/table/t/version/list{slash}?branch=dev")
    assert response.json() == {"versions": [shown(version) for version in (1, 2, 4, 7)]}
    assert client.server.last == (T, "dev", None, None, False)


@pytest.mark.parametrize(
    ("query", "versions", "token"),
    [
        ("?descending=true", [7, 4, 2, 1], None),
        ("?limit=2", [1, 2], "2"),
        ("?limit=2&page_token=2", [4, 7], None),
        ("?limit=2&page_token=3", [4, 7], None),
        ("?descending=true&limit=3", [7, 4, 2], "2"),
        ("?descending=true&limit=3&page_token=2", [1], None),
        ("?limit=4", [1, 2, 4, 7], None),
        ("?page_token=7", [], None),
        ("?page_token=", [1, 2, 4, 7], None),
    ],
)
def test_listing_pages_by_version(
    client: HttpClient, query: str, versions: list[int], token: str | None
) -> None:
    assert listed(client, query) == (versions, token)


def test_page_after_the_last_but_one_is_right_when_one_record_is_left(
    client: HttpClient, server: FakeServer
) -> None:
    server.versions = [record(5)]
    assert listed(client, "?descending=true&page_token=7") == ([5], None)
    assert listed(client, "?descending=true&page_token=5") == ([], None)
    assert listed(client, "?page_token=5") == ([], None)


def test_only_a_page_is_asked_for(client: HttpClient) -> None:
    client.settings = Settings(limits=LimitSettings(page_size_max=3))
    assert listed(client, "?descending=true&limit=9&page_token=9") == ([7, 4, 2], "2")
    assert client.server.last == (T, None, "9", 3, True)


@pytest.mark.parametrize(
    "query",
    [
        "page_token=x",
        "page_token=-1",
        "page_token=" + "9" * 5000,
        "page_token=%C2%B2",
        "limit=0",
        "descending=x",
    ],
    ids=lambda query: query[:20],
)
def test_malformed_listing_is_refused(client: HttpClient, query: str) -> None:
    name = query.partition("=")[0]
    assert_problem(client.post(f"/v1/table/t/version/list?{query}"), 400, 13, name)


@pytest.mark.parametrize(
    ("body", "version"), [({}, 7), ({"version": None}, 7), ({"version": 2}, 2)]
)
def test_one_record_is_described(client: HttpClient, body: Any, version: int) -> None:
    response = client.post("/v1/table/t/version/describe", {**body, "branch": "dev"})
    assert response.json() == {"version": shown(version)}
    assert client.server.last == (T, "dev", body.get("version"))


@pytest.mark.parametrize("version", [0, 3, 8])
def test_missing_record_is_not_found(client: HttpClient, version: int) -> None:
    response = client.post("/v1/table/t/version/describe", {"version": version})
    assert_problem(response, 404, 11, str(version))


def test_no_record_at_all_is_not_found(client: HttpClient, server: FakeServer) -> None:
    server.versions = []
    assert_problem(client.post("/v1/table/t/version/describe"), 404, 11)


def test_ranges_are_deleted(client: HttpClient) -> None:
    ranges = [{"start_version": 0, "end_version": -1}, {"start_version": 3, "end_version": 2}]
    response = client.post("/v1/table/t/version/delete", {"ranges": ranges, "branch": "dev"})
    assert response.json() == {"deleted_count": 4}
    assert client.server.last == (T, "dev", [VersionRange(0, -1), VersionRange(3, 2)])


@pytest.mark.parametrize(
    "ranges",
    [
        None,
        {},
        "all",
        [{}],
        [{"start_version": 1}],
        [{"start_version": -1, "end_version": 3}],
        [{"start_version": 0, "end_version": -2}],
        [{"start_version": 0, "end_version": "3"}],
        [{"start_version": 0, "end_version": 2**63}],
        [[0, 1]],
    ],
    ids=repr,
)
def test_malformed_ranges_are_refused(client: HttpClient, ranges: Any) -> None:
    response = client.post("/v1/table/t/version/delete", {"ranges": ranges})
    assert_problem(response, 400, 13, "ranges")
    assert client.server.calls == []


def test_ranges_are_required_and_bounded(client: HttpClient) -> None:
    assert_problem(client.post("/v1/table/t/version/delete"), 400, 13, "'ranges'", "required")
    client.settings = Settings(limits=LimitSettings(version_ranges_max=1))
    ranges = [{"start_version": 0, "end_version": 1}] * 2
    assert_problem(client.post("/v1/table/t/version/delete", {"ranges": ranges}), 400, 13, "ranges")


def test_no_ranges_delete_nothing(client: HttpClient) -> None:
    assert client.post("/v1/table/t/version/delete", {"ranges": []}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "right"),
    [("list", {}, "read"), ("describe", {}, "read"), ("delete", {"ranges": []}, "alter")],
)
def test_each_operation_needs_its_right(
    client: HttpClient, path: str, body: Any, right: str
) -> None:
    others = {"list", "read", "write", "alter", "drop", "manage"} - {right}
    client.authenticator.add("without", f"{'+'.join(others)}:*")
    client.authenticator.add("with", f"{right}:default/t")
    url = f"/v1/table/t/version/{path}"
    assert_problem(client.post(url, body, key="without"), 403, 15, f"'{right}'")
    assert client.post(url, body, key="with").status_code == 200


def test_missing_table_is_not_found(client: HttpClient) -> None:
    assert_problem(client.post("/v1/table/u/version/list"), 404, 4)
