"""The tokens of Lance's SQL, read so that Lance reads the very same ones.

sqlglot's tokenizer does the reading, under a dialect that knows no words: which word is a keyword
and which a column depends on the schema and is decided in actors/sql.py. What Lance's own
tokenizer might read otherwise (comments, control characters, odd spaces, prefixed strings) is
refused here.
"""

import re
from typing import ClassVar

from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import TokenError
from sqlglot.tokens import Token, TokenType
from sqlglot.tokens import Tokenizer as SqlglotTokenizer

from cluster.errors import InvalidInput

# Tab, line feed and carriage return are text that people write.
_CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_GAP = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)

# Operators of more than one character; other signs are tokens of one character.
_LONG_OPERATORS = {
    "==": TokenType.EQ,
    "!=": TokenType.NEQ,
    "<>": TokenType.NEQ,
    "<=": TokenType.LTE,
    ">=": TokenType.GTE,
    "<<": TokenType.LT,
    ">>": TokenType.GT,
    "||": TokenType.DPIPE,
    "::": TokenType.DCOLON,
}


class LanceDialect(Dialect):  # type: ignore[misc]
    """Lance's SQL as far as its tokens go."""

    class Tokenizer(SqlglotTokenizer):  # type: ignore[misc]
        """Text in single quotes, names in backticks or double quotes, quotes doubled inside."""

        QUOTES: ClassVar = ["'"]
        IDENTIFIERS: ClassVar = ["`", '"']
        STRING_ESCAPES: ClassVar = ["'"]
        KEYWORDS: ClassVar = _LONG_OPERATORS
        COMMANDS: ClassVar[set[TokenType]] = set()


def tokenize(text: str) -> list[Token]:
    """The tokens of `text`: VAR is a word, IDENTIFIER a quoted name, STRING, NUMBER, else a sign.

    Raises:
        InvalidInput: says what stands where that cannot be read, or could be read in two ways.
    """
    _check_characters(text)
    tokenizer = LanceDialect.Tokenizer(LanceDialect)
    try:
        tokens: list[Token] = tokenizer.tokenize(text)
    except TokenError as error:
        read = tokenizer.tokens
        raise _unreadable(text, read[-1].end + 1 if read else 0) from error
    position = 0
    previous: Token | None = None
    for token in tokens:
        if token.start != position:
            _check_gap(text, position, token.start)
        elif previous is not None:
            _check_touching(previous, token)
        if token.token_type == TokenType.NUMBER and not _NUMBER.fullmatch(token.text):
            raise InvalidInput(f"{token.text!r} {place(token)} is not a number")
        if token.token_type == TokenType.NATIONAL_STRING:
            raise InvalidInput(f"N'...' {place(token)}: leave the N out")
        position = token.end + 1
        previous = token
    _check_gap(text, position, len(text))
    return tokens


def place(token: Token) -> str:
    """Where `token` stands, for an error message."""
    return f"at character {token.start + 1}"


def _check_characters(text: str) -> None:
    control = _CONTROL_CHARACTER.search(text)
    if control is not None:
        raise InvalidInput(
            f"control character U+{ord(control[0]):04X} at character {control.start() + 1};"
            " leave it out"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"half of a surrogate pair at character {error.start + 1}; send whole characters"
        ) from error


def _check_gap(text: str, start: int, end: int) -> None:
    """Refuse whatever the tokenizer skipped that is not plain space, such as a comment."""
    match = _GAP.match(text, start, end)
    position = start if match is None else match.end()
    if position < end:
        raise _unreadable(text, position)


def _check_touching(left: Token, right: Token) -> None:
    """Refuse two tokens without space between them that Lance could read as one."""
    if right.token_type == TokenType.VAR and left.token_type == TokenType.NUMBER:
        raise InvalidInput(
            f"{left.text + right.text!r} {place(left)} is not a number; names that begin with a"
            " digit stand in backticks"
        )
    quoted = (TokenType.STRING, TokenType.IDENTIFIER)
    if right.token_type in quoted and left.token_type in (*quoted, TokenType.NUMBER):
        raise InvalidInput(f"a comma or an operator is missing {place(right)}, before the quote")


def _unreadable(text: str, start: int) -> InvalidInput:
    match = _GAP.match(text, start)
    position = start if match is None else match.end()
    rest = text[position : position + 2]
    where = f"at character {position + 1}"
    if rest in ("--", "/*"):
        return InvalidInput(
            f"comment {where}; leave comments out (and put a space between two minus signs)"
        )
    if rest[:1] in ("'", '"', "`"):
        return InvalidInput(
            f"the quote {rest[0]} {where} is not closed; a quote inside quotes is doubled"
        )
    return InvalidInput(f"unexpected character {rest[:1]!r} {where}")
