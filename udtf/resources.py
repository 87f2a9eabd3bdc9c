"""What a worker of a view asks for, and how many such workers the machines can hold.

Asked before a job starts: a request that no machine can ever satisfy would wait for ever in Ray.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.errors import InvalidInput
from cluster.settings import ViewSettings
from udtf.spec import UdtfSpec

CPU = "CPU"
GPU = "GPU"
MEMORY = "memory"
# Amounts are sums of fractions; Ray itself counts in ten-thousandths.
_TOLERANCE = 1e-4
# What nobody counts holds as many workers as anyone may want.
_UNBOUNDED = 1_000_000


class ImpossibleResources(InvalidInput):
    """No machine has what one worker asks for; the message says what was asked and what there
    is."""


@dataclass(frozen=True, slots=True)
class WorkerResources:
    """What one worker asks Ray for; memory in bytes, None for no demand."""

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    memory_bytes: int | None = None

    def __str__(self) -> str:
        parts = [f"{self.num_cpus:g} CPUs"]
        if self.num_gpus:
            parts.append(f"{self.num_gpus:g} GPUs")
        if self.memory_bytes:
            parts.append(f"{self.memory_bytes} bytes of memory")
        return ", ".join(parts)

    def demand(self) -> dict[str, float]:
        """By the names of Ray's resources; what is not asked for is left out."""
        asked = {CPU: self.num_cpus, GPU: self.num_gpus, MEMORY: float(self.memory_bytes or 0)}
        return {name: amount for name, amount in asked.items() if amount > 0}


def worker_resources(udtf: UdtfSpec | None, views: ViewSettings) -> WorkerResources:
    """What one worker of a view asks for; `udtf` is None of a query view."""
    if udtf is None:
        return WorkerResources(views.code_num_cpus)
    return WorkerResources(
        num_cpus=udtf.num_cpus or views.code_num_cpus,
        num_gpus=udtf.num_gpus or 0.0,
        memory_bytes=udtf.memory_bytes,
    )


def admission(
    resources: WorkerResources,
    concurrency: int,
    nodes: Sequence[Mapping[str, float]],
    name: str = "the view",
) -> int:
    """How many of `concurrency` workers fit on `nodes` (totals by Ray's names), each on one node.

    Raises:
        ImpossibleResources: not even one worker fits on any node.
    """
    workers = sum(_workers_on(node, resources) for node in nodes)
    if workers < 1:
        raise ImpossibleResources(
            f"{name} asks for {resources} for each worker; {_largest(nodes, resources)}."
            " Ask for less, or add a larger machine to the cluster"
        )
    return min(concurrency, workers)


def workers_that_fit(
    resources: WorkerResources, concurrency: int, available: Sequence[Mapping[str, float]]
) -> int:
    """How many workers could start now, given what is free on each node."""
    return min(concurrency, sum(_workers_on(node, resources) for node in available))


def _workers_on(node: Mapping[str, float], resources: WorkerResources) -> int:
    demand = resources.demand()
    if not demand:
        return _UNBOUNDED
    fitting = min((node.get(name, 0.0) + _TOLERANCE) / amount for name, amount in demand.items())
    return math.floor(min(fitting, _UNBOUNDED))


def _largest(nodes: Sequence[Mapping[str, float]], resources: WorkerResources) -> str:
    if not nodes:
        return "the cluster has no machine"
    most = {name: max(node.get(name, 0.0) for node in nodes) for name in (CPU, GPU, MEMORY)}
    memory = most[MEMORY]
    has = WorkerResources(most[CPU], most[GPU], int(memory) if math.isfinite(memory) else None)
    lacking = [name for name, amount in resources.demand().items() if amount > most[name]]
    if not lacking:
        return f"the machines have up to {has}, but none has all of it at once"
    if GPU in lacking and not most[GPU]:
        return f"the largest machine has {has} and no GPU"
    return f"the largest machine has {has}"
