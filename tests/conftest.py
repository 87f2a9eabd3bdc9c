"""What several folders of tests drive: a running server, started once for either ingress.

Tests share a database and have tables of their own, since the first change of a database starts an
actor that takes a second; only what lists a database needs one for itself.
"""

import itertools
import os
import sys
from collections.abc import Iterator

import pytest

from cluster import runtime
from cluster.settings import Settings
from tests.clients.plain_http import Database
from tests.clients.running_server import RunningServer, running_server

_NUMBERS = itertools.count(1)

# Ray reads its environment when it is imported, which some test module does first.
runtime.prepare_environment(Settings())


_EXIT_CODE = pytest.StashKey[int]()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    # Of any other ending pytest still has something to say.
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        session.config.stash[_EXIT_CODE] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End without Python's own farewell, in which threads of Daft's abort the process at times."""
    if _EXIT_CODE in config.stash:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(config.stash[_EXIT_CODE])


@pytest.fixture
def anyio_backend() -> str:
    """What asynchronous tests run on, as the servers do."""
    return "asyncio"


@pytest.fixture(scope="session", params=["direct", "serve"])
def live_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """A server process, started once for all tests that need one, and once more for Serve's HTTP.

    Tests make many tables, and an actor takes 126 MB: a few at a time are enough.
    """
    folder = tmp_path_factory.mktemp("server")
    with running_server(folder, HTTP_INGRESS=request.param, ACTORS_LIVE_MAX="8") as server:
        yield server


@pytest.fixture(scope="session")
def database(live_server: RunningServer) -> Iterator[Database]:
    """The database that tests share, as the administrator sees it over plain HTTP."""
    with Database(live_server, "everyone") as database:
        yield database


@pytest.fixture
def fresh_database(live_server: RunningServer) -> Iterator[Database]:
    """A database that no other test sees."""
    with Database(live_server, f"own-{next(_NUMBERS)}") as database:
        yield database


@pytest.fixture
def table() -> str:
    """A name that no other test uses."""
    return f"table-{next(_NUMBERS)}"


@pytest.fixture(scope="session")
def airports_table(database: Database) -> str:
    """A table of all airports that every test reads and none changes."""
    # Pandas takes half a second, which tests without a server need not wait for.
    from tests.clients import airports

    database.create("airports", airports.arrow(airports.airports()))
    return "airports"


@pytest.fixture(scope="session")
def reader_key(live_server: RunningServer) -> str:
    """A key that may read everything and change nothing."""
    return live_server.make_key("reader", "read+list:*")
