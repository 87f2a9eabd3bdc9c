"""Rows on the wire: insert, merge, update, delete, count."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from actors.field_paths import parse_field_path
from actors.model import Assignment, Commit
from cluster.errors import InvalidInput
from cluster.settings import LimitSettings
from serve_app.wire.base import (
    Branch,
    Count,
    ObjectRequest,
    OperationResponse,
    Properties,
    Version,
    check_sql,
)

Pair = Annotated[list[str], Field(min_length=2, max_length=2)]


class InsertIntoTableResponse(OperationResponse):
    """The commit that holds the rows."""

    transaction_id: str | None = None
    num_inserted_rows: Count | None = None
    version: Version | None = None

    @classmethod
    def of(cls, commit: Commit) -> "InsertIntoTableResponse":
        """From the domain's answer."""
        return cls(
            transaction_id=commit.transaction_id,
            num_inserted_rows=commit.rows,
            version=commit.version,
        )


class MergeInsertIntoTableResponse(OperationResponse):
    """The commit that holds the merged rows."""

    transaction_id: str | None = None
    num_updated_rows: Count | None = None
    num_inserted_rows: Count | None = None
    num_deleted_rows: Count | None = None
    version: Version | None = None


class UpdateTableRequest(ObjectRequest):
    """What to assign, and to which rows."""

    branch: Branch | None = None
    predicate: str | None = Field(None, description="SQL; every row when absent.")
    updates: Annotated[list[Pair], Field(min_length=1)] = Field(
        description="[field path, SQL expression of the row as it was] pairs."
    )
    properties: Properties | None = Field(None, description="Merged into the table's properties.")

    def assignments(self, limits: LimitSettings) -> list[Assignment]:
        """The updates in the domain's words.

        Raises:
            InvalidInput: too many, too long, or a target that is no field path.
        """
        if len(self.updates) > limits.updates_max:
            raise InvalidInput(f"updates has more than {limits.updates_max} pairs")
        found = []
        for target, expression in self.updates:
            check_sql(expression, f"the expression for {target!r}", limits)
            found.append(Assignment(parse_field_path(target), expression))
        return found


class UpdateTableResponse(OperationResponse):
    """The commit that holds the updated rows; `rows_updated` is what LanceDB's client reads."""

    transaction_id: str | None = None
    updated_rows: Count
    rows_updated: Count
    version: Version
    properties: Properties | None = None

    @classmethod
    def of(cls, commit: Commit, properties: Mapping[str, str]) -> "UpdateTableResponse":
        """From the domain's answer."""
        return cls(
            transaction_id=commit.transaction_id,
            updated_rows=commit.rows,
            rows_updated=commit.rows,
            version=commit.version,
            properties=dict(properties),
        )


class DeleteFromTableRequest(ObjectRequest):
    """Which rows to delete."""

    branch: Branch | None = None
    predicate: Annotated[str, Field(min_length=1)] = Field(description="SQL; `true` is every row.")


class DeleteFromTableResponse(OperationResponse):
    """The commit without the deleted rows; `num_deleted_rows` is what LanceDB's client reads."""

    transaction_id: str | None = None
    version: Version | None = None
    num_deleted_rows: Count | None = None

    @classmethod
    def of(cls, commit: Commit) -> "DeleteFromTableResponse":
        """From the domain's answer."""
        return cls(
            transaction_id=commit.transaction_id,
            version=commit.version,
            num_deleted_rows=commit.rows,
        )


class CountTableRowsRequest(ObjectRequest):
    """Which rows of which version to count."""

    version: Version | None = None
    branch: Branch | None = None
    predicate: str | None = Field(None, description="SQL; every row when absent.")
