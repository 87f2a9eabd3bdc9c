"""A table kept cheap to write and to read: small fragments are joined, old versions are cleaned up.

An insert makes a fragment and a version, and what a later one costs grows with both. The owner
looks at its table after every so many fragments. The work is done in a lane of its own, one bounded
run at a time, while inserts go on; what it comes to is one commit in the commit lane. Nothing here
can fail a request: what does not work is logged and tried again after as many fragments more.

Sizes are joined like the levels of a log-structured merge tree, so that a row is written anew a few
times at most, however small the inserts.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import lance
from lance.optimize import Compaction

from actors.freshness import TableHandle, manifest_files, manifest_version, versions_folder
from actors.guards import text_metadata
from actors.lance_store import branch_uri, commit, commit_compaction, sync_data_files
from actors.lanes import Lane
from actors.row_versions import with_fewer_runs
from actors.staging import has_blobs
from actors.storage import Storage
from cluster.clock import Clock
from cluster.errors import DestrierError
from cluster.identifiers import ObjectId
from cluster.settings import MaintenanceSettings
from udtf.lance_errors import translate
from udtf.view_record import is_view

logger = logging.getLogger(__name__)

# Rows of a fragment of the sizes below the largest; each is about 32 times the one before.
_SIZES = (1_024, 32_768)
# Joining so little takes the commit lane some 20 ms.
_AT_ONCE_BYTES_MAX = 8 << 20
# Old versions that are cleaned up together, or a quarter as many as stay: each time Lance reads
# every manifest that stays.
_CLEANED_MIN = 256
# Versions are listed again when an eighth as many as stayed have been made since: the listing takes
# 5 us for each that is there.
_LISTED_SHARE = 8

# Past so many times the bytes that manifests may have, a full disk is worse than a refresh that
# fails: of what is over, versions are kept for as long as requests take at most.
_FAR_TOO_MANY = 16
_SHORT_GRACE_S = 300.0


@dataclass(frozen=True, slots=True)
class Branch:
    """One branch of a table, as maintenance sees it."""

    id: ObjectId
    uri: str
    branch: str | None
    handle: TableHandle
    storage: Storage


@dataclass(frozen=True, slots=True)
class Small:
    """Fragments of one version that are to be joined, all but `kept`, to ones of `target_rows`."""

    dataset: Any
    kept: tuple[int, ...]
    target_rows: int
    bytes: float


@dataclass(frozen=True, slots=True)
class Noted:
    """Fragments of one version, the same but for the versions that are noted of their rows."""

    dataset: Any
    fragments: list[Any]


class Committed(Protocol):
    """Told of a version that has the same rows as the one before; runs in the commit lane."""

    def __call__(self, before: Any, after: Any, /) -> None: ...


@dataclass(slots=True)
class _Count:
    """The newest version noted, and the fragments made since the last look."""

    version: int
    fragments: int


class Maintenance:
    """What the owner of a table does beside requests."""

    def __init__(
        self,
        settings: MaintenanceSettings,
        clock: Clock,
        lane: Lane,
        commit_lane: Lane,
        rewriting: asyncio.Lock,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._lane = lane
        self._commit_lane = commit_lane
        self._rewriting = rewriting
        self._counts: dict[str | None, _Count] = {}
        self._clean_from_version = 0
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def hangs(self) -> bool:
        """Whether its thread hangs in native code, which only a new process cures."""
        return self._lane.hangs

    @property
    def is_busy(self) -> bool:
        """Whether something is being done."""
        return self._task is not None and not self._task.done()

    def note(self, branch: Branch, version: int, fragments: int, committed: Committed) -> None:
        """A commit has made about so many fragments; begins to work if it is time. Does not block.

        Any number of requests may tell of one commit.
        """
        due = self._settings.small_fragments_max
        # The first commit of an owner looks at what was there before it.
        count = self._counts.setdefault(branch.branch, _Count(0, due))
        if version > count.version:
            count.version = version
            count.fragments += fragments
        if count.fragments < due or self._stopped or self.is_busy or not self._settings.enabled:
            return
        count.fragments = 0
        self._task = asyncio.create_task(self._work(branch, committed))

    async def settle(self) -> None:
        """Begin nothing more, and wait for what is being done."""
        self._stopped = True
        if self._task is not None:
            await self._task

    async def _work(self, branch: Branch, committed: Committed) -> None:
        try:
            while not self._stopped and await self._join(branch, committed):
                continue
            if not self._stopped and branch.branch is None:
                await self._clean(branch)
        except DestrierError as error:
            logger.warning(
                "maintenance of table %s was given up: %s", branch.id, error, exc_info=error
            )

    async def _clean(self, main: Branch) -> None:
        version = self._counts[None].version
        if version < self._clean_from_version:
            return
        there, stay = await self._lane.run(clean, main, self._settings, self._clock)
        self._clean_from_version = version + stay // _LISTED_SHARE
        if stay < there:
            # An update in between would change the same fragments.
            async with self._rewriting:
                noted = await self._lane.run(find_noted, main)
                if noted is not None:
                    await self._commit_lane.run(commit_noted, main, noted)

    async def _join(self, branch: Branch, committed: Committed) -> bool:
        """One run; says whether there may be more to do."""
        # An update in between would find other fragments than it was staged on.
        async with self._rewriting:
            small = await self._lane.run(find_small, branch, self._settings)
            if small is None:
                return False
            if small.bytes <= _AT_ONCE_BYTES_MAX:
                return await self._commit_lane.run(_join_at_once, branch, self._settings, committed)
            rewrites = await self._lane.run(join, branch, small, self._settings)
            if not rewrites:
                return False
            await self._commit_lane.run(commit_joined, branch, rewrites, committed)
        return True


def find_small(branch: Branch, settings: MaintenanceSettings) -> Small | None:
    """The small fragments of the latest version that are worth joining; None if they are few.
    Blocks."""
    dataset = branch.handle.latest().dataset
    if has_blobs(dataset.schema):
        # Lance reads blobs as what describes them, and would write that.
        return None
    fragments = [item.metadata for item in dataset.get_fragments()]
    size = _size_to_join(fragments, settings)
    if size is None:
        return None
    small = [item for item in fragments if _is_small(item, size, settings)]
    total = sum(map(_bytes, small))
    row_bytes = max(1.0, total / max(1, sum(item.num_rows for item in small)))
    # Fewer rows where they are wide.
    target = max(1, min(size, int(settings.fragment_bytes_max / row_bytes)))
    ids = {item.id for item in small}
    kept = tuple(item.id for item in fragments if item.id not in ids)
    return Small(dataset, kept, target, total)


def join(branch: Branch, small: Small, settings: MaintenanceSettings) -> list[Any]:
    """Write the rows of small fragments to larger ones, uncommitted and synced; what Lance calls
    rewrites, none if the small ones are no neighbours. Blocks.

    Raises:
        DestrierError: translated; nothing has changed but orphan files may be left.
    """
    dataset = small.dataset
    options = {
        "target_rows_per_fragment": small.target_rows,
        "max_source_bytes": settings.run_bytes_max,
        "excluded_fragment_ids": list(small.kept),
        # Requests are to come first.
        "num_threads": 1,
    }
    try:
        rewrites = [task.execute(dataset) for task in Compaction.plan(dataset, options).tasks]
    except BaseException as error:
        raise translate(error, context="write") from error
    new = [item for rewrite in rewrites for item in rewrite.new_fragments]
    sync_data_files(branch_uri(branch.uri, branch.branch), new, branch.storage)
    return rewrites


def commit_joined(branch: Branch, rewrites: Sequence[Any], committed: Committed) -> None:
    """Make a version in which the joined fragments are in the place of the small ones. Blocks.

    Raises:
        CommitConflict: another program changed their rows; the joined files are orphans.
    """
    latest = branch.handle.latest().dataset
    after = commit_compaction(latest, branch.uri, branch.branch, rewrites, branch.storage)
    branch.handle.replace(after)
    committed(latest, after)


def _join_at_once(branch: Branch, settings: MaintenanceSettings, committed: Committed) -> bool:
    """Join and commit with nothing in between: the rows also keep their places in a scan."""
    small = find_small(branch, settings)
    rewrites = [] if small is None else join(branch, small, settings)
    if rewrites:
        commit_joined(branch, rewrites, committed)
    return bool(rewrites)


def _size_to_join(fragments: Sequence[Any], settings: MaintenanceSettings) -> int | None:
    """Rows of the fragments to make: the largest size that the small ones fill, or the least."""
    for size in (settings.fragment_rows, *reversed(_SIZES)):
        small = [item for item in fragments if _is_small(item, size, settings)]
        if len(small) < settings.small_fragments_max:
            return None
        if size == _SIZES[0] or sum(item.num_rows for item in small) >= size:
            return size
    return None


def _is_small(fragment: Any, size: int, settings: MaintenanceSettings) -> bool:
    # The half, or two that are nearly large enough would be written anew for nothing.
    return fragment.num_rows < size and _bytes(fragment) < settings.fragment_bytes_max / 2


def _bytes(fragment: Any) -> float:
    """Bytes of the rows that are not deleted."""
    written = sum(file.file_size_bytes or 0 for file in fragment.files)
    return float(written * fragment.num_rows / max(1, fragment.physical_rows))


def clean(main: Branch, settings: MaintenanceSettings, clock: Clock) -> tuple[int, int]:
    """Delete versions that are old, or too many, with the files that only they name; how many
    there were, and how many stay.

    Versions with a tag stay, and all of a table that has branches: a branch reads files of the
    version it was made from. Blocks.

    Raises:
        DestrierError: translated; some may be gone.
    """
    old, kept = _old_versions(main, settings, clock)
    there = len(old) + kept
    if len(old) < max(_CLEANED_MIN, kept // 4):
        return there, there
    dataset = main.handle.latest().dataset
    try:
        if dataset.branches.list():
            return there, there
        dataset.cleanup_old_versions(versions=old, error_if_tagged_old_versions=False)
    except BaseException as error:
        raise translate(error, context="version") from error
    return there, kept


def find_noted(main: Branch) -> Noted | None:
    """What a manifest may say more shortly now that versions are gone; None if it is not worth it,
    or the table is a view, whose commits are refreshes. Blocks."""
    dataset = main.handle.latest().dataset
    if is_view(text_metadata(dataset.schema)):
        return None
    versions = manifest_files(main.storage.listing(versions_folder(main.uri, None)))
    fragments = [item.metadata for item in dataset.get_fragments()]
    fewer = with_fewer_runs(fragments, list(versions))
    return Noted(dataset, fewer) if fewer else None


def commit_noted(main: Branch, noted: Noted) -> None:
    """Make a version whose manifest says it. Blocks.

    Raises:
        CommitConflict: another program changed the same fragments.
    """
    operation = lance.LanceOperation.Update(updated_fragments=noted.fragments)
    committed, _ = commit(noted.dataset, main.uri, None, operation, {}, main.storage)
    main.handle.replace(committed)


def _old_versions(
    main: Branch, settings: MaintenanceSettings, clock: Clock
) -> tuple[list[int], int]:
    """Versions to delete, oldest first, and how many stay.

    What counts is when a version stopped to be the latest, because reads of it begin until then:
    when the next one was made.
    """
    made: dict[int, tuple[int, int]] = {}
    for name, size, modified_ms in main.storage.files(versions_folder(main.uri, None)):
        version = manifest_version(name)
        if version is not None:
            made[version] = (size, modified_ms)
    versions = sorted(made)
    now_ms = clock.time() * 1000
    sizes = [made[version][0] for version in versions]
    bytes_max = settings.versions_kept_bytes_max
    too_many = _too_many(sizes, settings.versions_kept_max, bytes_max)
    far_too_many = _too_many(sizes, len(sizes), _FAR_TOO_MANY * bytes_max)
    old = []
    for place, (version, later) in enumerate(pairwise(versions)):
        age_s = (now_ms - made[later][1]) / 1000
        kept_s = settings.versions_grace_s if place < too_many else settings.versions_kept_s
        if age_s > (min(kept_s, _SHORT_GRACE_S) if place < far_too_many else kept_s):
            old.append(version)
    return old, len(versions) - len(old)


def _too_many(sizes: Sequence[int], count_max: int, bytes_max: int) -> int:
    """How many versions, of manifests of these bytes, oldest first, are over a bound."""
    total = 0
    for kept, size in enumerate(reversed(sizes)):
        total += size
        if kept >= count_max or total > bytes_max:
            return len(sizes) - kept
    return 0
