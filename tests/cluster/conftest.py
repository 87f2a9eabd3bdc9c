"""A Ray for each module that wants one, and the loop that its tests run on."""

from collections.abc import Iterator

import pytest

from tests.contract.ray_cluster import own_ray
from tests.processes import OwnProcesses


@pytest.fixture(scope="module")
def own_processes() -> OwnProcesses:
    """The processes of the module's Ray."""
    return OwnProcesses()


@pytest.fixture(scope="module")
def ray(own_processes: OwnProcesses) -> Iterator[None]:
    with own_ray():
        yield
