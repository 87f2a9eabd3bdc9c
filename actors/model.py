"""The values that cross process boundaries: frozen, picklable, free of Lance and Arrow objects."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cluster.identifiers import ObjectId


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

    `incarnation` is None for a table that no Destrier actor has opened yet.
    """

    uri: str
    incarnation: str | None = None


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

    `rows` counts the rows inserted, updated or deleted; `transaction_id` is Lance's transaction UUID.
    """

    version: int
    transaction_id: str
    rows: int = 0


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
    """Uncommitted fragments in a table's folder: JSON of Lance's FragmentMetadata, and their files."""

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
