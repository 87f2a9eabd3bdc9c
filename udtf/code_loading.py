"""From a code envelope to what is called: the only place where user code is loaded.

Runs in the process of user code and nowhere else. A class is built here, once.
"""

import base64
import json
import linecache
import pickle
import sys
import types
from typing import Any

# Not the server's words for encodings: what checks them needs more than a child process has.
_PYTHON_SOURCE = "python-source"
_MODULE = "udtf_code"


class NotLoadable(Exception):
    """The code cannot run in this process, whatever it does; the message says why."""


def load_code(envelope: str) -> tuple[str, Any]:
    """The envelope's ABI and its function, or an instance of its class.

    Raises:
        NotLoadable: it is for another Python, is damaged, or needs a package that is not there.
        BaseException: whatever the code raises when it is imported or its class is built.
    """
    record = json.loads(envelope)
    _check_python(record["runtime"]["python"])
    entrypoint, artifact = record["entrypoint"], record["artifact"]
    if artifact["encoding"] == _PYTHON_SOURCE:
        target = _from_source(artifact["data"], entrypoint)
    else:
        target = _from_pickle(artifact["data"], entrypoint)
    if isinstance(target, type):
        target = target(**(record.get("init") or {}))
    if not callable(target):
        raise NotLoadable(f"{entrypoint} is a {type(target).__name__}, which cannot be called")
    return record["abi"]["name"], target


def _check_python(wanted: str) -> None:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if wanted.split(".")[:2] != here.split("."):
        raise NotLoadable(
            f"the code is for Python {wanted}, but this worker runs {here}; build it with {here}"
        )


def _from_source(text: str, entrypoint: str) -> Any:
    name = f"<{entrypoint}>"
    # Tracebacks show the lines of a file that is nowhere.
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    module = types.ModuleType(_MODULE)
    # Dataclasses and pickles look their module up.
    sys.modules[_MODULE] = module
    exec(compile(text, name, "exec", dont_inherit=True), module.__dict__)  # noqa: S102
    if not hasattr(module, entrypoint):
        raise NotLoadable(f"the source defines no {entrypoint}")
    return getattr(module, entrypoint)


def _from_pickle(data: str, entrypoint: str) -> Any:
    try:
        return pickle.loads(base64.b64decode(data))  # noqa: S301
    except ModuleNotFoundError as error:
        raise NotLoadable(
            f"{entrypoint} is pickled and needs the module {error.name!r}, which this worker does"
            " not have; bring it with a manifest, or send the code as source"
        ) from error
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, ValueError) as error:
        raise NotLoadable(
            f"{entrypoint} is pickled and cannot be loaded here: {error}; send it as source"
        ) from error
