"""Publishing a refresh, in the commit lane of the view's table: one version, once per job.

Evicted rows, new rows and the watermark are one commit, so a reader sees the view before the
refresh or after it, and a refresh that is published again finds itself in the table's history. The
commit is an update, which keeps the definitions of indexes.

A second commit writes down what LanceDB reads of a refresh. A crash between the two costs nothing
but that LanceDB, not knowing of the refresh, would compute the view anew.
"""

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from actors import staging
from actors.freshness import TableHandle
from actors.guards import text_metadata
from actors.lance_store import (
    commit,
    field_ids,
    file_name,
    fragments_from_json,
    missing_files,
    sync_deletions,
)
from actors.model import Commit, RequestKey
from actors.request_log import DoneRequest, to_properties
from actors.source_ranges import Ids, SourceRanges
from actors.storage import Storage
from cluster.errors import (
    ConcurrentModification,
    DestrierError,
    InvalidTableState,
    Throttling,
)
from cluster.identifiers import ObjectId
from udtf.checked import canonical_json
from udtf.history import read_transaction
from udtf.lance_errors import CommitConflict, translate
from udtf.refresh_model import PublishRequest
from udtf.view_files import EVICTED_IDS, REFRESH_FOLDER, WRITTEN_PREFIX
from udtf.view_record import is_view
from udtf.watermark import REFRESH_PROPERTY, changed_since, stamp_moved, stamp_of

logger = logging.getLogger(__name__)

ROWS_EVICTED_PROPERTY = "destrier.refresh.rows_evicted"

# Local files that Lance has begun are called so; nobody leaves one alone so long and goes on.
_BEGUN_PREFIX = ".tmp"
_BEGUN_KEPT_S = 86_400.0


@dataclass(frozen=True, slots=True)
class View:
    """The table that a refresh is published to."""

    id: ObjectId
    uri: str
    handle: TableHandle
    storage: Storage
    retries_max: int
    ranges: SourceRanges


@dataclass(frozen=True, slots=True)
class _Eviction:
    """Rows marked deleted, not committed."""

    removed: list[int] = field(default_factory=list)
    updated: list[Any] = field(default_factory=list)
    rows: int = 0


def request_key(job_id: str) -> RequestKey:
    """What makes two publications of a job the same."""
    return RequestKey(f"refresh-{job_id}", job_id)


def publish(view: View, request: PublishRequest) -> Commit:
    """Commit what a refresh computed; `rows` of the answer are those written. Blocks.

    Raises:
        InvalidTableState: the table is no view.
        ConcurrentModification: the view's rows or columns are not those that the refresh saw, or
            files that it wrote are gone: compute it anew.
        Throttling: other programs that write to the folder won every time.
        OutcomeUnknown: the commit may have happened.
    """
    for _ in range(view.retries_max):
        dataset = view.handle.latest().dataset
        fragments = _checked(view, dataset, request)
        try:
            eviction = _evict(view, dataset, request)
            return _commit(view, dataset, request, fragments, eviction)
        except CommitConflict:
            # Another program changed the rows: whether the refresh still fits them is looked at
            # again.
            continue
    raise Throttling(
        f"view {view.id}: other writers won {view.retries_max} times; refresh it again later"
    )


def _checked(view: View, dataset: Any, request: PublishRequest) -> list[Any]:
    """The fragments to append, sure to be readable once they are committed."""
    if not is_view(text_metadata(dataset.schema)):
        raise InvalidTableState(f"table {view.id} is no materialized view; refresh a view")
    fragments = fragments_from_json(request.fragments)
    # Lance would commit them all the same and lose the table.
    if missing_files(view.uri, fragments, view.storage):
        raise _gone(view)
    known = set(field_ids(dataset))
    if not all(set(file.fields) <= known for item in fragments for file in item.files):
        raise ConcurrentModification(
            f"the columns of view {view.id} changed while it was refreshed; refresh it again"
        )
    # What replaces every row fits whatever is there. Else rows of two versions of the source would
    # be mixed, even if another refresh is what changed them.
    change = None if request.replace_all else changed_since(dataset, request.view_version)
    if change is not None:
        raise ConcurrentModification(
            f"the rows of view {view.id} changed while it was refreshed ({change}); refresh it"
            " again"
        )
    return fragments


