"""Lance's field path syntax: dot-separated names, one that holds a dot in backticks."""

import re

from cluster.errors import InvalidInput

# A backtick inside a quoted name is doubled.
_NAME = re.compile(r"`((?:[^`]|``)+)`|([^`.]+)")


def parse_field_path(text: str) -> tuple[str, ...]:
    """The names of a path: ``s.`y.z` `` is ("s", "y.z").

    Raises:
        InvalidInput: an empty name, a lone backtick or text after a quoted name.
    """
    names: list[str] = []
    position = 0
    while True:
        found = _NAME.match(text, position)
        if found is None:
            break
        quoted, plain = found.groups()
        names.append(plain if quoted is None else quoted.replace("``", "`"))
        position = found.end()
        if position == len(text):
            return tuple(names)
        if text[position] != ".":
            break
        position += 1
    raise InvalidInput(
        f"field path {text!r}: write names joined by dots, such as address.city;"
        " put a name that holds a dot in backticks and double a backtick inside it"
    )
