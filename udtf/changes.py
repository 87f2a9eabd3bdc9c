"""Which rows of a source are new, different or gone since a view was refreshed.

Three ways, the cheapest that is exact:

1. Every transaction since then is read. Rows carry the number of the version that changed them
   last; a commit that marks all rows but left the columns that the view reads in their files (a
   column was added, say) parts the history, and the rows before it are found in the version
   before it.
2. Both versions are compared row by row: after a restore, which takes numbers back, or when a
   transaction cannot be decoded.
3. The view is computed anew, and a sentence says why.

Row ids and version numbers tell nothing of a column that another took the place of: a column may
be renamed, or dropped and added again, even with the same id. So the columns that a view reads must
have been there, with their ids, in every version between.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from udtf.history import (
    NEUTRAL,
    ROW_CHANGES,
    Step,
    Unreadable,
    around,
    column_files,
    column_ids,
    read_step,
    same_columns,
    same_rows,
)
from udtf.refresh_model import RefreshMode, RefreshOptions, SourceLocation, Watermark
from udtf.sources import BoundSource, definition_sha, version_timestamp
from udtf.spec import ViewDefinition, ViewKind

Ids = npt.NDArray[np.uint64]

_ROW_ID = "_rowid"
_ROW_ADDRESS = "_rowaddr"
_CHANGED_AT = "_row_last_updated_at_version"
# A row address is the number of its fragment and, in so many bits, its place there.
_OFFSET_BITS = np.uint64(32)

# These mark every row of the fragments they touch as changed.
_MARKING = frozenset({"Merge", "DataReplacement"})


@dataclass(frozen=True, slots=True, eq=False)
class ChangePlan:
    """How a view is brought up to date.

    `changed` are ids of source rows that are new or different, sorted, None if the whole view is
    computed; `deleted` those that are gone. Rows of both are to be evicted. `tier` is the way above
    that it was found in, 0 if there was nothing to look at.
    """

    mode: RefreshMode
    reason: str
    tier: int
    changed: Ids | None = None
    deleted: Ids = field(default_factory=lambda: np.empty(0, np.uint64))


class _MustRebuild(Exception):
    """What changed cannot be told; the message is a sentence that says why."""


class _MustCompare(Exception):
    """Transactions do not tell what changed; the message is a clause that says why.

    `strictly`: that a column has the same id in two versions proves nothing either.
    """

    def __init__(self, why: str, *, strictly: bool) -> None:
        super().__init__(why)
        self.strictly = strictly


def plan_changes(
    source: Any,
    view_watermark: Watermark | None,
    drift: str | None,
    location: SourceLocation,
    definition: ViewDefinition,
    options: RefreshOptions,
    bound: BoundSource,
    udtf_sha: str | None,
    manifest_checksum: str | None,
) -> ChangePlan:
    """Decide how to bring a view to what its definition says of `source`, open at its version.

    Reads version numbers of rows at most, no data. Lance's own errors mean that the source cannot
    be read.
    """
    try:
        mark = _usable(view_watermark, drift, options)
        _check_same_recipe(mark, location, definition, options, udtf_sha, manifest_checksum)
        old = _source_at_watermark(source, mark)
        if old is None:
            return ChangePlan(
                RefreshMode.NO_OP,
                f"the view shows version {mark.source_version} of its source already",
                0,
            )
        if definition.kind is ViewKind.UDTF:
            raise _MustRebuild(
                f"a view of kind {definition.kind} is computed whole when its source has changed"
            )
        if not bound.stable_row_ids or not old.has_stable_row_ids:
            raise _MustRebuild("the source has no stable row ids, so changes cannot be told")
        plan = _incremental(source, old, bound)
    except _MustRebuild as reason:
        return ChangePlan(RefreshMode.REBUILD, str(reason), 3)
    assert plan.changed is not None
    cap = "output_limit" if bound.limit is None else "the LIMIT of the source query"
    capped = bound.limit is not None or options.output_limit is not None
    if capped and (len(plan.changed) or len(plan.deleted)):
        return ChangePlan(
            RefreshMode.REBUILD, f"rows changed, and {cap} is on all rows together", 3
        )
    return plan


def _usable(watermark: Watermark | None, drift: str | None, options: RefreshOptions) -> Watermark:
    if options.full:
        raise _MustRebuild("a full refresh was asked for")
    if drift is not None:
        raise _MustRebuild(f"the view's rows are not those of its last refresh: {drift}")
    if watermark is None:
        raise _MustRebuild("the view was never refreshed")
    return watermark


def _check_same_recipe(
    mark: Watermark,
    location: SourceLocation,
    definition: ViewDefinition,
    options: RefreshOptions,
    udtf_sha: str | None,
    manifest_checksum: str | None,
) -> None:
    """Refuse to continue what was computed otherwise, or of another table."""
    # What LanceDB refreshed says neither what its source was nor what its definition.
    if mark.source_id and mark.source_id != location.id:
        raise _MustRebuild("the view's source is another table now")
    if mark.source_uri and mark.source_uri.rstrip("/") != location.uri.rstrip("/"):
        raise _MustRebuild("the view's source lies in another folder now; it was made anew")
    if mark.branch != location.branch:
        raise _MustRebuild(
            f"the view showed branch {mark.branch or 'main'} of its source, and is to show"
            f" {location.branch or 'main'}"
        )
    if mark.definition_sha and mark.definition_sha != definition_sha(definition):
        raise _MustRebuild("the view's definition changed")
    if mark.udtf_sha != udtf_sha:
        raise _MustRebuild("the view's code changed")
    if mark.manifest_checksum != manifest_checksum:
        raise _MustRebuild("the environment (manifest) of the view's code changed")
    if mark.output_limit != options.output_limit:
        raise _MustRebuild(
            f"output_limit was {mark.output_limit or 'not given'} and is"
            f" {options.output_limit or 'not given'} now"
        )


def _source_at_watermark(source: Any, mark: Watermark) -> Any | None:
    """The source as the view shows it; None if that is the version to be shown."""
    version, latest = mark.source_version, int(source.version)
    recreated = _MustRebuild(
        f"the source is not the table whose version {version} the view shows; it was dropped and"
        " created again"
    )
    if version == latest:
        if version_timestamp(source) != mark.source_version_ts:
            raise recreated
        return None
    if version > latest:
        raise _MustRebuild(
            f"the view shows version {version} of its source, which is later than version {latest}"
            " that it is to show"
        )
    try:
        old = source.checkout_version(version)
    except Exception:  # noqa: BLE001 - untyped: the usual cause is that it was cleaned up
        raise _MustRebuild(
            f"version {version} of the source, which the view shows, is not there any more, so"
            " changes since then cannot be told"
        ) from None
    if version_timestamp(old) != mark.source_version_ts:
        raise recreated
    return old


def _incremental(source: Any, old: Any, bound: BoundSource) -> ChangePlan:
    """What changed from `old` to `source`, by the first way that is exact."""
    inputs = bound.inputs
    if column_ids(old, inputs) != column_ids(source, inputs):
        raise _MustRebuild("a column that the view reads was replaced by another of its name")
    how = ""
    try:
        changed, deleted = _by_history(source, old, inputs)
        tier = 1
    except _MustCompare as why:
        changed, deleted = _by_comparison(source, old, inputs if why.strictly else None)
        how, tier = f" (found by comparing rows, because {why})", 2
    reason = (
        f"{len(changed)} rows are new or changed and {len(deleted)} are gone since version"
        f" {old.version} of the source{how}"
    )
    return ChangePlan(RefreshMode.INCREMENTAL, reason, tier, changed, deleted)


# --- by the transactions --------------------------------------------------------------------------


def _by_history(source: Any, old: Any, inputs: frozenset[str]) -> tuple[Ids, Ids]:
    """Rows changed and rows deleted, as the transactions and the rows' version numbers say."""
    segments = _segments(source, old, inputs)
    found = [_changed_between(dataset, low, high) for dataset, low, high in segments]
    changed = np.unique(_joined(found))
    if len(segments) > 1:
        # What changed early may be gone by now, and was perhaps never in the view.
        changed = np.intersect1d(changed, _joined(_scan(source, [])[:1]), assume_unique=True)
    try:
        delta = source.delta(begin_version=int(old.version), end_version=int(source.version))
        batches = [batch.column(_ROW_ID).to_numpy() for batch in delta.get_deleted_row_ids()]
    except Exception as error:
        raise _MustCompare("deleted rows cannot be listed", strictly=False) from error
    return changed, np.unique(_joined(batches))


