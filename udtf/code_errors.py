"""What is told of an exception of user code: nothing of it is trusted to work.

Its text may raise, be endless or not be text; it is never pickled. Only the code's own lines are in
the traceback, and those of libraries that it called.
"""

import traceback
from pathlib import Path
from typing import Any

MESSAGE_CHARACTERS_MAX = 2_000
TRACEBACK_CHARACTERS_MAX = 8_000
_NAME_CHARACTERS_MAX = 256
_BASES_MAX = 64
_FRAMES_MAX = 50

_OURS = Path(__file__).resolve().parent


def describe(error: BaseException, kind: str) -> dict[str, Any]:
    """The error as JSON can carry it: kind, type, message, traceback and names of classes."""
    return {
        "kind": kind,
        "type": _short(type(error).__name__, _NAME_CHARACTERS_MAX),
        "message": _message(error),
        "traceback": _traceback(error),
        "bases": class_names(type(error)),
    }


def class_names(kind: type[BaseException]) -> list[str]:
    """Names that an error policy may call the class by, and those that it inherits from."""
    names = []
    for base in kind.__mro__[:_BASES_MAX]:
        if base is not object:
            names.append(_short(base.__name__, _NAME_CHARACTERS_MAX))
            if base.__module__ != "builtins":
                qualified = f"{base.__module__}.{base.__qualname__}"
                names.append(_short(qualified, _NAME_CHARACTERS_MAX))
    return names


def _message(error: BaseException) -> str:
    try:
        return _short(str(error), MESSAGE_CHARACTERS_MAX)
    except BaseException as another:  # noqa: BLE001 - it is user code that makes the text
        return f"(its text cannot be made: str() raised {type(another).__name__})"


def _traceback(error: BaseException) -> str:
    try:
        told = traceback.TracebackException.from_exception(
            error, limit=-_FRAMES_MAX, compact=True, max_group_width=3
        )
        _drop_ours(told, set())
        return _last("".join(told.format()).rstrip(), TRACEBACK_CHARACTERS_MAX)
    except BaseException:  # noqa: BLE001 - exceptions can have any attributes, memory may be out
        return ""


def _drop_ours(told: traceback.TracebackException, seen: set[int]) -> None:
    if id(told) in seen:
        return
    seen.add(id(told))
    own = [frame for frame in told.stack if not _is_ours(frame.filename)]
    told.stack = traceback.StackSummary.from_list(own)
    for other in (told.__cause__, told.__context__, *(told.exceptions or ())):
        if other is not None:
            _drop_ours(other, seen)


def _is_ours(file: str) -> bool:
    # The code's own file is called <name>, and the program's path is as it was started.
    return not file.startswith("<") and Path(file).resolve().parent == _OURS


def _short(text: str, characters_max: int) -> str:
    # A str subclass, or half a character, would not go through JSON and UTF-8.
    text = str.__str__(text[: characters_max + 1])
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"


def _last(text: str, characters_max: int) -> str:
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= characters_max else "…" + text[1 - characters_max :]