def _gone(view: View) -> ConcurrentModification:
    """What the refresh wrote is gone for good: to ask again for this commit is in vain."""
    return ConcurrentModification(
        f"files that the refresh of view {view.id} wrote are gone; refresh it again"
    )


def _evict(view: View, dataset: Any, request: PublishRequest) -> _Eviction:
    if request.replace_all:
        return _Eviction(removed=staging.fragment_ids(dataset), rows=int(dataset.count_rows()))
    if request.evict is None:
        return _Eviction()
    ids = _evicted_ids(view, request.evict)
    try:
        removed, updated, rows = staging.delete_rows(dataset, view.ranges.addresses(dataset, ids))
    except BaseException as error:
        raise translate(error, context="read") from error
    sync_deletions(view.uri, updated, view.storage)
    return _Eviction(removed, updated, rows)


def _evicted_ids(view: View, uri: str) -> Ids:
    """Row ids of the source, sorted, each once."""
    data = view.storage.read(uri)
    if data is None:
        raise _gone(view)
    with pa.ipc.open_file(pa.BufferReader(data)) as reader:
        ids = reader.read_all().column(EVICTED_IDS)
    return np.unique(ids.to_numpy().astype(np.uint64, copy=False))


def _commit(
    view: View,
    dataset: Any,
    request: PublishRequest,
    fragments: Sequence[Any],
    eviction: _Eviction,
) -> Commit:
    rewrite = staging.StagedRewrite(
        read_version=int(dataset.version),
        seen=frozenset(),
        removed=tuple(eviction.removed),
        updated=tuple(eviction.updated),
        new=tuple(fragments),
    )
    properties = {
        REFRESH_PROPERTY: canonical_json(request.watermark.to_json()),
        ROWS_EVICTED_PROPERTY: str(eviction.rows),
        **to_properties([DoneRequest(request_key(request.job_id), request.rows_written)]),
    }
    committed, answer = commit(
        dataset,
        view.uri,
        None,
        staging.update_operation(rewrite, dataset),
        properties,
        view.storage,
    )
    view.handle.replace(committed)
    _check_alone(view, committed, int(dataset.version))
    return Commit(answer.version, answer.transaction_id, request.rows_written)


def _check_alone(view: View, committed: Any, read_version: int) -> None:
    """Have the next refresh rebuild the view if another program wrote rows of it just now.

    Lance lets a commit through that came in between and touched other rows; the watermark does not
    vouch for those. An empty deletion after it says so.
    """
    before = int(committed.version) - 1
    if before == read_version or (
        changed_since(committed.checkout_version(before), read_version) is None
    ):
        return
    logger.warning("another program writes rows of view %s; they are computed anew", view.id)
    operation = lance.LanceOperation.Delete(
        updated_fragments=[], deleted_fragment_ids=[], predicate="false"
    )
    marked, _ = commit(committed, view.uri, None, operation, {}, view.storage)
    view.handle.replace(marked)


def finish(view: View, request: PublishRequest, answer: Commit) -> int:
    """Tell LanceDB of a refresh that is published and remove what it no longer needs. Blocks.

    Nothing here can fail the refresh. Returns the number of rows that it evicted, 0 if that is
    known no more.
    """
    rows_evicted = 0
    try:
        dataset = view.handle.latest().dataset
        rows_evicted = _rows_evicted(dataset, answer.version)
        _stamp(view, dataset, request, answer)
    except Exception as error:  # noqa: BLE001 - the refresh is committed and may not fail any more
        logger.warning("view %s is refreshed, but LanceDB may not know it: %s", view.id, error)
    try:
        # Of workers that died, and of items that no version shows. Nobody else committed any.
        _discard(view, request.job_id, (), (answer.version,))
    except (DestrierError, OSError) as error:
        logger.warning("files of a refresh of view %s stay in its folder: %s", view.id, error)
    return rows_evicted