def _segments(source: Any, old: Any, inputs: frozenset[str]) -> list[tuple[Any, int, int]]:
    """Versions to look for changed rows in, each with the range of version numbers that count.

    The whole history is walked even when it is known already that versions must be compared: only
    so is it known that the columns stayed the same.
    """
    segments = []
    compare: _MustCompare | None = None
    low = int(old.version)
    for version in range(low + 1, int(source.version) + 1):
        try:
            step = read_step(source, version)
            if step.name == "Overwrite":
                raise _MustRebuild(f"version {version} of the source overwrote the whole table")
            if step.name in ROW_CHANGES or (step.name in NEUTRAL and step.operation is not None):
                _check_marked(step, source, version, inputs)
                continue
            before, after = around(source, version)
            _check_kept(step, before, after, version, inputs)
        except (Unreadable, _MustCompare) as error:
            # The reason that asks for more stays.
            strictly = isinstance(error, Unreadable) or error.strictly
            if compare is None or (strictly and not compare.strictly):
                compare = _MustCompare(str(error), strictly=strictly)
            continue
        if step.name in _MARKING and same_columns(before, after, inputs):
            segments.append((before, low, version - 1))
            low = version
    if compare is not None:
        raise compare
    segments.append((source, low, int(source.version)))
    return segments


