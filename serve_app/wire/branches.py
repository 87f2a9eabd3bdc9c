"""Branches on the wire."""

from serve_app.wire.base import (
    Branch,
    Count,
    ObjectRequest,
    OperationResponse,
    PagedResponse,
    Version,
    WireModel,
)


class BranchContents(WireModel):
    """Where a branch began; the spelling is that of Lance's branch files."""

    parentBranch: str | None = None
    parentVersion: Version
    createAt: Count
    manifestSize: Count
    metadata: dict[str, str] | None = None


class ListTableBranchesResponse(PagedResponse):
    """Branches of a table, main apart."""

    branches: dict[str, BranchContents]


class CreateTableBranchRequest(ObjectRequest):
    """A branch and where it begins."""

    name: str
    from_branch: Branch | None = None
    from_version: Version | None = None


class CreateTableBranchResponse(OperationResponse):
    """The branching transaction."""

    transaction_id: str | None = None


class DeleteTableBranchRequest(ObjectRequest):
    """The branch to delete."""

    name: str


class DeleteTableBranchResponse(OperationResponse):
    """The transaction that deleted the branch."""

    transaction_id: str | None = None
