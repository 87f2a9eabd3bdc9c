"""Refreshes of views as jobs do them, in this process: found, planned, computed and published by
the parts that do it in a deployment, only without a queue and without a process per refresh."""

import asyncio
import json
import pickle
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import lance
import lancedb
import pyarrow as pa
import pytest

from actors.job_views import OwnedViews
from actors.model import Assignment, CreateMode, InsertMode, NewTable
from actors.owners import Owners
from actors.reads import Reads
from actors.server import Server
from actors.sql import prepare_expression
from cluster.clock import SystemClock
from cluster.errors import ConcurrentModification, TableNotFound
from cluster.settings import Settings
from tests.contract.domain import DATABASE, ipc, make_settings, new_key, ref
from tests.contract.view_domain import ViewOwners
from tests.property.source_history import SourceHistory
from tests.property.view_oracle import Row, Shown, View
from tests.unit.refresh_lab import Notes
from udtf.code_process import CodeProcess, CodeSpec
from udtf.host import HostSpec, ItemHost
from udtf.items import WorkItem
from udtf.refresh import RefreshTask, run_refresh
from udtf.refresh_model import ItemStatus, PublishRequest, RefreshOptions, Runner
from udtf.refresh_plan import plan_refresh
from udtf.spec import ViewKind

SOURCE = ref("source")
# What changes rows of the source without their saying so.
_SILENT = (
    "wrote a column anew without saying in which rows",
    "was replaced by another of its name",
)


def small_items(root: Path, **sections: Any) -> Settings:
    """Settings with which few rows make several items, so that their order matters."""
    sizes = {"batch_rows": 16, "source_task_rows": 9, "concurrency": 1}
    storage = {"root": str(root), "durability": "none"}
    return make_settings(root, **{"views": sizes, "storage": storage, **sections})


