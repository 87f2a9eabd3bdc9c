"""Checks of values whose extension type promises more than their storage type does."""

import json
from collections.abc import Iterable
from typing import Any, NoReturn

import pyarrow as pa

from actors.column_text import TYPE_CHARACTERS_MAX, shorten
from cluster.errors import TableSchemaValidationError

JSON_EXTENSION = "arrow.json"
BLOB_EXTENSION = "lance.blob.v2"
JSON_DEPTH_MAX = 500
"""Nesting of a JSON value. Lance 14.0.2 overflows its stack, ending the process, at 5,000."""


def check_json(texts: pa.Array, path: str) -> None:
    """Refuse what Lance 14.0.2 fails on, crashes on or stores as null (NaN, 1e400, no text)."""
    for text in texts.to_pylist():
        if text is not None:
            try:
                _check_json_text(text)
            except (ValueError, RecursionError) as error:
                reason = shorten(str(error), TYPE_CHARACTERS_MAX)
                raise TableSchemaValidationError(
                    f"Column {path} holds a text that is not JSON: {reason}."
                ) from None


def _check_json_text(text: str) -> None:
    value = _JSON.decode(text)
    # Brackets inside strings count too, so only many of them prove nothing.
    if text.count("[") + text.count("{") > JSON_DEPTH_MAX:
        level = [value]
        for _ in range(JSON_DEPTH_MAX):
            level = [child for parent in level for child in _json_children(parent)]
        if any(isinstance(value, list | dict) for value in level):
            raise ValueError(f"it is nested more than {JSON_DEPTH_MAX} levels deep")


def _json_children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError("a number is too large")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object repeats a key")
    return members


_JSON = json.JSONDecoder(
    object_pairs_hook=_unique_keys,
    parse_float=_finite,
    parse_int=_finite,
    parse_constant=_refuse_constant,
)


def check_blobs(blobs: pa.Array, path: str) -> None:
    """Refuse blobs that are not the bytes themselves: a URI would name files of the server."""
    # flatten() makes a part null wherever its blob is.
    parts = dict(zip((field.name for field in blobs.type), blobs.flatten(), strict=True))
    data = parts.pop("data")
    if any(part.null_count < len(part) for part in parts.values()):
        raise TableSchemaValidationError(
            f"Column {path} refers to blobs elsewhere; send each blob's bytes in `data` only."
        )
    if data.null_count > blobs.null_count:
        raise TableSchemaValidationError(f"Column {path} holds a blob without `data`.")
