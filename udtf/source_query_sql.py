"""The SQL text of a source query: SELECT columns FROM [namespace.]table [WHERE p] [LIMIT n].

The text is cut into its clauses by its tokens; what stands in them is for Lance to read. LanceDB's
clients write names in backticks or double quotes and expressions as their callers gave them.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import sqlglot.errors
from sqlglot.dialects.dialect import Dialect
from sqlglot.tokens import Token, Tokenizer, TokenType

LIMIT_MAX = 2**63 - 1

_OPENING = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET})
_CLOSING = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET})
_CLAUSES = frozenset(
    (  # noqa: SIM905  (words read better than lines)
        "SELECT FROM WHERE LIMIT OFFSET GROUP ORDER HAVING UNION INTERSECT EXCEPT JOIN ON USING AS"
        " DISTINCT WINDOW QUALIFY WITH LATERAL INNER LEFT RIGHT FULL CROSS NATURAL TABLESAMPLE"
    ).split()
)
# Beginnings of clauses as sqlglot reads them: none stands inside an expression.
_OTHER_CLAUSES = frozenset(
    {"GROUP BY", "ORDER BY", "LIMIT", "OFFSET", "HAVING", "UNION", "INTERSECT", "EXCEPT", "WHERE"}
)
# What gives another answer each time, or one that depends on the program and not on the row.
VOLATILE = frozenset(
    (  # noqa: SIM905
        "random rand uuid gen_random_uuid now today current_date current_time current_timestamp"
        " localtime localtimestamp current_user current_schema current_catalog current_database"
        " version arrow_typeof arrow_field arrow_metadata"
    ).split()
)
# Those of them that stand without parentheses.
_BARE_VOLATILE = frozenset(
    "current_date current_time current_timestamp localtime localtimestamp".split()  # noqa: SIM905
)


class SourceSql(Dialect):  # type: ignore[misc]  # sqlglot is not followed by mypy
    """Names in double quotes or backticks, text in single quotes."""

    class Tokenizer(Tokenizer):  # type: ignore[misc]
        """As the dialect says."""

        IDENTIFIERS = ('"', "`")


class NotOfTheForm(Exception):
    """The text is no such query; the message is a clause that says why."""


@dataclass(frozen=True, slots=True)
class Select:
    """The clauses: path of the table, output names with their expressions (None is `*`)."""

    table: tuple[str, ...]
    columns: tuple[tuple[str, str], ...] | None
    filter: str | None
    limit: int | None


def read_select(text: str) -> Select:
    """Cut the text into its clauses.

    Raises:
        NotOfTheForm: it is another query, or none.
    """
    tokens = _tokens(text)
    if tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    if not tokens or tokens[0].token_type is not TokenType.SELECT:
        raise NotOfTheForm("it does not begin with SELECT")
    _check(tokens)
    start = _find_from(tokens)
    names, rest = _table(tokens[start + 1 :])
    limit = None
    if len(rest) >= 2 and rest[-2].token_type is TokenType.LIMIT:
        limit = _limit(rest[-1])
        rest = rest[:-2]
    condition = None
    if rest:
        if rest[0].token_type is not TokenType.WHERE:
            raise NotOfTheForm(f"{rest[0].text!r} after the table is not supported")
        condition = _written(text, rest[1:], "WHERE")
    return Select(names, _columns(text, tokens[1:start]), condition, limit)


def volatile_call(text: str, columns: Collection[str]) -> str | None:
    """A function in an expression that has no lasting answer; None if there is none.

    `columns` are the names that are columns and not functions when no parenthesis follows.

    Raises:
        NotOfTheForm: the text is no SQL.
    """
    tokens = _tokens(text)
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        name = str(token.text).lower()
        if token.token_type is TokenType.STRING or name not in VOLATILE:
            continue
        called = following is not None and following.token_type is TokenType.L_PAREN
        if called or (name in _BARE_VOLATILE and token.text not in columns):
            return name
    return None


def words(text: str) -> set[str]:
    """Every word and quoted name in an expression, in lower case.

    Raises:
        NotOfTheForm: the text is no SQL.
    """
    return {token.text.lower() for token in _tokens(text)}


def is_balanced(text: str) -> bool:
    """Whether brackets pair up, so that parentheses around the text hold all of it.

    Raises:
        NotOfTheForm: the text is no SQL.
    """
    depth = 0
    for token in _tokens(text):
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        if depth < 0 or token.comments or token.token_type is TokenType.SEMICOLON:
            return False
    return depth == 0


def limit_of(text: str) -> int | None:
    """The number that the text after LIMIT is; None if it is none, or too large."""
    digits = text.lstrip("0") or "0"
    # Python reads no more than 4,300 digits.
    if not (text.isascii() and text.isdecimal()) or len(digits) > len(str(LIMIT_MAX)):
        return None
    return int(digits) if int(digits) <= LIMIT_MAX else None


def quoted(name: str) -> str:
    """The name as Lance's SQL reads it literally."""
    return "`" + name.replace("`", "``") + "`"


