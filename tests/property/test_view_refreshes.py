"""Whatever happens to a source and to its views, a refreshed view shows what its definition says.

Views of every kind follow a source through a random history. Every refresh is a real one: found,
planned, computed (user code in its own process) and published by the owner of the view's table.
Then the rows that are stored are compared with what plain Python makes of the source's own.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.property.view_follower import Follower, LocalItems, ViewEvents
from tests.property.view_oracle import View, views
from udtf.spec import ViewKind

ALL_WAYS = {
    ("query", "no_op", 0),
    ("query", "incremental", 1),
    ("query", "incremental", 2),
    ("query", "rebuild", 3),
    ("chunker", "no_op", 0),
    ("chunker", "incremental", 1),
    ("chunker", "incremental", 2),
    ("chunker", "rebuild", 3),
    ("udtf", "no_op", 0),
    ("udtf", "rebuild", 3),
}


def _options(view: View, follower: Follower, random: Random) -> dict[str, Any]:
    """Mostly none."""
    options: dict[str, Any] = {}
    if random.random() < 0.04:
        options["full"] = True
    if random.random() < 0.04:
        # Not the latest version, so long as it has the view's columns.
        source = follower.source_of(view)
        version = random.choice([item["version"] for item in source.versions()])
        if set(view.columns) <= set(source.checkout_version(version).schema.names):
            options["source_version"] = version
    if view.definition.kind is ViewKind.CHUNKER and random.random() < 0.05:
        options["output_limit"] = random.choice([3, 1_000])
    if random.random() < 0.1:
        options["max_rows_per_fragment"] = random.choice([3, 20])
    return options


def _between(
    view: View, follower: Follower, events: ViewEvents, random: Random
) -> Callable[[], object] | None:
    """What happens while a refresh is under way; mostly nothing."""

    def another_refresh() -> None:
        follower.history.step()
        follower.refresh(view)

    happenings = [lambda: events.happen(view), follower.history.step, another_refresh]
    return random.choice(happenings) if random.random() < 0.1 else None


def _follow(folder: Path, seed: int, steps: int, totals: dict[str, Counter[Any]]) -> None:
    random = Random(seed)
    follower = Follower.local(folder / "root", random)
    events = ViewEvents(follower, random)
    followed = views()
    view: View | None = None
    try:
        for view in followed:
            follower.create(view)
            follower.refresh(view)
        for _ in range(steps):
            follower.log.append(follower.history.step())
            for view in followed:
                if random.randrange(10) >= view.diligence:
                    continue
                if random.random() < 0.15:
                    events.happen(view)
                between = _between(view, follower, events, random)
                follower.refresh(view, between, **_options(view, follower, random))
    except BaseException as error:
        error.add_note(f"seed {seed}, after {', '.join(follower.history.happened)}")
        assert view is not None
        log = [line for line in follower.log if line.split(":")[0].split(" ")[0] == view.name]
        error.add_note("\n".join(log[-8:]))
        raise
    finally:
        follower.close()
    totals["refreshes"] += follower.ways
    totals["of the source"] += Counter(follower.history.happened)
    totals["of views"] += follower.events
    totals["reasons"] += follower.reasons


def _follow_all(folder: Path, seeds: range, steps: int) -> dict[str, Counter[Any]]:
    totals: dict[str, Counter[Any]] = defaultdict(Counter)
    with LocalItems().installed():
        for seed in seeds:
            _follow(folder / str(seed), seed, steps, totals)
    for name, counter in totals.items():
        print(f"{name}: {counter.total()}", dict(counter.most_common()))
    return totals


def test_refreshed_views_are_right_after_every_step(tmp_path: Path) -> None:
    totals = _follow_all(tmp_path, range(6), 10)
    ways = set(totals["refreshes"])
    assert ways <= ALL_WAYS
    assert {mode for _, mode, _ in ways} == {"no_op", "incremental", "rebuild"}
    assert {tier for _, _, tier in ways} == {0, 1, 2, 3}


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_refreshed_views_are_right_after_long_histories(tmp_path: Path) -> None:
    totals = _follow_all(tmp_path, range(1_000, 1_060), 30)
    assert set(totals["refreshes"]) == ALL_WAYS
    assert len(totals["of the source"]) == 30, totals["of the source"]
