"""The catalog of one database, as a replica sees it: listings read here, changes sent to the
owner."""

from collections.abc import Mapping, Sequence
from typing import Any

from actors.catalog_view import page
from actors.model import CreateMode, DroppedTable, Page, TableRecord
from actors.owners import Owner
from actors.reads import Reads
from cluster.errors import NamespaceNotFound
from cluster.identifiers import STORED_DELIMITER, ObjectId, TableRef


class DatabaseCatalog:
    """Namespaces and names of tables (ports.CatalogOperations)."""

    def __init__(self, database: str, reads: Reads, owner: Owner) -> None:
        self._database = database
        self._reads = reads
        self._owner = owner

    async def create_namespace(
        self, namespace: ObjectId, mode: CreateMode, properties: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Create and return the namespace's properties."""
        created: Mapping[str, str] = await self._owner.call(
            "create_namespace", namespace, mode, dict(properties)
        )
        return created

    async def list_namespaces(
        self, parent: ObjectId, page_token: str | None, limit: int | None
    ) -> Page[str]:
        """Names of the namespaces inside `parent`."""
        snapshot = await self._reads.catalog(self._database)
        snapshot.check_namespace(parent)
        return page(snapshot.namespace_names.get(parent, ()), page_token, limit)

    async def describe_namespace(self, namespace: ObjectId) -> Mapping[str, str]:
        """The namespace's properties."""
        snapshot = await self._reads.catalog(self._database)
        if namespace.is_root:
            return {}
        found = snapshot.namespaces.get(namespace)
        if found is None:
            raise NamespaceNotFound(f"namespace {namespace} is not there")
        return found

    async def drop_namespace(
        self, namespace: ObjectId, *, skip_missing: bool, cascade: bool
    ) -> Mapping[str, str]:
        """Drop and return its properties."""
        dropped: Mapping[str, str] = await self._owner.call(
            "drop_namespace", namespace, skip_missing=skip_missing, cascade=cascade
        )
        return dropped

    async def declare_table(
        self, table: ObjectId, location: str | None, properties: Mapping[str, str]
    ) -> TableRecord:
        """Reserve a name."""
        return await self._record("declare_table", table, location, dict(properties))

    async def register_table(
        self,
        table: ObjectId,
        location: str,
        properties: Mapping[str, str],
        *,
        overwrite: bool,
    ) -> TableRecord:
        """Give a name to a table that is in the database's folder already."""
        return await self._record(
            "register_table", table, location, dict(properties), overwrite=overwrite
        )

    async def _record(self, method: str, *arguments: Any, **keywords: Any) -> TableRecord:
        record: TableRecord = await self._owner.call(method, *arguments, **keywords)
        return record

    async def deregister_table(self, table: ObjectId) -> DroppedTable:
        """Forget the name, keep the data."""
        dropped: DroppedTable = await self._owner.call("deregister_table", table)
        return dropped

    async def drop_table(self, table: ObjectId) -> DroppedTable:
        """Forget the name and delete the data."""
        dropped: DroppedTable = await self._owner.call("drop_table", table)
        return dropped

    async def find_table(self, table: ObjectId) -> TableRecord:
        """The record of a table."""
        return await self._reads.find_table(TableRef(self._database, table))

    async def list_tables(
        self,
        namespace: ObjectId,
        page_token: str | None,
        limit: int | None,
        *,
        include_declared: bool,
    ) -> Page[str]:
        """Names of the tables directly inside `namespace`."""
        snapshot = await self._reads.catalog(self._database)
        snapshot.check_namespace(namespace)
        names = snapshot.table_names.get(namespace, ())
        if not include_declared:
            children = [namespace.child(name) for name in names]
            declared = await self._reads.list_declared(self._database, children)
            names = [child.name for child in children if child not in declared]
        return page(names, page_token, limit)

    async def list_all_tables(
        self, page_token: str | None, limit: int | None, *, include_declared: bool
    ) -> Page[str]:
        """Identifiers of every table of the database."""
        snapshot = await self._reads.catalog(self._database)
        names: Sequence[str] = snapshot.all_tables
        if not include_declared:
            tables = [ObjectId(tuple(name.split(STORED_DELIMITER))) for name in names]
            declared = await self._reads.list_declared(self._database, tables)
            names = [table.stored for table in tables if table not in declared]
        return page(names, page_token, limit)