class LocalItems:
    """Does items where the refresh runs (plan.run_items); code has its process, one for all."""

    def __init__(self) -> None:
        self._processes: dict[CodeSpec, CodeProcess] = {}

    def process(self, spec: CodeSpec) -> CodeProcess:
        """The process of this code, which goes on from one refresh to the next."""
        return self._processes.setdefault(spec, CodeProcess(spec))

    def run(
        self,
        items: Sequence[WorkItem],
        spec: HostSpec,
        pool: Any,
        report_status: Callable[[ItemStatus], None],
        report_workers: Callable[[int], None],
        is_over: Callable[[], bool],
    ) -> None:
        """Do the items, sent as to a worker, in the order of their turns."""
        host = ItemHost(pickle.loads(pickle.dumps(spec)))
        for status in host.run_each(pickle.loads(pickle.dumps(items))):
            report_status(ItemStatus.from_json(json.loads(json.dumps(status.to_json()))))
            if is_over():
                return

    @contextmanager
    def installed(self) -> Iterator[None]:
        """In the place of Daft's workers while the block runs."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("udtf.refresh.run_items", self.run)
            patch.setattr("udtf.host.CodeProcess", self.process)
            try:
                yield
            finally:
                for process in self._processes.values():
                    process.close()


class ServedHistory(SourceHistory):
    """A source that some programs change by themselves and others through a server."""

    def __init__(
        self, folder: Path, random: Random, server: Server, wait: Callable[[Any], Any]
    ) -> None:
        self._server = server
        self._wait = wait
        super().__init__(folder, random)

    def _operations(self) -> dict[str, tuple[int, Callable[[], None]]]:
        return super()._operations() | {
            "served insert": (3, self._served_insert),
            "served update": (3, self._served_update),
            "served delete": (2, self._served_delete),
            "served overwrite": (1, self._served_overwrite),
            "served recreation": (1, self._served_recreation),
        }

    def _served(self, call: Callable[[], Awaitable[Any]]) -> None:
        """Have the server do it, at the second call if the first tells it that the source is not
        the table that it knew."""
        try:
            self._wait(call())
        except TableNotFound:
            self._wait(call())

    def _served_insert(self) -> None:
        rows = ipc(self._full(self._rows(self._new_ids())))
        server, append = self._server, InsertMode.APPEND
        self._served(lambda: server.insert_rows(SOURCE, None, append, new_key(), rows))

    def _served_update(self) -> None:
        column, value = self._random.choice([("v", "v + 3"), ("w", "2"), ("s", "'y z'")])
        changes = [Assignment((column,), value)]
        where, server = self._condition(), self._server
        self._served(
            lambda: server.update_rows(SOURCE, None, new_key(), changes, where, None, None)
        )

    def _served_delete(self) -> None:
        where = self._condition()
        self._served(lambda: self._server.delete_rows(SOURCE, None, new_key(), where, None))

    def _served_overwrite(self) -> None:
        rows = ipc(self._full(self._rows(self._new_ids(20))))
        server, overwrite = self._server, InsertMode.OVERWRITE
        self._served(lambda: server.insert_rows(SOURCE, None, overwrite, new_key(), rows))

    def _served_recreation(self) -> None:
        self._wait(self._server.catalog(DATABASE).drop_table(SOURCE.id))
        rows = ipc(self._rows(self._new_ids(20)))
        new = NewTable(SOURCE.id)
        self._wait(self._server.create_table(DATABASE, new, CreateMode.CREATE, new_key(), rows))


class Follower:
    """A database with one source and views of it; refreshes them and checks what they show."""

    def __init__(
        self, settings: Settings, owners: Owners, random: Random, runner: Runner = Runner.NATIVE
    ) -> None:
        self._settings = settings
        self._random = random
        self._runner = runner
        self._folder = Path(settings.storage.root) / DATABASE
        self._folder.mkdir(parents=True)
        self._loop = asyncio.Runner()
        clock = SystemClock()
        self.server = Server(settings, owners, clock)
        self._owned = OwnedViews(settings, owners, Reads(settings, clock))
        self.history = ServedHistory(self._folder, random, self.server, self.wait)
        self.ways: Counter[tuple[str, str, int]] = Counter()
        self.events: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.log: list[str] = []

    @staticmethod
    def local(root: Path, random: Random) -> "Follower":
        """With everything in this process."""
        settings = small_items(root)
        return Follower(settings, ViewOwners(settings), random)

    def wait(self, call: Awaitable[Any]) -> Any:
        """What an operation of the server answers."""

        async def answered() -> Any:
            return await call

        return self._loop.run(answered())

    def close(self) -> None:
        """Let go of the server."""
        self.wait(self.server.close())
        self._loop.close()

    def create(self, view: View) -> None:
        """Create the view, empty."""
        self.wait(self.server.create_view(ref(view.name), view.definition, new_key()))

    def dataset(self, view: View) -> Any:
        """The view's table as Lance sees it."""
        return lance.dataset(str(self._folder / f"{view.name}.lance"))

    def source_of(self, view: View) -> Any:
        """The view's source as Lance sees it."""
        return lance.dataset(str(self._folder / f"{view.source}.lance"))

    # --- refreshes --------------------------------------------------------------------------------

    def task(self, view: View, options: RefreshOptions) -> RefreshTask:
        """What the owner of jobs gives a driver to do."""
        found = self.wait(self._owned.find(ref(view.name)))
        return RefreshTask(
            job_id=f"job-{uuid.UUID(int=self._random.getrandbits(128))}",
            attempt=1,
            database=DATABASE,
            view_id=(view.name,),
            view_uri=found.location.uri,
            view_metadata=found.metadata,
            source=found.source,
            options=options,
            runner=self._runner,
            settings=self._settings,
        )

    def compute(self, view: View, **options: Any) -> PublishRequest:
        """A refresh up to its publication, of a view that is behind."""
        task = self.task(view, RefreshOptions(**options))
        request = run_refresh(task, Notes(), prepare_expression)
        assert request is not None
        return request

    def publish(self, view: View, request: PublishRequest) -> Any:
        """Commit what a refresh computed, as the owner of jobs has it done."""
        location = self.wait(self._owned.find(ref(view.name))).location
        return self.wait(self._owned.publish(ref(view.name), location, request))

    def refresh(
        self, view: View, between: Callable[[], object] | None = None, **options: Any
    ) -> str:
        """A whole refresh, and the mode it was of; fails unless the view is right afterwards.

        `between` happens when the rows are computed and not yet published; if that is in the way,
        the view stays as it is and is refreshed again.
        """
        was_foreign, view.is_foreign = view.is_foreign, False
        task = self.task(view, RefreshOptions(**options))
        notes = Notes()
        tier = plan_refresh(task, prepare_expression).changes.tier
        request = run_refresh(task, notes, prepare_expression)
        assert notes.summary is not None
        mode, reason = notes.summary.mode.value, notes.summary.reason
        where = f"{view.name} at version {notes.summary.source_version}: {mode}, {reason}"
        self.log.append(where)
        assert not was_foreign or mode == "rebuild", where
        wanted = self.source_rows(view, notes.summary.source_version)
        if between is not None:
            between()
        if request is not None:
            try:
                done = self.publish(view, request)
            except ConcurrentModification:
                assert between is not None
                self.events["refused publication"] += 1
                return self.refresh(view, **options)
            # It replaced whatever was there, or nothing had been changed.
            view.is_foreign = False
            if self._random.random() < 0.1:
                assert self.publish(view, request).version == done.version
                self.events["repeated publication"] += 1
        self.ways[view.definition.kind.value, mode, tier] += 1
        self.reasons[_anonymous(reason)] += 1
        if request is not None or between is None:
            capped = options.get("output_limit")
            view.check(self.shown(view), wanted, where, capped)
        return mode

    def source_rows(self, view: View, version: int | None = None) -> list[Row]:
        """All rows of a version of the view's source, or of the latest."""
        source = self.source_of(view)
        if version is not None:
            source = source.checkout_version(version)
        scanner = source.scanner(list(view.columns), with_row_id=True)
        return list(scanner.to_table().to_pylist())

    def shown(self, view: View) -> Shown:
        """The rows that the view shows, in its own columns."""
        found = self.dataset(view)
        names = [name for name in found.schema.names if not name.startswith("foreign")]
        rows = found.to_table(columns=names).to_pylist()
        return Counter(tuple(row.values()) for row in rows)


