"""Turns: as many plans at a time as there are workers for, in the order in which they came."""

import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from actors.turns import Turns
from cluster.errors import Throttling

WORKERS = 4
LONG_S = 30.0


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_plans_run_together_while_there_are_workers() -> None:
    turns = Turns(plans_max=10)
    with ExitStack() as running:
        for _ in range(4):
            running.enter_context(turns.take(1, WORKERS, 0))
        with pytest.raises(Throttling), turns.take(1, WORKERS, 0):
            pass


def test_workers_are_free_again_after_a_plan_even_if_it_fails() -> None:
    turns = Turns(plans_max=1)
    with pytest.raises(ZeroDivisionError), turns.take(4, WORKERS, 0):
        raise ZeroDivisionError
    with turns.take(4, WORKERS, 0):
        pass


def test_a_plan_larger_than_the_cluster_runs_alone() -> None:
    turns = Turns(plans_max=10)
    with turns.take(100, WORKERS, 0), pytest.raises(Throttling), turns.take(1, WORKERS, 0):
        pass
    with turns.take(1, WORKERS, 0), pytest.raises(Throttling), turns.take(100, WORKERS, 0):
        pass
    with turns.take(100, WORKERS, 0):
        pass


def test_a_plan_that_is_refused_leaves_its_place_to_the_next() -> None:
    turns = Turns(plans_max=10)
    with turns.take(3, WORKERS, 0):
        with pytest.raises(Throttling), turns.take(2, WORKERS, 0):
            pass
        with turns.take(1, WORKERS, 0):
            pass


def test_too_many_plans_are_refused_at_once() -> None:
    turns = Turns(plans_max=1)
    with (
        turns.take(1, WORKERS, 0),
        pytest.raises(Throttling, match="too many"),
        turns.take(1, WORKERS, LONG_S),
    ):
        pass


def test_small_plans_do_not_overtake_a_large_one() -> None:
    turns = Turns(plans_max=10)
    order: list[str] = []

    def take(name: str, items: int) -> threading.Thread:
        def work() -> None:
            with turns.take(items, WORKERS, LONG_S):
                order.append(name)

        return in_thread(work)

    with turns.take(2, WORKERS, 0):
        large = take("large", 4)
        while not turns.waiting:
            pass
        small = take("small", 1)
        while turns.waiting < 2:
            pass
        assert order == []
    large.join(LONG_S)
    small.join(LONG_S)
    assert order == ["large", "small"]
