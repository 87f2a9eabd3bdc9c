"""Readers of one value of a request each: they check type and bounds, and name the field.

A value that is wrong is an InvalidInput whose sentence says what the field must hold instead.
"""

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Mapping, Set
from typing import Any

from cluster.errors import InvalidInput

SHA256_PREFIX = "sha256:"


def read_text(value: object, field: str, bytes_max: int) -> str:
    """A string that is not blank and fits in `bytes_max` bytes of UTF-8."""
    if not isinstance(value, str):
        raise InvalidInput(f"{field} must be a string, not {json_type(value)}")
    if not value.strip():
        raise InvalidInput(f"{field} is empty; give a value")
    if len(utf8(value, field)) > bytes_max:
        raise InvalidInput(f"{field} is longer than {bytes_max} bytes; shorten it")
    return value


def read_flag(value: object, field: str) -> bool:
    """A boolean; None is False."""
    if value is None or isinstance(value, bool):
        return bool(value)
    raise InvalidInput(f"{field} must be true, false or null, not {json_type(value)}")


def read_amount(value: object, field: str) -> float | None:
    """A finite number that is not negative; None stays None. A boolean is not a number."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInput(f"{field} must be a number or null, not {json_type(value)}")
    try:
        amount = float(value)
    except OverflowError:
        raise InvalidInput(f"{field} is too large; give a smaller number") from None
    if not math.isfinite(amount) or amount < 0:
        raise InvalidInput(f"{field} must be a finite number, zero or more, not {value}")
    return amount


def read_object(value: object, field: str, known: Set[str]) -> Mapping[str, Any]:
    """A JSON object without keys outside `known`: an ignored key could change the result."""
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{field} must be a JSON object, not {json_type(value)}")
    for key in value:
        if key not in known:
            names = ", ".join(sorted(known))
            raise InvalidInput(f"{field} has the unknown key {key!r}; the known keys are {names}")
    return value


def read_list(value: object, field: str, items_max: int) -> list[Any]:
    """A list of one to `items_max` items."""
    if not isinstance(value, (list, tuple)):
        raise InvalidInput(f"{field} must be a list, not {json_type(value)}")
    if not value:
        raise InvalidInput(f"{field} is an empty list; name at least one item")
    if len(value) > items_max:
        raise InvalidInput(f"{field} has {len(value)} items; the most is {items_max}")
    return list(value)


def read_base64(value: object, field: str, bytes_max: int) -> bytes:
    """The bytes behind strict, padded base64 in the standard alphabet; at least one."""
    # Four characters carry three bytes, so a longer text cannot fit and need not be decoded.
    text = read_text(value, field, bytes_max=4 * (bytes_max // 3 + 1))
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(
            f"{field} is not base64; use the standard alphabet with padding and no line breaks"
        ) from None
    if len(data) > bytes_max:
        raise InvalidInput(f"{field} is longer than {bytes_max} bytes after base64; shorten it")
    return data


def check_sha256(claimed: object, field: str, data: bytes, *also: bytes) -> str:
    """Return the SHA-256 of `data` in lower-case hexadecimal if `claimed` is it.

    `claimed` may be in either case and carry the prefix `sha256:`. The digest of another spelling
    of the same data in `also` is accepted too.
    """
    digest = hashlib.sha256(data).hexdigest()
    accepted = {digest, *(hashlib.sha256(other).hexdigest() for other in also)}
    if normal_sha256(read_text(claimed, field, bytes_max=128)) not in accepted:
        raise InvalidInput(f"{field} does not match the content, whose SHA-256 is {digest}")
    return digest


def normal_sha256(text: str) -> str:
    """A digest without prefix and in lower case."""
    return text.strip().lower().removeprefix(SHA256_PREFIX)


def read_json(data: bytes, field: str) -> Any:
    """Parse JSON that every reader understands alike: UTF-8, no repeated keys, no NaN."""
    try:
        return json.loads(
            data.decode(), object_pairs_hook=_unique_keys, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise InvalidInput(f"{field} is JSON nested too deeply") from None
    except ValueError as error:
        raise InvalidInput(f"{field} is not valid JSON: {error}") from None


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def utf8(text: str, field: str) -> bytes:
    """The text in UTF-8; JSON escapes can spell half characters, which have no encoding."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{field} holds a lone surrogate; send whole characters") from None


def json_type(value: object) -> str:
    """What JSON calls the type of `value`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, (list, tuple)) else "an object"


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key of an object is given twice")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")
