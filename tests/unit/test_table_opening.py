"""A table whose owner is being started while its name goes: nobody gets that owner."""

import asyncio
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from actors.catalog import Catalog
from actors.model import TableLocation
from cluster.errors import TableNotFound
from cluster.identifiers import TableRef
from tests.contract.domain import DATABASE, make_settings, ref

pytestmark = pytest.mark.anyio


class SlowOwners:
    """Owners that start when they are let (catalog.TableOwners)."""

    def __init__(self) -> None:
        self.starting = asyncio.Event()
        self.may_start = asyncio.Event()

    async def open(self, table: TableRef, location: TableLocation) -> Any:
        self.starting.set()
        await self.may_start.wait()
        return f"owner of {table.id}"

    async def end(self, table: TableRef, location: TableLocation) -> None:
        """None has started yet."""


async def test_a_table_that_goes_while_it_is_opened_is_not_found(tmp_path: Path) -> None:
    settings = make_settings(tmp_path / "root")
    lance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "root" / DATABASE / "t.lance"))
    owners = SlowOwners()
    catalog = Catalog(DATABASE, settings, owners)
    opening = asyncio.create_task(catalog.open_table(ref("t").id))
    await owners.starting.wait()
    await catalog.deregister_table(ref("t").id)
    owners.may_start.set()
    with pytest.raises(TableNotFound):
        await opening


async def test_a_table_that_stays_is_opened(tmp_path: Path) -> None:
    settings = make_settings(tmp_path / "root")
    lance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "root" / DATABASE / "t.lance"))
    owners = SlowOwners()
    owners.may_start.set()
    record, owner = await Catalog(DATABASE, settings, owners).open_table(ref("t").id)
    assert owner == "owner of t"
    assert record.location.uri.endswith("t.lance")
