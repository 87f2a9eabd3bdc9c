"""Views as a replica serves them: created, described, listed, dropped, and their refreshes asked
for.

A view is a table: its rows are read as any table's, its name is the catalog's. What is particular
to views is its definition, which is checked against the source before anything is written, and its
jobs, whose owner runs every refresh.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from actors.catalog_view import CatalogSnapshot, CatalogView, page
from actors.guards import text_metadata
from actors.job_views import OwnedViews
from actors.jobs_model import Submission, Trigger, ViewHistory, WatchedView
from actors.model import (
    LATEST,
    Commit,
    DroppedTable,
    Page,
    Pin,
    RequestKey,
    TableLocation,
    TableRecord,
)
from actors.owners import Owners
from actors.reads import Reads
from actors.sql import prepare_expression
from actors.uploads import Uploads
from actors.view_model import CreatedView, ViewDescription, ViewLag
from actors.view_requests import check_cluster, check_options, check_pins
from cluster.errors import (
    DestrierError,
    InvalidInput,
    InvalidTableState,
    OutcomeUnknown,
    TableAlreadyExists,
    TableNotFound,
    TableVersionNotFound,
)
from cluster.identifiers import ObjectId, TableRef
from cluster.settings import Settings
from udtf.lance_errors import translate
from udtf.manifest import parse_manifest
from udtf.partitions import check_indexed
from udtf.refresh_model import RefreshOptions, Watermark
from udtf.resources import worker_resources
from udtf.source_query import RecognisedQuery, lancedb_query, recognise, why_not
from udtf.sources import bind
from udtf.spec import ViewDefinition, check_code_allowed
from udtf.view_record import LANCEDB_DEFINITION, is_view, stored_view
from udtf.watermark import drift_reason, read_watermark


@dataclass(frozen=True, slots=True)
class _StoredView:
    """A view as it is stored now."""

    record: TableRecord
    definition: ViewDefinition
    metadata: Mapping[str, str]
    dataset: Any

    @property
    def query(self) -> RecognisedQuery | None:
        return recognise(self.definition.source_query)


# Of tags that keep a version for the views that are pinned to it.
_PINNED_TAG_PREFIX = "destrier-pinned-"


class Views:
    """The views of every database, for one replica."""

    def __init__(self, settings: Settings, owners: Owners, reads: Reads, uploads: Uploads) -> None:
        self._settings = settings
        self._owners = owners
        self._reads = reads
        self._uploads = uploads
        self._owned = OwnedViews(settings, owners, reads)

    # --- making and dropping ----------------------------------------------------------------------

    async def create(
        self,
        view: TableRef,
        definition: ViewDefinition,
        key: RequestKey,
        *,
        with_data: bool,
        requested_by: str,
    ) -> CreatedView:
        """Create a view; see ports.ServerOperations."""
        created = await self._uploads.find_created(view, key)
        is_new = created is None
        if created is None:
            await self._check(view, definition, with_data=with_data)
            try:
                created = await self._uploads.create_view(view, definition, key)
            except TableAlreadyExists:
                # The same request may have been sent twice at once; the view is the first one's.
                created = await self._uploads.find_created(view, key)
                if created is None:
                    raise
                is_new = False
        job_id: str | None = None
        try:
            await self._keep_pinned(view, definition)
            if definition.auto_refresh:
                await self._watch(view)
            if with_data:
                submission = self._submission(view, created.record.location, definition)
                job_id = await self._submit(
                    replace(
                        submission,
                        trigger=Trigger.CREATE,
                        requested_by=requested_by,
                        idempotency_key=f"create-{key.id}",
                    )
                )
        except DestrierError as error:
            # Nothing was asked of the new view yet; whoever is refused gets no view either.
            if is_new and not isinstance(error, OutcomeUnknown):
                await self.drop(view)
            raise
        commit = Commit(created.version, created.transaction_id or "", repeated=not is_new)
        return CreatedView(commit, job_id)

    async def _check(self, view: TableRef, definition: ViewDefinition, *, with_data: bool) -> None:
        """Refuse a definition that its source cannot serve, before anything is written."""
        if definition.udtf is not None and definition.udtf.manifest is not None:
            parse_manifest(definition.udtf.manifest, self._settings.views)
        query = recognise(definition.source_query)
        if query is None:
            reason = why_not(definition.source_query)
            if with_data:
                raise InvalidInput(f"{reason}; or create the view with_no_data")
            if definition.auto_refresh:
                raise InvalidInput(f"auto_refresh: {reason}")
            return
        source = TableRef(view.database, ObjectId.of(query.source_id))
        if source.id == view.id:
            raise InvalidInput(f"source_query: view {view.id} cannot read itself; name a table")
        try:
            record = await self._reads.find_table(source)
            await self._reads.in_thread(self._bind, record, query, definition)
        except TableNotFound:
            raise TableNotFound(
                f"table {source.id}, the source of view {view.id}, is not there"
            ) from None

    def _bind(
        self, record: TableRecord, query: RecognisedQuery, definition: ViewDefinition
    ) -> None:
        dataset = self._reads.open(record, Pin(query.branch, query.version, query.tag))
        indexed = definition.udtf and definition.udtf.partition_by_indexed_column
        try:
            bound = bind(query, dataset, definition, self._settings.limits, prepare_expression)
            if indexed:
                check_indexed(dataset, dict(bound.columns), indexed)
        except DestrierError:
            raise
        except Exception as error:
            raise translate(error, context="expression") from error

    async def _keep_pinned(self, view: TableRef, definition: ViewDefinition) -> None:
        """Tag the version that a view reads for good, so that it is not cleaned up as an old one.

        The tag may serve several views, so it stays; whoever drops the last may delete it.
        """
        query = recognise(definition.source_query)
        if query is None or query.version is None or query.branch is not None:
            # Versions of a table with branches are kept.
            return
        record = await self._reads.find_table(TableRef(view.database, ObjectId.of(query.source_id)))
        await self._reads.in_thread(self._tag, record, query.version)

    def _tag(self, record: TableRecord, version: int) -> None:
        # A copy: pylance lets no other thread use the object while it makes a tag.
        dataset = copy.copy(self._reads.open(record, Pin(version=version)))
        name = f"{_PINNED_TAG_PREFIX}{version}"
        try:
            if name not in dataset.tags.list():
                dataset.tags.create(name, version)
        except Exception as error:
            # Another view of the same version may just have come first.
            if name not in dataset.tags.list():
                raise translate(error, context="version") from error

    async def drop(self, view: TableRef) -> DroppedTable:
        """End a view's jobs and its schedule, then drop its table."""
        await self._find(view)
        await self.forget(view)
        dropped: DroppedTable = await self._owners.catalog(view.database).call(
            "drop_table", view.id
        )
        return dropped

    async def forget(self, view: TableRef) -> None:
        """End a view's jobs and its schedule; no driver writes into its folder any more."""
        await self._owners.jobs().call("forget_view", view.database, view.id.parts)

    # --- looking ----------------------------------------------------------------------------------

    async def names(
        self, database: str, namespace: ObjectId, page_token: str | None, limit: int | None
    ) -> Page[str]:
        """Names of the views directly inside a namespace."""
        snapshot = await self._reads.catalog(database)
        snapshot.check_namespace(namespace)
        every = page(snapshot.table_names.get(namespace, ()), page_token, None).items
        tables = [namespace.child(name) for name in every]
        catalog = self._reads.catalog_view(database)
        names = await self._reads.in_thread(self._names_of_views, catalog, snapshot, tables, limit)
        return page(names, None, limit)

    def _names_of_views(
        self,
        catalog: CatalogView,
        snapshot: CatalogSnapshot,
        tables: Sequence[ObjectId],
        limit: int | None,
    ) -> list[str]:
        """Names of the first views among `tables`, one more than `limit` of them if there are."""
        names: list[str] = []
        for table in tables:
            if limit is not None and len(names) > limit:
                break
            try:
                record = catalog.find_table(table, snapshot)
            except TableNotFound:
                # Its drop has begun.
                continue
            if self._is_view(record):
                names.append(table.name)
        return names

    def _is_view(self, record: TableRecord) -> bool:
        if record.is_only_declared:
            return False
        try:
            return is_view(text_metadata(self._reads.open(record, LATEST).schema))
        except DestrierError:
            # Dropped meanwhile, or damaged: nothing can be said of it here.
            return False

    async def is_view(self, table: TableRef) -> bool:
        """Whether there is a table of this name that is a view."""
        try:
            record = await self._reads.find_table(table)
        except DestrierError:
            return False
        return await self._reads.in_thread(self._is_view, record)

    async def describe(self, view: TableRef) -> ViewDescription:
        """What a view is, how current, and how its refreshes went."""
        stored = await self._find(view)
        description = await self._reads.in_thread(_described, stored)
        history: ViewHistory = await self._owners.jobs().call(
            "view_history", view.database, view.id.parts
        )
        description = replace(description, history=history)
        if description.source is None:
            reason = why_not(stored.definition.source_query)
            return replace(description, refreshable=False, reason=reason)
        try:
            check_code_allowed(stored.definition, self._settings.views)
            latest = await self._owned.source_version(view)
            change = await self._owned.since_refresh(WatchedView(view.database, view.id.parts))
        except DestrierError as error:
            return replace(description, refreshable=False, reason=error.message)
        behind = max(0, latest - (description.source_version or 0))
        lag = ViewLag(behind, change.rows_changed)
        return replace(description, latest_source_version=latest, lag=lag)

    async def _find(self, view: TableRef) -> _StoredView:
        record = await self._reads.find_table(view)

        def read() -> _StoredView:
            dataset = self._reads.open(record, LATEST)
            definition = stored_view(dataset.schema)
            if definition is None:
                raise InvalidTableState(f"table {view.id} is no materialized view; name a view")
            return _StoredView(record, definition, text_metadata(dataset.schema), dataset)

        return await self._reads.in_thread(read)

    # --- refreshing -------------------------------------------------------------------------------

    async def refresh(
        self,
        view: TableRef,
        options: RefreshOptions,
        *,
        cascade: bool,
        failed_only: bool,
        cluster: str | None,
        idempotency_key: str | None,
        requested_by: str,
    ) -> str:
        """Start a refresh; see ports.ServerOperations."""
        check_cluster(cluster, self._settings)
        if cascade and (failed_only or options.source_version is not None):
            raise InvalidInput(
                "cascade refreshes what the view reads, but failed_only and src_version ask for"
                " what it read before; leave one out"
            )
        stored = await self._find(view)
        query = await self._check_refresh(view, stored, options)
        after: tuple[str, ...] = ()
        if cascade:
            for source, its in await self._views_below(view, query):
                job_id = await self._submit(
                    replace(
                        self._submission(source, its.record.location, its.definition),
                        after=after,
                        trigger=Trigger.CASCADE,
                        requested_by=requested_by,
                        idempotency_key=_key_of(idempotency_key, source),
                    )
                )
                after = (job_id,)
        submission = replace(
            self._submission(view, stored.record.location, stored.definition),
            options=options,
            failed_only=failed_only,
            after=after,
            requested_by=requested_by,
            idempotency_key=_key_of(idempotency_key, view),
        )
        return await self._submit(submission)

    async def _check_refresh(
        self, view: TableRef, stored: _StoredView, options: RefreshOptions
    ) -> RecognisedQuery:
        query = stored.query
        if query is None:
            reason = why_not(stored.definition.source_query)
            raise InvalidInput(f"view {view.id} cannot be refreshed: {reason}")
        check_code_allowed(stored.definition, self._settings.views)
        check_options(options, stored.definition, self._settings)
        check_pins(options, query, view.id)
        # That the source, its pins and the view's own life are there.
        source = (await self._owned.find(view)).source
        if options.source_version is not None:
            record = await self._reads.find_table(TableRef(view.database, ObjectId(source.id)))
            pin = Pin(branch=source.branch, version=options.source_version)
            try:
                await self._reads.in_thread(self._reads.open, record, pin)
            except TableVersionNotFound as error:
                raise InvalidInput(
                    f"src_version: {error.message}; name one that is there"
                ) from None
        return query

    async def _views_below(
        self, view: TableRef, query: RecognisedQuery
    ) -> list[tuple[TableRef, _StoredView]]:
        """The views that `view` reads, directly or through others, those that read none first."""
        found: list[tuple[TableRef, _StoredView]] = []
        seen = {view}
        # What a pin or a branch shows, no refresh of the source changes.
        while query.version is None and query.tag is None and query.branch is None:
            source = TableRef(view.database, ObjectId.of(query.source_id))
            if not await self.is_view(source):
                break
            if source in seen:
                raise InvalidInput(
                    f"cascade: view {source.id} reads itself through other views; create one of"
                    " them again over a table"
                )
            seen.add(source)
            stored = await self._find(source)
            query = await self._check_refresh(source, stored, RefreshOptions())
            found.append((source, stored))
        return found[::-1]

    def _submission(
        self, view: TableRef, location: TableLocation, definition: ViewDefinition
    ) -> Submission:
        udtf = definition.udtf
        return Submission(
            database=view.database,
            view_id=view.id.parts,
            view=location,
            resources=worker_resources(udtf, self._settings.views),
            code_name=None if udtf is None else udtf.name,
        )

    async def _submit(self, submission: Submission) -> str:
        job_id: str = await self._owners.jobs().call("submit", submission)
        return job_id

    async def _watch(self, view: TableRef) -> None:
        watched = WatchedView(view.database, view.id.parts)
        await self._owners.jobs().call("watch", watched)


