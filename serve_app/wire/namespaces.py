"""Namespaces on the wire."""

from enum import StrEnum

from pydantic import Field

from actors.model import Page
from serve_app.wire.base import ObjectRequest, OperationResponse, PagedResponse, Properties


class DropMode(StrEnum):
    """What DropNamespace does when there is no such namespace."""

    FAIL = "fail"
    SKIP = "skip"


class DropBehavior(StrEnum):
    """What DropNamespace does with the namespace's content."""

    RESTRICT = "restrict"
    CASCADE = "cascade"


class CreateNamespaceRequest(ObjectRequest):
    """How to create a namespace."""

    mode: str | None = Field(None, description="Create (default), ExistOk or Overwrite.")
    properties: Properties | None = None


class CreateNamespaceResponse(OperationResponse):
    """The namespace after its creation."""

    transaction_id: str | None = None
    properties: Properties | None = None


class ListNamespacesResponse(PagedResponse):
    """Names of child namespaces."""

    namespaces: list[str]

    @classmethod
    def of(cls, page: Page[str]) -> "ListNamespacesResponse":
        """From a page of the catalog."""
        return cls(namespaces=list(page.items), page_token=page.page_token)


class DescribeNamespaceRequest(ObjectRequest):
    """Nothing but what every request may carry."""


class DescribeNamespaceResponse(OperationResponse):
    """A namespace's properties."""

    properties: Properties | None = None


class DropNamespaceRequest(ObjectRequest):
    """How to drop a namespace."""

    mode: str | None = Field(None, description="Fail (default) or Skip.")
    behavior: str | None = Field(None, description="Restrict (default) or Cascade.")


class DropNamespaceResponse(OperationResponse):
    """The properties of the dropped namespace."""

    properties: Properties | None = None
    transaction_id: list[str] | None = None


class NamespaceExistsRequest(ObjectRequest):
    """Nothing but what every request may carry."""


class ListTablesResponse(PagedResponse):
    """Names, or identifiers, of tables."""

    tables: list[str]

    @classmethod
    def of(cls, page: Page[str]) -> "ListTablesResponse":
        """From a page of the catalog."""
        return cls(tables=list(page.items), page_token=page.page_token)
