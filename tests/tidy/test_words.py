"""What the text of the project may not say."""

import ast
import re

import pytest

from tests.tidy.source_files import PACKAGES, ROOT, python_files, text_files

# In pieces, so that this file does not say them.
UNFINISHED = re.compile("|".join([r"\bTO" + "DO", r"\bFIX" + "ME", r"\bX" + "XX"]))
PLACES_OF_AUTHORS = re.compile("/wo" + r"rk/|(?<![\w./-])sha" + "red/")
COMMANDS = ("serve_app/commands/", "serve_app/__main__.py")


@pytest.mark.parametrize(
    "forbidden",
    [
        pytest.param(UNFINISHED, id="unfinished work"),
        pytest.param(PLACES_OF_AUTHORS, id="folders outside the project"),
    ],
)
def test_no_file_mentions(forbidden: re.Pattern[str]) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if forbidden.search(line)
    ]
    assert not found, "\n".join(found)


def test_only_commands_print() -> None:
    """A server has logs; what it prints is lost, or lands in the middle of a command's output."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in python_files(*PACKAGES)
        if not str(path.relative_to(ROOT)).startswith(COMMANDS)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert not found


def test_open_tables_are_not_locked_for_other_threads() -> None:
    """pylance keeps all others from an object while it does one of these, and many share ours."""
    locking = re.compile(r"(?<!copy\.copy\(dataset\))\.(read_transaction|get_transactions)\(")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in python_files(*PACKAGES)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if locking.search(line)
    ]
    assert not found, "\n".join(found)
