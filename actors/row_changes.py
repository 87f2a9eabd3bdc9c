"""An update or delete on its way to a commit: checked against a schema, staged, caught up.

Between staging and commit other versions may have come. Fragments appended meanwhile are staged
too; anything else that changed what was looked at is a conflict, and the change is computed anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from actors import staging
from actors.field_paths import format_field_path, resolve_field_path
from actors.freshness import TableHandle
from actors.guards import refuse_view
from actors.lance_store import field_ids
from actors.model import Assignment
from actors.sql import prepare_expression, prepare_predicate
from actors.staging import StagedRewrite, UpdatePlan
from actors.storage import Storage
from cluster.errors import InvalidInput
from cluster.identifiers import ObjectId
from cluster.settings import LimitSettings
from udtf.lance_errors import CommitConflict


@dataclass(frozen=True, slots=True)
class Update:
    """Assignments to the rows that `predicate` selects; None selects every row."""

    assignments: tuple[Assignment, ...]
    predicate: str | None


@dataclass(frozen=True, slots=True)
class Delete:
    """The rows that `predicate` selects go."""

    predicate: str


RowChange = Update | Delete
# What a worker is told to do: an update's plan, or a delete's prepared predicate.
RowWork = UpdatePlan | str


@dataclass(frozen=True, slots=True)
class Prepared:
    """A change checked against the version that it will be staged on."""

    dataset: Any
    fragments: tuple[int, ...]
    work: RowWork


@dataclass(frozen=True, slots=True)
class Staged:
    """A change whose files are written."""

    prepared: Prepared
    rewrite: StagedRewrite


def prepare(
    table: ObjectId, handle: TableHandle, change: RowChange, limits: LimitSettings
) -> Prepared:
    """Check names, bounds and targets against the latest version of `table`. Blocks.

    Raises:
        InvalidInput: a predicate or expression that the table cannot run.
        TableColumnNotFound: an assignment to a column that is not there.
        InvalidTableState: the table is a view.
    """
    dataset = handle.latest().dataset
    schema = dataset.schema
    refuse_view(schema, table)
    work: RowWork
    if isinstance(change, Delete):
        work = prepare_predicate(change.predicate, schema, limits).sql
    else:
        predicate = change.predicate
        work = UpdatePlan(
            None if predicate is None else prepare_predicate(predicate, schema, limits).sql,
            _prepare_assignments(change.assignments, schema, limits),
        )
    return Prepared(dataset, tuple(staging.fragment_ids(dataset)), work)


def stage(prepared: Prepared, base_uri: str, storage: Storage) -> Staged:
    """Stage in process. Blocks."""
    rewrite = stage_fragments(
        prepared.dataset, base_uri, prepared.work, prepared.fragments, storage
    )
    return Staged(prepared, rewrite)


def stage_fragments(
    dataset: Any, base_uri: str, work: RowWork, fragments: Sequence[int], storage: Storage
) -> StagedRewrite:
    """Stage a change on some fragments of an open version. Blocks."""
    if isinstance(work, UpdatePlan):
        return staging.stage_update(dataset, base_uri, work, fragments, storage)
    return staging.stage_delete(dataset, base_uri, work, fragments, storage)


def catch_up(staged: Staged, latest: Any, base_uri: str, storage: Storage) -> Staged:
    """The change as of the latest version. Blocks; only what was appended since is staged.

    Raises:
        CommitConflict: what was looked at has changed.
    """
    before = staged.prepared.dataset
    if int(latest.version) == int(before.version):
        return staged
    fragments = {item.fragment_id: item.metadata for item in latest.get_fragments()}
    for item in before.get_fragments():
        now = fragments.get(item.fragment_id)
        if now != item.metadata:
            raise CommitConflict("another writer changed the rows that were looked at")
    if field_ids(latest) != field_ids(before) or latest.schema != before.schema:
        raise CommitConflict("another writer changed the table's columns")
    rewrite = staged.rewrite
    missing = sorted(set(fragments) - rewrite.seen)
    if missing:
        more = stage_fragments(latest, base_uri, staged.prepared.work, missing, storage)
        rewrite = rewrite.joined(more)
    return Staged(staged.prepared, rewrite)


def operation(staged: Staged, latest: Any) -> Any:
    """Lance's operation for the whole change, to be committed on `latest`."""
    work = staged.prepared.work
    if isinstance(work, UpdatePlan):
        return staging.update_operation(staged.rewrite, latest)
    return staging.delete_operation(staged.rewrite, work)


def _prepare_assignments(
    assignments: Sequence[Assignment], schema: Any, limits: LimitSettings
) -> tuple[tuple[tuple[str, ...], str], ...]:
    prepared: list[tuple[tuple[str, ...], str]] = []
    for assignment in assignments:
        target = resolve_field_path(assignment.target, schema)
        for other, _ in prepared:
            shorter = min(len(other), len(target))
            if other[:shorter] == target[:shorter]:
                raise InvalidInput(
                    f"updates: {format_field_path(target)} and {format_field_path(other)} assign"
                    " the same field; name it once"
                )
        prepared.append((target, prepare_expression(assignment.expression, schema, limits).sql))
    return tuple(prepared)
