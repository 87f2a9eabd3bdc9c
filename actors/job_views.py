"""Views as jobs need them: found with their source, looked at for changes, and committed to."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from actors.auto_refresh import SourceChange
from actors.guards import text_metadata
from actors.job_ports import FoundView, PublishedView
from actors.jobs_model import Submission, WatchedView
from actors.model import LATEST, Pin, TableLocation
from actors.owners import Owners
from actors.reads import Reads
from cluster.errors import (
    DestrierError,
    InvalidInput,
    InvalidTableState,
    OutcomeUnknown,
    TableNotFound,
)
from cluster.identifiers import ObjectId, TableRef
from cluster.settings import Settings
from udtf.history import NEUTRAL, ROW_CHANGES, Unreadable, read_step
from udtf.lance_errors import translate
from udtf.refresh_model import PublishRequest, SourceLocation, Watermark
from udtf.resources import worker_resources
from udtf.source_query import recognise
from udtf.sources import version_timestamp
from udtf.view_record import LANCEDB_DEFINITION, SOURCE_QUERY, is_view, read_view
from udtf.watermark import read_watermark

logger = logging.getLogger(__name__)

# Looked at every time that a view with auto_refresh is, while rows tell of no change.
_VERSIONS_LOOKED_AT_MAX = 1_000


class OwnedViews:
    """The views of a deployment (job_ports.JobViews, auto_refresh.SourceChanges)."""

    def __init__(self, settings: Settings, owners: Owners, reads: Reads) -> None:
        self._settings = settings
        self._owners = owners
        self._reads = reads
        # Of views whose source has not changed since their watermark, up to which version of it.
        self._seen: dict[WatchedView, tuple[Watermark, int]] = {}

    # --- looking ----------------------------------------------------------------------------------

    async def find(self, view: TableRef) -> FoundView:
        """The view and its source; see job_ports.JobViews."""
        record = await self._reads.find_table(view)
        dataset = await self._reads.in_thread(self._reads.open, record, LATEST)
        metadata = text_metadata(dataset.schema)
        if not is_view(metadata):
            raise InvalidTableState(f"table {view.id} is no materialized view; refresh a view")
        source = await self._source(view, metadata)
        return FoundView(record.location, metadata, source, int(dataset.version))

    async def _source(self, view: TableRef, metadata: Mapping[str, str]) -> SourceLocation:
        text = metadata.get(SOURCE_QUERY) or metadata[LANCEDB_DEFINITION]
        query = recognise(text)
        if query is None:
            raise InvalidInput(
                f"the source_query of view {view.id} is of no form that this server executes, so"
                " the view cannot be refreshed; create it with one of the documented forms"
            )
        source = TableRef(view.database, ObjectId(tuple(query.source_id)))
        try:
            record = await self._reads.find_table(source)
        except TableNotFound:
            raise TableNotFound(
                f"table {source.id}, the source of view {view.id}, is not there"
            ) from None
        return SourceLocation(
            source.id.parts, record.location.uri, query.branch, query.version, query.tag
        )

    async def source_version(self, view: TableRef) -> int:
        """The version of the source that a refresh would read now."""
        dataset = await self._open_source(view.database, (await self.find(view)).source)
        return int(dataset.version)

    async def _open_source(self, database: str, source: SourceLocation) -> Any:
        record = await self._reads.find_table(TableRef(database, ObjectId(source.id)))
        pin = Pin(branch=source.branch, version=source.version, tag=source.tag)
        return await self._reads.in_thread(self._reads.open, record, pin)

    async def submission(self, view: TableRef) -> Submission:
        """A refresh of the view with the deployment's defaults."""
        found = await self.find(view)
        definition = read_view(found.metadata)
        udtf = None if definition is None else definition.udtf
        return Submission(
            database=view.database,
            view_id=view.id.parts,
            view=found.location,
            resources=worker_resources(udtf, self._settings.views),
            code_name=None if udtf is None else udtf.name,
        )

    async def since_refresh(self, view: WatchedView) -> SourceChange:
        """What changed in the view's source; see auto_refresh.SourceChanges."""
        found = await self.find(view.table)
        source = await self._open_source(view.database, found.source)
        record = await self._reads.find_table(view.table)

        def compare() -> SourceChange:
            try:
                known = read_watermark(self._reads.open(record, LATEST))
                return self._change(view, known[0] if known is not None else None, source)
            except DestrierError:
                raise
            except Exception as error:
                raise translate(error, context="read") from error

        return await self._reads.in_thread(compare)

    def _change(self, view: WatchedView, mark: Watermark | None, source: Any) -> SourceChange:
        if mark is None:
            rows = int(source.count_rows())
            return SourceChange(rows, rows)
        seen_mark, seen = self._seen.get(view, (mark, mark.source_version))
        change = change_since(mark, source, seen if seen_mark == mark else mark.source_version)
        if change.rows_changed == 0:
            self._seen[view] = (mark, int(source.version))
        return change

    # --- committing -------------------------------------------------------------------------------

    async def publish(
        self, view: TableRef, location: TableLocation, request: PublishRequest
    ) -> PublishedView:
        """Commit what a refresh computed; see job_ports.JobViews."""
        commit = await self._on_table(view, location, "publish_view", request)
        return PublishedView(commit.version, commit.rows_evicted)

    async def discard(self, submission: Submission, job_id: str, kept: Sequence[str]) -> int:
        """Delete what a job wrote in vain; see job_ports.JobViews."""
        view = TableRef(submission.database, ObjectId(submission.view_id))
        count: int = await self._on_table(
            view, submission.view, "discard_refresh", job_id, tuple(kept)
        )
        return count

    async def _on_table(
        self, view: TableRef, location: TableLocation, method: str, *arguments: Any
    ) -> Any:
        """Call the owner of the view's table, if it is still the life that is meant."""
        record, owner = await self._owners.open_table(view)
        found = record.location
        if found.uri != location.uri or location.incarnation not in (None, found.incarnation):
            raise TableNotFound(f"view {view.id} was dropped while it was refreshed")
        if found.incarnation is None:
            found = replace(found, incarnation=await owner.call("incarnation", found))
        try:
            return await owner.call(method, found, *arguments)
        except TimeoutError:
            raise OutcomeUnknown(f"the owner of view {view.id} did not answer") from None


