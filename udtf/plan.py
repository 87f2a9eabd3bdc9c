"""Runs work items on this machine or on a cluster: with Daft, or as plain tasks of Ray.

Statuses come as items end, in no order.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from udtf.host import HostSpec, ItemHost
from udtf.items import WorkItem
from udtf.plan_worker import STATUS, WORKER
from udtf.pool import Pool
from udtf.refresh_model import ItemStatus, Runner

# How soon a refresh that is cancelled is told to stop, and stops.
_POLL_S = 0.2


def run_items(
    items: Sequence[WorkItem],
    spec: HostSpec,
    pool: Pool,
    report_status: Callable[[ItemStatus], None],
    report_workers: Callable[[int], None],
    is_over: Callable[[], bool],
) -> None:
    """Do every item; returns when all are done, or soon after `is_over` says so, and no task of
    Ray goes on then. Blocks.

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
    left = {item.id: item for item in items}
    per_call = pool.items_per_call(len(items))

    def hear(answer: Mapping[str, Any]) -> None:
        if answer[WORKER] not in workers:
            workers.add(answer[WORKER])
            report_workers(len(workers))
        if answer[STATUS] is not None:
            status = ItemStatus.from_json(answer[STATUS])
            left.pop(status.id, None)
            report_status(status)

    while left:
        with contextlib.closing(_answers(list(left.values()), spec, pool, per_call)) as answers:
            for row in answers:
                if row is not None:
                    hear(json.loads(row))
                if is_over():
                    spec.folder.stop()
                    return
        if per_call == pool.children:
            return
        # Items that take long were given back: from now on each is a call of its own.
        per_call = pool.children


def has_started_daft() -> bool:
    """Whether this process has had Daft start what it keeps until the process ends."""
    return "udtf.daft_pool" in sys.modules


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


def _answers(
    items: Sequence[WorkItem], spec: HostSpec, pool: Pool, per_call: int
) -> Generator[str | None]:
    """What workers say of items, `per_call` of them at a time; None every now and then when there
    is nothing."""
    if not pool.is_daft(len(items)):
        from udtf import ray_tasks

        return ray_tasks.run_tasks(items, spec, pool, per_call, _POLL_S)
    # Loaded by those who need it: Daft takes a third of a second.
    from udtf import daft_pool

    return daft_pool.run_plan(items, spec, pool, per_call, _POLL_S)
