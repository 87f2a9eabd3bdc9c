"""From a function or class to the code envelope that a server stores.

What travels is source text that people can read: the definition and what it uses of its module
(imports, constants, other functions and classes), found by name in the module's syntax tree.
Nothing is pickled, and nothing of the author's machine goes along unseen: what cannot be packed is
refused with a sentence that says what to change.
"""

import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from cluster.errors import InvalidInput
from udtf.checked import canonical_json
from udtf.envelope import ABI_VERSION, FORMAT, FORMAT_VERSION, PYTHON_SOURCE
from udtf.module_source import ModuleSource

# Sixteen digits tell versions of one function apart, and are still readable.
_VERSION_DIGITS = 16


@dataclass(frozen=True, slots=True)
class PackedCode:
    """An envelope ready to be sent, and its digest, which a server stores and checks."""

    envelope: bytes
    sha256: str
    entrypoint: str
    version: str


def pack_code(
    target: Any,
    kind: str,
    abi: str,
    version: str = "",
    init: Mapping[str, Any] | None = None,
    left_out: Collection[Any] = (),
) -> PackedCode:
    """Pack a function or class; equal code gives equal bytes. Empty `version` is the source's hash.

    `init` are keyword arguments of the class. `left_out` are decorators that do not travel.

    Raises:
        InvalidInput: it cannot be packed; the message says why and what to write instead.
    """
    entrypoint, source = pack_source(target, left_out)
    version = version or hashlib.sha256(source.encode()).hexdigest()[:_VERSION_DIGITS]
    value: dict[str, Any] = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "kind": kind,
        "name": entrypoint,
        "udtf_version": version,
        "entrypoint": entrypoint,
        "artifact": {"encoding": PYTHON_SOURCE, "data": source},
        "abi": {"name": abi, "version": ABI_VERSION},
        "runtime": {"python": f"{sys.version_info.major}.{sys.version_info.minor}"},
    }
    if init:
        _check_init(target, entrypoint, init)
        value["init"] = dict(init)
    try:
        envelope = canonical_json(value).encode()
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"the arguments of {entrypoint} travel as JSON: {error}; give numbers, strings,"
            " booleans, None, lists and objects"
        ) from None
    return PackedCode(envelope, hashlib.sha256(envelope).hexdigest(), entrypoint, version)


def pack_source(target: Any, left_out: Collection[Any] = ()) -> tuple[str, str]:
    """The name of a function or class, and the text of a module that defines it."""
    name = _name(target)
    module = _module(target, name)
    if isinstance(target, types.FunctionType):
        line = module.begins_at(name)
        if line is not None and line != target.__code__.co_firstlineno:
            raise InvalidInput(
                f"{name} is not where it was when {target.__module__} was imported; its file has"
                " changed: import it again"
            )
    return name, module.text_with(name, left_out)


def _name(target: Any) -> str:
    """The name under which the module defines the target."""
    if isinstance(target, functools.partial):
        raise InvalidInput(
            "a partial cannot be packed; write a class whose __init__ takes the arguments"
        )
    if isinstance(target, types.MethodType):
        raise InvalidInput(
            f"{target.__qualname__} is a method of an object that cannot travel; pack its class,"
            " which is called with __call__"
        )
    if not isinstance(target, (type, types.FunctionType)):
        raise InvalidInput(f"{target!r} is no function and no class written in Python")
    if target.__name__ == "<lambda>":
        raise InvalidInput("a lambda has no name to be called by; write it with def")
    if inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target):
        raise InvalidInput(f"{target.__name__} is async; workers call plain functions")
    qualname = getattr(target, "__qualname__", target.__name__)
    if "<locals>" in qualname:
        raise InvalidInput(
            f"{target.__name__} is defined inside {qualname.partition('.<locals>')[0]}, whose"
            " variables cannot travel; define it at the top level of its module, and give what it"
            " needs as arguments of a class's __init__"
        )
    if qualname != target.__name__:
        raise InvalidInput(
            f"{qualname} is defined inside a class; define it at the top level of its module"
        )
    return str(target.__name__)


def _module(target: Any, name: str) -> ModuleSource:
    module = sys.modules.get(target.__module__)
    advice = (
        "write it in a file and import it from there (in a notebook: the magic `%%writefile`, then"
        " `import`)"
    )
    if module is None:
        raise InvalidInput(f"the module {target.__module__!r} of {name} is not loaded; {advice}")
    try:
        text = inspect.getsource(module)
    except (OSError, TypeError):
        raise InvalidInput(
            f"{name} comes from {target.__module__!r}, which has no source file; {advice}"
        ) from None
    return ModuleSource.read(text, module)


def _check_init(target: Any, name: str, init: Mapping[str, Any]) -> None:
    if not isinstance(target, type):
        raise InvalidInput(f"{name} is a function; only classes take arguments when they are built")
    try:
        inspect.signature(target).bind(**init)
    except TypeError as error:
        raise InvalidInput(f"{name} cannot be built with these arguments: {error}") from None
