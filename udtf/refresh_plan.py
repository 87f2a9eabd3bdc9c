"""Plans a refresh: what has changed, what is to be computed again, and in which work items."""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from cluster.errors import InvalidInput
from cluster.settings import Settings, ViewSettings
from udtf.changes import ChangePlan, plan_changes
from udtf.checked import canonical_json
from udtf.code_process import CodeSpec
from udtf.host import HostSpec, SourceVersion
from udtf.items import WorkItem, cut_fragments, cut_ids, whole_item
from udtf.manifest import manifest_checksum, parse_manifest
from udtf.partitions import by_index, by_value
from udtf.refresh_model import (
    ItemStatus,
    RefreshMode,
    RefreshOptions,
    RefreshSummary,
    Runner,
    SourceLocation,
    Watermark,
)
from udtf.resources import WorkerResources, worker_resources
from udtf.source_query import recognise
from udtf.source_rows import SourceReader
from udtf.sources import (
    BoundSource,
    SqlChecker,
    bind,
    definition_sha,
    open_source,
    plain_sql,
    version_timestamp,
)
from udtf.spec import ViewDefinition, ViewKind, check_code_allowed
from udtf.view_files import ViewFolder
from udtf.view_record import INCARNATION, stored_view, view_schema
from udtf.watermark import drift_reason, read_watermark


