"""Row changes, staged but not committed: update and delete of the rows that a predicate selects.

One algorithm for every engine: scan the selected rows with their addresses and the new values,
write what changes, mark the old rows deleted, and hand back metadata for one commit. In process it
runs over the whole table; on the cluster, over groups of fragments whose results are joined.

Every expression is evaluated in the scan, so each reads the row as it was. (Lance's own update lets
an assignment see another's new value.) A nested target is rebuilt in Arrow, so siblings keep their
values and a null parent stays null. On tables with stable row ids the rewritten rows keep theirs;
Lance derives the lineage versions at the commit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import RowIdSequence

from actors.assigning import assign
from actors.field_paths import format_field_path
from actors.lance_store import (
    field_ids,
    sync_data_files,
    sync_deletions,
    write_new_fragments,
)
from actors.storage import Storage
from cluster.errors import DestrierError
from udtf.lance_errors import translate

ROW_ID = "_rowid"
ROW_ADDRESS = "_rowaddr"
_VALUE = "__destrier_value_"
_BLOB_EXTENSION = "lance.blob.v2"


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """A checked update: `assignments` are (field path, prepared SQL); no predicate is every row."""

    predicate: str | None
    assignments: tuple[tuple[tuple[str, ...], str], ...]


@dataclass(frozen=True, slots=True)
class StagedRewrite:
    """What one commit of an update or delete needs, as values that cross processes.

    `seen` are the fragments that were looked at: those that appear later must be staged too before
    the commit, or the change would miss rows of an earlier version. `updated` and `new` are Lance's
    metadata, pickled as it is: it may hold millions of row ids, and those take six times as long
    through Python's own JSON.
    """

    read_version: int
    seen: frozenset[int]
    rows: int = 0
    removed: tuple[int, ...] = ()
    updated: tuple[Any, ...] = ()
    new: tuple[Any, ...] = ()
    fields_modified: tuple[int, ...] = ()
    offsets: Mapping[int, bytes] = field(default_factory=dict)

    def joined(self, other: "StagedRewrite") -> "StagedRewrite":
        """The change that makes both; they looked at different fragments."""
        assert not self.seen & other.seen
        return StagedRewrite(
            read_version=max(self.read_version, other.read_version),
            seen=self.seen | other.seen,
            rows=self.rows + other.rows,
            removed=self.removed + other.removed,
            updated=self.updated + other.updated,
            new=self.new + other.new,
            fields_modified=tuple(sorted({*self.fields_modified, *other.fields_modified})),
            offsets={**self.offsets, **other.offsets},
        )


def fragment_ids(dataset: Any) -> list[int]:
    """Ids of the fragments at the dataset's version."""
    return [fragment.fragment_id for fragment in dataset.get_fragments()]


def update_operation(staged: StagedRewrite, dataset: Any) -> Any:
    """Lance's operation for a staged update.

    Rewritten rows keep their row ids, so an index that is told to go on covering them answers with
    the old values. Every field is named as changed, as Lance's own update does: no index covers the
    new fragments until it is optimized.
    """
    in_place = bool(staged.fields_modified)
    return lance.LanceOperation.Update(
        removed_fragment_ids=list(staged.removed),
        updated_fragments=list(staged.updated),
        new_fragments=list(staged.new),
        fields_modified=list(staged.fields_modified),
        fields_for_preserving_frag_bitmap=field_ids(dataset),
        update_mode="rewrite_columns" if in_place else "rewrite_rows",
        updated_fragment_offsets=dict(staged.offsets) if in_place else None,
    )


def delete_operation(staged: StagedRewrite, predicate: str) -> Any:
    """Lance's operation for a staged delete."""
    return lance.LanceOperation.Delete(
        updated_fragments=list(staged.updated),
        deleted_fragment_ids=list(staged.removed),
        predicate=predicate,
    )


