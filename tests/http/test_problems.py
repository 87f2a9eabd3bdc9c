"""Errors as answers."""

import logging

import pytest

from cluster.errors import DestrierError, ErrorCode, InternalError, error_classes
from serve_app.problems import HEADERS, KINDS, STATUSES, problem, validation_sentence
from tests.http.conftest import HttpClient, assert_problem
from tests.http.fakes import FakeServer

COUNT = "/v1/table/t/count_rows"


def test_every_code_has_a_status_with_a_type_and_a_title() -> None:
    assert set(STATUSES) == set(ErrorCode)
    assert set(STATUSES.values()) <= set(KINDS)
    assert set(HEADERS) <= set(KINDS)


@pytest.mark.parametrize(
    ("codes", "status"),
    [
        ({0}, 406),
        ({1, 4, 6, 8, 10, 11, 22}, 404),
        ({2, 3, 5, 7, 9, 14, 23}, 409),
        ({12, 13, 19, 20}, 400),
        ({15}, 403),
        ({16}, 401),
        ({17, 21}, 503),
        ({18}, 500),
    ],
)
def test_status_of_each_code(codes: set[int], status: int) -> None:
    assert {int(code) for code, decided in STATUSES.items() if decided == status} == codes


@pytest.mark.parametrize(
    ("status", "kind", "title"),
    [
        (400, "/errors/bad-request", "Malformed request"),
        (
            401,
            "/errors/unauthorized-request",
            "No valid authentication credentials for the operation",
        ),
        (403, "/errors/forbidden-request", "Not authorized to make this request"),
        (404, "/errors/not-found-error", "Not found Error"),
        (406, "/errors/unsupported", "Unsupported operation"),
        (409, "/errors/conflict", "The namespace has been concurrently modified"),
        (503, "/errors/service-unavailable", "Slow down"),
        (500, "/errors/server-error", "Internal Server Error"),
    ],
)
def test_type_and_title_are_those_of_the_specification(status: int, kind: str, title: str) -> None:
    assert KINDS[status] == (kind, title)


@pytest.mark.parametrize(
    "cls", [cls for cls in error_classes().values() if cls is not InternalError]
)
def test_error_of_the_domain_is_answered(
    client: HttpClient, server: FakeServer, cls: type[DestrierError]
) -> None:
    server.failures["count_rows"] = cls("say something else")
    response = client.post("/v1/table/t%C3%A9/count_rows?delimiter=$")
    body = assert_problem(response, problem(cls.code, "").status, cls.code)
    assert body["instance"] == "/v1/table/t%C3%A9/count_rows"
    assert (body["type"], body["title"]) == KINDS[response.status_code]
    assert "say something else" in body["error"]
    assert response.headers["phalanx-version"] == "0.3.0"


@pytest.mark.parametrize("failure", [InternalError("disk /data broke"), ZeroDivisionError("/data")])
def test_fault_tells_the_client_an_id_and_the_log_the_rest(
    client: HttpClient,
    server: FakeServer,
    caplog: pytest.LogCaptureFixture,
    failure: Exception,
) -> None:
    server.failures["count_rows"] = failure
    with caplog.at_level(logging.ERROR):
        body = assert_problem(client.post(COUNT), 500, 18)
    assert "/data" not in body["error"]
    (record,) = caplog.records
    assert record.getMessage().split()[-1] in body["error"]
    assert record.exc_info is not None
    assert record.exc_info[1] is failure


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v2/table/t/count_rows", "/v1/table/t", "/v1/table/t/nothing", "/v1/x"]
)
def test_unknown_path_is_not_found(client: HttpClient, path: str) -> None:
    assert assert_problem(client.get(path), 404, 0, "/docs")["instance"] == path


def test_encoded_slash_in_a_name_does_not_change_the_route(client: HttpClient) -> None:
    response = client.post("/v1/table/a%2Fcount_rows")
    assert_problem(response, 404, 0)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", COUNT, "POST"),
        ("DELETE", "/v1/table/t/drop", "POST"),
        ("POST", "/v1/namespace/n/list", "GET"),
        ("PUT", "/v1/tables", "GET"),
    ],
)
def test_wrong_method_names_the_right_one(
    client: HttpClient, method: str, path: str, allowed: str
) -> None:
    response = client.request(method, path)
    assert_problem(response, 405, 0, "method")
    assert response.headers["allow"] == allowed


def test_every_answer_has_the_request_id_once(client: HttpClient) -> None:
    headers = {"x-request-id": "r-1"}
    for path in (COUNT, "/v1/nothing", "/v1/table/t/restore"):
        response = client.post(path, headers=headers)
        assert response.headers.get_list("x-request-id") == ["r-1"]


def test_validation_names_the_first_fields_only() -> None:
    errors = [{"loc": ("body", "ranges", n, "x"), "msg": "Field required"} for n in range(5)]
    assert validation_sentence(errors) == (
        "body field 'ranges.0.x': field required; body field 'ranges.1.x': field required;"
        " body field 'ranges.2.x': field required; and 2 more"
    )
    assert validation_sentence([{"loc": ("body",), "msg": "Field required"}]) == (
        "body: field required"
    )
