"""One suite over both homes of the owners: this process, and actors of a Ray cluster.

A test that says nothing runs in both; one that is about reads alone, which need no owner, asks for
`home` to be local. The actors of a database take a second to start, so on Ray the tests share one
database and empty it.
"""

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.server import Server
from cluster.identifiers import ObjectId
from cluster.settings import Settings
from tests.contract.domain import DATABASE, make_settings

HOMES = ["local", pytest.param("ray", marks=pytest.mark.cluster)]


@pytest.fixture(params=HOMES)
def home(request: pytest.FixtureRequest) -> str:
    """Where the owners live."""
    name: str = request.param
    return name


@pytest.fixture
def settings(request: pytest.FixtureRequest, home: str, tmp_path: Path) -> Settings:
    if home == "ray":
        shared: Settings = request.getfixturevalue("ray_settings")
        return shared
    return make_settings(tmp_path / "root")


@pytest.fixture
def server(settings: Settings, home: str) -> Iterator[Server]:
    """A server over an empty database."""
    if home == "local":
        yield Server.local(settings)
        return
    yield Server.on_ray(settings)
    asyncio.run(empty_database(Server.on_ray(settings)))


async def empty_database(server: Server) -> None:
    """Drop everything, as a client would."""
    catalog = server.catalog(DATABASE)
    for name in (await catalog.list_all_tables(None, None, include_declared=True)).items:
        await catalog.drop_table(ObjectId.parse(name))
    for name in (await catalog.list_namespaces(ObjectId(()), None, None)).items:
        await catalog.drop_namespace(ObjectId.of([name]), skip_missing=False, cascade=True)


@pytest.fixture(scope="session")
def ray_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A Ray of this test run, with one deployment; both are gone when it ends."""
    from tests.contract.ray_cluster import end_owners, own_ray

    root = tmp_path_factory.mktemp("contract") / "root"
    settings = make_settings(root, ray={"namespace": f"test-{uuid.uuid4().hex[:12]}"})
    with own_ray():
        yield settings
        end_owners(settings)
