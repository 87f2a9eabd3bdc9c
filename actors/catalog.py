"""The catalog of one database, changed, one change at a time, by Lance's DirectoryNamespace.

Success means durable and seen by every later read. The library keeps the layout; what it gets wrong
is done here: modes, missing parents, root tables that stay after they were deregistered, drops that
delete another name's data. A table's life is ended by a mark in its folder before anything is
deleted, so a drop that was cut short is finished by the next one, and nothing is written into a
folder that is going away.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

import lance_namespace as wire
from lance.namespace import DirectoryNamespace

from actors.catalog_view import DEREGISTERED, ROOT_SUFFIX, CatalogSnapshot, CatalogView
from actors.creation import Creation, create, find_nameless, find_same_creation
from actors.freshness import versions_folder
from actors.incarnation import delete_dropped, ensure_incarnation, is_dropped, mark_dropped
from actors.lance_store import make_durable
from actors.locations import check_location, was_location
from actors.model import (
    CreatedTable,
    CreateMode,
    DroppedTable,
    NewTable,
    RequestKey,
    StagedFragments,
    TableLocation,
    TableRecord,
)
from actors.storage import Storage
from cluster.clock import Clock, SystemClock
from cluster.errors import (
    ConcurrentModification,
    DestrierError,
    InternalError,
    InvalidInput,
    NamespaceAlreadyExists,
    NamespaceNotEmpty,
    NamespaceNotFound,
    OutcomeUnknown,
    ServiceUnavailable,
    TableAlreadyExists,
    TableNotFound,
)
from cluster.identifiers import ObjectId, TableRef
from cluster.settings import Settings
from udtf.lance_errors import translate

T = TypeVar("T")
logger = logging.getLogger(__name__)


class TableOwners(Protocol):
    """The table actors of this database: opened for writers, ended by drops."""

    async def open(self, table: TableRef, location: TableLocation) -> Any:
        """A handle of the table's actor, started if need be."""
        ...

    async def end(self, table: TableRef, location: TableLocation) -> None:
        """Let the actor finish what it commits, refuse the rest, and end it."""
        ...


