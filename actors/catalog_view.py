"""The catalog of one database, read: a snapshot of its namespaces and tables.

The layout is that of Lance's DirectoryNamespace, which also makes every change to it
(catalog.py), so either program can serve the other's folder: `__manifest` is a Lance table with a
row per namespace and table, and a folder `<name>.lance` without a row is a root table too. Reading
it here costs a replica a few microseconds while nothing has changed, where asking the library costs
2 ms a call.
"""

import bisect
import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from actors.freshness import TableHandle, TableState, find_manifest, versions_folder
from actors.incarnation import is_dropped, read_incarnation, sidecar_uri
from actors.lance_store import file_name
from actors.model import STABLE_ROW_IDS_PROPERTY, Page, TableLocation, TableRecord
from actors.storage import Storage
from cluster.clock import Clock
from cluster.errors import InvalidInput, NamespaceNotFound, TableNotFound
from cluster.identifiers import STORED_DELIMITER, ObjectId

MANIFEST = "__manifest"
RESERVED = ".lance-reserved"
DEREGISTERED = ".lance-deregistered"
ROOT_SUFFIX = ".lance"
# Modification times tick every few milliseconds: a folder that changed this recently may change
# again without showing it.
_SETTLED_S = 0.05


def is_to_have_stable_row_ids(properties: Mapping[str, str], storage: Storage) -> bool:
    """Whether a new table of these properties is to have stable row ids."""
    asked = properties.get(STABLE_ROW_IDS_PROPERTY)
    return storage.stable_row_ids if asked is None else asked.lower() != "false"


@dataclass(frozen=True, slots=True)
class TableRow:
    """A table as the catalog stores it; `location` is relative to the database's folder."""

    location: str
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CatalogSnapshot:
    """Namespaces and tables at one moment, with the sorted names of each namespace's children.

    `registered` are the tables with a row; the others are folders only. `folders` are all that the
    database has, those without a name too.
    """

    namespaces: Mapping[ObjectId, Mapping[str, str]]
    tables: Mapping[ObjectId, TableRow]
    registered: frozenset[ObjectId]
    namespace_names: Mapping[ObjectId, Sequence[str]] = field(default_factory=dict)
    table_names: Mapping[ObjectId, Sequence[str]] = field(default_factory=dict)
    all_tables: Sequence[str] = ()
    folders: Sequence[str] = ()

    @staticmethod
    def of(
        namespaces: Mapping[ObjectId, Mapping[str, str]],
        tables: Mapping[ObjectId, TableRow],
        registered: frozenset[ObjectId],
        folders: Sequence[str],
    ) -> "CatalogSnapshot":
        """Sort what listings need."""
        return CatalogSnapshot(
            namespaces,
            tables,
            registered,
            _children(namespaces),
            _children(tables),
            sorted(table.stored for table in tables),
            folders,
        )

    def check_namespace(self, namespace: ObjectId) -> None:
        """Refuse a namespace that is not there; the root always is.

        Raises:
            NamespaceNotFound: no such namespace.
        """
        if not namespace.is_root and namespace not in self.namespaces:
            raise NamespaceNotFound(f"namespace {namespace} is not there")


def _children(objects: Mapping[ObjectId, object]) -> dict[ObjectId, list[str]]:
    children: dict[ObjectId, list[str]] = {}
    for item in objects:
        children.setdefault(item.parent, []).append(item.name)
    for names in children.values():
        names.sort()
    return children


def page(names: Sequence[str], page_token: str | None, limit: int | None) -> Page[str]:
    """The names after `page_token`, `limit` of them at most; the next token is the last name.

    Raises:
        InvalidInput: a limit under 1.
    """
    if limit is not None and limit < 1:
        raise InvalidInput("limit must be at least 1")
    start = bisect.bisect_right(names, page_token) if page_token else 0
    end = len(names) if limit is None else min(len(names), start + limit)
    items = tuple(names[start:end])
    return Page(items, items[-1] if items and end < len(names) else None)


@dataclass(frozen=True, slots=True)
class _Cached:
    snapshot: CatalogSnapshot
    manifest: TableState | None
    folder: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class _Found:
    """A table with data as it was found, and the proof that it is still so.

    Where the table's own folder of Destrier's files has not changed, this life of the table has not
    ended and has the same identity.
    """

    row: TableRow
    sidecar: tuple[int, int]
    record: TableRecord


