"""docs/security.md names the right of every operation of the specification, once."""

import inspect
import re
from pathlib import Path

from lance_namespace_urllib3_client import api

from serve_app.rights import Grant, Right

GUIDE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()


def specified_operations() -> set[str]:
    methods = {
        name
        for _, cls in inspect.getmembers(api, inspect.isclass)
        for name, _ in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_") and not name.endswith(("_http_info", "_preload_content"))
    }
    return {"".join(word.title() for word in name.split("_")) for name in methods}


def rows_of_rights() -> dict[str, list[str]]:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", GUIDE, flags=re.MULTILINE)
    return {right: re.findall(r"\b[A-Z][a-z]+[A-Z]\w+", text) for right, text in rows}


def test_every_right_has_a_row() -> None:
    assert set(rows_of_rights()) == set(Right)


def test_every_operation_is_under_exactly_one_right() -> None:
    listed = [name for names in rows_of_rights().values() for name in names]
    assert len(specified_operations()) == 54
    assert sorted(listed) == sorted(specified_operations())


def test_every_grant_in_the_guide_can_be_read() -> None:
    grants = re.findall(r"['\"`]([a-z+_]+:[a-z]+/[^'\"`]*)['\"`]", GUIDE)
    assert len(grants) >= 6
    for text in grants:
        Grant.parse(text)
