"""The events of a job as a table, and a predicate over it."""

from collections.abc import Sequence

import lance
import pyarrow as pa

from actors.jobs_model import Job, JobEvent
from actors.sql import prepare_predicate
from cluster.settings import LimitSettings
from udtf.lance_errors import translate

# The first nine are the columns that LanceDB's users know.
EVENT_SCHEMA = pa.schema(
    [
        pa.field("emitted_at", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("phase", pa.string(), nullable=False),
        pa.field("updated_by", pa.string(), nullable=False),
        pa.field("emitted_from", pa.string(), nullable=False),
        pa.field("emitted_by", pa.string(), nullable=False),
        pa.field("claim_entity", pa.string()),
        pa.field("message", pa.string(), nullable=False),
        pa.field("rows_processed", pa.int64()),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
    ]
)
_EMITTED_BY = "destrier"


def event_table(job: Job, events: Sequence[JobEvent]) -> pa.Table:
    """The events as rows of EVENT_SCHEMA.

    `updated_by` is who asked for the job, `emitted_from` the driver that was at work,
    `claim_entity` the work item that an event is about.
    """
    rows = [
        {
            "emitted_at": event.at_ms,
            "state": event.state.value,
            "phase": event.phase.value,
            "updated_by": job.submission.requested_by,
            "emitted_from": f"attempt-{event.attempt}",
            "emitted_by": _EMITTED_BY,
            "claim_entity": event.details.get("item"),
            "message": event.message,
            "rows_processed": event.rows_processed,
            "kind": event.kind,
            "attempt": event.attempt,
            "sequence": event.sequence,
        }
        for event in events
    ]
    return pa.Table.from_pylist(rows, EVENT_SCHEMA)


def select_events(events: pa.Table, predicate: str, limits: LimitSettings) -> pa.Table:
    """The events that `predicate` selects, in their order. Blocks.

    Lance reads the predicate, as it does those on tables; the rows stay in memory.

    Raises:
        InvalidInput: the predicate is none; says what to change.
    """
    sql = prepare_predicate(predicate, events.schema, limits, frozenset()).sql
    if events.num_rows == 0:
        return events
    try:
        selected: pa.Table = lance.write_dataset(events, "memory://").to_table(filter=sql)
    except Exception as error:
        raise translate(error, context="predicate") from error
    return selected
