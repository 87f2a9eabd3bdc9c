"""Runs work items with Daft: a column of items, and a class of Daft's with one host in each worker.

The only use of Daft's legacy class function, which alone carries memory to Ray. Its `concurrency`
is always set: without it Daft ignores what a worker asks for. The same plan runs on a Ray cluster
and in subprocesses of this machine. Statuses come as items end, in no order.
"""

import contextlib
import json
import os
import queue
import socket
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import daft

from udtf.host import HostSpec, ItemHost
from udtf.items import WorkItem
from udtf.refresh_model import ItemStatus, Runner
from udtf.resources import WorkerResources

# How soon a refresh that is cancelled is told to stop, and stops.
_POLL_S = 0.2
_WATCH_S = 1.0
_ITEM = "item"
_STATUS = "status"


@dataclass(frozen=True, slots=True)
class Pool:
    """The workers of one refresh: how many, what each asks for, and its child processes."""

    runner: Runner
    workers: int
    resources: WorkerResources
    children: int = 1


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
    """
    rows: queue.SimpleQueue[Any] = queue.SimpleQueue()
    plan = _plan(items, spec, pool)
    # Closing Daft's iterator waits until every item is done; so a thread that nobody waits for
    # has it.
    threading.Thread(target=_pump, args=(plan, rows), name="items", daemon=True).start()
    workers: set[str] = set()
    while True:
        try:
            row = rows.get(timeout=_POLL_S)
        except queue.Empty:
            row = ""
        if row is None:
            return
        if isinstance(row, BaseException):
            raise row
        if row:
            answer = json.loads(row)
            if answer["worker"] not in workers:
                workers.add(answer["worker"])
                report_workers(len(workers))
            if answer[_STATUS] is not None:
                report_status(ItemStatus.from_json(answer[_STATUS]))
        if is_over():
            spec.folder.stop()
            return


def nodes(runner: Runner) -> list[Mapping[str, float]]:
    """What the machines of the runner have, by Ray's names of resources."""
    if runner is Runner.RAY:
        import ray

        return [node["Resources"] for node in ray.nodes() if node["Alive"]]
    # Processes of this machine share whatever else it has.
    unbounded = float("inf")
    return [{"CPU": float(os.cpu_count() or 1), "GPU": unbounded, "memory": unbounded}]


def _plan(items: Sequence[WorkItem], spec: HostSpec, pool: Pool) -> Any:
    if pool.runner is Runner.RAY:
        daft.set_runner_ray(noop_if_initialized=True)
    elif daft.runners.get_or_infer_runner_type() != Runner.NATIVE:
        daft.set_runner_native()
    asked = pool.resources
    on_ray = pool.runner is Runner.RAY
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        work = daft.udf(
            return_dtype=daft.DataType.string(),
            num_cpus=asked.num_cpus,
            num_gpus=(asked.num_gpus or None) if on_ray else None,
            memory_bytes=asked.memory_bytes if on_ray else None,
            batch_size=pool.children,
            concurrency=pool.workers,
        )(_Worker).with_init_args(spec, pool.children)
        frame = daft.from_pydict({_ITEM: list(items)}).into_batches(pool.children)
        return frame.select(work(daft.col(_ITEM)).alias(_STATUS))


def _pump(plan: Any, rows: "queue.SimpleQueue[Any]") -> None:
    try:
        for row in plan.iter_rows(results_buffer_size=1):
            rows.put(row[_STATUS])
    except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
        rows.put(error)
    else:
        rows.put(None)


class _Worker:
    """A worker of Daft's: hosts for as many items at a time as it has child processes.

    Daft wants a default for every argument, and the first one to be called `self`.
    """

    def __init__(self, spec: HostSpec | None = None, children: int = 1) -> None:
        assert spec is not None
        self._spec = spec
        self._hosts = [ItemHost(spec) for _ in range(children)]
        self._threads = ThreadPoolExecutor(children)
        self._name = f"{socket.gethostname()} {os.getpid()}"
        self._busy = threading.Event()
        self._parent = os.getppid()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def __call__(self, items: Any) -> list[str]:
        """Do some items at once; a status for each, null if the refresh was stopped before."""
        with self._working():
            return list(self._threads.map(self._do, items.to_pylist(), self._hosts))

    def _do(self, item: WorkItem, host: ItemHost) -> str:
        status = None if self._spec.folder.is_stopped() else host.run(item).to_json()
        return json.dumps({"worker": self._name, _STATUS: status})

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        self._busy.set()
        try:
            yield
        finally:
            self._busy.clear()

    def _watch(self) -> None:
        """End this process with the one that started it, and items when the refresh is stopped."""
        while True:
            self._busy.wait(_WATCH_S)
            if os.getppid() != self._parent:
                os._exit(1)
            if self._busy.is_set() and self._spec.folder.is_stopped():
                for host in self._hosts:
                    host.stop()
                return
            threading.Event().wait(_WATCH_S)
