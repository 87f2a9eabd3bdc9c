"""Uploads as tests send them: whole bodies, and two of them that meet."""

import asyncio
import hashlib
import io
from typing import Any

from actors.model import TableRecord
from actors.owners import LocalOwners, Owner
from cluster.clock import SystemClock
from cluster.identifiers import TableRef
from cluster.settings import Settings


class Body(io.BytesIO):
    """A whole body as a reader (ports.ArrowReader), whose digest is that of what was read."""

    def digest(self) -> str:
        return hashlib.sha256(self.getvalue()[: self.tell()]).hexdigest()[:32]


class MeetingOwners(LocalOwners):
    """Owners of tables and names that begin `method` when it was called twice."""

    def __init__(self, settings: Settings, method: str) -> None:
        super().__init__(settings, SystemClock())
        self._method = method
        self._both = asyncio.Barrier(2)

    async def open_table(self, table: TableRef) -> tuple[TableRecord, Owner]:
        record, owner = await super().open_table(table)
        return record, _Meeting(owner, self._method, self._both)

    def catalog(self, database: str) -> Owner:
        return _Meeting(super().catalog(database), self._method, self._both)


class _Meeting:
    """One of them."""

    def __init__(self, owner: Owner, method: str, both: asyncio.Barrier) -> None:
        self._owner = owner
        self._method = method
        self._both = both

    async def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        if method == self._method:
            await self._both.wait()
        return await self._owner.call(method, *arguments, **keywords)
