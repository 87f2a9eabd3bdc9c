"""Pieces of SQL that hold no columns: literals with a type, names of types, the rest after IS."""

from sqlglot.tokens import Token, TokenType

from actors.sql_text import SqlText
from actors.sql_tokens import place
from actors.sql_words import HEX, INTERVAL_UNITS, TYPED_LITERALS
from cluster.errors import InvalidInput

_TEXT_OR_NUMBER = (TokenType.STRING, TokenType.NUMBER)


def interval_length(source: SqlText) -> int:
    """Tokens that belong to the INTERVAL just read; 0 if it is no interval but a name."""
    if source.kind() not in _TEXT_OR_NUMBER:
        return 0
    return 2 if source.word(1) in INTERVAL_UNITS else 1


def take_typed_literal(source: SqlText, token: Token) -> bool:
    """Read the rest of date '2024-01-31' and the like, if that is what `token` begins.

    Raises:
        InvalidInput: X'...' that does not hold bytes.
    """
    word = token.text.upper()
    literal = 0
    if word in TYPED_LITERALS and source.sign() == "(":
        # timestamp(3) '...'
        if source.kind(1) != TokenType.NUMBER or source.sign(2) != ")":
            return False
        literal = 3
    if source.kind(literal) != TokenType.STRING:
        return False
    text = source.token(literal)
    if word == "X" and text.start == token.end + 1:
        if not HEX.fullmatch(text.text):
            raise InvalidInput(f"X'...' {place(token)} does not hold pairs of hexadecimal digits")
    elif word not in TYPED_LITERALS:
        return False
    source.take(literal + 1)
    return True


def take_type_after_colons(source: SqlText) -> None:
    """Read the type after `::`.

    Raises:
        InvalidInput: there is none.
    """
    if source.kind() != TokenType.VAR:
        raise InvalidInput(f"'::' {place(source.token(-1))}: a type's name has to follow")
    source.take()
    if source.word() in ("UNSIGNED", "PRECISION"):
        source.take()
    if source.sign() != "(":
        return
    while source.sign() in ("(", ",") and source.kind(1) == TokenType.NUMBER:
        source.take(2)
    if source.sign() != ")":
        raise InvalidInput(f"'(' {place(source.token(-1))}: numbers of a type have to follow")
    source.take()


def take_type_of_cast(source: SqlText) -> None:
    """Read the type after AS in a CAST, and the bracket that ends the CAST.

    Raises:
        InvalidInput: something else follows.
    """
    start = source.token(-1)
    depth = 0
    while depth or source.sign() != ")":
        sign = source.sign()
        if source.kind() not in (TokenType.VAR, TokenType.NUMBER) and (
            not sign or sign not in "()[],<>"
        ):
            raise InvalidInput(f"AS {place(start)}: a type and ')' have to follow")
        depth += {"(": 1, ")": -1}.get(sign, 0)
        source.take()
    source.take()


def take_rest_of_is(source: SqlText) -> bool:
    """Read what follows IS; whether another value has to come (IS DISTINCT FROM).

    Raises:
        InvalidInput: something that IS does not take.
    """
    start = source.token(-1)
    if source.word() == "NOT":
        source.take()
    if source.word() in ("NULL", "TRUE", "FALSE", "UNKNOWN"):
        source.take()
        return False
    if source.word() == "DISTINCT" and source.word(1) == "FROM":
        source.take(2)
        return True
    raise InvalidInput(
        f"IS {place(start)}: NULL, TRUE, FALSE or DISTINCT FROM has to follow, or NOT before these"
    )
