"""The catalog of one database that knows of views: whoever drops one ends its jobs with it."""

from collections.abc import Mapping

from actors.database import DatabaseCatalog
from actors.model import DroppedTable, TableRecord
from actors.owners import Owner
from actors.reads import Reads
from actors.views import Views
from cluster.errors import InvalidTableState
from cluster.identifiers import ObjectId, TableRef


class ViewCatalog(DatabaseCatalog):
    """Namespaces and names of tables, views among them (ports.CatalogOperations)."""

    def __init__(self, database: str, reads: Reads, owner: Owner, views: Views) -> None:
        super().__init__(database, reads, owner)
        self._views = views

    async def drop_namespace(
        self, namespace: ObjectId, *, skip_missing: bool, cascade: bool
    ) -> Mapping[str, str]:
        """Drop and return its properties; `cascade` ends the jobs of the views inside."""
        if cascade and not namespace.is_root:
            snapshot = await self._reads.catalog(self._database)
            depth = len(namespace.parts)
            for table in snapshot.tables:
                if table.parts[:depth] == namespace.parts:
                    await self._end_jobs(table)
        return await super().drop_namespace(namespace, skip_missing=skip_missing, cascade=cascade)

    async def drop_table(self, table: ObjectId) -> DroppedTable:
        """Forget the name and delete the data; a view's jobs end first."""
        await self._end_jobs(table)
        return await super().drop_table(table)

    async def deregister_table(self, table: ObjectId) -> DroppedTable:
        """Forget the name, keep the data; a view's jobs end first."""
        await self._end_jobs(table)
        return await super().deregister_table(table)

    async def register_table(
        self,
        table: ObjectId,
        location: str,
        properties: Mapping[str, str],
        *,
        overwrite: bool,
    ) -> TableRecord:
        """Give a name to a table's folder, but never the name of a view to other rows."""
        if overwrite and await self._views.is_view(TableRef(self._database, table)):
            raise InvalidTableState(
                f"{table} is a materialized view, whose rows only a refresh changes; drop it first"
            )
        return await super().register_table(table, location, properties, overwrite=overwrite)

    async def _end_jobs(self, table: ObjectId) -> None:
        view = TableRef(self._database, table)
        if await self._views.is_view(view):
            await self._views.forget(view)
