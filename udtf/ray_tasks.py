"""Runs work items as plain tasks of Ray, which workers that have run one begin within milliseconds.

For refreshes that would end before a pool of Daft's has started, and for those that Daft would not
give work to all workers of (`Pool.is_daft`). A worker keeps its host, with the process of the code,
from task to task; all of a driver's workers end with the driver.
"""

import pickle
import time
from collections.abc import Generator, Sequence
from itertools import islice

import ray

from udtf.host import HostSpec
from udtf.items import WorkItem
from udtf.plan_worker import PlanWorker
from udtf.pool import Pool, pickled_calls

# Workers that are made ready for a refresh that has not been asked for yet.
_READY_MAX = 8
# A worker looks every second or two whether it is to stop, and then ends its code.
_STOPPING_S = 8.0
# So long each is kept busy that the next task does not go to the same worker.
_APART_S = 0.05


def run_tasks(
    items: Sequence[WorkItem], spec: HostSpec, pool: Pool, per_call: int, poll_s: float
) -> Generator[str | None]:
    """Do every item, a task of `per_call` items for each worker at a time; the answers of
    PlanWorker as they come.

    None says that there was no answer for `poll_s` seconds. Whoever closes this has told the
    workers to stop; it then returns when all have.

    Raises:
        ray.exceptions.RayError: a worker died, with what it was doing.
    """
    asked = pool.resources
    # Ray would do the items of a worker that died again, unheard of.
    task = ray.remote(num_cpus=asked.num_cpus, memory=asked.memory_bytes or 0, max_retries=0)(
        _do_items
    )
    host = ray.put(pickle.dumps(spec))
    calls = pickled_calls(items, per_call)
    running: list[ray.ObjectRef[list[str]]] = []
    try:
        while True:
            for call in islice(calls, pool.workers - len(running)):
                running.append(task.remote(host, pool.children, call))
            if not running:
                return
            ended, running = ray.wait(running, timeout=poll_s)
            if not ended:
                yield None
            for answers in ray.get(ended):
                yield from answers
    except GeneratorExit:
        _wait_for_end(running)
        raise


def get_ready() -> None:
    """Have workers ready for another refresh, with all that it loads. Blocks: a second at first."""
    cpus = int(ray.cluster_resources().get("CPU", 0))  # type: ignore[no-untyped-call]
    # What takes no CPU waits for none. Whoever has run one such task is the first for another.
    rest = ray.remote(num_cpus=0, max_retries=0)(_rest)
    ray.get([rest.remote() for _ in range(min(cpus, _READY_MAX))])


def _wait_for_end(running: "list[ray.ObjectRef[list[str]]]") -> None:
    """Have tasks ended that were told to stop: the workers may be wanted for the next refresh, and
    nobody would delete what they write once this one is committed."""
    if not running:
        return
    _, left = ray.wait(running, num_returns=len(running), timeout=_STOPPING_S)
    for task in left:
        ray.cancel(task, force=True)
    if left:
        ray.wait(left, num_returns=len(left), timeout=_STOPPING_S)


def _do_items(spec: bytes, children: int, items: Sequence[bytes]) -> list[str]:
    return _hand.worker(spec, children).do(items)


def _rest() -> None:
    _hand.rest()
    time.sleep(_APART_S)


class _Hand:
    """What a process of Ray's keeps from task to task: the host of one refresh, or what the next
    one needs of it."""

    def __init__(self) -> None:
        self._spec = b""
        self._worker: PlanWorker | None = None

    def worker(self, spec: bytes, children: int) -> PlanWorker:
        """The worker of the refresh that `spec` is about."""
        if self._worker is None or spec != self._spec:
            self._close()
            self._spec, self._worker = spec, PlanWorker(spec, children)
        return self._worker

    def rest(self) -> None:
        """End the code of the last refresh, and load what all refreshes need."""
        from udtf.code_process import have_spare

        self._close()
        have_spare()

    def _close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


_hand = _Hand()
