"""Runs work items as plain tasks of Ray, which workers that have run one begin within milliseconds.

For refreshes that would end before a pool of Daft's has started. A worker keeps its host, with the
process of the code, from task to task; all of a driver's workers end with the driver.
"""

import functools
import pickle
import time
from collections import deque
from collections.abc import Iterator, Sequence

import ray

from udtf.host import HostSpec
from udtf.items import WorkItem
from udtf.plan_worker import PlanWorker
from udtf.resources import WorkerResources

# Workers that are made ready for a refresh that has not been asked for yet.
_READY_MAX = 8
# So long each is kept busy that the next task does not go to the same worker.
_APART_S = 0.2


def run_tasks(
    items: Sequence[WorkItem],
    spec: HostSpec,
    workers: int,
    children: int,
    asked: WorkerResources,
    items_per_task: int,
    poll_s: float,
) -> Iterator[str | None]:
    """Do every item, `workers` tasks at a time; the answers of PlanWorker as they come.

    None says that there was no answer for `poll_s` seconds.

    Raises:
        ray.exceptions.RayError: a worker died, with what it was doing.
    """
    # Ray would do the items of a worker that died again, unheard of.
    task = ray.remote(num_cpus=asked.num_cpus, memory=asked.memory_bytes or 0, max_retries=0)(
        _do_items
    )
    host = ray.put(pickle.dumps(spec))
    waiting = deque(
        [pickle.dumps(item) for item in items[start : start + items_per_task]]
        for start in range(0, len(items), items_per_task)
    )
    running: list[ray.ObjectRef[list[str]]] = []
    while waiting or running:
        while waiting and len(running) < workers:
            running.append(task.remote(host, children, waiting.popleft()))
        ended, running = ray.wait(running, timeout=poll_s)
        if not ended:
            yield None
        for answers in ray.get(ended):
            yield from answers


def get_ready() -> None:
    """Have workers started that hold all that a refresh loads. Blocks: a second or two."""
    cpus = int(ray.available_resources().get("CPU", 0))  # type: ignore[no-untyped-call]
    ready = ray.remote(num_cpus=1, max_retries=0)(_load)
    ray.get([ready.remote() for _ in range(min(cpus, _READY_MAX))])


def _load() -> None:
    import udtf.host  # noqa: F401 - it is loaded, and Lance with it

    time.sleep(_APART_S)


def _do_items(spec: bytes, children: int, items: Sequence[bytes]) -> list[str]:
    return _worker(spec, children).do(items)


@functools.lru_cache(maxsize=1)
def _worker(spec: bytes, children: int) -> PlanWorker:
    """The host of this process: a driver has one refresh, and its workers serve no other driver."""
    return PlanWorker(spec, children)
