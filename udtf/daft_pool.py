"""Runs work items with Daft: a column of them, and a class of Daft's with one host in each worker.

The only use of Daft's legacy class function, which alone carries memory to Ray. Its `concurrency`
is always set: without it Daft ignores what a worker asks for. The same plan runs on a Ray cluster
and in subprocesses of this machine.
"""

import pickle
import queue
import threading
import warnings
from collections.abc import Generator, Sequence
from typing import Any

import daft
import pyarrow as pa

from udtf.host import HostSpec
from udtf.items import WorkItem
from udtf.plan_worker import STATUS, PlanWorker
from udtf.pool import Pool, pickled_calls
from udtf.refresh_model import Runner

_ITEM = "item"


def run_plan(
    items: Sequence[WorkItem], spec: HostSpec, pool: Pool, per_call: int, poll_s: float
) -> Generator[str | None]:
    """Do every item, `per_call` of them in a call of a worker; the answers of PlanWorker as they
    come, None after `poll_s` without one.

    Waits without end for a worker that has died on Ray. Whoever closes this ends the process soon,
    and its workers with it.
    """
    plan = _plan(items, spec, pool, per_call)
    rows: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # Closing Daft's iterator waits until every item is done; so a thread that nobody waits for
    # has it.
    threading.Thread(target=_pump, args=(plan, rows), name="items", daemon=True).start()
    while True:
        try:
            row = rows.get(timeout=poll_s)
        except queue.Empty:
            yield None
            continue
        if row is None:
            return
        if isinstance(row, BaseException):
            raise row
        yield row


def _choose(runner: Runner) -> None:
    if runner is Runner.RAY:
        daft.set_runner_ray(noop_if_initialized=True)
    elif daft.runners.get_or_infer_runner_type() != Runner.NATIVE:
        daft.set_runner_native()


def _plan(items: Sequence[WorkItem], spec: HostSpec, pool: Pool, per_call: int) -> Any:
    _choose(pool.runner)
    asked = pool.resources
    on_ray = pool.runner is Runner.RAY
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        work = daft.udf(
            return_dtype=daft.DataType.string(),
            num_cpus=asked.num_cpus,
            num_gpus=(asked.num_gpus or None) if on_ray else None,
            memory_bytes=asked.memory_bytes if on_ray else None,
            batch_size=per_call,
            concurrency=pool.workers,
        )(PlanWorker).with_init_args(pickle.dumps(spec), pool.children)
        return batches_of(items, per_call).select(work(daft.col(_ITEM)).alias(STATUS))


def batches_of(items: Sequence[WorkItem], per_call: int) -> Any:
    """The items as Daft's rows, `per_call` of them in each partition.

    Each partition is a table of its own: slices of one travel to Ray each with the whole of it,
    which made 30 GB of 100,000 items.
    """
    tables = [pa.table({_ITEM: call}) for call in pickled_calls(items, per_call)]
    return daft.from_arrow(tables).into_batches(per_call)


def _pump(plan: Any, rows: "queue.SimpleQueue[Any]") -> None:
    try:
        for row in plan.iter_rows(results_buffer_size=1):
            rows.put(row[STATUS])
    except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
        rows.put(error)
    else:
        rows.put(None)
