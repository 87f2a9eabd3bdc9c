"""Operations are those of the Lance namespace specification; its Python client is the oracle."""

import inspect
from importlib import metadata
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from lance_namespace.errors import ErrorCode as SpecifiedCode
from lance_namespace_urllib3_client import api, models
from lance_namespace_urllib3_client.api_client import ApiClient

from cluster.errors import ErrorCode
from serve_app.app import build_api

# What is not as the specification has it, and why.
EXTRA_OPERATIONS = {
    ("GET", "/v1/tables", "ListEnterpriseTables"): "LanceDB Enterprise's connection check",
    ("POST", "/v1/tables/{name}", "CreateEnterpriseTable"): "LanceDB Enterprise's connection check",
    (
        "POST",
        "/v1/materialized_view/{id}/describe",
        "DescribeMaterializedView",
    ): "LanceDB's client opens views with it",
    (
        "POST",
        "/v1/materialized_view/{id}/drop",
        "DropMaterializedView",
    ): "LanceDB's client drops views with it",
    (
        "GET",
        "/v1/namespace/{id}/materialized_view/list",
        "ListMaterializedViews",
    ): "LanceDB's client lists views with it",
    ("POST", "/v1/jobs/list", "ListJobs"): "LanceDB's client",
    ("POST", "/v1/jobs/describe", "DescribeJob"): "LanceDB's client waits with it",
    ("POST", "/v1/jobs/cancel", "CancelJob"): "LanceDB's client",
    ("POST", "/v1/jobs/pause", "PauseJob"): "LanceDB's client",
    ("POST", "/v1/jobs/resume", "ResumeJob"): "LanceDB's client",
    ("POST", "/v1/jobs/query_events", "QueryJobEvents"): "LanceDB's client",
    ("POST", "/v1/jobs/errors", "ListJobErrors"): "which items of a refresh failed, and why",
}
EXTRA_FIELDS = {
    "ErrorResponse": ({"type", "title", "status"}, "the problem fields that customers read"),
    "UpdateTableResponse": ({"rows_updated"}, "LanceDB's client reads it"),
    "DeleteFromTableResponse": ({"num_deleted_rows"}, "LanceDB's client reads it"),
    "QueryTableRequest": ({"order_by"}, "LanceDB's client sends it; to ignore it would be wrong"),
    "AnalyzeTableQueryPlanRequest": ({"order_by"}, "as QueryTableRequest"),
    "CreateMaterializedViewRequest": ({"query"}, "LanceDB's client sends it instead of a kind"),
    "RefreshMaterializedViewRequest": (
        {"full", "source_version", "cascade", "failed_only"},
        "LanceDB's client sends the first two; the others choose what is refreshed",
    ),
}
# Not sent as objects over HTTP: bodiless requests, Arrow streams, bare numbers, texts and maps.
NOT_ON_THE_WIRE = {
    "AnalyzeTableQueryPlanResponse",
    "CountTableRowsResponse",
    "CreateTableRequest",
    "DropTableIndexRequest",
    "DropTableRequest",
    "ExplainTableQueryPlanResponse",
    "InsertIntoTableRequest",
    "ListNamespacesRequest",
    "ListTableBranchesRequest",
    "ListTableTagsRequest",
    "ListTableVersionsRequest",
    "ListTablesRequest",
    "MergeInsertIntoTableRequest",
    "NamespaceExistsResponse",
    "PartitionField",
    "PartitionSpec",
    "PartitionTransform",
    "QueryTableResponse",
    "TableExistsResponse",
    "UpdateTableSchemaMetadataRequest",
    "UpdateTableSchemaMetadataResponse",
}
NOT_REQUIRED_HERE = {
    "MaterializedViewUdtfEntry": "the whole definition is checked at once, with better words",
    "QueryTableRequest": "a plain scan needs neither vector nor k",
    "CreateMaterializedViewRequest": "LanceDB's client sends a query instead",
    "AnalyzeTableQueryPlanRequest": "as QueryTableRequest",
}

DOCUMENT = build_api().openapi()
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
OPERATIONS = {
    (method.upper(), path): operation
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}


