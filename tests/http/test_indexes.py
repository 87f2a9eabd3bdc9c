"""Index statistics over HTTP."""

import pytest

from actors.model import IndexStats, Pin
from cluster.identifiers import TableRef
from tests.http.conftest import HttpClient, assert_problem
from tests.http.fakes import FakeServer, table_id

T = TableRef("default", table_id("t"))


@pytest.fixture(autouse=True)
def _indexes(server: FakeServer) -> None:
    server.indexes = {
        "id_idx": IndexStats("BTree", None, 10, 2, 1),
        "idx a": IndexStats("IVF_PQ", "cosine", 5, 0, 1),
        "idx+a": IndexStats("IVF_PQ", "l2", 5, 0, 1),
    }


@pytest.mark.parametrize("slash", ["", "/"])
def test_statistics_of_an_index(client: HttpClient, slash: str) -> None:
    body = {"version": 3, "branch": "dev", "index_name": "id_idx", "id": ["t"]}
    response = client.post(f"/v1/table/t/index/id_idx/stats{slash}", body)
    assert response.json() == {
        "index_type": "BTree",
        "num_indexed_rows": 10,
        "num_unindexed_rows": 2,
        "num_indices": 1,
    }
    assert client.server.last == (T, Pin("dev", 3), "id_idx")


def test_request_needs_no_body(client: HttpClient) -> None:
    assert client.post("/v1/table/t/index/idx%20a/stats").json()["distance_type"] == "cosine"


@pytest.mark.parametrize(
    ("segment", "body", "distance"),
    [
        ("idx+a", {"index_name": "idx a"}, "cosine"),
        ("idx+a", {"index_name": "idx+a"}, "l2"),
        ("idx%2Ba", {"index_name": "idx+a"}, "l2"),
        ("idx+a", {}, "l2"),
    ],
)
def test_plus_in_an_index_name(
    client: HttpClient, segment: str, body: dict[str, str], distance: str
) -> None:
    response = client.post(f"/v1/table/t/index/{segment}/stats", body)
    assert response.json()["distance_type"] == distance


def test_body_that_names_another_index_is_refused(client: HttpClient) -> None:
    response = client.post("/v1/table/t/index/id_idx/stats", {"index_name": "other"})
    assert_problem(response, 400, 13, "request body names index 'other'", "'id_idx'")


def test_missing_index_is_not_found(client: HttpClient) -> None:
    assert_problem(client.post("/v1/table/t/index/none/stats"), 404, 6)


def test_broken_escape_is_refused(client: HttpClient) -> None:
    assert_problem(client.post("/v1/table/t/index/%FF/stats"), 400, 13, "UTF-8")


def test_statistics_need_the_right_to_read(client: HttpClient) -> None:
    client.authenticator.add("writer", "write+list+alter:*")
    response = client.post("/v1/table/t/index/id_idx/stats", key="writer")
    assert_problem(response, 403, 15, "'read'")
