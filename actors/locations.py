"""Which folder of a database is a table's: one that is made for it, or one that a client names."""

import uuid

from actors.catalog_view import ROOT_SUFFIX
from cluster.errors import InvalidInput
from cluster.identifiers import ObjectId


def new_location(table: ObjectId) -> str:
    """A folder for a new table, named as DirectoryNamespace names it."""
    if len(table.parts) == 1:
        return f"{table.name}{ROOT_SUFFIX}"
    return f"{uuid.uuid4().hex[:8]}_{table.stored}"


def was_location(table: ObjectId, location: str) -> bool:
    """Whether a folder without a name may have been made by `new_location` for `table`."""
    if len(table.parts) == 1:
        return location == f"{table.name}{ROOT_SUFFIX}"
    return location.partition("_")[2] == table.stored


def check_location(location: str) -> None:
    """Refuse a location that is not a folder of its own inside the database.

    Raises:
        InvalidInput: says what is wrong with it.
    """
    if "://" in location:
        raise InvalidInput("Absolute URIs are not allowed: give a location inside the database")
    if location.startswith("/"):
        raise InvalidInput("Absolute paths are not allowed: give a location inside the database")
    parts = location.split("/")
    if ".." in parts:
        raise InvalidInput("Path traversal is not allowed: give a location inside the database")
    if any(part in ("", ".") for part in parts) or parts[0].startswith(("__manifest", ".")):
        raise InvalidInput(f"location {location!r} names no table's folder")
