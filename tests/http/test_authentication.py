"""Credentials: where they come from, and that nothing comes before them."""

from typing import Any

import pytest

from tests.http.conftest import HttpClient, assert_problem
from tests.http.fakes import FakeServer

COUNT = "/v1/table/t/count_rows"


@pytest.fixture(autouse=True)
def _table(server: FakeServer) -> None:
    server.add_table("t", rows=None)


@pytest.mark.parametrize(
    ("headers", "identity"),
    [
        ({"x-api-key": "admin"}, None),
        ({"authorization": "Bearer admin"}, None),
        ({}, {"api_key": "admin"}),
        ({}, {"auth_token": "admin"}),
        ({"authorization": "", "x-api-key": ""}, {"api_key": "admin"}),
        ({"x-api-key": "admin"}, {"api_key": "wrong"}),
        ({"authorization": "Bearer admin"}, {"auth_token": "wrong", "api_key": "wrong"}),
    ],
    ids=repr,
)
def test_credential_is_taken_from_a_header_then_from_the_body(
    client: HttpClient, headers: dict[str, str], identity: Any
) -> None:
    body = {} if identity is None else {"identity": identity}
    assert client.post(COUNT, body, key=None, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("headers", "identity"),
    [
        ({}, None),
        ({}, {}),
        ({}, "admin"),
        ({}, {"api_key": 7}),
        ({"x-api-key": "wrong"}, {"api_key": "admin"}),
        ({"authorization": "Bearer wrong"}, {"api_key": "admin"}),
    ],
    ids=repr,
)
def test_request_without_a_valid_credential_is_unauthenticated(
    client: HttpClient, headers: dict[str, str], identity: Any
) -> None:
    response = client.post(COUNT, {"identity": identity}, key=None, headers=headers)
    problem = assert_problem(response, 401, 16)
    assert problem["type"] == "/errors/unauthorized-request"
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (COUNT, b"{"),
        (COUNT, b"[]"),
        (COUNT, b'{"version": -1}'),
        (COUNT, b'{"id": ["other"]}'),
        ("/v1/table/$/count_rows", b"{}"),
        ("/v1/table/%FF/count_rows", b"{}"),
        ("/v1/table/t/count_rows?delimiter=", b"{}"),
        ("/v1/table/t/insert?mode=wrong", b""),
        ("/v1/table/t/create?mode=wrong", b""),
        ("/v1/table/t/restore", b"{"),
        ("/v1/table/t/version/list?limit=x", b""),
        ("/v1/namespace/n/create", b'{"mode": "wrong"}'),
    ],
)
def test_authentication_comes_before_validation(
    client: HttpClient, path: str, content: bytes
) -> None:
    assert_problem(client.request("POST", path, content=content, key=None), 401, 16)
    headers = {"x-lancedb-database": "a", "x-service-database": "b"}
    response = client.request("POST", path, content=content, key=None, headers=headers)
    assert_problem(response, 401, 16)


@pytest.mark.parametrize("path", ["/v1/namespace/$/list", "/v1/table", "/v1/table/", "/v1/tables"])
def test_listings_need_a_credential(client: HttpClient, path: str) -> None:
    assert_problem(client.get(path, key=None), 401, 16)
