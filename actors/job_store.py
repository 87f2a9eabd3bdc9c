"""Jobs as they are stored: Lance tables in the folder `jobs.root`, written by their owner alone.

`jobs`, `watched` hold records of which the newest of each key counts; `job_events` only grows;
`job_items` holds one row for each work item that ended. A batch is written as events and items
first and jobs last, each in one commit: whatever moment the process is killed at, a job's record
never tells of more than is there. Blocking; the owner calls it from one thread.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc

from actors.freshness import versions_folder
from actors.jobs_model import JobEvent, StoredJob, WatchedView
from actors.lance_store import (
    commit,
    commit_first,
    sync_commit,
    sync_data_files,
    sync_deletions,
    write_new_fragments,
)
from actors.storage import Storage
from actors.stored_json import from_json, to_json
from cluster.settings import Settings
from udtf.lance_errors import translate
from udtf.refresh_model import ItemState, ItemStatus

# Under storage.root, where nothing else is said; no database has such a name.
_FOLDER = "_system"
# Versions of a table after which it is compacted without being asked: each is a file to list.
_VERSIONS_MAX = 512

_LATEST_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("record", pa.string()),
    ]
)
_EVENT_SCHEMA = pa.schema(
    [
        pa.field("job_id", pa.string(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("record", pa.string(), nullable=False),
    ]
)
_ITEM_SCHEMA = pa.schema(
    [
        pa.field("job_id", pa.string(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("item", pa.string(), nullable=False),
        pa.field("checkpoint_key", pa.string(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("record", pa.string(), nullable=False),
    ]
)


def jobs_storage(settings: Settings) -> Storage:
    """The folder that the jobs' tables are in, and how to reach it."""
    root = settings.jobs.root or f"{settings.storage.root.rstrip('/')}/{_FOLDER}"
    return Storage.of(settings.storage.model_copy(update={"root": root}))


@dataclass(frozen=True, slots=True)
class StoredItem:
    """A work item that ended, and the checkpoint key of the plan that it belongs to."""

    job_id: str
    checkpoint_key: str
    status: ItemStatus


@dataclass(frozen=True, slots=True)
class Batch:
    """What is written together."""

    jobs: Sequence[StoredJob] = ()
    events: Sequence[JobEvent] = ()
    items: Sequence[StoredItem] = ()
    watched: Mapping[WatchedView, bool] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.jobs or self.events or self.items or self.watched)


class JobStore:
    """The system tables of one deployment."""

    def __init__(self, storage: Storage) -> None:
        folder = storage.root
        self._jobs = _Table(f"{folder}/jobs.lance", _LATEST_SCHEMA, storage)
        self._watched = _Table(f"{folder}/watched.lance", _LATEST_SCHEMA, storage)
        self._events = _Table(f"{folder}/job_events.lance", _EVENT_SCHEMA, storage)
        self._items = _Table(f"{folder}/job_items.lance", _ITEM_SCHEMA, storage)
        self._sequence = 0

    @staticmethod
    def is_there(storage: Storage) -> bool:
        """Whether the deployment has had jobs, or has views that are refreshed by themselves."""
        return storage.exists(versions_folder(f"{storage.root}/jobs.lance", None)) or (
            storage.exists(versions_folder(f"{storage.root}/watched.lance", None))
        )

    def load(self) -> list[StoredJob]:
        """Every job, oldest first."""
        newest = _newest(self._jobs.read(), "key")
        self._sequence = self._next_sequence()
        records = [record for record in newest.column("record").to_pylist() if record is not None]
        jobs = [from_json(StoredJob, json.loads(record)) for record in records]
        return sorted(jobs, key=lambda stored: stored.job.job_id)

    def load_watched(self) -> list[WatchedView]:
        """Every view that is refreshed by itself."""
        newest = _newest(self._watched.read(), "key")
        records = [record for record in newest.column("record").to_pylist() if record is not None]
        return [from_json(WatchedView, json.loads(record)) for record in records]

    def _next_sequence(self) -> int:
        highest = -1
        for table in (self._jobs, self._watched, self._items):
            column = table.read(columns=["sequence"]).column("sequence")
            highest = max(highest, pc.max(column).as_py() if len(column) else -1)
        return highest + 1

    def write(self, batch: Batch) -> None:
        """Add a batch; when this returns it is durable.

        Raises:
            DestrierError: storage failed; the same batch may be written again.
        """
        self._events.append(
            {
                "job_id": [event.job_id for event in batch.events],
                "sequence": [event.sequence for event in batch.events],
                "record": [_text(event) for event in batch.events],
            }
        )
        self._items.append(
            {
                "job_id": [item.job_id for item in batch.items],
                "sequence": self._numbers(len(batch.items)),
                "item": [item.status.id for item in batch.items],
                "checkpoint_key": [item.checkpoint_key for item in batch.items],
                "state": [item.status.state.value for item in batch.items],
                "record": [json.dumps(item.status.to_json()) for item in batch.items],
            }
        )
        self._jobs.append(
            {
                "key": [stored.job.job_id for stored in batch.jobs],
                "sequence": self._numbers(len(batch.jobs)),
                "record": [_text(stored) for stored in batch.jobs],
            }
        )
        self._watched.append(
            {
                "key": [_text(view) for view in batch.watched],
                "sequence": self._numbers(len(batch.watched)),
                "record": [_text(view) if on else None for view, on in batch.watched.items()],
            }
        )

    def _numbers(self, count: int) -> list[int]:
        first = self._sequence
        self._sequence += count
        return list(range(first, self._sequence))

    def events(self, job_id: str, limit: int) -> list[JobEvent]:
        """The newest events of a job, oldest first."""
        rows = _newest(self._events.read(_is(job_id)), "sequence")
        records = rows.sort_by("sequence").column("record").to_pylist()[-limit:]
        return [from_json(JobEvent, json.loads(record)) for record in records]

    def items(self, job_id: str, checkpoint_key: str | None = None) -> list[ItemStatus]:
        """The items of a job that have ended, of one plan or of any, in the order they ended."""
        predicate = _is(job_id)
        if checkpoint_key is not None:
            predicate += f" AND checkpoint_key = {_quoted(checkpoint_key)}"
        rows = _newest(self._items.read(predicate), "item").sort_by("sequence")
        return [
            ItemStatus.from_json(json.loads(record)) for record in rows.column("record").to_pylist()
        ]

    def forget_done_items(self, job_ids: Iterable[str]) -> None:
        """Drop the finished items of jobs that will not go on; failed and skipped ones stay."""
        among = _among("job_id", job_ids)
        if among:
            self._items.delete(f"({among}) AND state = '{ItemState.DONE.value}'")

    def forget(self, job_ids: Iterable[str]) -> None:
        """Drop jobs with everything that is stored of them."""
        ids = list(job_ids)
        for table, column in (
            (self._jobs, "key"),
            (self._items, "job_id"),
            (self._events, "job_id"),
        ):
            if ids:
                table.delete(_among(column, ids))

    def compact(self) -> None:
        """Drop what newer records replaced, and old versions of the tables."""
        self._jobs.keep_newest("key")
        self._watched.keep_newest("key")
        self._items.compact()
        self._events.compact()

    def needs_compaction(self) -> bool:
        """Whether so much was written that compacting should not wait."""
        tables = (self._jobs, self._watched, self._items, self._events)
        return any(table.versions_since_compaction > _VERSIONS_MAX for table in tables)


