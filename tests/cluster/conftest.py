"""A Ray for each module that wants one, and the loop that its tests run on."""

from collections.abc import Iterator

import pytest

from tests.contract.ray_cluster import own_ray


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    with own_ray():
        yield
