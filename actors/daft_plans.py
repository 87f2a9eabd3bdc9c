"""Runs work items with Daft: each is a task of a data source, which Daft spreads over its workers.

Daft moves work and answers, it does not read tables: Lance does, at the workers, so that a plan
speaks the same SQL as every other request. A data source rather than a function over a column of
items, because Daft streams what a source's task yields, and collects what a function yields for one
row before it passes anything on.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from daft.io.pushdowns import Pushdowns
from daft.io.source import DataSource, DataSourceTask
from daft.recordbatch import RecordBatch
from daft.schema import Schema

from actors.work_items import ANSWER_SCHEMA, WorkItem, answer


def run_items(items: Sequence[WorkItem]) -> pa.Table:
    """Do every item on Daft's runner. Blocks.

    The answers come in no order, as work_items.ANSWER_SCHEMA.

    Daft does an item again whose worker died, without end: the caller sets a deadline.
    """
    return _Items(tuple(items)).read().to_arrow()


@dataclass(frozen=True)
class _Items(DataSource):  # type: ignore[misc]  # Daft is untyped
    """The work items of one plan."""

    items: tuple[WorkItem, ...]

    @property
    def name(self) -> str:
        return "work items"

    @property
    def schema(self) -> Schema:
        return _schema()

    async def get_tasks(self, pushdowns: Pushdowns) -> AsyncIterator[DataSourceTask]:
        """One task per item."""
        for number, item in enumerate(self.items):
            yield _ItemTask(number, item)


@dataclass(frozen=True)
class _ItemTask(DataSourceTask):  # type: ignore[misc]  # Daft is untyped
    """One work item."""

    number: int
    item: WorkItem

    @property
    def schema(self) -> Schema:
        return _schema()

    async def read(self) -> AsyncIterator[RecordBatch]:
        """Do the item in a thread: the worker's event loop serves every plan."""
        parts = answer(self.number, self.item)
        while (part := await asyncio.to_thread(next, parts, None)) is not None:
            yield RecordBatch.from_arrow_record_batches([part], ANSWER_SCHEMA)


def _schema() -> Schema:
    return Schema.from_pyarrow_schema(ANSWER_SCHEMA)
