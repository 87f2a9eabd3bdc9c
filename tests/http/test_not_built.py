"""Operations of the specification that this release refuses, and the page that says so."""

import re

import pytest

from serve_app.app import build_api
from serve_app.routing import NOT_BUILT
from tests.http.conftest import HttpClient, assert_problem

UNBUILT = [
    (path, operation["operationId"])
    for path, methods in build_api().openapi()["paths"].items()
    for operation in methods.values()
    if NOT_BUILT in operation
]


def concrete(path: str) -> str:
    return path.replace("{id}", "t").replace("{index_name}", "i")


def test_what_is_not_built_is_known() -> None:
    assert {name for _, name in UNBUILT} == {
        "AlterTableAddColumns",
        "AlterTableAlterColumns",
        "AlterTableBackfillColumns",
        "AlterTableDropColumns",
        "AlterTransaction",
        "AnalyzeTableQueryPlan",
        "BatchCommitTables",
        "BatchCreateTableVersions",
        "CreateTableBranch",
        "CreateTableIndex",
        "CreateTableScalarIndex",
        "CreateTableTag",
        "CreateTableVersion",
        "DeleteTableBranch",
        "DeleteTableTag",
        "DescribeTransaction",
        "DropTableIndex",
        "ExplainTableQueryPlan",
        "GetTableStats",
        "GetTableTagVersion",
        "ListTableBranches",
        "ListTableIndices",
        "ListTableTags",
        "MergeInsertIntoTable",
        "RenameTable",
        "RestoreTable",
        "UpdateFieldMetadata",
        "UpdateTableTag",
    }


@pytest.mark.parametrize(("path", "name"), UNBUILT)
def test_unbuilt_operation_is_unsupported_to_whoever_may_ask(
    client: HttpClient, path: str, name: str
) -> None:
    url = concrete(path)
    body = assert_problem(client.post(url, {"whatever": 1}), 406, 0, f"{name} is not built")
    assert (body["type"], body["title"]) == ("/errors/unsupported", "Unsupported operation")
    assert_problem(client.post(f"{url}/"), 406, 0, name)
    assert_problem(client.post(url, key=None), 401, 16)


def test_document_lists_every_operation_with_its_errors(client: HttpClient) -> None:
    document = client.get("/openapi.json", key=None).json()
    operations = [o for methods in document["paths"].values() for o in methods.values()]
    assert len(operations) == 66
    for operation in operations:
        for status in ("400", "401", "403", "404", "503", "5XX"):
            schema = operation["responses"][status]["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ErrorResponse"}
        assert "422" not in operation["responses"]
    assert set(document["components"]["securitySchemes"]) == {"BearerAuth", "ApiKeyAuth"}


def test_page_names_every_operation_and_needs_nothing_else(client: HttpClient) -> None:
    page = client.get("/docs", key=None)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    shown = set(re.findall(r"<b>(\w+)</b>", page.text))
    document = client.get("/openapi.json", key=None).json()
    assert shown == {
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
    }
    links = re.findall(r'(?:href|src)="([^"]*)"', page.text)
    anchors = set(re.findall(r'id="([^"]*)"', page.text))
    assert all(link == "openapi.json" or link[1:] in anchors for link in links)
    assert page.text.count('<span class="off">') == len(UNBUILT)
