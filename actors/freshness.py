"""Open tables, and the proof that an open one is the latest.

Opening a table costs 0.3 ms and asking Lance for the latest version a listing that grows with the
number of versions. On a local file system a few microseconds are enough: versions are consecutive
and a commit appears by linking the manifest `<2^64 - 1 - version>.manifest` into `_versions`. So
the state of version v is the latest as long as

  * `_versions` is the same folder, unchanged (inode and modification time), and manifest v is the
    same file (a table dropped and made anew has other files, even if inodes are reused), and
  * manifest v + 1 does not exist (modification times tick every few ms; this closes the gap).

Anything else, and the passing of `full_refresh_interval_s`, means a full look at the listing. On an
object store there is no cheaper proof than the listing.

A Lance dataset object must not be moved to another version while a second thread uses it ("Already
borrowed"), so a state is never changed: a newer one replaces it.
"""

import copy
import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import lance

from actors.storage import Listing, Storage
from cluster.clock import Clock
from cluster.errors import DestrierError, TableBranchNotFound, TableNotFound
from udtf.lance_errors import translate

_VERSION_LAST = 2**64 - 1
# A look fails when the version that it found is cleaned up before it is open; so does the next one,
# rarely.
_LOOKS_MAX = 6
# Handles of one process: each holds a manifest, some 10 kB and 1 kB more per fragment.
HANDLES_MAX = 256
# Per open table: enough for the pages of a hot index; a table's caches go when its handle does.
INDEX_CACHE_BYTES = 512 << 20
METADATA_CACHE_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class _Proof:
    """What must hold for a state to be the latest; the paths are made once, not at each check."""

    folder_path: str
    folder: tuple[int, int]
    manifest_path: str
    manifest: tuple[int, int]
    next_manifest_path: str


@dataclass(frozen=True, slots=True)
class TableCounts:
    """What the manifest of one version adds up to."""

    rows: int
    fragments: int
    deleted_rows: int
    bytes: int

    @staticmethod
    def of(dataset: Any) -> "TableCounts":
        """Look at every fragment, about 3 us each."""
        fragments = [item.metadata for item in dataset.get_fragments()]
        return TableCounts(
            rows=int(dataset.count_rows()),
            fragments=len(fragments),
            deleted_rows=sum(item.num_deletions for item in fragments),
            bytes=sum(file.file_size_bytes or 0 for item in fragments for file in item.files),
        )


@dataclass(frozen=True)
class TableState:
    """One version of one branch, open for reading from any thread."""

    dataset: Any
    version: int
    _proof: _Proof | None
    _checked_at_s: float

    @cached_property
    def counts(self) -> TableCounts:
        """What this version adds up to, counted once."""
        return TableCounts.of(self.dataset)


def versions_folder(uri: str, branch: str | None) -> str:
    """The folder of a branch's manifests."""
    return f"{uri}/_versions" if branch is None else f"{uri}/tree/{branch}/_versions"


def manifest_path(uri: str, branch: str | None, version: int) -> str:
    """The manifest of one version, as Lance names it (V2 naming)."""
    return f"{versions_folder(uri, branch)}/{manifest_names(version)[0]}"


def manifest_names(version: int) -> tuple[str, str]:
    """The file names that a version's manifest may have: V2 naming, V1 naming."""
    return f"{_VERSION_LAST - version:020d}.manifest", f"{version}.manifest"


def find_manifest(uri: str, branch: str | None, version: int, storage: Storage) -> str | None:
    """The file that a version's manifest is in, whichever naming its table has; None if the version
    is not there."""
    folder = versions_folder(uri, branch)
    paths = (f"{folder}/{name}" for name in manifest_names(version))
    return next((path for path in paths if storage.exists(path)), None)


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_ino, status.st_mtime_ns


def manifest_version(name: str) -> int | None:
    """The version that a manifest's file name stands for (either naming); None for other files."""
    stem, _, suffix = name.partition(".")
    if suffix != "manifest" or not stem.isdigit():
        return None
    return _VERSION_LAST - int(stem) if len(stem) == 20 else int(stem)


def manifest_files(listing: Listing) -> dict[int, str]:
    """The versions that are there and the names of their manifests, of what is in a branch's folder
    of manifests."""
    return {
        version: name for name in listing.names if (version := manifest_version(name)) is not None
    }


