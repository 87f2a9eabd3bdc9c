"""Views and jobs for HTTP tests."""

import base64
from dataclasses import replace
from typing import Any

import pyarrow as pa

from actors.jobs_model import Job, JobPhase, JobState, Submission, Trigger, ViewHistory
from actors.model import TableLocation
from actors.view_model import ViewDescription, ViewLag
from cluster.identifiers import ObjectId
from tests.http.fakes import FakeServer
from udtf.refresh_model import RefreshMode, RefreshOptions, RefreshResult
from udtf.spec import UdtfSpec, ViewDefinition, ViewKind
from udtf.view_record import view_metadata, view_schema

SCHEMA = pa.schema({"x": pa.int64()})
OUTPUT_SCHEMA = base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()
SOURCE_QUERY = "SELECT x FROM t WHERE x > 1 LIMIT 7"
CODE = UdtfSpec(b"{}", "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a", "f", "1")
RESULT = RefreshResult(RefreshMode.REBUILD, 7, 3, 2, rows_read=9, items=1, reason="it is new")


def definition(
    kind: ViewKind = ViewKind.QUERY, source_query: str = SOURCE_QUERY, **fields: Any
) -> ViewDefinition:
    """A view with one column; one with code if its kind has any."""
    udtf = None if kind is ViewKind.QUERY else replace(CODE, memory_bytes=1_000, num_gpus=2.0)
    schema = SCHEMA.serialize().to_pybytes()
    return ViewDefinition(kind, source_query, schema, **{"udtf": udtf, **fields})


def add_view(server: FakeServer, *names: str, defined: ViewDefinition | None = None) -> None:
    """Put a view there, to be described and to be read as a table."""
    made = definition() if defined is None else defined
    schema = view_schema(made).with_metadata(view_metadata(made, "life-1"))
    record = server.add_table(*names, rows=schema.empty_table()).record
    server.views[ObjectId(names)] = ViewDescription(
        record=record,
        definition=made,
        version=2,
        schema_ipc=schema.serialize().to_pybytes(),
        num_rows=7,
        query="SELECT `x` FROM `t`",
        source=ObjectId(("t",)),
        source_version=3,
        refreshed_at_ms=500,
        latest_source_version=5,
        lag=ViewLag(2, 40),
        history=ViewHistory(
            last_success=job("done", JobState.DONE, result=RESULT),
            recent=(job("done", JobState.DONE, result=RESULT),),
        ),
    )


def job(job_id: str, state: JobState = JobState.RUNNING, /, **fields: Any) -> Job:
    """A job of the view `v`, or of the one that `view_id` names."""
    submission = Submission(
        database=fields.pop("database", "default"),
        view_id=fields.pop("view_id", ("v",)),
        view=TableLocation("/data/v.lance", "life-1"),
        options=fields.pop("options", RefreshOptions()),
        trigger=Trigger.API,
        requested_by="ada",
    )
    phase = JobPhase.DONE if state is JobState.DONE else JobPhase.COMPUTE
    values = {"phase": phase, "created_ms": 100, "updated_ms": 300, "started_ms": 150, **fields}
    if state.is_over:
        values.setdefault("ended_ms", 250)
    return Job(job_id, submission, state, **values)
