"""One suite over both homes of the owners: this process, and actors of a Ray cluster."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.server import Server
from cluster.settings import Settings
from tests.contract.domain import make_settings


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path / "root", ray={"namespace": f"test-{uuid.uuid4().hex[:12]}"})


@pytest.fixture(
    params=[
        "local",
        pytest.param("ray", marks=pytest.mark.cluster),
    ]
)
def server(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Server]:
    """A server over an empty root."""
    if request.param == "local":
        yield Server.local(settings)
        return
    request.getfixturevalue("ray_cluster")
    from tests.contract.ray_cluster import end_owners

    yield Server.on_ray(settings)
    end_owners(settings)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A Ray of this test run, gone when it ends."""
    from tests.contract.ray_cluster import own_ray

    with own_ray():
        yield
