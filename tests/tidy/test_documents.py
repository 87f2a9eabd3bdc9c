"""What documents point at is there."""

import re
from pathlib import Path

import pytest

from tests.tidy.source_files import ROOT, text_files

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


def test_makefile_describes_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony is not None
    described = re.findall(r"^([a-z-]+):.*## .", text, re.MULTILINE)
    assert sorted(described) == sorted(phony[1].split())