def _check_marked(step: Step, source: Any, version: int, inputs: frozenset[str]) -> None:
    """Refuse an update that wrote columns anew and marked no row as changed."""
    operation = step.operation
    if step.name != "Update" or not operation.fields_modified:
        return
    if operation.update_mode == "rewrite_rows" or operation.updated_fragment_offsets:
        return
    before, after = around(source, version)
    if not same_columns(before, after, inputs):
        raise _MustRebuild(
            f"version {version} of the source wrote a column anew without saying in which rows"
        )


def _check_kept(step: Step, before: Any, after: Any, version: int, inputs: frozenset[str]) -> None:
    """Look at a version that may have changed the table's columns, or in ways not known."""
    if step.name == "Restore":
        raise _MustCompare(f"version {version} of the source is a restore", strictly=True)
    if column_ids(before, inputs) != column_ids(after, inputs):
        raise _MustRebuild(
            f"version {version} of the source replaced or renamed a column that the view reads"
        )
    if step.name in _MARKING or step.name == "Project":
        return
    if step.operation is None:
        raise _MustCompare(
            f"the compaction that made version {version} cannot be decoded", strictly=False
        )
    if not (same_columns(before, after, inputs) and same_rows(before, after)):
        raise _MustCompare(
            f"version {version} of the source was made in a way that is not known", strictly=True
        )


def _changed_between(dataset: Any, low: int, high: int) -> Ids:
    """Ids of the rows that were changed last after version `low`, up to `high`."""
    if low >= high:
        return np.empty(0, np.uint64)
    scanner = dataset.scanner(
        columns=[], with_row_id=True, filter=f"{_CHANGED_AT} > {low} AND {_CHANGED_AT} <= {high}"
    )
    return _joined(batch.column(_ROW_ID).to_numpy() for batch in scanner.to_batches())


# --- by comparing two versions --------------------------------------------------------------------


def _by_comparison(source: Any, old: Any, inputs: frozenset[str] | None) -> tuple[Ids, Ids]:
    """Rows changed and rows deleted, from the ids and version numbers of all rows.

    With `inputs`, rows count as unchanged only if those columns of theirs are in the same files.
    """
    before_ids, *before = _row_states(old, inputs)
    after_ids, *after = _row_states(source, inputs)
    kept, at_before, at_after = np.intersect1d(
        before_ids, after_ids, assume_unique=True, return_indices=True
    )
    differs = np.zeros(len(kept), np.bool_)
    for state_before, state_after in zip(before, after, strict=True):
        differs |= state_before[at_before] != state_after[at_after]
    new = np.setdiff1d(after_ids, before_ids, assume_unique=True)
    deleted = np.setdiff1d(before_ids, after_ids, assume_unique=True)
    return np.union1d(new, kept[differs]), deleted


def _row_states(dataset: Any, inputs: frozenset[str] | None) -> list[npt.NDArray[Any]]:
    """Of all rows: ids, numbers of the versions that changed them, and digests of their files."""
    if inputs is None:
        return _scan(dataset, [_CHANGED_AT])
    ids, changed_at, addresses = _scan(dataset, [_CHANGED_AT], with_address=True)
    files = column_files(dataset, inputs)
    numbers = np.array(sorted(files), np.uint64)
    names = np.array(["|".join(sorted(files[int(number)])) for number in numbers], np.object_)
    places = np.searchsorted(numbers, addresses >> _OFFSET_BITS)
    return [ids, changed_at, names[places] if len(ids) else np.empty(0, np.object_)]


def _scan(
    dataset: Any, columns: list[str], *, with_address: bool = False
) -> list[npt.NDArray[Any]]:
    """The ids of all rows, then the columns, then the addresses if they are wanted."""
    scanner = dataset.scanner(columns=columns, with_row_id=True, with_row_address=with_address)
    wanted = [_ROW_ID, *columns, *([_ROW_ADDRESS] if with_address else [])]
    parts = [[batch.column(name).to_numpy() for name in wanted] for batch in scanner.to_batches()]
    return [_joined(part[number] for part in parts) for number in range(len(wanted))]


def _joined(parts: Iterable[npt.NDArray[Any]]) -> Ids:
    return np.concatenate([np.empty(0, np.uint64), *parts])
