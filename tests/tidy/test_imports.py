"""Which package, and which file, may import what."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

from tests.tidy.source_files import PACKAGES, ROOT, python_files

# Library -> where it may be imported. Everywhere else plain code stands, which tests run as it is.
PLACES = {
    "ray": (
        "cluster/runtime.py",
        "actors/catalog_actor.py",
        "actors/plan_actor.py",
        "actors/ray_owners.py",
        "actors/ray_plans.py",
        "actors/table_actor.py",
        "serve_app/deployment.py",
    ),
    "pydantic": ("cluster/settings.py", "serve_app/"),
    "daft": ("cluster/runtime.py", "actors/daft_plans.py"),
    "lance": ("actors/",),
    "sqlglot": ("actors/sql", "udtf/source_query.py"),
    "uvicorn": ("serve_app/listener.py",),
    "httpx": ("serve_app/jwt_tokens.py",),
    "jwt": ("serve_app/jwt_tokens.py",),
}


def test_import_contracts_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))
    status = lint_imports(no_cache=True, no_logo=True)
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out


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
