"""Runs work items: many with Daft, a few on Ray as its own tasks (ray_tasks.py).

With Daft they are a column, and a class of Daft's has one host in each worker. The only use of
Daft's legacy class function, which alone carries memory to Ray. Its `concurrency` is always set:
without it Daft ignores what a worker asks for. The same plan runs on a Ray cluster and in
subprocesses of this machine. Statuses come as items end, in no order.
"""

import json
import os
import pickle
import queue
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import daft
import pyarrow as pa

from udtf.host import HostSpec, ItemHost
from udtf.items import WorkItem
from udtf.plan_worker import STATUS, WORKER, PlanWorker
from udtf.refresh_model import ItemStatus, Runner
from udtf.resources import WorkerResources

# How soon a refresh that is cancelled is told to stop, and stops.
_POLL_S = 0.2
# Each call of a worker costs Daft on Ray 11 ms: where a worker has many items before it, it gets
# some at a time. More at a time would be heard of late, and lost together.
_ITEMS_PER_CALL_MAX = 8
_CALLS_PER_WORKER_MIN = 24
_ITEM = "item"


@dataclass(frozen=True, slots=True)
class Pool:
    """The workers of one refresh: how many, what each asks for, and its child processes.

    On Ray, fewer items than `daft_items_min` are tasks of Ray.
    """

    runner: Runner
    workers: int
    resources: WorkerResources
    children: int = 1
    daft_items_min: int = 1


def run_items(
    items: Sequence[WorkItem],
    spec: HostSpec,
    pool: Pool,
    report_status: Callable[[ItemStatus], None],
    report_workers: Callable[[int], None],
    is_over: Callable[[], bool],
) -> None:
    """Do every item; returns when all are done, or soon after `is_over` says so. Blocks.

    `report_status` is called in this thread for each item that has ended, `report_workers` with how
    many workers have ended one.

    Daft waits without end for a worker that has died on Ray: the caller's caller sets a deadline.
    A task of Ray raises an error of Ray's.
    """
    if spec.code is None and len(items) == 1:
        # Daft and its workers take longer to start than one scan of Lance's, which runs no code
        # of anyone's.
        report_status(ItemHost(spec).run(items[0]))
        return
    workers: set[str] = set()
    for row in _answers(items, spec, pool):
        if row is not None:
            answer = json.loads(row)
            if answer[WORKER] not in workers:
                workers.add(answer[WORKER])
                report_workers(len(workers))
            if answer[STATUS] is not None:
                report_status(ItemStatus.from_json(answer[STATUS]))
        if is_over():
            spec.folder.stop()
            return


def get_ready() -> None:
    """Have what the next refresh on Ray needs started. Blocks: a second or two."""
    from udtf import ray_tasks

    ray_tasks.get_ready()


def nodes(runner: Runner) -> list[Mapping[str, float]]:
    """What the machines of the runner have, by Ray's names of resources."""
    if runner is Runner.RAY:
        import ray

        known = ray.nodes()  # type: ignore[no-untyped-call]
        return [node["Resources"] for node in known if node["Alive"]]
    # Processes of this machine share whatever else it has.
    unbounded = float("inf")
    return [{"CPU": float(os.cpu_count() or 1), "GPU": unbounded, "memory": unbounded}]


def free(runner: Runner) -> list[Mapping[str, float]]:
    """What nobody uses of it now; of a cluster, all machines together."""
    if runner is Runner.RAY:
        import ray

        return [ray.available_resources()]  # type: ignore[no-untyped-call]
    return nodes(runner)


def _answers(items: Sequence[WorkItem], spec: HostSpec, pool: Pool) -> Iterator[str | None]:
    """What workers say of the items that have ended; None every now and then when there is none."""
    is_small = len(items) < pool.daft_items_min and not pool.resources.num_gpus
    if pool.runner is not Runner.RAY or not is_small:
        return _by_daft(_plan(items, spec, pool))
    from udtf import ray_tasks

    per_task = pool.children * _items_per_child(len(items), pool)
    return ray_tasks.run_tasks(
        items, spec, pool.workers, pool.children, pool.resources, per_task, _POLL_S
    )


def _by_daft(plan: Any) -> Iterator[str | None]:
    rows: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # Closing Daft's iterator waits until every item is done; so a thread that nobody waits for
    # has it.
    threading.Thread(target=_pump, args=(plan, rows), name="items", daemon=True).start()
    while True:
        try:
            row = rows.get(timeout=_POLL_S)
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


def _plan(items: Sequence[WorkItem], spec: HostSpec, pool: Pool) -> Any:
    _choose(pool.runner)
    asked = pool.resources
    per_call = pool.children * _items_per_child(len(items), pool)
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
    tables = [
        pa.table({_ITEM: [pickle.dumps(item) for item in items[start : start + per_call]]})
        for start in range(0, len(items), per_call)
    ]
    return daft.from_arrow(tables).into_batches(per_call)


def _items_per_child(items: int, pool: Pool) -> int:
    calls = pool.workers * pool.children * _CALLS_PER_WORKER_MIN
    return max(1, min(_ITEMS_PER_CALL_MAX, items // calls))


def _pump(plan: Any, rows: "queue.SimpleQueue[Any]") -> None:
    try:
        for row in plan.iter_rows(results_buffer_size=1):
            rows.put(row[STATUS])
    except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
        rows.put(error)
    else:
        rows.put(None)
