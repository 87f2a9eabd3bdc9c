"""Small by rule: what fits on a screen can be read at once."""

import ast
from pathlib import Path

import pytest

from tests.tidy.source_files import ROOT, python_files

COLUMNS_MAX = 100
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500

FILES = [pytest.param(path, id=str(path.relative_to(ROOT))) for path in python_files()]


def test_there_are_files_to_look_at() -> None:
    assert len(FILES) > 50


@pytest.mark.parametrize("path", FILES)
def test_lines_functions_and_files_are_short(path: Path) -> None:
    text = path.read_text()
    lines = text.splitlines()
    assert len(lines) <= FILE_LINES_MAX
    wide = [number for number, line in enumerate(lines, 1) if len(line) > COLUMNS_MAX]
    assert not wide, f"lines over {COLUMNS_MAX} columns: {wide}"
    long = [
        f"{node.name} ({node.end_lineno - node.lineno + 1} lines)"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert not long, f"functions over {FUNCTION_LINES_MAX} lines: {long}"