def change_since(mark: Watermark, source: Any, seen: int) -> SourceChange:
    """How many source rows are new, different or gone since a view's watermark. Blocks.

    Up to version `seen` it is known that none were.
    """
    rows = int(source.count_rows())
    version = int(source.version)
    before = source if version == mark.source_version else _version(source, mark)
    is_same_table = before is not None and version_timestamp(before) == mark.source_version_ts
    if is_same_table and version == mark.source_version:
        return SourceChange(0, rows)
    may_compare = is_same_table and version > mark.source_version and source.has_stable_row_ids
    if before is None or not may_compare:
        # What cannot be compared is computed whole.
        return SourceChange(max(rows, 1), rows)
    after = f"_row_last_updated_at_version > {mark.source_version}"
    changed = int(source.count_rows(after))
    new = int(source.count_rows(f"_row_created_at_version > {mark.source_version}"))
    gone = max(int(before.count_rows()) + new - rows, 0)
    return SourceChange(changed + gone or _untold(source, seen, rows), rows)


def _untold(source: Any, since: int, rows: int) -> int:
    """How many rows may differ from version `since` though no row's version number says so, as
    after a restore, which takes numbers back."""
    versions = range(since + 1, int(source.version) + 1)
    if len(versions) > _VERSIONS_LOOKED_AT_MAX:
        # The refresh that this leads to in the end takes note of them.
        return 1
    for version in versions:
        try:
            step = read_step(source, version)
        except Unreadable:
            return max(rows, 1)
        if step.name not in ROW_CHANGES | NEUTRAL:
            return max(rows, 1)
    return 0


def _version(source: Any, mark: Watermark) -> Any | None:
    """The source as the view shows it; None if that version is not there any more."""
    versions = {int(item["version"]) for item in source.versions()}
    if mark.source_version not in versions:
        return None
    if mark.branch is None:
        return source.checkout_version(mark.source_version)
    return source.checkout_version((mark.branch, mark.source_version))
