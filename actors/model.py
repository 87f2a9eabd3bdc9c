"""The values that cross process boundaries: frozen, picklable, free of Lance and Arrow objects."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from cluster.identifiers import ObjectId

T = TypeVar("T")

# The property of a table that chooses whether it has stable row ids: `true` or `false`.
STABLE_ROW_IDS_PROPERTY = "lance.stable_row_ids"


class CreateMode(StrEnum):
    """What CreateTable and CreateNamespace do when the name is taken."""

    CREATE = "create"
    EXIST_OK = "exist_ok"
    OVERWRITE = "overwrite"


class InsertMode(StrEnum):
    """What InsertIntoTable does with the rows that are there."""

    APPEND = "append"
    OVERWRITE = "overwrite"


@dataclass(frozen=True, slots=True)
class RequestKey:
    """What makes a repeated write the same write.

    `id` hashes caller, route and the client's request id; `digest` hashes the body. A key that
    recurs with another digest is refused.
    """

    id: str
    digest: str


@dataclass(frozen=True, slots=True)
class TableLocation:
    """Where a table's data are, and which life of the name this is.

    `incarnation` is None for a table that no Destrier actor has opened yet. `stable_row_ids` is the
    choice made for a table that is declared and not yet made.
    """

    uri: str
    incarnation: str | None = None
    stable_row_ids: bool = True


@dataclass(frozen=True, slots=True)
class TableRecord:
    """What the catalog knows of a table."""

    id: ObjectId
    location: TableLocation
    properties: Mapping[str, str] = field(default_factory=dict)
    is_only_declared: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """The outcome of a change that is durable.

    `rows` counts the rows inserted, updated or deleted; `transaction_id` is Lance's transaction
    UUID. `repeated` says that the request had been carried out before and this is its first answer.
    """

    version: int
    transaction_id: str
    rows: int = 0
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class ViewCommit:
    """The commit of a refresh; `rows_evicted` counts the rows of the view that it replaced or
    removed."""

    commit: Commit
    rows_evicted: int

    @property
    def version(self) -> int:
        """The view's version that shows the refresh."""
        return self.commit.version


@dataclass(frozen=True, slots=True)
class Assignment:
    """`target` (a field path, one name per level) becomes the value of the SQL `expression`."""

    target: tuple[str, ...]
    expression: str


@dataclass(frozen=True, slots=True)
class InsertItem:
    """One small insert on its way to a shared commit: a whole Arrow IPC stream."""

    key: RequestKey
    body: bytes
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class StagedFragments:
    """Uncommitted fragments in a table's folder: JSON of Lance's FragmentMetadata, and their
    files."""

    fragments: tuple[str, ...]
    schema_ipc: bytes
    rows: int


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Versions from `start` (inclusive) to `end` (exclusive; -1 means through the latest)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """One version record of a table."""

    version: int
    manifest_path: str
    manifest_size: int | None
    timestamp_millis: int


@dataclass(frozen=True, slots=True)
class IndexStats:
    """Statistics of one index at one version."""

    index_type: str
    distance_type: str | None
    num_indexed_rows: int
    num_unindexed_rows: int
    num_indices: int


@dataclass(frozen=True, slots=True)
class Pin:
    """Which state of a table a read is to see.

    With neither `version` nor `tag` the latest of `branch`. `version_min` is a client's lower
    bound: the state must be at least this version.
    """

    branch: str | None = None
    version: int | None = None
    tag: str | None = None
    version_min: int | None = None


LATEST = Pin()


@dataclass(frozen=True, slots=True)
class Counted:
    """A count and the version that was counted."""

    count: int
    version: int


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """A plain scan.

    `columns` maps output names to SQL expressions, in order, or `names` are columns and paths of
    fields, which are no SQL; every column if both are None.
    """

    filter: str | None = None
    columns: tuple[tuple[str, str], ...] | None = None
    limit: int | None = None
    offset: int | None = None
    with_row_id: bool = False
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table to create: its data are staged, or are a whole Arrow IPC stream.

    `schema_metadata` is merged into the schema's own; `stable_row_ids` None takes the setting.
    """

    id: ObjectId
    properties: Mapping[str, str] = field(default_factory=dict)
    schema_metadata: Mapping[str, str] = field(default_factory=dict)
    stable_row_ids: bool | None = None


@dataclass(frozen=True, slots=True)
class CreatedTable:
    """A table after CreateTable: new, replaced, or already there (`created` False)."""

    record: TableRecord
    version: int
    transaction_id: str | None
    created: bool


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """What was dropped or deregistered."""

    id: ObjectId
    location: str
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a listing; `page_token` is None on the last."""

    items: tuple[T, ...]
    page_token: str | None = None


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A table at one state; `schema_ipc` is the Arrow schema as an IPC message.

    Of a declared table `version` and `schema_ipc` are None.
    """

    record: TableRecord
    version: int | None = None
    schema_ipc: bytes | None = None
    num_rows: int | None = None
    num_fragments: int | None = None
    num_deleted_rows: int | None = None
    total_bytes: int | None = None