def _tokens(text: str) -> list[Token]:
    try:
        tokens: list[Token] = SourceSql().tokenize(text)
    except sqlglot.errors.SqlglotError:
        raise NotOfTheForm("it is not SQL: a quotation is not closed, or the like") from None
    return tokens


def _check(tokens: Sequence[Token]) -> None:
    """Refuse at once what no clause may hold."""
    depth = 0
    for position, token in enumerate(tokens):
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        if depth < 0:
            raise NotOfTheForm(f"a {token.text!r} closes nothing")
        if token.comments:
            raise NotOfTheForm("it holds a comment")
        if token.token_type is TokenType.SEMICOLON:
            raise NotOfTheForm("it holds more than one statement")
        if position and token.token_type is TokenType.SELECT:
            raise NotOfTheForm("queries inside the query are not supported")
    if depth:
        raise NotOfTheForm("a bracket is not closed")


def _outside(tokens: Sequence[Token]) -> Iterator[tuple[int, Token]]:
    """The tokens that are in no brackets, with their positions."""
    depth = 0
    for position, token in enumerate(tokens):
        depth -= token.token_type in _CLOSING
        if depth == 0:
            yield position, token
        depth += token.token_type in _OPENING


def _find_from(tokens: Sequence[Token]) -> int:
    for position, token in _outside(tokens):
        distinct = tokens[position - 1].token_type is TokenType.DISTINCT
        # IS DISTINCT FROM is an operator.
        if token.token_type is TokenType.FROM and not (distinct and position > 2):
            return position
    raise NotOfTheForm("it has no FROM")


def _is_name(token: Token) -> bool:
    if token.token_type is TokenType.IDENTIFIER:
        return bool(token.text)
    is_word = token.token_type is not TokenType.STRING and token.text.isidentifier()
    return is_word and token.text.upper() not in _CLAUSES


def _table(tokens: Sequence[Token]) -> tuple[tuple[str, ...], Sequence[Token]]:
    """The path of the table, and what follows it."""
    names = []
    position = 0
    while position < len(tokens) and _is_name(tokens[position]):
        names.append(tokens[position].text)
        position += 1
        if position == len(tokens) or tokens[position].token_type is not TokenType.DOT:
            break
        position += 1
    else:
        raise NotOfTheForm("after FROM the name of one table is missing")
    rest = tokens[position:]
    if rest and rest[0].token_type is TokenType.L_PAREN:
        raise NotOfTheForm(f"the function {names[-1]} in FROM is not supported")
    if rest and rest[0].token_type is TokenType.COMMA:
        raise NotOfTheForm("more than one table in FROM is not supported")
    return tuple(names), rest


def _limit(token: Token) -> int:
    limit = limit_of(token.text)
    if limit is None:
        shown = token.text[: len(str(LIMIT_MAX)) + 1]
        raise NotOfTheForm(f"LIMIT {shown} is no whole number up to {LIMIT_MAX}")
    return limit


def _columns(text: str, tokens: Sequence[Token]) -> tuple[tuple[str, str], ...] | None:
    items = list(_items(tokens))
    if len(items) == 1 and [token.token_type for token in items[0]] == [TokenType.STAR]:
        return None
    return tuple(_output(text, item) for item in items)


def _items(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Split at the commas outside brackets."""
    start = 0
    for position, token in _outside(tokens):
        if token.token_type is TokenType.COMMA:
            yield tokens[start:position]
            start = position + 1
    yield tokens[start:]


def _output(text: str, item: Sequence[Token]) -> tuple[str, str]:
    """The name and the expression of one output."""
    if not item:
        raise NotOfTheForm("a column between SELECT and FROM is missing")
    if item[0].token_type is TokenType.DISTINCT:
        raise NotOfTheForm("SELECT DISTINCT is not supported")
    if item[0].token_type is TokenType.STAR:
        raise NotOfTheForm("`*` stands alone or not at all")
    if len(item) > 2 and item[-2].token_type is TokenType.ALIAS and _is_name(item[-1]):
        return item[-1].text, _written(text, item[:-2], "SELECT")
    is_path = len(item) % 2 == 1 and all(
        token.token_type is TokenType.DOT if position % 2 else _is_name(token)
        for position, token in enumerate(item)
    )
    if not is_path:
        expression = _written(text, item, "SELECT")
        raise NotOfTheForm(f"the expression {expression!r} needs a name: add AS and one")
    return item[-1].text, _written(text, item, "SELECT")


def _written(text: str, tokens: Sequence[Token], clause: str) -> str:
    """The tokens as they are written; a clause that another one begins in is none of ours."""
    if not tokens:
        raise NotOfTheForm(f"{clause} is followed by nothing")
    for _, token in _outside(tokens):
        is_word = token.token_type not in (TokenType.IDENTIFIER, TokenType.STRING)
        if is_word and token.text.upper() in _OTHER_CLAUSES:
            raise NotOfTheForm(f"{token.text.upper()} is not supported there")
    return text[tokens[0].start : tokens[-1].end + 1]
