"""One table: orders its commits and knows which requests they contain.

Success means durable. OutcomeUnknown means that the change may have happened: the same request key
gives the answer. Every other error means that nothing changed.

Two lanes of one thread each do the work. The commit lane makes every version, so no two commits of
this table race. The staging lane computes one update or delete at a time beside it, on the version
that it found; before its commit, fragments that were appended meanwhile are staged too, in the
commit lane, so that the order of versions is the order in which changes took effect.

The actor orders, storage decides: a commit is put-if-absent on the manifest, so a second actor of
the same name, or another program writing the folder, costs a retry and never a lost change.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import lance

from actors import appending, row_changes, view_publishing
from actors.engines import DistributedStaging
from actors.freshness import TableHandle
from actors.guards import refuse_reserved, text_metadata
from actors.incarnation import ensure_incarnation, is_dropped
from actors.insert_queue import InsertQueue
from actors.lance_store import branch_uri, commit, make_durable, transactions
from actors.lanes import Lane
from actors.maintenance import Branch, Maintenance
from actors.model import (
    Assignment,
    Commit,
    InsertItem,
    RequestKey,
    StagedFragments,
    TableLocation,
    VersionRange,
    ViewCommit,
)
from actors.once import Once, Work
from actors.owner_errors import OwnerGone
from actors.request_log import (
    DoneRequest,
    RequestLog,
    from_properties,
    to_properties,
)
from actors.source_ranges import SourceRanges
from actors.storage import Storage
from actors.version_records import VersionRecords
from cluster.clock import Clock, SystemClock
from cluster.errors import (
    DestrierError,
    OutcomeUnknown,
    ServiceUnavailable,
    TableNotFound,
    Throttling,
)
from cluster.identifiers import TableRef
from cluster.settings import Engine, Settings
from udtf.lance_errors import CommitConflict
from udtf.refresh_model import PublishRequest
from udtf.view_record import is_view


class Table:
    """The owner of one table; plain, so that tests run it without Ray."""

    def __init__(
        self,
        ref: TableRef,
        location: TableLocation,
        settings: Settings,
        distributed: DistributedStaging | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._ref = ref
        self._location = location
        self._settings = settings
        self._distributed = distributed
        self._clock = clock or SystemClock()
        self._storage = Storage.of(settings.storage)
        self._handles: dict[str | None, TableHandle] = {}
        self._loaded: set[str | None] = set()
        self._log = RequestLog(settings.actors.requests_remembered_max)
        self._requests = Once(self._log, settings.actors.pending_requests_max)
        self._inserts = InsertQueue(settings.actors, self._clock, self._append)
        deadline_s = settings.engine.plan_timeout_s
        self._commit_lane = Lane("commit", deadline_s, self._commit_is_late)
        self._stage_lane = Lane("stage", deadline_s, _stage_is_late)
        self._rewriting = asyncio.Lock()
        self._maintenance = Maintenance(
            settings.maintenance,
            self._clock,
            Lane("maintenance", deadline_s, _maintenance_is_late),
            self._commit_lane,
            self._rewriting,
        )
        self._opening = asyncio.Lock()
        self._incarnation: str | None = None
        self._retired = False
        self._busy = 0
        self._source_ranges = SourceRanges()
        self._last_work_s = self._clock.monotonic()

    # --- writes -----------------------------------------------------------------------------------

    async def append(
        self, location: TableLocation, items: Sequence[InsertItem]
    ) -> list[Commit | DestrierError]:
        """Append small inserts of one branch; what waits together shares a fragment and a commit.

        One answer per item, in order: an item that is refused is refused alone.

        Raises:
            OwnerGone: this owner leaves, and did nothing.
            TableNotFound: another life of the table is meant; nothing was done.
        """
        requests = [(item.key, partial(self._inserts.put, item)) for item in items]
        return await self._each_once(location, items[0].branch, requests)

    async def overwrite(
        self, location: TableLocation, branch: str | None, key: RequestKey, body: bytes
    ) -> Commit:
        """Replace every row (and the schema) by those of a small Arrow stream."""
        work = partial(self._commit_lane.run, self._overwrite, branch, key, body)
        return await self._once(location, branch, key, work)

    async def commit_fragments(
        self,
        location: TableLocation,
        branch: str | None,
        key: RequestKey,
        staged: StagedFragments,
        *,
        overwrite: bool,
    ) -> Commit:
        """Commit fragments that a replica streamed into the table's folder."""
        work = partial(
            self._commit_lane.run, self._commit_fragments, branch, key, staged, overwrite
        )
        return await self._once(location, branch, key, work, len(staged.fragments))

    async def update(
        self,
        location: TableLocation,
        branch: str | None,
        key: RequestKey,
        assignments: Sequence[Assignment],
        predicate: str | None,
        engine: Engine | None = None,
    ) -> Commit:
        """Update the rows that `predicate` selects; None selects every row."""
        change = row_changes.Update(tuple(assignments), predicate)
        work = partial(self._change_rows, branch, key, change, engine)
        return await self._once(location, branch, key, work)

    async def delete(
        self,
        location: TableLocation,
        branch: str | None,
        key: RequestKey,
        predicate: str,
        engine: Engine | None = None,
    ) -> Commit:
        """Delete the rows that `predicate` selects."""
        work = partial(self._change_rows, branch, key, row_changes.Delete(predicate), engine)
        return await self._once(location, branch, key, work)

    async def update_schema_metadata(
        self,
        location: TableLocation,
        branch: str | None,
        key: RequestKey,
        metadata: Mapping[str, str],
    ) -> dict[str, str]:
        """Merge entries into the schema's metadata and return the whole map."""
        work = partial(self._commit_lane.run, self._update_metadata, branch, key, dict(metadata))
        await self._once(location, branch, key, work)
        return await self._commit_lane.run(self._metadata, branch)

    async def publish_view(self, location: TableLocation, request: PublishRequest) -> ViewCommit:
        """Commit what a refresh of this view computed, once per job however often it is asked."""
        key = view_publishing.request_key(request.job_id)
        work = partial(self._commit_lane.run, self._publish_view, key, request)
        answer = await self._once(location, None, key, work, len(request.fragments))
        evicted = await self._commit_lane.run(
            view_publishing.finish, self._as_view(), request, answer
        )
        return ViewCommit(answer, evicted)

    async def discard_refresh(
        self, location: TableLocation, job_id: str, kept: Sequence[str]
    ) -> int:
        """Delete files of a refresh that ended without a commit, but those named in `kept`;
        returns how many, never committed ones."""
        await self._ready(location, None)
        return await self._commit_lane.run(
            view_publishing.discard, self._as_view(), job_id, tuple(kept)
        )

    async def delete_versions(
        self, location: TableLocation, branch: str | None, ranges: Sequence[VersionRange]
    ) -> int:
        """Delete version records; returns how many there were."""
        await self._ready(location, branch)

        def delete() -> int:
            self._handle(branch).latest()
            return VersionRecords(self._location.uri, branch, self._storage).delete(ranges)

        return await self._commit_lane.run(delete)

    # --- life -------------------------------------------------------------------------------------

    async def retire(self) -> None:
        """Refuse what waits and what comes, and finish what is being committed."""
        self._retired = True
        self._inserts.refuse_all(self._moving())
        await self._requests.settle()
        await self._maintenance.settle()

    def idle_s(self) -> float:
        """Seconds without work; 0 while there is any."""
        busy = self._busy or self._maintenance.is_busy
        return 0.0 if busy else self._clock.monotonic() - self._last_work_s

    def must_be_replaced(self) -> bool:
        """Whether a lane's thread hangs in native code, which only a new process cures."""
        return self._commit_lane.hangs or self._stage_lane.hangs or self._maintenance.hangs

    async def incarnation(self, location: TableLocation) -> str:
        """The identity of this life of the table."""
        await self._ready(location, None, load=False)
        assert self._incarnation is not None
        return self._incarnation

    # --- one request, once ------------------------------------------------------------------------

    async def _once(
        self,
        location: TableLocation,
        branch: str | None,
        key: RequestKey,
        work: Work,
        fragments: int = 1,
    ) -> Commit:
        """Do `work` unless the request was done, or is being done: then give that answer."""
        answer = (await self._each_once(location, branch, [(key, work)], fragments))[0]
        if isinstance(answer, DestrierError):
            raise answer
        return answer

    async def _each_once(
        self,
        location: TableLocation,
        branch: str | None,
        requests: Sequence[tuple[RequestKey, Work]],
        fragments: int = 1,
    ) -> list[Commit | DestrierError]:
        self._busy += 1
        try:
            await self._ready(location, branch)
            # After an unknown outcome storage knows; it is read again before the next look.
            unknown = partial(self._loaded.discard, branch)
            answers = await self._requests.do_each(requests, unknown)
        finally:
            self._busy -= 1
            self._last_work_s = self._clock.monotonic()
        for version in sorted({item.version for item in answers if isinstance(item, Commit)}):
            self._maintenance.note(
                self._as_branch(branch), version, fragments, self._rows_are_joined
            )
        return answers

    async def _ready(
        self, location: TableLocation, branch: str | None, *, load: bool = True
    ) -> None:
        """Open this life of the table and make sure that the caller means it."""
        if self._incarnation is None or (load and branch not in self._loaded):
            async with self._opening:
                if self._incarnation is None:
                    self._incarnation = await self._commit_lane.run(self._open)
                if load and branch not in self._loaded:
                    await self._commit_lane.run(self._load_requests, branch)
                    self._loaded.add(branch)
        meant = location.incarnation
        if location.uri != self._location.uri or meant not in (None, self._incarnation):
            raise self._gone()
        if self._retired or self.must_be_replaced():
            raise self._moving()

    def _open(self) -> str:
        if is_dropped(self._location.uri, self._storage):
            raise self._gone()
        if not self._storage.exists(self._location.uri):
            raise self._gone()
        return ensure_incarnation(self._location.uri, self._storage)

    def _load_requests(self, branch: str | None) -> None:
        try:
            dataset = self._handle(branch).latest().dataset
        except TableNotFound:
            return
        uri, count = self._location.uri, self._settings.actors.versions_replayed_max
        # Whoever made the latest version may have died before it was durable.
        make_durable(uri, branch, dataset, self._storage)
        newest = list(transactions(dataset, uri, branch, self._storage, count))
        for version, transaction in reversed(newest):
            done = from_properties(transaction.transaction_properties)
            self._log.record(Commit(version, transaction.uuid), done)

    def _gone(self) -> TableNotFound:
        return TableNotFound(f"table {self._ref.id} is not there")

    def _moving(self) -> OwnerGone:
        return OwnerGone(f"table {self._ref.id} is moving to another owner; try again")

    def _commit_is_late(self, deadline_s: float) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"table {self._ref.id} did not commit within {deadline_s:g} s; send the same request"
            " again with the same x-request-id to learn whether it was done"
        )

    # --- the commit lane --------------------------------------------------------------------------

    def _target(self, branch: str | None) -> appending.Target:
        return appending.Target(
            id=self._ref.id,
            uri=self._location.uri,
            branch=branch,
            handle=self._handle(branch),
            storage=self._storage,
            limits=self._settings.limits,
            stable_row_ids=self._location.stable_row_ids,
            log=self._log,
        )

    async def _append(self, items: Sequence[InsertItem]) -> Sequence[Commit | DestrierError]:
        target = self._target(items[0].branch)
        return await self._commit_lane.run(appending.append, target, items)

    def _overwrite(self, branch: str | None, key: RequestKey, body: bytes) -> Commit:
        return appending.overwrite(self._target(branch), key, body)

    def _commit_fragments(
        self, branch: str | None, key: RequestKey, staged: StagedFragments, overwrite: bool
    ) -> Commit:
        return appending.commit_staged(self._target(branch), key, staged, overwrite=overwrite)

    def _publish_view(self, key: RequestKey, request: PublishRequest) -> Commit:
        answer = view_publishing.publish(self._as_view(), request)
        self._log.record(answer, [DoneRequest(key, answer.rows)])
        return answer

    def _as_view(self) -> view_publishing.View:
        return view_publishing.View(
            id=self._ref.id,
            uri=self._location.uri,
            handle=self._handle(None),
            storage=self._storage,
            retries_max=self._settings.actors.commit_retries_max,
            ranges=self._source_ranges,
        )

    def _as_branch(self, branch: str | None) -> Branch:
        handle = self._handle(branch)
        return Branch(self._ref.id, self._location.uri, branch, handle, self._storage)

    def _rows_are_joined(self, before: Any, after: Any) -> None:
        if is_view(text_metadata(after.schema)):
            view_publishing.restamp(self._as_view(), before, after)

    def _update_metadata(
        self, branch: str | None, key: RequestKey, metadata: dict[str, str]
    ) -> Commit:
        refuse_reserved(metadata)
        updates = lance.LanceOperation.UpdateMap(updates=metadata, replace=False)
        operation = lance.LanceOperation.UpdateConfig(schema_metadata_updates=updates)
        return self._commit(branch, key, operation, 0)

    def _metadata(self, branch: str | None) -> dict[str, str]:
        metadata = self._handle(branch).latest().dataset.schema.metadata or {}
        return {name.decode(): value.decode() for name, value in metadata.items()}

    def _commit(
        self,
        branch: str | None,
        key: RequestKey,
        operation: Any,
        rows: int,
        dataset: Any = None,
    ) -> Commit:
        handle = self._handle(branch)
        done = [DoneRequest(key, rows)]
        dataset = handle.latest().dataset if dataset is None else dataset
        committed, answer = commit(
            dataset, self._location.uri, branch, operation, to_properties(done), self._storage
        )
        handle.replace(committed)
        self._log.record(answer, done)
        return Commit(answer.version, answer.transaction_id, rows)

    def _handle(self, branch: str | None) -> TableHandle:
        handle = self._handles.get(branch)
        if handle is None:
            handle = self._handles[branch] = TableHandle(
                self._location.uri,
                branch,
                self._storage,
                self._clock,
                self._settings.storage.full_refresh_interval_s,
            )
        return handle

    # --- updates and deletes ----------------------------------------------------------------------

    async def _change_rows(
        self,
        branch: str | None,
        key: RequestKey,
        change: row_changes.RowChange,
        engine: Engine | None,
    ) -> Commit:
        for _ in range(self._settings.actors.commit_retries_max):
            async with self._rewriting:
                staged = await self._stage(branch, change, engine)
                try:
                    return await self._commit_lane.run(
                        self._commit_change, branch, key, change, staged
                    )
                except CommitConflict:
                    # Another program changed the same rows; what was staged is orphaned, not
                    # committed.
                    continue
        raise Throttling(
            f"table {self._ref.id}: other writers won {self._settings.actors.commit_retries_max}"
            " times; try again later"
        )

    async def _stage(
        self, branch: str | None, change: row_changes.RowChange, engine: Engine | None
    ) -> row_changes.Staged:
        prepared = await self._stage_lane.run(
            row_changes.prepare,
            self._ref.id,
            self._handle(branch),
            change,
            self._settings.limits,
        )
        if self._distributed is not None and await self._distributed.takes(
            engine, prepared.dataset.count_rows()
        ):
            version = int(prepared.dataset.version)
            rewrite = await self._distributed.stage(
                self._location.uri, branch, version, prepared.work, prepared.fragments
            )
            return row_changes.Staged(prepared, rewrite)
        base = branch_uri(self._location.uri, branch)
        return await self._stage_lane.run(row_changes.stage, prepared, base, self._storage)

    def _commit_change(
        self,
        branch: str | None,
        key: RequestKey,
        change: row_changes.RowChange,
        staged: row_changes.Staged,
    ) -> Commit:
        latest = self._handle(branch).latest()
        base = branch_uri(self._location.uri, branch)
        caught_up = row_changes.catch_up(staged, latest.dataset, base, self._storage)
        operation = row_changes.operation(caught_up, latest.dataset)
        return self._commit(branch, key, operation, caught_up.rewrite.rows, latest.dataset)


def _maintenance_is_late(deadline_s: float) -> ServiceUnavailable:
    return ServiceUnavailable(f"it took longer than {deadline_s:g} s")


def _stage_is_late(deadline_s: float) -> ServiceUnavailable:
    return ServiceUnavailable(
        f"the change was given up after {deadline_s:g} s and nothing was changed; use a simpler"
        " predicate or expression, or fewer rows"
    )
