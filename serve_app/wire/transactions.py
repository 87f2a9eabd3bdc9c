"""Transactions on the wire."""

from typing import Annotated

from pydantic import Field

from serve_app.wire.base import ObjectRequest, OperationResponse, Properties, WireModel


class DescribeTransactionRequest(ObjectRequest):
    """Nothing but what every request may carry."""


class DescribeTransactionResponse(OperationResponse):
    """The state of a transaction."""

    status: str
    properties: Properties | None = None


class AlterTransactionSetStatus(WireModel):
    """A new status."""

    status: str | None = None


class AlterTransactionSetProperty(WireModel):
    """A property to set; `mode` is Overwrite (default), Fail or Skip."""

    key: str | None = None
    value: str | None = None
    mode: str | None = None


class AlterTransactionUnsetProperty(WireModel):
    """A property to remove; `mode` is Skip (default) or Fail."""

    key: str | None = None
    mode: str | None = None


class AlterTransactionAction(WireModel):
    """One change; the spelling is the specification's."""

    setStatusAction: AlterTransactionSetStatus | None = None
    setPropertyAction: AlterTransactionSetProperty | None = None
    unsetPropertyAction: AlterTransactionUnsetProperty | None = None


class AlterTransactionRequest(ObjectRequest):
    """Changes to make to a transaction."""

    actions: Annotated[list[AlterTransactionAction], Field(min_length=1)]


class AlterTransactionResponse(OperationResponse):
    """The transaction afterwards."""

    status: str
    properties: Properties | None = None
