"""What tests of views need: definitions, a hand-made refresh, and an owner of jobs that notes what
it is told."""

import base64
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from actors.jobs_model import Submission, ViewHistory, WatchedView
from actors.owners import LocalOwners, Owner
from actors.server import Server
from cluster.clock import SystemClock
from cluster.identifiers import TableRef
from cluster.settings import LimitSettings, Settings, ViewSettings
from udtf.refresh_model import PublishRequest, RefreshMode, Watermark
from udtf.sources import version_timestamp
from udtf.spec import ViewDefinition, check_view_definition
from udtf.view_files import ViewFolder

OUTPUT = pa.schema([("id", pa.int64()), ("twice", pa.int64())])
QUERY = "SELECT id, n * 2 AS twice FROM src WHERE n > 0"
CODE = b"""
def chunks(id, n):
    yield {"id": id, "twice": 2 * n}
"""


def define(
    query: str = QUERY,
    kind: str = "query",
    output: pa.Schema = OUTPUT,
    *,
    auto_refresh: bool = False,
    **udtf: Any,
) -> ViewDefinition:
    """A view's definition, checked as HTTP checks it; of a code view with code that does little."""
    return check_view_definition(
        kind,
        query,
        base64.b64encode(output.serialize()).decode(),
        _code(kind) | udtf if kind != "query" else None,
        auto_refresh,
        LimitSettings(),
        ViewSettings(),
    )


def _code(kind: str) -> dict[str, Any]:
    envelope = json.dumps(
        {
            "format": "lance-udtf",
            "version": 1,
            "kind": kind,
            "name": "chunks",
            "entrypoint": "chunks",
            "artifact": {"encoding": "python-source", "data": CODE.decode()},
            "abi": {
                "name": "row-chunker" if kind == "chunker" else "arrow-partition",
                "version": 1,
            },
            "runtime": {"python": "3.11"},
        }
    ).encode()
    return {
        "udtf": base64.b64encode(envelope).decode(),
        "udtf_sha": hashlib.sha256(envelope).hexdigest(),
        "udtf_name": "chunks",
        "udtf_version": "1",
    }


class FakeJobs:
    """An owner of jobs that notes its calls and runs nothing (owners.Owner)."""

    def __init__(self) -> None:
        self.submitted: list[Submission] = []
        self.watched: list[WatchedView] = []
        self.forgotten: list[tuple[str, ...]] = []
        self.history = ViewHistory()
        self.refusal: Exception | None = None

    async def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Answer as Jobs would."""
        assert not keywords
        if method == "submit":
            if self.refusal is not None:
                raise self.refusal
            self.submitted.append(arguments[0])
            return f"job-{len(self.submitted)}"
        if method == "watch":
            self.watched.append(arguments[0])
            return None
        if method == "forget_view":
            self.forgotten.append(arguments[1])
            return None
        assert method == "view_history", method
        return self.history


class ViewOwners(LocalOwners):
    """Tables in this process, and noted jobs."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, SystemClock())
        self.noted = FakeJobs()

    def jobs(self) -> Owner:
        """The notes."""
        return self.noted


class ViewServer(Server):
    """A server over ViewOwners, and what a driver and the owner of jobs do to a view by hand."""

    def __init__(self, settings: Settings) -> None:
        self.owners = ViewOwners(settings)
        super().__init__(settings, self.owners, SystemClock())

    @property
    def jobs(self) -> FakeJobs:
        """What the owner of jobs was told."""
        return self.owners.noted

    async def uri(self, table: TableRef) -> str:
        """The folder of a table."""
        return (await self.catalog(table.database).find_table(table.id)).location.uri

    async def dataset(self, table: TableRef) -> Any:
        """The table as Lance sees it."""
        return lance.dataset(await self.uri(table))

    async def on_table(self, view: TableRef, method: str, *arguments: Any) -> Any:
        """Call the owner of a view's table."""
        record, owner = await self.owners.open_table(view)
        return await owner.call(method, record.location, *arguments)


def stage(uri: str, rows: Sequence[dict[str, Any]], job_id: str) -> tuple[str, ...]:
    """Write rows into a view's folder as a worker does: nobody sees them yet."""
    folder = ViewFolder(uri, job_id, "driver", (), fsync=False)
    view = folder.open()
    data = pa.Table.from_pylist(list(rows), view.schema.remove_metadata())
    return folder.write(view, data.schema, iter(data.to_batches()), 1 << 20)


def rows_of(source: Any, where: Callable[[dict[str, Any]], bool] | None = None) -> list[Any]:
    """The rows of the view QUERY over `source`, of the source rows that `where` picks."""
    found = source.scanner(with_row_id=True).to_table().to_pylist()
    return [
        {"id": row["id"], "twice": 2 * row["n"], "__source_row_id": row["_rowid"]}
        for row in found
        if row["n"] > 0 and (where is None or where(row))
    ]


def request(
    uri: str,
    source: Any,
    rows: Sequence[dict[str, Any]],
    *,
    job_id: str = "job",
    evict: Sequence[int] | None = None,
) -> PublishRequest:
    """What a refresh asks to be published: all rows anew, or some instead of those of `evict`."""
    folder = ViewFolder(uri, job_id, "driver", (), fsync=False)
    evictions = None
    if evict is not None:
        evictions = folder.write_evictions(np.array(evict, np.uint64))
    return PublishRequest(
        job_id=job_id,
        view_version=int(lance.dataset(uri).version),
        mode=RefreshMode.REBUILD if evict is None else RefreshMode.INCREMENTAL,
        replace_all=evict is None,
        evict=evictions,
        fragments=stage(uri, rows, job_id),
        rows_written=len(rows),
        watermark=Watermark(
            source_id=("src",),
            source_uri=source.uri,
            branch=None,
            source_version=int(source.version),
            source_version_ts=version_timestamp(source),
            definition_sha="0" * 64,
            udtf_sha=None,
            manifest_checksum=None,
            output_limit=None,
            job_id=job_id,
            refreshed_at_ms=time.time_ns() // 1_000_000,
        ),
    )