def stage_delete(
    dataset: Any, base_uri: str, predicate: str, fragments: Sequence[int], storage: Storage
) -> StagedRewrite:
    """Mark the selected rows of `fragments` deleted. Blocks.

    Raises:
        DestrierError: translated from the scan; nothing has changed.
    """
    addresses: list[np.ndarray[Any, np.dtype[np.uint64]]] = []
    try:
        for batch in _scan(dataset, [], predicate, fragments).to_batches():
            addresses.append(batch.column(ROW_ADDRESS).to_numpy())
        removed, updated, rows = delete_rows(dataset, addresses)
    except DestrierError:
        raise
    except BaseException as error:
        raise translate(error, context="predicate") from error
    sync_deletions(base_uri, updated, storage)
    return StagedRewrite(
        read_version=int(dataset.version),
        seen=frozenset(fragments),
        rows=rows,
        removed=tuple(removed),
        updated=tuple(updated),
    )


def stage_update(
    dataset: Any, base_uri: str, plan: UpdatePlan, fragments: Sequence[int], storage: Storage
) -> StagedRewrite:
    """Write the selected rows of `fragments` anew with their assignments. Blocks.

    Raises:
        TableSchemaValidationError: a null for a column that takes none.
        DestrierError: translated from the scan; nothing has changed but orphan files may be left.
    """
    try:
        if has_blobs(dataset.schema):
            return _stage_columns(dataset, base_uri, plan, fragments, storage)
        return _stage_rows(dataset, base_uri, plan, fragments, storage)
    except DestrierError:
        raise
    except BaseException as error:
        raise translate(error, context="expression") from error


def _scan(
    dataset: Any,
    columns: list[str] | dict[str, str],
    predicate: str | None,
    fragments: Sequence[int],
) -> Any:
    every = fragment_ids(dataset)
    chosen = None
    if set(fragments) != set(every):
        chosen = [dataset.get_fragment(fragment) for fragment in fragments]
    return dataset.scanner(
        columns=columns,
        filter=predicate,
        fragments=chosen,
        with_row_id=True,
        with_row_address=True,
        scan_in_order=True,
    )


def _stage_rows(
    dataset: Any, base_uri: str, plan: UpdatePlan, fragments: Sequence[int], storage: Storage
) -> StagedRewrite:
    schema = dataset.schema
    columns = {name: format_field_path((name,)) for name in schema.names}
    scanner = _scan(dataset, columns | _values(plan), plan.predicate, fragments)
    ids: list[np.ndarray[Any, np.dtype[np.uint64]]] = []
    addresses: list[np.ndarray[Any, np.dtype[np.uint64]]] = []

    failure: list[DestrierError] = []

    def rewritten() -> Iterator[pa.RecordBatch]:
        try:
            for batch in scanner.to_batches():
                ids.append(batch.column(ROW_ID).to_numpy())
                addresses.append(batch.column(ROW_ADDRESS).to_numpy())
                yield _assigned(batch, plan, schema)
        except Exception as error:
            # Raised inside a reader it would come back from Lance as another error's text.
            failure.append(translate(error, context="expression"))
            raise

    reader = pa.RecordBatchReader.from_batches(schema, rewritten())
    try:
        new = write_new_fragments(reader, dataset, base_uri, None, storage)
    except BaseException:
        if failure:
            raise failure[0] from None
        raise
    if dataset.has_stable_row_ids:
        _carry_row_ids(new, ids)
    removed, updated, rows = delete_rows(dataset, addresses)
    sync_deletions(base_uri, updated, storage)
    assert rows == sum(fragment.physical_rows for fragment in new)
    return StagedRewrite(
        read_version=int(dataset.version),
        seen=frozenset(fragments),
        rows=rows,
        removed=tuple(removed),
        updated=tuple(updated),
        new=tuple(new),
    )


