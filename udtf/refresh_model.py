"""The values of a refresh: what is asked, what is to be done, what was done.

Frozen and plain: they cross processes as JSON or pickles, and hold no Lance or Arrow objects.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class RefreshMode(StrEnum):
    """How a refresh brought a view up to date; the words are LanceDB's."""

    REBUILD = "rebuild"
    INCREMENTAL = "incremental"
    NO_OP = "no_op"


class Runner(StrEnum):
    """Where Daft runs a refresh's work items."""

    NATIVE = "native"
    RAY = "ray"


@dataclass(frozen=True, slots=True)
class RefreshOptions:
    """What a RefreshMaterializedView request chooses; None takes the deployment's default.

    `source_version` None is the latest. `source_task_size` counts source rows of one work item of a
    chunker view. `concurrency` counts workers, `intra_applier_concurrency` the child processes of
    each. `output_limit` caps the rows of a chunker view.
    """

    source_version: int | None = None
    full: bool = False
    max_rows_per_fragment: int | None = None
    concurrency: int | None = None
    intra_applier_concurrency: int | None = None
    source_task_size: int | None = None
    output_limit: int | None = None
    manifest: str | None = None


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """Where the rows of a view come from: one table, and what of it is pinned.

    `id` are the names of its path in the catalog, `uri` is its folder. With neither `version` nor
    `tag` the latest of `branch`.
    """

    id: tuple[str, ...]
    uri: str
    branch: str | None = None
    version: int | None = None
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class Watermark:
    """Up to where a view shows its source, and what it was computed with.

    `source_version_ts` is the timestamp of that version's manifest in nanoseconds: a recreated
    table has other ones. `definition_sha`, `udtf_sha` and `manifest_checksum` are SHA-256 in
    hexadecimal.
    """

    source_id: tuple[str, ...]
    source_uri: str
    branch: str | None
    source_version: int
    source_version_ts: int
    definition_sha: str
    udtf_sha: str | None
    manifest_checksum: str | None
    output_limit: int | None
    job_id: str
    refreshed_at_ms: int

    def to_json(self) -> dict[str, Any]:
        """As stored in the transaction's properties."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "source_id": list(self.source_id)
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Watermark":
        """The reverse of to_json."""
        return Watermark(**{**value, "source_id": tuple(value["source_id"])})


class ItemState(StrEnum):
    """How a work item ended."""

    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ItemError:
    """Why an item failed or was skipped.

    `kind` says who is to blame: `user` (the code raised), `crash` (its process died), `timeout`,
    `memory`, `schema` (what it returned does not fit), `system` (not the code's fault). `type` is
    the exception's class, `traceback` the code's own, shortened.
    """

    kind: str
    type: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class ItemStatus:
    """One work item that has ended; `fragments` are JSON of uncommitted Lance fragments.

    `label` is what people call it: the partition's value, or the range of source rows.
    """

    id: str
    state: ItemState
    attempts: int = 1
    rows_in: int = 0
    rows_out: int = 0
    fragments: tuple[str, ...] = ()
    error: ItemError | None = None
    label: str = ""
    duration_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        """As reported by a driver and stored with the job."""
        error = self.error
        return {
            "id": self.id,
            "state": self.state.value,
            "attempts": self.attempts,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "fragments": list(self.fragments),
            "error": None if error is None else {n: getattr(error, n) for n in error.__slots__},
            "label": self.label,
            "duration_ms": self.duration_ms,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "ItemStatus":
        """The reverse of to_json."""
        error = value["error"]
        return ItemStatus(
            id=value["id"],
            state=ItemState(value["state"]),
            attempts=value["attempts"],
            rows_in=value["rows_in"],
            rows_out=value["rows_out"],
            fragments=tuple(value["fragments"]),
            error=None if error is None else ItemError(**error),
            label=value["label"],
            duration_ms=value["duration_ms"],
        )


@dataclass(frozen=True, slots=True)
class RefreshSummary:
    """What a planned refresh will do, before its items run.

    `reason` says in a sentence why it is of this mode. `checkpoint_key` names everything that its
    items depend on: an item that was done under the same key need not be done again.
    """

    mode: RefreshMode
    reason: str
    source_version: int
    items: int
    rows: int | None
    checkpoint_key: str


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """What the owner of a view's table is to commit, in one version.

    `view_version` is the version of the view that the refresh was planned on. `replace_all` removes
    every row that is there. Else `evict` (the URI of an Arrow IPC file with
    one uint64 column `row_id`, or None) names the source rows whose rows are to go. `fragments` are
    JSON of uncommitted fragments in the view's folder.
    """

    job_id: str
    view_version: int
    mode: RefreshMode
    replace_all: bool
    evict: str | None
    fragments: tuple[str, ...]
    rows_written: int
    watermark: Watermark


@dataclass(frozen=True, slots=True)
class RefreshResult:
    """The outcome of a refresh that is done; the first four are what LanceDB's clients read."""

    mode: RefreshMode
    rows_written: int
    source_version: int
    version: int
    rows_read: int = 0
    rows_evicted: int = 0
    items: int = 0
    items_skipped: int = 0
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
