"""How columns and types are named to callers, cut so that a message stays readable."""

from collections.abc import Iterable

PATH_CHARACTERS_MAX = 200
TYPE_CHARACTERS_MAX = 200
COLUMNS_LISTED_MAX = 20


def shorten(text: str, characters_max: int) -> str:
    """`text`, cut so that an error message stays readable."""
    return text if len(text) <= characters_max else text[:characters_max] + "..."


def child_path(parent: str | None, name: str) -> str:
    """The shown path of the field `name` of the struct shown as `parent`, or of the table."""
    return shorten(f"'{name}'" if parent is None else f"{parent}.'{name}'", PATH_CHARACTERS_MAX)


def list_columns(names: Iterable[str]) -> str:
    """Column names for an error message, the first few of them."""
    every = list(names)
    shown = ", ".join(child_path(None, name) for name in every[:COLUMNS_LISTED_MAX])
    more = len(every) - COLUMNS_LISTED_MAX
    return f"{shown} and {more} more" if more > 0 else shown
