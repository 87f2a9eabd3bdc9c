"""The code envelope: how the code of a `udtf` or `chunker` view travels.

    {"format": "lance-udtf", "version": 1, "kind": "udtf", "entrypoint": "GroupStats",
     "init": {"threshold": 3},
     "artifact": {"encoding": "python-source", "data": "import pyarrow as pa\n..."},
     "abi": {"name": "arrow-partition", "version": 1},
     "runtime": {"python": "3.11"}}

`entrypoint` names a function or class of the source; `init` are keyword arguments of the class.
The optional `name` and `udtf_version` repeat what the request says. The data of the encoding
`cloudpickle` are base64. Everything is checked that can be without running any of the code, which
only the child processes of a refresh may do.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.errors import InvalidInput
from cluster.settings import LimitSettings, ViewSettings
from udtf.checked import json_type, read_base64, read_json, read_object, read_text, utf8

FORMAT = "lance-udtf"
FORMAT_VERSION = 1
PYTHON_SOURCE = "python-source"
CLOUDPICKLE = "cloudpickle"
ABI_VERSION = 1

# As long as Python's own identifiers get in practice; a label is shown in errors and listings.
NAME_BYTES_MAX = 256
# `init` is walked without recursion when it is checked, but not by every reader to come.
INIT_DEPTH_MAX = 32

_FIELD = "the envelope in udtf_spec.udtf"
_REQUIRED = ("kind", "entrypoint", "artifact", "abi", "runtime")
_KNOWN = frozenset(
    {"format", "version", "name", "udtf_version", "init", "deterministic", *_REQUIRED}
)
_PYTHON_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})(\.\d{1,3})?", re.ASCII)
_DEFINITIONS = (ast.FunctionDef, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class Envelope:
    """A checked envelope. `code` is Python source in UTF-8, or a pickle if so encoded."""

    kind: str
    entrypoint: str
    encoding: str
    code: bytes
    abi: str
    init: Mapping[str, Any]
    name: str | None = None
    udtf_version: str | None = None
    pyarrow: str | None = None
    deterministic: bool = True


def parse_envelope(
    data: bytes,
    kind: str,
    batch: bool,
    limits: LimitSettings,
    views: ViewSettings,
    python_version: tuple[int, int],
) -> Envelope:
    """Check the envelope of a view of `kind` for workers that run `python_version`.

    Raises:
        InvalidInput: another format, an encoding that is not enabled, source that does not parse or
            does not define the entrypoint, or code for another kind or another Python.
    """
    value = read_json(data, _FIELD)
    _check_format(value)
    record = read_object(value, _FIELD, _KNOWN)
    for key in _REQUIRED:
        if record.get(key) is None:
            raise InvalidInput(f"{_FIELD} lacks {key}")
    if record["kind"] != kind:
        raise InvalidInput(f"{_FIELD} is for kind {record['kind']!r}, but the view's is {kind!r}")
    entrypoint = _entrypoint(record["entrypoint"])
    encoding, code = _artifact(record["artifact"], limits, views)
    if encoding == PYTHON_SOURCE:
        _check_source(code, entrypoint)
    return Envelope(
        kind=kind,
        entrypoint=entrypoint,
        encoding=encoding,
        code=code,
        abi=_abi(record["abi"], kind, batch),
        init=_init(record.get("init")),
        name=_label(record, "name"),
        udtf_version=_label(record, "udtf_version"),
        pyarrow=_runtime(record["runtime"], python_version),
        deterministic=_deterministic(record.get("deterministic")),
    )


def _check_format(value: object) -> None:
    name = value.get("format") if isinstance(value, Mapping) else None
    if name != FORMAT:
        raise InvalidInput(
            f'{_FIELD} is not of a known format; send a JSON object with "format": "{FORMAT}"'
            f' and "version": {FORMAT_VERSION}'
        )
    assert isinstance(value, Mapping)
    version = value.get("version")
    if isinstance(version, bool) or version != FORMAT_VERSION:
        raise InvalidInput(
            f"{_FIELD} has version {version!r}; this server reads version {FORMAT_VERSION}"
        )


def _entrypoint(value: object) -> str:
    name = read_text(value, f"{_FIELD}: entrypoint", NAME_BYTES_MAX)
    if not name.isidentifier():
        raise InvalidInput(f"{_FIELD}: entrypoint {name!r} is not the name of a function or class")
    return name


def _artifact(value: object, limits: LimitSettings, views: ViewSettings) -> tuple[str, bytes]:
    artifact = read_object(value, f"{_FIELD}: artifact", frozenset({"encoding", "data"}))
    encoding = artifact.get("encoding")
    accepted = [PYTHON_SOURCE, CLOUDPICKLE] if views.cloudpickle else [PYTHON_SOURCE]
    if encoding not in accepted:
        raise InvalidInput(
            f"{_FIELD}: artifact.encoding {encoding!r} is not accepted by this server;"
            f" use {' or '.join(accepted)}"
        )
    field = f"{_FIELD}: artifact.data"
    if encoding == CLOUDPICKLE:
        return CLOUDPICKLE, read_base64(artifact.get("data"), field, limits.udtf_envelope_bytes_max)
    source = read_text(artifact.get("data"), field, limits.udtf_source_bytes_max)
    return PYTHON_SOURCE, utf8(source, field)


def _check_source(source: bytes, entrypoint: str) -> None:
    try:
        module = ast.parse(source.decode())
    except SyntaxError as error:
        line = "" if error.lineno is None else f"line {error.lineno}: "
        raise InvalidInput(f"{_FIELD}: the source does not parse: {line}{error.msg}") from None
    except (RecursionError, MemoryError):
        # Python's parser reports a full stack of its own as MemoryError.
        raise InvalidInput(f"{_FIELD}: the source is nested too deeply to parse") from None
    for statement in module.body:
        if isinstance(statement, _DEFINITIONS) and statement.name == entrypoint:
            return
    raise InvalidInput(
        f"{_FIELD}: the source defines no function or class {entrypoint!r} at its top level"
    )


def _abi(value: object, kind: str, batch: bool) -> str:
    abi = read_object(value, f"{_FIELD}: abi", frozenset({"name", "version"}))
    expected = "arrow-partition"
    if kind != "udtf":
        expected = "arrow-batch-chunker" if batch else "row-chunker"
    if abi.get("name") != expected or abi.get("version") != ABI_VERSION:
        raise InvalidInput(
            f'{_FIELD}: abi must be {{"name": "{expected}", "version": {ABI_VERSION}}} for kind'
            f" {kind} with batch {'true' if batch else 'false'}"
        )
    return expected


def _init(value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(str(key).isidentifier() for key in value):
        raise InvalidInput(f"{_FIELD}: init must be an object of keyword arguments")
    level: list[Any] = [value]
    for _ in range(INIT_DEPTH_MAX):
        level = [child for item in level for child in _children(item)]
        if not level:
            return value
    raise InvalidInput(f"{_FIELD}: init is nested more than {INIT_DEPTH_MAX} levels deep")


def _children(value: object) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list) else []


def _runtime(value: object, python_version: tuple[int, int]) -> str | None:
    runtime = read_object(value, f"{_FIELD}: runtime", frozenset({"python", "pyarrow"}))
    text = read_text(runtime.get("python"), f"{_FIELD}: runtime.python", NAME_BYTES_MAX)
    match = _PYTHON_VERSION.fullmatch(text)
    if match is None:
        raise InvalidInput(f'{_FIELD}: runtime.python must be like "3.11", not {text!r}')
    if (int(match[1]), int(match[2])) != python_version:
        served = ".".join(str(part) for part in python_version)
        raise InvalidInput(
            f"{_FIELD}: the code is for Python {text}, but this server's workers run {served};"
            f" build the envelope with Python {served}"
        )
    pyarrow = runtime.get("pyarrow")
    if pyarrow is None:
        return None
    return read_text(pyarrow, f"{_FIELD}: runtime.pyarrow", NAME_BYTES_MAX)


def _label(record: Mapping[str, Any], key: str) -> str | None:
    value = record.get(key)
    return None if value is None else read_text(value, f"{_FIELD}: {key}", NAME_BYTES_MAX)


def _deterministic(value: object) -> bool:
    if value is None:
        return True
    if not isinstance(value, bool):
        raise InvalidInput(f"{_FIELD}: deterministic must be a boolean, not {json_type(value)}")
    return value
