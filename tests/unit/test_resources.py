"""How many workers fit on which machines, and what is said of those that fit on none."""

import math

import pytest

from cluster.errors import InvalidInput
from udtf.resources import (
    ImpossibleResources,
    WorkerResources,
    admission,
    workers_that_fit,
)

GIB = float(1 << 30)
SMALL = {"CPU": 4.0, "memory": 8 * GIB}
LARGE = {"CPU": 16.0, "GPU": 2.0, "memory": 64 * GIB}


@pytest.mark.parametrize(
    ("resources", "concurrency", "nodes", "workers"),
    [
        (WorkerResources(1), 8, [SMALL], 4),
        (WorkerResources(1), 2, [SMALL], 2),
        (WorkerResources(3), 8, [SMALL, LARGE], 6),
        (WorkerResources(0.1), 100, [SMALL], 40),
        (WorkerResources(1, 1), 8, [SMALL, LARGE], 2),
        (WorkerResources(1, 0.5), 8, [LARGE], 4),
        (WorkerResources(1, 0, 4 << 30), 8, [SMALL], 2),
        (WorkerResources(0), 8, [SMALL], 8),
        (WorkerResources(1, 1), 8, [{"CPU": 4.0, "GPU": math.inf}], 4),
    ],
)
def test_workers_are_as_many_as_fit_and_no_more_than_asked(
    resources: WorkerResources, concurrency: int, nodes: list[dict[str, float]], workers: int
) -> None:
    assert admission(resources, concurrency, nodes) == workers
    assert workers_that_fit(resources, concurrency, nodes) == workers


def test_a_worker_does_not_span_machines() -> None:
    with pytest.raises(ImpossibleResources):
        admission(WorkerResources(6), 1, [SMALL, SMALL])
    assert workers_that_fit(WorkerResources(6), 1, [SMALL, SMALL]) == 0


@pytest.mark.parametrize(
    ("resources", "nodes", "asked", "has"),
    [
        (WorkerResources(32), [SMALL, LARGE], "32 CPUs", "16 CPUs, 2 GPUs"),
        (WorkerResources(1, 1), [SMALL], "1 CPUs, 1 GPUs", "no GPU"),
        (WorkerResources(1, 0, 1 << 40), [SMALL], f"{1 << 40} bytes", f"{8 << 30} bytes"),
        (WorkerResources(1), [], "1 CPUs", "no machine"),
        (
            WorkerResources(8, 0, 1 << 30),
            [{"CPU": 16.0}, {"CPU": 1.0, "memory": GIB}],
            "8 CPUs",
            "none has all of it at once",
        ),
    ],
)
def test_what_fits_nowhere_is_refused_with_what_was_asked_and_what_there_is(
    resources: WorkerResources, nodes: list[dict[str, float]], asked: str, has: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        admission(resources, 8, nodes, "the UDTF embed")
    message = refused.value.message
    assert message.startswith("the UDTF embed asks for")
    assert asked in message and has in message