@dataclass(frozen=True, slots=True)
class RefreshTask:
    """One refresh of one view, by one driver.

    `view_metadata` are the schema metadata of the view's table. `done_items` were done by earlier
    attempts, under `checkpoint_key`.
    """

    job_id: str
    attempt: int
    database: str
    view_id: tuple[str, ...]
    view_uri: str
    view_metadata: Mapping[str, str]
    source: SourceLocation
    options: RefreshOptions
    runner: Runner
    settings: Settings
    checkpoint_key: str | None = None
    done_items: tuple[ItemStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedRefresh:
    """What is to be done and by whom, on this version of the view; `watermark` is what the view
    will have then."""

    view_version: int
    summary: RefreshSummary
    changes: ChangePlan
    items: Sequence[WorkItem]
    host: HostSpec
    resources: WorkerResources
    watermark: Watermark


def plan_refresh(task: RefreshTask, check: SqlChecker = plain_sql) -> PlannedRefresh:
    """Look at the view and its source, at the version that is to be shown. Blocks.

    `check` makes the expressions of the source query safe.

    Raises:
        DestrierError: the view cannot be refreshed as it is defined, or the source is not there.
    """
    folder = _folder(task)
    view = folder.open()
    definition = stored_view(view.schema)
    if definition is None:
        raise InvalidInput("the table is no materialized view; refresh a view")
    check_code_allowed(definition, task.settings.views)
    query = recognise(definition.source_query)
    if query is None:
        raise InvalidInput(
            "the view's source_query is of no form that this server executes, so the view cannot be"
            " refreshed; create it with one of the documented forms"
        )
    location = task.source
    if task.options.source_version is not None:
        location = replace(location, version=task.options.source_version, tag=None)
    source = open_source(location, dict(folder.storage_options) or None)
    bound = bind(query, source, definition, task.settings.limits, check)
    watermark = _watermark(task, definition, location, source)
    known = read_watermark(view)
    changes = plan_changes(
        source,
        None if known is None else known[0],
        drift_reason(view),
        location,
        definition,
        task.options,
        bound,
        watermark.udtf_sha,
        watermark.manifest_checksum,
    )
    host = _host(task, definition, bound, location, watermark, folder)
    items: list[WorkItem] = []
    if changes.mode is not RefreshMode.NO_OP:
        reader = SourceReader(
            source, dict(bound.columns), bound.filter, bound.limit, host.source.batch_rows
        )
        items = _cut(definition, reader, changes, task)
    counts = [item.rows_in for item in items]
    summary = RefreshSummary(
        mode=changes.mode,
        reason=changes.reason,
        source_version=watermark.source_version,
        items=len(items),
        rows=None if None in counts else sum(count or 0 for count in counts),
        checkpoint_key=_checkpoint_key(task, watermark, changes, host),
    )
    resources = worker_resources(definition.udtf, task.settings.views)
    return PlannedRefresh(int(view.version), summary, changes, items, host, resources, watermark)


def _folder(task: RefreshTask) -> ViewFolder:
    storage = task.settings.storage
    options = tuple((k, v.get_secret_value()) for k, v in sorted(storage.options.items()))
    fsync = storage.durability == "fsync"
    # A job that is resumed counts its attempts from one again.
    driver = f"{task.attempt}-{secrets.token_hex(8)}"
    return ViewFolder(task.view_uri, task.job_id, driver, options, fsync)


def _watermark(
    task: RefreshTask, definition: ViewDefinition, location: SourceLocation, source: Any
) -> Watermark:
    udtf = definition.udtf
    manifest = _manifest(task, definition)
    return Watermark(
        source_id=location.id,
        source_uri=location.uri,
        branch=location.branch,
        source_version=int(source.version),
        source_version_ts=version_timestamp(source),
        definition_sha=definition_sha(definition),
        udtf_sha=udtf.sha256 if udtf else None,
        manifest_checksum=manifest_checksum(manifest) if manifest else None,
        output_limit=task.options.output_limit,
        job_id=task.job_id,
        refreshed_at_ms=0,
    )


def _manifest(task: RefreshTask, definition: ViewDefinition) -> str | None:
    return task.options.manifest or (definition.udtf.manifest if definition.udtf else None)


def _variables(manifest: str | None, views: ViewSettings) -> tuple[str, ...]:
    """Names of what the manifest sets in the environment of workers, for the code to see."""
    return () if manifest is None else tuple(parse_manifest(manifest, views).env_vars)


def _host(
    task: RefreshTask,
    definition: ViewDefinition,
    bound: BoundSource,
    location: SourceLocation,
    watermark: Watermark,
    folder: ViewFolder,
) -> HostSpec:
    views, options, udtf = task.settings.views, task.options, definition.udtf
    names = tuple(name for name, _ in bound.columns)
    columns = () if udtf is None else udtf.input_columns or names
    code = None
    if udtf is not None:
        memory = (udtf.memory_bytes or views.code_memory_bytes) // children_per_worker(task)
        code = CodeSpec(
            envelope=udtf.envelope,
            kind=definition.kind,
            batch=udtf.batch,
            input_schema_ipc=bytes(
                pa.schema([bound.input_schema.field(name) for name in columns]).serialize()
            ),
            output_schema_ipc=definition.output_schema,
            # Drivers of GPUs reserve far more address space than they use.
            memory_bytes=None if udtf.num_gpus else memory,
            start_timeout_s=views.code_start_timeout_s,
            item_timeout_s=views.item_timeout_s,
            output_bytes_max=views.code_output_bytes_max,
            # Ray has set them in the worker's environment.
            variables=_variables(_manifest(task, definition), views),
        )
    return HostSpec(
        kind=definition.kind,
        folder=folder,
        source=SourceVersion(
            uri=location.uri,
            branch=location.branch,
            version=watermark.source_version,
            columns=bound.columns,
            filter=bound.filter,
            limit=bound.limit,
            batch_rows=views.batch_rows,
        ),
        view_schema=bytes(view_schema(definition).remove_metadata().serialize()),
        rows_per_fragment=options.max_rows_per_fragment or views.rows_per_fragment,
        code=code,
        code_columns=columns,
        error_handling=udtf.error_handling if udtf else None,
    )


def _cut(
    definition: ViewDefinition,
    reader: SourceReader,
    changes: ChangePlan,
    task: RefreshTask,
) -> list[WorkItem]:
    udtf = definition.udtf
    if definition.kind is ViewKind.UDTF:
        assert udtf is not None
        if udtf.partition_by is not None:
            return by_value(reader, udtf.partition_by, task.settings.views.items_max)
        if udtf.partition_by_indexed_column is not None:
            return by_index(reader, udtf.partition_by_indexed_column)
        return [whole_item()]
    is_query = definition.kind is ViewKind.QUERY
    if changes.changed is not None:
        ids = reader.passing(changes.changed)
        return cut_ids(ids, _rows_per_item(is_query, len(ids), task))
    # How many rows of a range pass a filter is not known before they are read; code is to see
    # as many at a time as was asked for.
    if reader.limit is not None or (reader.filter is not None and not is_query):
        ids = reader.selected_ids()
        return cut_ids(ids, _rows_per_item(is_query, len(ids), task))
    rows = _rows_per_item(is_query, reader.dataset.count_rows(), task)
    return cut_fragments(reader.dataset, rows, whole=reader.filter is not None)


def _rows_per_item(is_query: bool, rows: int, task: RefreshTask) -> int:
    """How many of all `rows` one item has, so that there are not too many items."""
    views, options = task.settings.views, task.options
    name, given = "source_task_size", options.source_task_size
    usual = views.source_task_rows
    if is_query:
        name, given = "max_rows_per_fragment", options.max_rows_per_fragment
        usual = views.rows_per_fragment
    least = -(-rows // views.items_max)
    if given is None:
        return max(usual, least)
    if given < least:
        raise InvalidInput(
            f"{name} = {given} makes more work items of {rows} rows than the {views.items_max} that"
            f" views.items_max allows; make it {least} or more"
        )
    return given


def _checkpoint_key(
    task: RefreshTask, watermark: Watermark, changes: ChangePlan, host: HostSpec
) -> str:
    """A digest of everything that the items of a refresh and their results depend on."""
    views, options = task.settings.views, task.options
    changed = None
    if changes.changed is not None:
        changed = hashlib.sha256(changes.changed.astype("<u8").tobytes()).hexdigest()
    key = {
        "incarnation": task.view_metadata.get(INCARNATION),
        "view": task.view_uri,
        "watermark": watermark.to_json() | {"job_id": None},
        "mode": changes.mode.value,
        "changed": changed,
        "schema": hashlib.sha256(host.view_schema).hexdigest(),
        "task_rows": options.source_task_size or views.source_task_rows,
        "items_max": views.items_max,
        "fragment_rows": host.rows_per_fragment,
    }
    return hashlib.sha256(canonical_json(key).encode()).hexdigest()


def children_per_worker(task: RefreshTask) -> int:
    """Child processes of one worker, each of which does an item at a time."""
    return min(
        task.options.intra_applier_concurrency or 1, task.settings.views.children_per_worker_max
    )