def specified_operations() -> dict[tuple[str, str], tuple[str, set[str]]]:
    """(method, path) -> (operation, query parameters), from what the client would send."""
    found: dict[tuple[str, str], tuple[str, set[str]]] = {}
    classes: list[Any] = [cls for _, cls in inspect.getmembers(api, inspect.isclass)]
    for cls in classes:
        client = cls(ApiClient())
        for name, _ in inspect.getmembers(cls, inspect.isfunction):
            serialize = getattr(client, f"_{name}_serialize", None)
            if name.startswith("_") or serialize is None:
                continue
            operation = "".join(word.title() for word in name.split("_"))
            found |= sent_by(operation, serialize)
    return found


def sent_by(operation: str, serialize: Any) -> dict[tuple[str, str], tuple[str, set[str]]]:
    arguments: dict[str, Any] = {}
    for name in inspect.signature(serialize).parameters:
        if name.startswith("_"):
            arguments[name] = {} if name == "_headers" else None
        elif name in ("id", "index_name"):
            arguments[name] = f"<{name}>"
        elif name in ("body", "request_body") or name.endswith("_request"):
            arguments[name] = {}
        else:
            arguments[name] = "1"
    arguments["_host_index"] = 0
    method, url, *_ = serialize(**arguments)
    parts = urlsplit(url)
    path = parts.path.replace("%3C", "{").replace("%3E", "}")
    return {(method, path): (operation, set(parse_qs(parts.query)))}


SPECIFIED = specified_operations()


def test_paths_and_operations_are_those_of_the_specification() -> None:
    ours = {(*key, operation["operationId"]) for key, operation in OPERATIONS.items()}
    theirs = {(*key, operation) for key, (operation, _) in SPECIFIED.items()}
    assert len(theirs) == 54
    assert ours - theirs == set(EXTRA_OPERATIONS)
    assert theirs - ours == set()


@pytest.mark.parametrize("key", SPECIFIED, ids=lambda key: SPECIFIED[key][0])
def test_query_parameters_are_those_of_the_specification(key: tuple[str, str]) -> None:
    ours = {
        parameter["name"]
        for parameter in OPERATIONS[key].get("parameters", ())
        if parameter["in"] == "query"
    }
    assert ours == SPECIFIED[key][1]


@pytest.mark.parametrize("key", SPECIFIED, ids=lambda key: SPECIFIED[key][0])
def test_handler_is_named_as_the_operation(key: tuple[str, str]) -> None:
    name, operation = SPECIFIED[key][0], OPERATIONS[key]
    assert operation["summary"].replace(" ", "") == name


def client_models() -> dict[str, Any]:
    return dict(inspect.getmembers(models, inspect.isclass))


def fields_of(model: Any) -> dict[str, bool]:
    """Wire name -> whether it is required."""
    return {field.alias or name: field.is_required() for name, field in model.model_fields.items()}


def test_every_model_of_the_specification_is_ours_too() -> None:
    assert set(client_models()) - set(SCHEMAS) == NOT_ON_THE_WIRE


@pytest.mark.parametrize("name", sorted(set(client_models()) - NOT_ON_THE_WIRE))
def test_fields_are_those_of_the_specification(name: str) -> None:
    theirs = fields_of(client_models()[name])
    extra, _ = EXTRA_FIELDS.get(name, (set(), ""))
    ours = SCHEMAS[name]
    assert set(ours.get("properties", {})) == set(theirs) | extra
    required = {field for field, is_required in theirs.items() if is_required}
    if name in NOT_REQUIRED_HERE:
        assert set(ours.get("required", ())) < required
    elif name == "ErrorResponse":
        assert set(ours["required"]) > required
    else:
        assert set(ours.get("required", ())) - extra == required


def test_error_codes_are_those_of_the_specification() -> None:
    theirs = {code.name: int(code) for code in SpecifiedCode}
    assert {code.name: int(code) for code in ErrorCode} == theirs


def test_document_names_the_release_that_it_was_compared_with() -> None:
    assert metadata.version("lance-namespace-urllib3-client") == DOCUMENT["info"]["version"]
