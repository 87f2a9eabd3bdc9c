"""Run Lance's own tests of its REST client against a running Destrier.

    python tests/lance_suite.py PATH-TO/test_namespace_rest.py

The file is `python/python/tests/test_namespace_rest.py` of the Lance repository. Its tests start
Lance's own server; here that class gives each test a fresh database of one Destrier instead. Two
names that the client library has since changed are replaced in the text. Prints what passed and
what failed; the exit code is 0 if every test passed.
"""

import argparse
import sys
import tempfile
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import lance.namespace
import lance_namespace
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.clients.running_server import DATABASE_HEADER, RunningServer, running_server

RENAMED = {
    "CreateEmptyTableRequest": "DeclareTableRequest",
    "create_empty_table(": "declare_table(",
}


class FreshDatabase:
    """Stands in for `lance.namespace.RestAdapter`: a database in place of a server."""

    current = ""

    def __init__(self, *_: Any, port: int = 0, **__: Any) -> None:
        self.port = port
        FreshDatabase.current = f"suite-{uuid.uuid4().hex[:12]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing to stop."""


class Outcomes:
    """A pytest plugin that counts."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test once, at its call or where it broke before."""
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed.append(report.nodeid)


def run_suite(server: RunningServer, suite: Path) -> Outcomes:
    """Run the tests of the file `suite`."""
    text = suite.read_text()
    for old, new in RENAMED.items():
        text = text.replace(old, new)
    connect = lance_namespace.connect

    def connect_here(kind: str, properties: dict[str, str]) -> Any:
        if kind == "rest":
            properties = {
                **properties,
                "uri": server.url,
                "header.x-api-key": server.admin_key,
                f"header.{DATABASE_HEADER}": FreshDatabase.current,
            }
        return connect(kind, properties)

    # Before the suite is imported: it takes both names from their modules.
    lance.namespace.RestAdapter = FreshDatabase
    lance_namespace.connect = connect_here
    outcomes = Outcomes()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / suite.name
        copy.write_text(text)
        (Path(folder) / "pytest.ini").write_text("[pytest]\n")
        options = ["-q", "--tb=short", "-p", "no:cacheprovider", "--rootdir", folder, str(copy)]
        pytest.main([*options, "-c", f"{folder}/pytest.ini"], plugins=[outcomes])
    return outcomes


def main() -> int:
    """Run the suite; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("suite", type=Path, help="Lance's test_namespace_rest.py")
    suite = parser.parse_args().suite
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder)) as server:
        outcomes = run_suite(server, suite)
    print(f"{len(outcomes.passed)} passed, {len(outcomes.failed)} failed")
    for name in outcomes.failed:
        print(f"failed: {name}")
    return 0 if outcomes.passed and not outcomes.failed else 1


if __name__ == "__main__":
    sys.exit(main())
