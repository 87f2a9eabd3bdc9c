"""A source, a view of it and its refreshes in one folder, without servers and jobs."""

import gc
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from cluster.settings import Settings
from tests.unit.view_requests import check, encoded, envelope, spec
from udtf.refresh import RefreshTask, run_refresh
from udtf.refresh_model import (
    ItemStatus,
    PublishRequest,
    RefreshOptions,
    RefreshSummary,
    Runner,
    SourceLocation,
)
from udtf.refresh_plan import PlannedRefresh, plan_refresh
from udtf.spec import SOURCE_ROW_ID, ViewDefinition
from udtf.view_record import view_metadata, view_schema
from udtf.watermark import REFRESH_PROPERTY


class Notes:
    """Remembers what a refresh reported; cancels it after so many items."""

    def __init__(self, cancel_after: int | None = None) -> None:
        self.phases: list[str] = []
        self.summary: RefreshSummary | None = None
        self.items: list[ItemStatus] = []
        self.active: list[int] = []
        self.waits: list[str] = []
        self._cancel_after = cancel_after

    def phase(self, phase: str) -> None:
        self.phases.append(phase)

    def planned(self, summary: RefreshSummary) -> None:
        self.summary = summary

    def item(self, status: ItemStatus) -> None:
        self.items.append(status)

    def workers(self, active: int, pending: int, waiting_for: str | None) -> None:
        self.active.append(active)
        self.waits += [waiting_for] if waiting_for else []

    def is_cancelled(self) -> bool:
        return self._cancel_after is not None and len(self.items) >= self._cancel_after

    @property
    def checkpoint_key(self) -> str:
        assert self.summary is not None
        return self.summary.checkpoint_key

    @property
    def mode(self) -> str:
        assert self.summary is not None
        return self.summary.mode.value


@dataclass
class Lab:
    """A source table and at most one view of it."""

    folder: Path
    # Workers take longer to start than these refreshes need one for.
    settings: Settings = field(
        default_factory=lambda: Settings.model_validate({"views": {"concurrency": 1}})
    )
    runner: Runner = Runner.NATIVE
    notes: Notes = field(default_factory=Notes)
    _jobs: int = 0
    _metadata: dict[str, str] = field(default_factory=dict)

    @property
    def source_uri(self) -> str:
        return str(self.folder / "source.lance")

    @property
    def view_uri(self) -> str:
        return str(self.folder / "view.lance")

    @property
    def source(self) -> Any:
        return lance.dataset(self.source_uri)

    def write_source(self, rows: pa.Table, rows_per_fragment: int = 1 << 20) -> Any:
        """Append rows, or create the table."""
        return lance.write_dataset(
            rows,
            self.source_uri,
            mode="append" if (self.folder / "source.lance").exists() else "create",
            enable_stable_row_ids=True,
            max_rows_per_file=rows_per_fragment,
        )

    def create_view(self, definition: ViewDefinition) -> None:
        """Create the view's table, empty."""
        self._metadata = view_metadata(definition, "life-1")
        schema = view_schema(definition).with_metadata(self._metadata)
        lance.write_dataset(schema.empty_table(), self.view_uri, enable_stable_row_ids=True)

    def query(self, query: str, schema: pa.Schema) -> None:
        self.create_view(check("query", query, encoded(schema)))

    def code(
        self,
        kind: str,
        source: str,
        schema: pa.Schema,
        query: str = "SELECT * FROM source",
        *,
        batch: bool = False,
        entrypoint: str = "expand",
        init: dict[str, Any] | None = None,
        **changes: Any,
    ) -> None:
        """Create a view of kind `udtf` or `chunker`."""
        abi = "arrow-partition" if kind == "udtf" else "row-chunker"
        data = envelope(
            kind,
            artifact={"encoding": "python-source", "data": source},
            entrypoint=entrypoint,
            init=init,
            abi={"name": "arrow-batch-chunker" if batch else abi, "version": 1},
        )
        changes |= {"batch": True} if batch else {}
        record = spec(kind, data, udtf_name=entrypoint, **changes)
        self.create_view(check(kind, query, encoded(schema), record))

    def task(self, **changes: Any) -> RefreshTask:
        """The next refresh, as a job would ask for it."""
        self._jobs += 1
        task = RefreshTask(
            job_id=f"job-{self._jobs}",
            attempt=1,
            database="db",
            view_id=("view",),
            view_uri=self.view_uri,
            view_metadata=self._metadata,
            source=SourceLocation(("source",), self.source_uri),
            options=RefreshOptions(),
            runner=self.runner,
            settings=self.settings,
        )
        return replace(task, **changes)

    def plan(self, **options: Any) -> PlannedRefresh:
        return plan_refresh(self.task(options=RefreshOptions(**options)))

    def compute(
        self, done: Sequence[ItemStatus] = (), key: str | None = None, **options: Any
    ) -> PublishRequest | None:
        """A refresh up to its publication."""
        task = self.task(
            options=RefreshOptions(**options), done_items=tuple(done), checkpoint_key=key
        )
        self.notes = Notes(self.notes._cancel_after)
        return run_refresh(task, self.notes)

    def refresh(self, **options: Any) -> pa.Table:
        """A whole refresh; the view's rows afterwards."""
        request = self.compute(**options)
        if request is not None:
            publish(self.view_uri, request)
        return self.rows()

    def rows(self) -> pa.Table:
        return lance.dataset(self.view_uri).to_table()

    def sorted_rows(self, **options: Any) -> list[tuple[Any, ...]]:
        """A refresh, and the view's rows afterwards without the ids of source rows, sorted."""
        table = self.refresh(**options)
        names = [name for name in table.column_names if name != SOURCE_ROW_ID]
        return sorted((tuple(row[name] for name in names) for row in table.to_pylist()), key=repr)


def settle() -> None:
    """Wait until the workers of this process have ended, with the processes they started."""
    for thread in threading.enumerate():
        if thread.name == "items":
            thread.join(15)
    gc.collect()


def publish(view_uri: str, request: PublishRequest) -> None:
    """Commit what a refresh computed: evictions, rows and watermark in one version."""
    view = lance.dataset(view_uri)
    removed: list[int] = []
    updated: list[Any] = []
    if request.replace_all:
        removed = [fragment.fragment_id for fragment in view.get_fragments()]
    elif request.evict is not None:
        gone = pa.ipc.open_file(request.evict).read_all().column("row_id").to_numpy()
        for fragment in view.get_fragments():
            rows = fragment.scanner(columns=[SOURCE_ROW_ID], with_row_address=True).to_table()
            hit = np.isin(rows.column(SOURCE_ROW_ID).to_numpy(), gone)
            if hit.any():
                addresses = rows.column("_rowaddr").to_numpy()[hit] & np.uint64(0xFFFFFFFF)
                rest = fragment.delete_rows(addresses.astype(int).tolist())
                if rest is None:
                    removed.append(fragment.fragment_id)
                else:
                    updated.append(rest)
    operation = lance.LanceOperation.Update(
        removed_fragment_ids=removed,
        updated_fragments=updated,
        new_fragments=[lance.FragmentMetadata.from_json(text) for text in request.fragments],
        fields_modified=[],
    )
    lance.LanceDataset.commit(
        view_uri,
        lance.Transaction(
            read_version=view.version,
            operation=operation,
            transaction_properties={REFRESH_PROPERTY: json.dumps(request.watermark.to_json())},
        ),
    )
