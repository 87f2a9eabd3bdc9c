"""Items that take long: each is heard of when it has ended, though a call has several."""

import pickle
from collections.abc import Generator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from tests.unit.refresh_lab import Lab
from udtf.host import HostSpec
from udtf.items import WorkItem
from udtf.plan_worker import PlanWorker
from udtf.pool import Pool, pickled_calls

WORDS = pa.schema([("id", pa.int64()), ("word", pa.string())])
CODE = """
def expand(id):
    yield {"word": str(id)}
"""


def test_slow_items_are_given_back_and_then_called_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long call looks like a worker that hangs, and is lost as a whole."""
    called: list[int] = []

    def answers(
        items: Sequence[WorkItem], spec: HostSpec, pool: Pool, per_call: int
    ) -> Generator[str]:
        worker = PlanWorker(pickle.dumps(spec), pool.children)
        try:
            for call in pickled_calls(items, per_call):
                called.append(len(call))
                yield from worker.do(call)
        finally:
            worker.close()

    monkeypatch.setattr("udtf.plan._answers", answers)
    monkeypatch.setattr("udtf.plan_worker.CALL_S", 0.0)
    monkeypatch.setattr(Pool, "items_per_call", lambda self, items: 8)
    lab = Lab(tmp_path)
    lab.write_source(pa.table({"id": range(20)}))
    lab.code("chunker", CODE, WORDS)
    rows = lab.refresh(source_task_size=1)
    assert rows.column("word").to_pylist() == [str(n) for n in range(20)]
    assert len({status.id for status in lab.notes.items}) == len(lab.notes.items) == 20
    # One item of each call was done, and the others then alone.
    assert called == [8, 8, 4] + [1] * 17
