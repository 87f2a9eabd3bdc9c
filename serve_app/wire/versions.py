"""Version records on the wire."""

from typing import Annotated

from pydantic import Field

from actors.model import Page, VersionRecord
from actors.model import VersionRange as DomainRange
from cluster.errors import InvalidInput
from cluster.settings import LimitSettings
from serve_app.wire.base import (
    INT64_MAX,
    Branch,
    Count,
    ObjectRequest,
    OperationRequest,
    OperationResponse,
    PagedResponse,
    Version,
    WireModel,
)
from serve_app.wire.tables import (
    DeclareTableRequest,
    DeclareTableResponse,
    DeregisterTableRequest,
    DeregisterTableResponse,
)


class TableVersion(WireModel):
    """One version record."""

    version: Version
    manifest_path: str
    manifest_size: Count | None = None
    e_tag: str | None = None
    timestamp_millis: int | None = None
    metadata: dict[str, str] | None = None

    @classmethod
    def of(cls, record: VersionRecord) -> "TableVersion":
        """From the domain's record; LanceDB's client wants `metadata` even when there is none."""
        return cls(
            version=record.version,
            manifest_path=record.manifest_path,
            manifest_size=record.manifest_size,
            timestamp_millis=record.timestamp_millis,
            metadata={},
        )


class ListTableVersionsResponse(PagedResponse):
    """Version records in order; a page's token is its last version."""

    versions: list[TableVersion]

    @classmethod
    def of(cls, page: Page[VersionRecord]) -> "ListTableVersionsResponse":
        """The answer that holds a page."""
        return cls(
            versions=[TableVersion.of(record) for record in page.items], page_token=page.page_token
        )


class CreateTableVersionRequest(ObjectRequest):
    """A version whose manifest the caller wrote."""

    version: Version
    branch: Branch | None = None
    manifest_path: str
    manifest_size: Count | None = None
    e_tag: str | None = None
    metadata: dict[str, str] | None = None
    naming_scheme: str | None = None


class CreateTableVersionResponse(OperationResponse):
    """The new version record."""

    transaction_id: str | None = None
    version: TableVersion | None = None


class DescribeTableVersionRequest(ObjectRequest):
    """Which version to describe; the latest when absent."""

    version: Version | None = None
    branch: Branch | None = None


class DescribeTableVersionResponse(OperationResponse):
    """One version record."""

    version: TableVersion


class VersionRange(WireModel):
    """Versions from `start_version` to before `end_version`; -1 is through the latest."""

    start_version: Version
    end_version: Annotated[int, Field(ge=-1, le=INT64_MAX)]


class BatchDeleteTableVersionsRequest(ObjectRequest):
    """Version records to delete; 0 to -1 is all of them."""

    branch: Branch | None = None
    ranges: list[VersionRange]

    def version_ranges(self, limits: LimitSettings) -> list[DomainRange]:
        """The ranges in the domain's words.

        Raises:
            InvalidInput: too many.
        """
        if len(self.ranges) > limits.version_ranges_max:
            raise InvalidInput(f"ranges has more than {limits.version_ranges_max} entries")
        return [DomainRange(item.start_version, item.end_version) for item in self.ranges]


class BatchDeleteTableVersionsResponse(OperationResponse):
    """How many records were deleted."""

    deleted_count: Count | None = None
    transaction_id: str | None = None


class CreateTableVersionEntry(WireModel):
    """One version of one table whose manifest the caller wrote."""

    id: list[str]
    version: Version
    branch: Branch | None = None
    manifest_path: str
    manifest_size: Count | None = None
    e_tag: str | None = None
    metadata: dict[str, str] | None = None
    naming_scheme: str | None = None


class BatchCreateTableVersionsRequest(OperationRequest):
    """Versions of several tables."""

    entries: list[CreateTableVersionEntry]


class BatchCreateTableVersionsResponse(OperationResponse):
    """The new version records."""

    transaction_id: str | None = None
    versions: list[TableVersion]


class CommitTableOperation(WireModel):
    """One change of a commit over several tables."""

    declare_table: DeclareTableRequest | None = None
    create_table_version: CreateTableVersionRequest | None = None
    delete_table_versions: BatchDeleteTableVersionsRequest | None = None
    deregister_table: DeregisterTableRequest | None = None


class CommitTableResult(WireModel):
    """What one change of a commit over several tables did."""

    declare_table: DeclareTableResponse | None = None
    create_table_version: CreateTableVersionResponse | None = None
    delete_table_versions: BatchDeleteTableVersionsResponse | None = None
    deregister_table: DeregisterTableResponse | None = None


class BatchCommitTablesRequest(OperationRequest):
    """Changes to make together."""

    operations: list[CommitTableOperation]


class BatchCommitTablesResponse(OperationResponse):
    """What each change did."""

    transaction_id: str | None = None
    results: list[CommitTableResult]