def _rows_evicted(dataset: Any, version: int) -> int:
    try:
        transaction = read_transaction(dataset, version)
    except Exception:  # noqa: BLE001 - pylance raises untyped errors: the version is cleaned up
        return 0
    properties = (transaction.transaction_properties if transaction else None) or {}
    return int(properties.get(ROWS_EVICTED_PROPERTY, 0))


def _stamp(view: View, dataset: Any, request: PublishRequest, answer: Commit) -> None:
    if int(dataset.version) != answer.version:
        # It is stamped, or another program has written since and its state is not the refresh's.
        return
    # The version that this very commit makes: LanceDB takes any other for drift.
    _write_stamp(view, dataset, stamp_of(request.watermark, answer.version + 1))


def restamp(view: View, before: Any, after: Any) -> None:
    """Tell LanceDB that `after` has the rows of version `before`, if it knew those. Blocks.

    Raises:
        DestrierError: translated; LanceDB would compute the view anew.
    """
    metadata = text_metadata(after.schema)
    updates = stamp_moved(metadata, int(before.version), int(after.version) + 1)
    if updates is not None:
        _write_stamp(view, after, updates)


def _write_stamp(view: View, dataset: Any, updates: Mapping[str, str]) -> None:
    operation = lance.LanceOperation.UpdateConfig(
        schema_metadata_updates=lance.LanceOperation.UpdateMap(updates=updates, replace=False)
    )
    committed, _ = commit(dataset, view.uri, None, operation, {}, view.storage)
    view.handle.replace(committed)


def discard(view: View, job_id: str, kept: Collection[str]) -> int:
    """Delete data files of a refresh that will never be published; returns how many. Blocks.

    Those named in `kept` stay, which other refreshes go on from, and so does every file that any
    version of the view names, whatever the caller believes.
    """
    return _discard(view, job_id, kept, None)


def _discard(view: View, job_id: str, kept: Collection[str], versions: Sequence[int] | None) -> int:
    wanted = _written(view, job_id) - set(kept)
    if wanted:
        wanted -= _committed_files(view.handle.latest().dataset, wanted, versions)
    for name in sorted(wanted):
        view.storage.delete_file(f"{view.uri}/data/{name}")
    _discard_begun(view)
    _clear(view, job_id)
    return len(wanted)


def _written(view: View, job_id: str) -> set[str]:
    """Names of the data files that a refresh has noted."""
    notes = view.storage.files(f"{view.uri}/{REFRESH_FOLDER}/{job_id}")
    return {
        name.removeprefix(WRITTEN_PREFIX) for name, _, _ in notes if name.startswith(WRITTEN_PREFIX)
    }


def _discard_begun(view: View) -> None:
    """Delete files that a process died over long ago."""
    oldest_ms = (time.time() - _BEGUN_KEPT_S) * 1000
    for name, _, modified_ms in view.storage.files(f"{view.uri}/data"):
        if name.startswith(_BEGUN_PREFIX) and modified_ms < oldest_ms:
            view.storage.delete_file(f"{view.uri}/data/{name}")


def _committed_files(dataset: Any, wanted: set[str], versions: Sequence[int] | None) -> set[str]:
    """Those of `wanted` that one of the versions names; None are all versions."""
    found: set[str] = set()
    try:
        if versions is None:
            versions = [int(entry["version"]) for entry in reversed(dataset.versions())]
        for version in versions:
            if found == wanted:
                break
            for fragment in dataset.checkout_version(version).get_fragments():
                found |= {file_name(file) for file in fragment.data_files()} & wanted
    except BaseException as error:
        raise translate(error, context="read") from error
    return found


def _clear(view: View, job_id: str) -> None:
    """Delete what was stored for one refresh alone; what cannot be deleted costs space only."""
    try:
        view.storage.delete_folder(f"{view.uri}/{REFRESH_FOLDER}/{job_id}")
        view.storage.delete_empty_folder(f"{view.uri}/{REFRESH_FOLDER}")
    except OSError as error:
        logger.warning("files of job %s stay in the folder of view %s: %s", job_id, view.id, error)
