"""Refreshes on Ray against plain Python; owners are actors and workers are Daft's."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from actors.ray_owners import RayOwners
from tests.contract.ray_cluster import end_owners, own_ray
from tests.property.view_follower import Follower, small_items
from tests.property.view_oracle import views
from udtf.refresh_model import Runner

pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(240)]

STEPS = 3


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[Follower]:
    settings = small_items(tmp_path / "root", ray={"namespace": f"test-{uuid.uuid4().hex[:12]}"})
    with own_ray():
        follower = Follower(settings, RayOwners(settings), Random(12), Runner.RAY)
        yield follower
        follower.close()
        end_owners(settings)


def test_views_on_ray_are_right_after_every_step(follower: Follower) -> None:
    followed = [view for view in views() if view.name in ("doubled", "words", "totals")]
    for view in followed:
        follower.create(view)
        follower.refresh(view)
    for _ in range(STEPS):
        follower.history.step()
        for view in followed:
            follower.refresh(view)
    follower.history.dataset.update({"s": "'on ray'"}, where="v > 3")
    for view in followed:
        follower.refresh(view)
    for view in followed:
        assert follower.refresh(view) == "no_op"
    print(dict(follower.ways), follower.history.happened)
    modes = {(kind, mode) for kind, mode, _ in follower.ways}
    assert modes >= {("query", "incremental"), ("chunker", "incremental"), ("udtf", "rebuild")}