def _key_of(idempotency_key: str | None, view: TableRef) -> str | None:
    """One request may start jobs of several views; each has a key of its own."""
    return None if idempotency_key is None else f"{idempotency_key}/{view}"


def _described(stored: _StoredView) -> ViewDescription:
    """What the view's own table says. Blocks."""
    dataset, query = stored.dataset, stored.query
    try:
        known = read_watermark(dataset)
        drift = drift_reason(dataset)
    except DestrierError:
        raise
    except Exception as error:
        raise translate(error, context="read") from error
    mark: Watermark | None = None if known is None else known[0]
    return ViewDescription(
        record=stored.record,
        definition=stored.definition,
        version=int(dataset.version),
        schema_ipc=bytes(dataset.schema.serialize()),
        num_rows=int(dataset.count_rows()),
        query=_sql(stored),
        source=None if query is None else ObjectId(tuple(query.source_id)),
        source_version=None if mark is None else mark.source_version,
        refreshed_at_ms=None if mark is None else mark.refreshed_at_ms,
        drift=drift,
    )


def _sql(stored: _StoredView) -> str | None:
    """The source query as LanceDB reads it."""
    definition = stored.metadata.get(LANCEDB_DEFINITION)
    if definition is None:
        return lancedb_query(stored.definition.source_query)
    try:
        query = json.loads(definition).get("query")
    except (ValueError, AttributeError):
        return None
    return query if isinstance(query, str) else None
