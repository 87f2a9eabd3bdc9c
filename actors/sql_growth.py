"""Refuses calls that make values of any size: Lance would end the process for want of memory."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlglot.tokens import Token, TokenType

from actors.sql_tokens import place
from cluster.errors import InvalidInput

# Lance makes 8,192 values at a time, some times per core: of 2,500 characters or items they are
# 20 MB, 200 MB if each item is a text of ten. Five nested replacements that escape HTML are 2,400.
GROWTH_MAX = 2_500
# How many characters of texts, and names of columns, of the expression itself a call may repeat in
# each of those values; those five replacements come to 84,000.
_WRITTEN_MAX = 100_000
# Items of a fixed-size list that a cast makes of a null; common vectors have up to 4,096.
_FIXED_SIZE_MAX = 8_192

# They end the process by sizes that are no memory at all, and arrays of one item repeated are rare.
_REFUSED = frozenset({"array_repeat", "list_repeat", "array_resize", "list_resize"})
# Calls whose value has as many characters as the second argument says, and that many times what
# the first one has.
_PADDING = frozenset({"lpad", "rpad"})
_REPEATING = frozenset({"repeat"})
_SERIES = frozenset({"range", "generate_series"})
# Calls that put a text wherever another was found, and which of their arguments is that text.
_PUT_IN = {
    "replace": 2,
    "regexp_replace": 2,
    "array_replace_all": 2,
    "list_replace_all": 2,
    "array_replace_n": 2,
    "list_replace_n": 2,
    "array_to_string": 1,
    "list_to_string": 1,
    "array_join": 1,
    "list_join": 1,
}
_CASTS = frozenset({"arrow_cast", "arrow_try_cast"})
_BOUNDED = _REFUSED | _PADDING | _REPEATING | _SERIES | _CASTS | _PUT_IN.keys()
_NUMBER_OF_TYPE = re.compile(r"(?<![A-Za-z0-9])[0-9]+")
_DIGITS_MAX = 9


@dataclass(slots=True)
class _Open:
    """A bracket that has not ended yet; of a call that is bounded, its name and arguments."""

    call: Token | None = None
    arguments: list[list[Token]] = field(default_factory=lambda: [[]])
    # How many times larger than what they are made of the values inside are, and how many
    # characters of texts and how many names are inside.
    growth: int = 1
    written: int = 0


def check_growth(tokens: Sequence[Token]) -> None:
    """Refuse the calls whose values could be of any size.

    Raises:
        InvalidInput: says what to write instead.
    """
    opened = [_Open()]
    for position, token in enumerate(tokens):
        quoted = token.token_type in (TokenType.STRING, TokenType.IDENTIFIER)
        sign = "" if quoted else token.text
        if sign in (")", "]") and len(opened) > 1:
            ended = opened.pop()
            outer = opened[-1]
            outer.growth = max(outer.growth, _grown(ended))
            outer.written += ended.written
        outer = opened[-1]
        if outer.call is not None and sign == ",":
            outer.arguments.append([])
        elif outer.call is not None:
            outer.arguments[-1].append(token)
        if token.token_type == TokenType.STRING:
            outer.written += len(token.text)
        elif token.token_type in (TokenType.VAR, TokenType.IDENTIFIER):
            outer.written += 1
        if sign in ("(", "["):
            before = tokens[position - 1] if position and sign == "(" else None
            is_bounded = before is not None and before.text.lower() in _BOUNDED
            opened.append(_Open(before if is_bounded else None))


def _grown(ended: _Open) -> int:
    """How many times larger than its columns the value of a bracket that ended is."""
    call = ended.call
    if call is None:
        return ended.growth
    name = call.text.lower()
    if name in _REFUSED:
        raise InvalidInput(
            f"{call.text} {place(call)} is not supported; write the list out, as in [x, x]"
        )
    if name in _CASTS:
        _check_type(call, ended.arguments)
        return ended.growth
    copies = 0
    if name in _REPEATING:
        growth = copies = ended.growth * _size(call, ended.arguments, 1)
    elif name in _PADDING:
        growth = _size(call, ended.arguments, 1)
    elif name in _SERIES:
        growth = sum(_size(call, ended.arguments, n) for n in range(len(ended.arguments[:2])))
    else:
        length = _length(ended.arguments, _PUT_IN[name])
        # What is no constant may be long: no call that makes values larger goes with it.
        growth = ended.growth * (GROWTH_MAX if length is None else length)
        copies = ended.growth * (length or 1)
    if growth > GROWTH_MAX or copies * ended.written > _WRITTEN_MAX:
        raise InvalidInput(
            f"{call.text} {place(call)} may make {growth} characters or items of each that it is"
            f" given; the most is {GROWTH_MAX}, and {_WRITTEN_MAX} of the texts and names that are"
            " written in it: use smaller numbers, shorter texts, or fewer such calls in one another"
        )
    return growth


def _size(call: Token, arguments: Sequence[Sequence[Token]], number: int) -> int:
    """The whole number that is an argument, without its sign; a missing one is Lance's error."""
    if number >= len(arguments):
        return 1
    tokens = [token for token in arguments[number] if token.text not in ("-", "+")]
    digits = tokens[0].text if len(tokens) == 1 and tokens[0].token_type == TokenType.NUMBER else ""
    if not digits.isdecimal():
        raise InvalidInput(
            f"argument {number + 1} of {call.text} {place(call)} has to be a whole number that is"
            f" written there, up to {GROWTH_MAX}; a column or an expression may be of any size"
        )
    return int(digits.lstrip("0")[: _DIGITS_MAX + 1] or 0)


def _length(arguments: Sequence[Sequence[Token]], number: int) -> int | None:
    """How many characters an argument puts in; None if it is no constant."""
    tokens = arguments[number] if number < len(arguments) else []
    if all(token.token_type == TokenType.NUMBER for token in tokens):
        return 1
    if len(tokens) == 1 and tokens[0].token_type == TokenType.STRING:
        return max(1, len(tokens[0].text))
    return None


def _check_type(call: Token, arguments: Sequence[Sequence[Token]]) -> None:
    tokens = arguments[1] if len(arguments) > 1 else []
    if len(tokens) != 1 or tokens[0].token_type != TokenType.STRING:
        raise InvalidInput(
            f"argument 2 of {call.text} {place(call)} has to be a type's name in single quotes"
        )
    text = tokens[0].text
    size = 1
    for digits in _NUMBER_OF_TYPE.findall(text) if "FixedSize" in text else ():
        size *= max(1, int(digits[: _DIGITS_MAX + 1]))
    if size > _FIXED_SIZE_MAX:
        raise InvalidInput(
            f"{call.text} {place(call)}: a type of fixed size may have {_FIXED_SIZE_MAX} items at"
            " most; cast to a smaller one"
        )