class ViewEvents:
    """What others do to the folder of a view; some of it changes rows."""

    def __init__(self, follower: Follower, random: Random) -> None:
        self._follower = follower
        self._random = random

    def happen(self, view: View) -> None:
        """Let something happen to the view."""
        names = ["compact", "index", "add column", "clean up", "configure"]
        names += ["append", "delete", "update", "restore"]
        if view.definition.kind is ViewKind.QUERY:
            names += ["lancedb"] * 3
        name = self._random.choice(names)
        before = self._follower.shown(view)
        rows = self._follower.dataset(view).count_rows()
        {
            "compact": self._compact,
            "index": self._index,
            "add column": self._add_column,
            "clean up": self._clean_up,
            "configure": self._configure,
            "append": self._append,
            "delete": self._delete,
            "update": self._update,
            "restore": self._restore,
            "lancedb": self._lancedb,
        }[name](view, self._follower.dataset(view), rows)
        self._follower.events[f"{name} of a view"] += 1
        self._follower.log.append(f"{view.name}: {name}")
        if name != "lancedb" and self._follower.shown(view) != before:
            view.is_foreign = True

    def _compact(self, view: View, dataset: Any, rows: int) -> None:
        dataset.optimize.compact_files(target_rows_per_fragment=1_000)

    def _index(self, view: View, dataset: Any, rows: int) -> None:
        if rows:
            dataset.create_scalar_index(dataset.schema.names[0], "BTREE", replace=True)

    def _add_column(self, view: View, dataset: Any, rows: int) -> None:
        dataset.add_columns(pa.field(f"foreign{dataset.version}", pa.int64()))

    def _clean_up(self, view: View, dataset: Any, rows: int) -> None:
        dataset.cleanup_old_versions(older_than=timedelta(0))

    def _configure(self, view: View, dataset: Any, rows: int) -> None:
        dataset.update_config({"somebody": str(self._random.random())})

    def _append(self, view: View, dataset: Any, rows: int) -> None:
        if rows:
            lance.write_dataset(dataset.take([0]), dataset.uri, mode="append")

    def _delete(self, view: View, dataset: Any, rows: int) -> None:
        if rows:
            place = self._random.randrange(rows)
            first = dataset.schema.names[0]
            value = dataset.take([place], columns=[first]).column(0)[0].as_py()
            text = f"'{value}'" if isinstance(value, str) else value
            dataset.delete(f"{first} IS NULL" if value is None else f"{first} = {text}")

    def _update(self, view: View, dataset: Any, rows: int) -> None:
        first = dataset.schema.names[0]
        dataset.update({first: "'z'" if first == "s" else f"{first} + 1"})

    def _restore(self, view: View, dataset: Any, rows: int) -> None:
        versions = [item["version"] for item in dataset.versions()]
        dataset.checkout_version(self._random.choice(versions)).restore()

    def _lancedb(self, view: View, dataset: Any, rows: int) -> None:
        """LanceDB refreshes the view by itself."""
        follower = self._follower
        wanted = plan_refresh(follower.task(view, RefreshOptions()), prepare_expression).changes
        database = lancedb.connect(Path(dataset.uri).parent)
        try:
            done = database.open_materialized_view(view.name).refresh()
        except (RuntimeError, ValueError) as error:
            follower.events[f"LanceDB refused: {_anonymous(str(error))[:300]}"] += 1
            return
        follower.events[f"LanceDB {done.mode}"] += 1
        follower.log.append(f"{view.name}: LanceDB {done}")
        latest = follower.source_rows(view)
        view.is_foreign = False
        try:
            view.check(follower.shown(view), latest, "LanceDB")
        except AssertionError:
            # Its own mistake, on which an increment of ours must not build: it asks each row when
            # it was changed last.
            assert any(reason in wanted.reason for reason in _SILENT), wanted
            follower.events["LanceDB was wrong"] += 1
            follower.refresh(view, full=True)


def _anonymous(text: str) -> str:
    return "".join("#" if character.isdigit() else character for character in text)