class TableHandle:
    """The latest state of one branch of the table in `uri`, kept open."""

    def __init__(
        self,
        uri: str,
        branch: str | None,
        storage: Storage,
        clock: Clock,
        full_refresh_interval_s: float,
    ) -> None:
        self.uri = uri
        self.branch = branch
        self._storage = storage
        self._clock = clock
        self._interval_s = full_refresh_interval_s
        self._state: TableState | None = None
        self._lock = threading.Lock()

    def cached(self) -> TableState | None:
        """The latest state if that can be told in a few microseconds, without blocking; else
        None."""
        state = self._state
        if state is None or state._proof is None:
            return None
        if self._clock.monotonic() - state._checked_at_s > self._interval_s:
            return None
        return state if self._still_latest(state._proof) else None

    def latest(self) -> TableState:
        """The latest state, read from storage if the open one may be old. Blocks.

        Raises:
            TableNotFound: no data there.
            TableBranchNotFound: no such branch.
        """
        found = self.cached()
        if found is not None:
            return found
        with self._lock:
            found = self.cached()
            return found if found is not None else self._load()

    def replace(self, dataset: Any) -> TableState:
        """Take over the dataset that a commit of this process returned."""
        with self._lock:
            return self._keep(dataset, self._folder())

    def at(self, version: int) -> Any:
        """The dataset at a version of this branch; opens it. Blocks.

        Raises:
            TableVersionNotFound: no such version.
        """
        latest = self.latest()
        if latest.version == version:
            return latest.dataset
        try:
            return latest.dataset.checkout_version((self.branch, version))
        except Exception as error:
            raise translate(error, context="version") from error

    def _load(self) -> TableState:
        for _ in range(_LOOKS_MAX - 1):
            try:
                return self._look()
            except DestrierError:
                # Versions may be cleaned up while they are listed and opened; look again.
                if not self._storage.exists(versions_folder(self.uri, self.branch)):
                    break
        return self._look()

    def _look(self) -> TableState:
        state, self._state = self._state, None
        # Before the listing: a commit that lands after it then shows as a changed folder.
        folder = self._folder()
        try:
            dataset = None
            if state is not None and self._proves(state):
                dataset = self._walk_forward(state)
            if dataset is None:
                dataset = self._open()
        except Exception as error:
            raise self._not_there(error) from error
        return self._keep(dataset, folder)

    def _open(self) -> Any:
        # A session of its own for each life of a table: Lance's caches are keyed by path and
        # version, so those of a dropped table would answer for the one made anew in the same
        # folder.
        session = lance.Session(
            index_cache_size_bytes=INDEX_CACHE_BYTES, metadata_cache_size_bytes=METADATA_CACHE_BYTES
        )
        dataset = lance.dataset(
            self.uri, session=session, storage_options=self._storage.lance_options
        )
        return dataset if self.branch is None else dataset.checkout_version((self.branch, None))

    def _not_there(self, error: Exception) -> DestrierError:
        translated = translate(error, context="open")
        if self.branch is not None and isinstance(translated, TableNotFound):
            main = self._storage.exists(versions_folder(self.uri, None))
            if main:
                return TableBranchNotFound(f"branch {self.branch!r} is not there")
        return translated

    def _proves(self, state: TableState) -> bool:
        """Whether the open state is a version of the table that is there now."""
        if state._proof is None:
            return False
        try:
            manifest = _identity(state._proof.manifest_path)
        except OSError:
            return False
        return manifest == state._proof.manifest

    def _walk_forward(self, state: TableState) -> Any | None:
        """A dataset object of the latest version, from an older one; None if it is another table's.

        The old version's files must be there when the walk has ended: else the table may have been
        dropped and made anew on the way.
        """
        # Of a copy, because Lance moves the object that it is given, and others read the old one.
        fresh = copy.copy(state.dataset)
        fresh.checkout_latest()
        return fresh if self._proves(state) else None

    def _keep(self, dataset: Any, folder: tuple[int, int] | None) -> TableState:
        version = int(dataset.version)
        proof = None
        if folder is not None:
            try:
                path = manifest_path(self.uri, self.branch, version)
                proof = _Proof(
                    folder_path=versions_folder(self.uri, self.branch),
                    folder=folder,
                    manifest_path=path,
                    manifest=_identity(path),
                    next_manifest_path=manifest_path(self.uri, self.branch, version + 1),
                )
            except OSError:
                proof = None
        state = TableState(dataset, version, proof, self._clock.monotonic())
        self._state = state
        return state

    def _folder(self) -> tuple[int, int] | None:
        if not self._storage.is_local:
            return None
        try:
            return _identity(versions_folder(self.uri, self.branch))
        except OSError:
            return None

    def _still_latest(self, proof: _Proof) -> bool:
        try:
            if _identity(proof.folder_path) != proof.folder:
                return False
            if _identity(proof.manifest_path) != proof.manifest:
                return False
        except OSError:
            return False
        return not os.path.exists(proof.next_manifest_path)


class TableHandles:
    """The open tables of one process, least recently used first out."""

    def __init__(self, storage: Storage, clock: Clock, full_refresh_interval_s: float) -> None:
        self._storage = storage
        self._clock = clock
        self._interval_s = full_refresh_interval_s
        self._handles: OrderedDict[tuple[str, str | None], TableHandle] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, uri: str, branch: str | None) -> TableHandle:
        """The handle of a branch; opens nothing yet."""
        key = (uri, branch)
        with self._lock:
            handle = self._handles.get(key)
            if handle is None:
                handle = self._handles[key] = TableHandle(
                    uri, branch, self._storage, self._clock, self._interval_s
                )
                if len(self._handles) > HANDLES_MAX:
                    self._handles.popitem(last=False)
            else:
                self._handles.move_to_end(key)
            return handle

    def forget(self, uri: str) -> None:
        """Close every branch of a table."""
        with self._lock:
            for key in [key for key in self._handles if key[0] == uri]:
                del self._handles[key]
