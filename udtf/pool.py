"""The workers of one refresh."""

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from udtf.items import WorkItem
from udtf.refresh_model import Runner
from udtf.resources import WorkerResources

# A call of a worker costs milliseconds: where it has many items before it, it gets some at a time.
# More at a time would be heard of late, and lost together. Of slow items it gives back the rest.
_ITEMS_PER_CALL_MAX = 8
_CALLS_PER_WORKER_MIN = 24


@dataclass(frozen=True, slots=True)
class Pool:
    """How many workers, what each asks for, and its child processes.

    On Ray, fewer items than `daft_items_min` are tasks of Ray, as `is_daft` says.
    """

    runner: Runner
    workers: int
    resources: WorkerResources
    children: int = 1
    daft_items_min: int = 1

    def is_daft(self, items: int) -> bool:
        """Whether Daft runs a refresh of so many items, rather than tasks of Ray."""
        if self.runner is not Runner.RAY or self.resources.num_gpus:
            return True
        # Daft gives work to as many workers of a machine at a time as the machine has CPUs: of
        # those that ask for a part of one, some would have nothing to do.
        return items >= self.daft_items_min and self.resources.num_cpus >= 1

    def items_per_call(self, items: int) -> int:
        """How many of all `items` a worker is given at a time."""
        calls = self.workers * self.children * _CALLS_PER_WORKER_MIN
        return self.children * max(1, min(_ITEMS_PER_CALL_MAX, items // calls))


def pickled_calls(items: Sequence[WorkItem], per_call: int) -> Iterator[list[bytes]]:
    """The items as calls of workers get them, `per_call` of them each."""
    for start in range(0, len(items), per_call):
        yield [pickle.dumps(item) for item in items[start : start + per_call]]
