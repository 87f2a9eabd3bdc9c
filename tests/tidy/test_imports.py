"""Which package, and which file, may import what."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.source_files import PACKAGES, ROOT, python_files

# Library -> where it may be imported. Everywhere else plain code stands, which tests run as it is.
PLACES = {
    "ray": (
        "cluster/runtime.py",
        "actors/catalog_actor.py",
        "actors/job_actor.py",
        "actors/plan_actor.py",
        "actors/ray_owners.py",
        "actors/ray_plans.py",
        "actors/table_actor.py",
        "actors/table_actors.py",
        "actors/view_driver.py",
        "serve_app/deployment.py",
        "udtf/plan.py",
        "udtf/ray_tasks.py",
    ),
    "pydantic": ("cluster/settings.py", "serve_app/"),
    "daft": ("cluster/runtime.py", "actors/daft_plans.py", "udtf/daft_pool.py"),
    "lance": ("actors/", "udtf/"),
    "sqlglot": ("actors/sql", "udtf/source_query"),
    "tqdm": ("udtf/progress.py",),
    "uvicorn": ("serve_app/connection.py", "serve_app/listener.py"),
    "httpx": ("serve_app/jwt_tokens.py", "udtf/client.py", "udtf/view_http.py"),
    "jwt": ("serve_app/jwt_tokens.py",),
}


def test_imports_point_one_way() -> None:
    # In a process of its own: the linter's set-up of logging silences every logger that exists.
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"]
    linted = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize("library", PLACES)
def test_library_is_imported_in_its_places_only(library: str) -> None:
    found = {
        name
        for path in python_files(*PACKAGES)
        if library in _imported(path)
        and not (name := str(path.relative_to(ROOT))).startswith(PLACES[library])
    }
    assert not found


def test_no_module_is_called_after_nothing() -> None:
    """Modules so named collect whatever has no place, until everything imports them."""
    empty = {"common", "helpers", "manager", "misc", "service", "util", "utils"}
    assert not [path for path in python_files(*PACKAGES) if path.stem in empty]


def _imported(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in _imported_modules(path)}


def _imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