class _Table:
    """One system table; made by its first write."""

    def __init__(self, uri: str, schema: pa.Schema, storage: Storage) -> None:
        self._uri = uri
        self._schema = schema
        self._storage = storage
        self._dataset: Any = None
        self._compacted_at = 0

    @property
    def versions_since_compaction(self) -> int:
        """How many commits there were."""
        return 0 if self._dataset is None else int(self._dataset.version) - self._compacted_at

    def _open(self) -> Any | None:
        if self._dataset is None and self._storage.exists(versions_folder(self._uri, None)):
            self._dataset = lance.dataset(self._uri, storage_options=self._storage.lance_options)
        return self._dataset

    def append(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Add rows in one commit; none makes no commit."""
        rows = pa.table(dict(columns), schema=self._schema)
        if not len(rows):
            return
        dataset = self._open()
        if dataset is None:
            self._dataset, _ = commit_first(
                self._uri, self._schema, [], {}, self._storage, stable_row_ids=False
            )
            dataset = self._dataset
        fragments = write_new_fragments(rows, dataset, self._uri, None, self._storage)
        operation = lance.LanceOperation.Append(fragments)
        self._dataset, _ = commit(dataset, self._uri, None, operation, {}, self._storage)

    def read(self, predicate: str | None = None, columns: list[str] | None = None) -> pa.Table:
        """Rows, in no order."""
        dataset = self._open()
        if dataset is None:
            schema = self._schema
            chosen = schema if columns is None else pa.schema([schema.field(c) for c in columns])
            return chosen.empty_table()
        try:
            return dataset.to_table(filter=predicate, columns=columns)
        except BaseException as error:
            raise translate(error, context="read") from error

    def delete(self, predicate: str) -> None:
        """Delete rows."""
        dataset = self._open()
        if dataset is None:
            return
        try:
            dataset.delete(predicate)
        except BaseException as error:
            raise translate(error, context="commit") from error
        self._sync()

    def keep_newest(self, key: str) -> None:
        """Write the newest row of each key anew, in one commit; rows without a record go."""
        dataset = self._open()
        if dataset is None:
            return
        newest = _newest(self.read(), key)
        newest = newest.filter(pc.is_valid(newest.column("record")))
        try:
            self._dataset = lance.write_dataset(
                newest, dataset, mode="overwrite", storage_options=self._storage.lance_options
            )
        except BaseException as error:
            raise translate(error, context="commit") from error
        self._clean()

    def compact(self) -> None:
        """Join small files."""
        dataset = self._open()
        if dataset is None:
            return
        try:
            dataset.optimize.compact_files()
        except BaseException as error:
            raise translate(error, context="commit") from error
        self._clean()

    def _sync(self) -> None:
        """Flush what Lance wrote by itself, before anything that it replaces goes."""
        fragments = [fragment.metadata for fragment in self._dataset.get_fragments()]
        sync_data_files(self._uri, fragments, self._storage)
        sync_deletions(self._uri, fragments, self._storage)
        sync_commit(self._uri, None, self._dataset, self._storage)

    def _clean(self) -> None:
        self._sync()
        try:
            # Nobody else reads the table or writes to it.
            self._dataset.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
        except BaseException as error:
            raise translate(error, context="commit") from error
        self._compacted_at = int(self._dataset.version)


def _newest(rows: pa.Table, key: str) -> pa.Table:
    """The row of each key with the highest sequence."""
    if not len(rows):
        return rows
    ordered = rows.sort_by([("sequence", "ascending")])
    numbered = ordered.append_column("at", pa.array(range(len(ordered)), pa.int64()))
    last = numbered.group_by(key).aggregate([("at", "max")]).column("at_max")
    return ordered.take(last)


def _text(value: Any) -> str:
    return json.dumps(to_json(value))


def _is(job_id: str) -> str:
    return f"job_id = {_quoted(job_id)}"


def _among(column: str, values: Iterable[str]) -> str:
    texts = ", ".join(_quoted(value) for value in values)
    return f"{column} IN ({texts})" if texts else ""


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