def _stage_columns(
    dataset: Any, base_uri: str, plan: UpdatePlan, fragments: Sequence[int], storage: Storage
) -> StagedRewrite:
    """As _stage_rows, but only the assigned columns: blobs cannot be read and written back
    whole."""
    schema = dataset.schema
    names = list(dict.fromkeys(target[0] for target, _ in plan.assignments))
    columns = {name: format_field_path((name,)) for name in names} | _values(plan)
    assigned = pa.schema([schema.field(name) for name in names])
    table = _scan(dataset, columns, plan.predicate, fragments).to_table()
    addresses = table.column(ROW_ADDRESS).to_numpy()
    updated: list[Any] = []
    fields: set[int] = set()
    offsets: dict[int, bytes] = {}
    batches = table.combine_chunks().to_batches()
    if batches:
        data = pa.Table.from_batches([_assigned(batches[0], plan, assigned)])
        data = data.append_column(ROW_ID, table.column(ROW_ID))
        owners = addresses >> np.uint64(32)
        for owner in np.unique(owners):
            rows = data.filter(pa.array(owners == owner))
            fragment = dataset.get_fragment(int(owner))
            metadata, modified, matched = fragment.update_columns(rows, with_offsets=True)
            updated.append(metadata)
            fields.update(modified)
            offsets[int(owner)] = matched
    sync_data_files(base_uri, updated, storage)
    return StagedRewrite(
        read_version=int(dataset.version),
        seen=frozenset(fragments),
        rows=len(addresses),
        updated=tuple(updated),
        fields_modified=tuple(sorted(fields)),
        offsets=offsets,
    )


def _values(plan: UpdatePlan) -> dict[str, str]:
    return {f"{_VALUE}{index}": sql for index, (_, sql) in enumerate(plan.assignments)}


def _assigned(batch: pa.RecordBatch, plan: UpdatePlan, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of `batch` with every assignment made, in the columns of `schema`."""
    arrays = {name: batch.column(name) for name in schema.names}
    for index, (target, _) in enumerate(plan.assignments):
        value = batch.column(f"{_VALUE}{index}")
        name = target[0]
        arrays[name] = assign(arrays[name], schema.field(name), target, value)
    return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)


def delete_rows(
    dataset: Any, addresses: Sequence[np.ndarray[Any, np.dtype[np.uint64]]]
) -> tuple[list[int], list[Any], int]:
    """Fragments that lose every row, metadata of those that lose some, and the number of rows."""
    removed: list[int] = []
    updated: list[Any] = []
    if not addresses:
        return removed, updated, 0
    every = np.concatenate(addresses)
    owners = every >> np.uint64(32)
    for owner in np.unique(owners):
        offsets = every[owners == owner] & np.uint64(0xFFFFFFFF)
        metadata = dataset.get_fragment(int(owner)).delete_rows(offsets.tolist())
        if metadata is None:
            removed.append(int(owner))
        else:
            updated.append(metadata)
    return removed, updated, len(every)


def _carry_row_ids(
    fragments: Sequence[Any], ids: Sequence[np.ndarray[Any, np.dtype[np.uint64]]]
) -> None:
    every = np.concatenate(ids) if ids else np.empty(0, dtype=np.uint64)
    start = 0
    for fragment in fragments:
        own = every[start : start + fragment.physical_rows]
        fragment.row_id_meta = RowIdSequence(own.tolist()).to_inline_metadata()
        start += fragment.physical_rows
    assert start == len(every)


def has_blobs(schema: pa.Schema) -> bool:
    """Whether a scan gives descriptions in the place of values that cannot be written back."""
    return any(_is_blob(item) for item in schema)


def _is_blob(item: pa.Field) -> bool:
    if (item.metadata or {}).get(b"ARROW:extension:name") == _BLOB_EXTENSION.encode():
        return True
    if (item.metadata or {}).get(b"lance-encoding:blob") == b"true":
        return True
    return getattr(item.type, "extension_name", None) == _BLOB_EXTENSION