class CatalogView:
    """Snapshots of one database's catalog, never older than the call."""

    def __init__(
        self, uri: str, storage: Storage, clock: Clock, full_refresh_interval_s: float
    ) -> None:
        self.uri = uri
        self._storage = storage
        self._clock = clock
        self._manifest = TableHandle(
            f"{uri}/{MANIFEST}", None, storage, clock, full_refresh_interval_s
        )
        self._cached: _Cached | None = None
        self._found: dict[ObjectId, _Found] = {}
        self._lock = threading.Lock()

    def cached(self) -> CatalogSnapshot | None:
        """The snapshot if it is surely current, without blocking; else None."""
        cached = self._cached
        if cached is None or cached.folder is None:
            return None
        if self._folder() != cached.folder:
            return None
        if cached.manifest is None:
            missing = not os.path.exists(versions_folder(self._manifest.uri, None))
            return cached.snapshot if missing else None
        return cached.snapshot if self._manifest.cached() is cached.manifest else None

    def snapshot(self) -> CatalogSnapshot:
        """The current snapshot. Blocks when anything has changed."""
        found = self.cached()
        if found is not None:
            return found
        with self._lock:
            found = self.cached()
            return found if found is not None else self._load()

    def find_table(self, table: ObjectId, snapshot: CatalogSnapshot) -> TableRecord:
        """The record of a table.

        Raises:
            TableNotFound: no such table, or its drop has begun.
        """
        row = snapshot.tables.get(table)
        if row is None:
            raise TableNotFound(f"table {table} is not there")
        uri = f"{self.uri}/{row.location}"
        sidecar = self._identity(sidecar_uri(uri))
        found = self._found.get(table)
        if found is not None and found.row is row and found.sidecar == sidecar:
            return found.record
        record = self._read_record(table, row, uri)
        if (
            sidecar is not None
            and self._is_settled(sidecar)
            and record.location.incarnation is not None
            and not record.is_only_declared
        ):
            self._found[table] = _Found(row, sidecar, record)
        return record

    def _read_record(self, table: ObjectId, row: TableRow, uri: str) -> TableRecord:
        if is_dropped(uri, self._storage):
            raise TableNotFound(f"table {table} is not there")
        stable = is_to_have_stable_row_ids(row.properties, self._storage)
        location = TableLocation(uri, read_incarnation(uri, self._storage), stable)
        return TableRecord(
            id=table,
            location=location,
            properties=row.properties,
            is_only_declared=not self._storage.exists(versions_folder(uri, None)),
        )

    def set_properties(self, table: ObjectId, properties: Mapping[str, str]) -> None:
        """Replace the properties in a table's row, in one commit; only the catalog's owner calls
        this.

        The library has no call for it. Its next change rewrites the manifest as a whole and keeps
        this.
        """
        state = self._manifest.latest()
        text = json.dumps(dict(properties), separators=(",", ":")).replace("'", "''")
        name = table.stored.replace("'", "''")
        state.dataset.checkout_version(state.version).update(
            {"metadata": f"'{text}'"}, where=f"object_id = '{name}' AND object_type = 'table'"
        )
        self.sync()

    def is_declared(self, row: TableRow) -> bool:
        """Whether the table has no data yet."""
        return not self._storage.exists(versions_folder(f"{self.uri}/{row.location}", None))

    def sync(self) -> None:
        """Flush the newest change of the catalog to the disk."""
        if not self._storage.is_local or not self._storage.fsync:
            return
        state = self._manifest_state()
        if state is None:
            return
        base = self._manifest.uri
        files = [
            f"{base}/data/{file_name(file)}"
            for fragment in state.dataset.get_fragments()
            for file in fragment.data_files()
        ]
        folder = versions_folder(base, None)
        manifest = find_manifest(base, None, state.version, self._storage)
        written = [*files, f"{base}/data", *([manifest] if manifest else []), folder]
        self._storage.sync([*written, base, self.uri])

    def _load(self) -> CatalogSnapshot:
        folder = self._folder()
        namespaces: dict[ObjectId, Mapping[str, str]] = {}
        tables: dict[ObjectId, TableRow] = {}
        manifest = self._manifest_state()
        if manifest is not None:
            columns = ["object_id", "object_type", "location", "metadata"]
            for row in manifest.dataset.to_table(columns=columns).to_pylist():
                item = ObjectId(tuple(row["object_id"].split(STORED_DELIMITER)))
                properties = json.loads(row["metadata"]) if row["metadata"] else {}
                if row["object_type"] == "namespace":
                    namespaces[item] = properties
                elif row["object_type"] == "table" and row["location"]:
                    tables[item] = TableRow(row["location"], properties)
        registered = frozenset(tables)
        folders = self._storage.folders(self.uri)
        for name in folders:
            if not name.endswith(ROOT_SUFFIX):
                continue
            item = ObjectId((name.removesuffix(ROOT_SUFFIX),))
            if item not in tables and self._is_table(name):
                tables[item] = TableRow(name, {})
        snapshot = CatalogSnapshot.of(namespaces, tables, registered, folders)
        # Rows of the snapshot before are no proof any more.
        self._found = {}
        self._cached = _Cached(snapshot, manifest, self._settled(folder))
        return snapshot

    def _manifest_state(self) -> TableState | None:
        try:
            return self._manifest.latest()
        except TableNotFound:
            return None

    def _is_table(self, folder: str) -> bool:
        uri = f"{self.uri}/{folder}"
        if self._storage.exists(f"{uri}/{DEREGISTERED}") or is_dropped(uri, self._storage):
            return False
        return self._storage.exists(versions_folder(uri, None)) or self._storage.exists(
            f"{uri}/{RESERVED}"
        )

    def _folder(self) -> tuple[int, int] | None:
        if not self._storage.is_local:
            return None
        try:
            status = os.stat(self.uri)
        except FileNotFoundError:
            return (0, 0)
        return status.st_ino, status.st_mtime_ns

    def _identity(self, folder: str) -> tuple[int, int] | None:
        """What changes with the entries of a folder; None if that is not known."""
        if not self._storage.is_local:
            return None
        try:
            status = os.stat(folder)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def _settled(self, folder: tuple[int, int] | None) -> tuple[int, int] | None:
        return folder if folder is not None and self._is_settled(folder) else None

    def _is_settled(self, folder: tuple[int, int]) -> bool:
        return self._clock.time() - folder[1] / 1e9 >= _SETTLED_S
