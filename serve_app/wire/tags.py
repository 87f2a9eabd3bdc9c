"""Tags on the wire."""

from serve_app.wire.base import (
    Branch,
    Count,
    ObjectRequest,
    OperationResponse,
    PagedResponse,
    Version,
    WireModel,
)


class TagContents(WireModel):
    """What a tag names; the spelling is that of Lance's tag files."""

    branch: str | None = None
    version: Version
    manifestSize: Count


class ListTableTagsResponse(PagedResponse):
    """Tags of a table."""

    tags: dict[str, TagContents]


class GetTableTagVersionRequest(ObjectRequest):
    """The tag to look up."""

    tag: str


class GetTableTagVersionResponse(OperationResponse):
    """The version that the tag names."""

    version: Version
    branch: Branch | None = None


class CreateTableTagRequest(ObjectRequest):
    """A tag and the version it is to name."""

    tag: str
    version: Version
    branch: Branch | None = None


class CreateTableTagResponse(OperationResponse):
    """The tagging transaction."""

    transaction_id: str | None = None


class DeleteTableTagRequest(ObjectRequest):
    """The tag to delete."""

    tag: str


class DeleteTableTagResponse(OperationResponse):
    """The transaction that deleted the tag."""

    transaction_id: str | None = None


class UpdateTableTagRequest(ObjectRequest):
    """A tag and the version it is to name from now on."""

    tag: str
    version: Version
    branch: Branch | None = None


class UpdateTableTagResponse(OperationResponse):
    """The transaction that moved the tag."""

    transaction_id: str | None = None
