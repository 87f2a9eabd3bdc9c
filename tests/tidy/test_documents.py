"""What documents point at is there."""

import re
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from cluster.settings import Settings
from serve_app.app import ROUTERS
from serve_app.routing import NOT_BUILT
from tests.tidy.source_files import PACKAGES, ROOT, python_files, text_files

LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)#\s]+)")
# A path of this project in backquotes: it begins with one of its folders.
PATH = re.compile(r"`((?:cluster|udtf|actors|serve_app|tests|docs|benchmarks|\.ci)/[\w./-]*)`")

DOCUMENTS = [
    pytest.param(path, id=str(path.relative_to(ROOT)))
    for path in text_files()
    if path.suffix == ".md"
]


@pytest.mark.parametrize("path", DOCUMENTS)
def test_links_and_paths_exist(path: Path) -> None:
    text = path.read_text()
    missing = [link for link in LINK.findall(text) if not (path.parent / link).exists()]
    missing += [name for name in PATH.findall(text) if not (ROOT / name).exists()]
    assert not missing


def test_architecture_names_every_module() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    modules = [path.name for name in PACKAGES for path in (ROOT / name).glob("[!_]*.py")]
    assert not [name for name in modules if f"`{name}`" not in text]
    named = re.findall(r"`(\w+\.py)`", text)
    assert not set(named) - {path.name for path in python_files(*PACKAGES)}


def test_makefile_describes_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony is not None
    described = re.findall(r"^([a-z-]+):.*## .", text, re.MULTILINE)
    assert sorted(described) == sorted(phony[1].split())


def test_readme_lists_the_operations_that_are_not_built() -> None:
    routes = [route for router in ROUTERS for route in router.routes]
    not_built = {
        route.operation_id
        for route in routes
        if isinstance(route, APIRoute) and NOT_BUILT in (route.openapi_extra or {})
    }
    text = (ROOT / "README.md").read_text().partition("answer 406")[2].partition("\n- ")[0]
    assert set(re.findall(r"`([A-Z]\w+)`", text)) == not_built


def test_every_setting_is_read_somewhere() -> None:
    code = "\n".join(
        path.read_text() for path in python_files(*PACKAGES) if path.name != "settings.py"
    )
    unread = [
        f"{section}.{name}"
        for section, field in Settings.model_fields.items()
        for name in field.annotation.model_fields
        if not re.search(rf"\b_?(settings|limits|{section})\.{name}\b", code)
    ]
    assert not unread