class Catalog:
    """The owner of one database's names (see the module's docstring); plain, run without Ray in
    tests."""

    def __init__(
        self,
        database: str,
        settings: Settings,
        owners: TableOwners,
        clock: Clock | None = None,
    ) -> None:
        self._database = database
        self._owners = owners
        self._storage = Storage.of(settings.storage)
        self._uri = self._storage.database_uri(database)
        self._view = CatalogView(
            self._uri,
            self._storage,
            clock or SystemClock(),
            settings.storage.full_refresh_interval_s,
        )
        self._namespace: Any = None
        self._changing = asyncio.Lock()
        self._lane = ThreadPoolExecutor(1, thread_name_prefix="catalog")

    # --- namespaces -------------------------------------------------------------------------------

    async def create_namespace(
        self, namespace: ObjectId, mode: CreateMode, properties: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Create; see ports.CatalogOperations."""
        async with self._changing:
            return await self._run(self._create_namespace, namespace, mode, properties)

    def _create_namespace(
        self, namespace: ObjectId, mode: CreateMode, properties: Mapping[str, str]
    ) -> Mapping[str, str]:
        if namespace.is_root:
            raise NamespaceAlreadyExists("the root namespace is always there")
        snapshot = self._view.snapshot()
        snapshot.check_namespace(namespace.parent)
        if namespace in snapshot.tables:
            raise TableAlreadyExists(f"{namespace} is a table")
        existing = snapshot.namespaces.get(namespace)
        if existing is not None:
            if mode is CreateMode.CREATE:
                raise NamespaceAlreadyExists(f"namespace {namespace} already exists")
            if mode is CreateMode.EXIST_OK:
                return existing
            self._check_empty(namespace, snapshot)
            self._change("drop_namespace", wire.DropNamespaceRequest(id=list(namespace.parts)))
        self._change(
            "create_namespace",
            wire.CreateNamespaceRequest(id=list(namespace.parts), properties=dict(properties)),
        )
        return properties

    async def drop_namespace(
        self, namespace: ObjectId, *, skip_missing: bool, cascade: bool
    ) -> Mapping[str, str]:
        """Drop; see ports.CatalogOperations."""
        async with self._changing:
            await self._run(self._finish_drops)
            snapshot = await self._run(self._view.snapshot)
            if namespace.is_root:
                raise InvalidInput("the root namespace cannot be dropped")
            existing = snapshot.namespaces.get(namespace)
            if existing is None:
                if skip_missing:
                    return {}
                raise NamespaceNotFound(f"namespace {namespace} is not there")
            depth = len(namespace.parts)
            if cascade:
                for table in [t for t in snapshot.tables if t.parts[:depth] == namespace.parts]:
                    await self._drop_table(table)
                inside = [n for n in snapshot.namespaces if n.parts[:depth] == namespace.parts]
                for child in sorted(inside, key=lambda n: len(n.parts), reverse=True)[:-1]:
                    await self._run(self._drop_namespace, child)
            else:
                self._check_empty(namespace, snapshot)
            await self._run(self._drop_namespace, namespace)
            return existing

    def _drop_namespace(self, namespace: ObjectId) -> None:
        self._change("drop_namespace", wire.DropNamespaceRequest(id=list(namespace.parts)))

    def _check_empty(self, namespace: ObjectId, snapshot: CatalogSnapshot) -> None:
        children = len(snapshot.namespace_names.get(namespace, ())) + len(
            snapshot.table_names.get(namespace, ())
        )
        if children:
            raise NamespaceNotEmpty(
                f"namespace {namespace} holds {children} tables and namespaces; drop them first"
            )

    # --- tables -----------------------------------------------------------------------------------

    async def declare_table(
        self, table: ObjectId, location: str | None, properties: Mapping[str, str]
    ) -> TableRecord:
        """Reserve a name; see ports.CatalogOperations."""
        async with self._changing:
            return await self._run(self._declare_table, table, location, properties)

    def _declare_table(
        self, table: ObjectId, location: str | None, properties: Mapping[str, str]
    ) -> TableRecord:
        self._check_free(table)
        if location is not None:
            raise InvalidInput("location: the server chooses it; leave it out")
        request = wire.DeclareTableRequest(id=list(table.parts), properties=dict(properties))
        self._change("declare_table", request)
        record = self._record(table)
        ensure_incarnation(record.location.uri, self._storage)
        return self._record(table)

    async def make_way(self, table: ObjectId) -> None:
        """Finish a drop that was cut short, so that the name's folder can be written to.

        Raises:
            TableAlreadyExists: the name is taken.
        """
        async with self._changing:
            await self._run(self._check_free, table)

    async def create_table(
        self,
        table: NewTable,
        location: str,
        staged: StagedFragments,
        key: RequestKey,
    ) -> CreatedTable:
        """Make version 1 of a table from staged fragments and give it its name.

        Raises:
            TableAlreadyExists: the name is taken; the staged files are the caller's to delete.
            OutcomeUnknown: the table may lack its name; the same request sent again completes it.
        """
        async with self._changing:
            return await self._run(self._create_table, table, location, staged, key)

    def _create_table(
        self, table: NewTable, location: str, staged: StagedFragments, key: RequestKey
    ) -> CreatedTable:
        self._check_free(table.id)
        begun = find_nameless(self._uri, table.id, key, self._view.snapshot(), self._storage)
        if begun is not None:
            return self._complete(table, *begun, is_durable=False)
        made = create(f"{self._uri}/{location}", table, staged, key, self._storage)
        return self._complete(table, location, made, is_durable=True)

    async def finish_creation(self, table: NewTable, key: RequestKey) -> CreatedTable | None:
        """Answer a creation that is asked for again, and complete it; None if it did not make the
        table that is there.

        Raises:
            InvalidInput: the request had another body.
            OutcomeUnknown: it could not be completed.
        """
        async with self._changing:
            return await self._run(self._finish_creation, table, key)

    def _finish_creation(self, table: NewTable, key: RequestKey) -> CreatedTable | None:
        row = self._view.snapshot().tables.get(table.id)
        if row is None or is_dropped(f"{self._uri}/{row.location}", self._storage):
            return None
        found = find_same_creation(f"{self._uri}/{row.location}", key, self._storage)
        if found is None:
            return None
        return self._complete(table, row.location, found, is_durable=False)

    def _complete(
        self, table: NewTable, location: str, creation: Creation, *, is_durable: bool
    ) -> CreatedTable:
        """Give a table that has its rows what it lacks: its name, properties and identity.

        Raises:
            OutcomeUnknown: whatever fails; the same request sent again goes on from here.
        """
        uri = f"{self._uri}/{location}"
        try:
            if not is_durable:
                make_durable(uri, None, creation.dataset, self._storage)
            self._give_name(table, location)
            # Last, as the sign that it has its name.
            ensure_incarnation(uri, self._storage)
            record = self._record(table.id)
        except BaseException as error:
            raise OutcomeUnknown(
                f"table {table.id} may lack its name or properties; send the same request again"
                " with the same x-request-id to complete it"
            ) from error
        commit = creation.commit
        return CreatedTable(record, commit.version, commit.transaction_id, created=True)

    def _give_name(self, table: NewTable, location: str) -> None:
        if not self._has_row(table.id):
            self._register(table.id, location, table.properties)
            return
        row = self._view.snapshot().tables[table.id]
        # What was changed since stays.
        properties = {**table.properties, **row.properties}
        if properties != dict(row.properties):
            self._set_properties(table.id, properties)
        else:
            self._view.sync()

    async def register_table(
        self,
        table: ObjectId,
        location: str,
        properties: Mapping[str, str],
        *,
        overwrite: bool,
    ) -> TableRecord:
        """Give a name to a folder; see ports.CatalogOperations."""
        check_location(location)
        async with self._changing:
            snapshot = await self._run(self._view.snapshot)
            if overwrite and table in snapshot.tables:
                # Before the name is taken from the table that it has.
                await self._run(self._check_data, location)
                # Not there: its drop was cut short, and is finished below.
                with contextlib.suppress(TableNotFound):
                    await self._deregister(table, snapshot)
            return await self._run(self._register_existing, table, location, properties)

    def _check_data(self, location: str) -> None:
        uri = f"{self._uri}/{location}"
        is_table = self._storage.exists(versions_folder(uri, None))
        if not is_table or is_dropped(uri, self._storage):
            raise TableNotFound(f"location {location!r} holds no table")

    def _register_existing(
        self, table: ObjectId, location: str, properties: Mapping[str, str]
    ) -> TableRecord:
        self._check_name(table)
        self._check_data(location)
        uri = f"{self._uri}/{location}"
        self._storage.delete_file(f"{uri}/{DEREGISTERED}")
        ensure_incarnation(uri, self._storage)
        self._register(table, location, properties)
        return self._record(table)

    async def deregister_table(self, table: ObjectId) -> DroppedTable:
        """Forget the name, keep the data."""
        async with self._changing:
            snapshot = await self._run(self._view.snapshot)
            return await self._deregister(table, snapshot)

    async def _deregister(self, table: ObjectId, snapshot: CatalogSnapshot) -> DroppedTable:
        record = await self._run(self._view.find_table, table, snapshot)

        def forget() -> None:
            if len(table.parts) == 1:
                # A root table's folder is a table by itself; this mark, which the library honours
                # too, says that it is none.
                self._storage.write(f"{record.location.uri}/{DEREGISTERED}", b"")
            if self._has_row(table):
                self._change("deregister_table", wire.DeregisterTableRequest(id=list(table.parts)))

        await self._run(forget)
        # After the name is gone: whoever opens the table from now on sees that.
        await self._owners.end(TableRef(self._database, table), record.location)
        return DroppedTable(table, record.location.uri, record.properties)

    async def drop_table(self, table: ObjectId) -> DroppedTable:
        """Forget the name and delete the data."""
        async with self._changing:
            finished = await self._run(self._finish_drops, table)
            left = [location for location in finished if was_location(table, location)]
            if left and table not in (await self._run(self._view.snapshot)).tables:
                return DroppedTable(table, f"{self._uri}/{left[0]}", {})
            return await self._drop_table(table)

    async def _drop_table(self, table: ObjectId) -> DroppedTable:
        snapshot = await self._run(self._view.snapshot)
        row = snapshot.tables.get(table)
        if row is None:
            raise TableNotFound(f"table {table} is not there")
        uri = f"{self._uri}/{row.location}"
        shared = [other for other, its in snapshot.tables.items() if its.location == row.location]
        if len(shared) > 1:
            # Another name for the same data: only the name goes.
            return await self._deregister(table, snapshot)
        await self._run(mark_dropped, uri, self._storage)
        await self._owners.end(TableRef(self._database, table), TableLocation(uri))
        await self._run(self._delete, table, row.location)
        return DroppedTable(table, uri, row.properties)

    def _delete(self, table: ObjectId, location: str) -> None:
        """Carry out a drop that has its mark.

        The name goes first. If the rest fails, the mark tells the next drop what is left.
        """
        uri = f"{self._uri}/{location}"
        if location.endswith(ROOT_SUFFIX):
            # The library, which does not know our mark, takes such a folder for a table.
            self._storage.write(f"{uri}/{DEREGISTERED}", b"")
        if self._has_row(table):
            self._change("deregister_table", wire.DeregisterTableRequest(id=list(table.parts)))
        delete_dropped(uri, self._storage)

    def _finish_drops(self, table: ObjectId | None = None) -> list[str]:
        """Delete the marked folders that no name leads to, left by cut-short drops; says which.

        One that cannot be deleted is left to the next drop, unless it is all there is of `table`.
        """
        known = self._view.snapshot()
        taken = {row.location.split("/")[0] for row in known.tables.values()}
        finished = []
        for location in known.folders:
            uri = f"{self._uri}/{location}"
            if location in taken or not is_dropped(uri, self._storage):
                continue
            try:
                delete_dropped(uri, self._storage)
            except OSError as error:
                if table and table not in known.tables and was_location(table, location):
                    raise
                logger.warning("what a drop has left could not be deleted: %s", error)
            else:
                finished.append(location)
        return finished

    async def merge_properties(
        self, table: ObjectId, properties: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Add to the properties of a table and return them all."""
        async with self._changing:
            return await self._run(self._merge_properties, table, properties)

    def _merge_properties(
        self, table: ObjectId, properties: Mapping[str, str]
    ) -> Mapping[str, str]:
        row = self._view.snapshot().tables.get(table)
        if row is None:
            raise TableNotFound(f"table {table} is not there")
        merged = {**row.properties, **properties}
        if merged == dict(row.properties):
            return merged
        if self._has_row(table):
            self._set_properties(table, merged)
        else:
            self._register(table, row.location, merged)
        return merged

    async def open_table(self, table: ObjectId) -> tuple[TableRecord, Any]:
        """The record of a table and a handle of its actor."""
        record = await self._run(self._record, table)
        handle = await self._owners.open(TableRef(self._database, table), record.location)
        # Meanwhile it may have been dropped, or the name given to another: then this owner is
        # nobody's, and leaves when it has been idle.
        if (await self._run(self._record, table)).location.uri != record.location.uri:
            raise ServiceUnavailable(f"table {table} was replaced just now; try again")
        return record, handle

    def _record(self, table: ObjectId) -> TableRecord:
        return self._view.find_table(table, self._view.snapshot())

    # --- one change -------------------------------------------------------------------------------

    def _check_free(self, table: ObjectId) -> None:
        self._check_name(table)
        self._check_folder(table)

    def _check_name(self, table: ObjectId) -> None:
        if table.is_root:
            raise InvalidInput("the identifier names the root namespace; name a table")
        snapshot = self._view.snapshot()
        snapshot.check_namespace(table.parent)
        if table in snapshot.namespaces:
            raise NamespaceAlreadyExists(f"{table} is a namespace")
        row = snapshot.tables.get(table)
        if row is not None:
            uri = f"{self._uri}/{row.location}"
            if not is_dropped(uri, self._storage):
                raise TableAlreadyExists(f"table {table} already exists")
            # A drop that was cut short: finish it.
            self._delete(table, row.location)

    def _check_folder(self, table: ObjectId) -> None:
        """Refuse, or clear, what is left in the folder that a root table always gets."""
        if len(table.parts) == 1:
            uri = f"{self._uri}/{table.name}{ROOT_SUFFIX}"
            if is_dropped(uri, self._storage):
                delete_dropped(uri, self._storage)
            if self._storage.exists(f"{uri}/{DEREGISTERED}"):
                raise ConcurrentModification(
                    f"the folder {table.name}{ROOT_SUFFIX} holds the data of a deregistered table;"
                    " register it under another name first"
                )

    def _has_row(self, table: ObjectId) -> bool:
        return table in self._view.snapshot().registered

    def _register(self, table: ObjectId, location: str, properties: Mapping[str, str]) -> None:
        request = wire.RegisterTableRequest(id=list(table.parts), location=location)
        self._change("register_table", request)
        if properties:
            # The library drops the properties of a registration.
            self._set_properties(table, properties)

    def _set_properties(self, table: ObjectId, properties: Mapping[str, str]) -> None:
        try:
            self._view.set_properties(table, properties)
        except Exception as error:
            raise translate(error, context="catalog") from error

    def _change(self, operation: str, request: Any) -> None:
        if self._namespace is None:
            options = {f"storage.{key}": value for key, value in self._storage.options}
            self._namespace = DirectoryNamespace(root=self._uri, **options)
        try:
            getattr(self._namespace, operation)(request)
        except Exception as error:
            raise translate(error, context="catalog") from error
        self._view.sync()

    async def _run(self, work: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
        def guarded() -> T:
            try:
                return work(*arguments, **keywords)
            except DestrierError:
                raise
            except BaseException as error:
                raise InternalError("the catalog's worker failed") from error

        return await asyncio.get_running_loop().run_in_executor(self._lane, partial(guarded))
