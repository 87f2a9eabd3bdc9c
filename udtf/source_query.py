"""What can be recognised in a view's source query, which is opaque to the server otherwise.

LanceDB reads views of a plain form: SELECT columns FROM table [WHERE predicate] [LIMIT n]. It
refuses to list any view of a folder that holds one definition it cannot read, so only text that
surely has the form is offered to it. Text that is not recognised is no error.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token, Tokenizer, TokenType

from cluster.errors import InvalidInput
from udtf.checked import read_json

# Parsing takes 2 ms per 1,000 characters; longer queries are not typed by people.
QUERY_CHARACTERS_MAX = 16_384
LANCEDB_FORMAT = 1

_NAMES = frozenset({TokenType.VAR, TokenType.IDENTIFIER})
_EXPRESSION_TOKENS = _NAMES | {
    TokenType[name]
    for name in (  # noqa: SIM905  (fifty words read better than fifty lines)
        "NUMBER STRING NULL TRUE FALSE L_PAREN R_PAREN COMMA DOT STAR PLUS DASH SLASH MOD"
        " EQ NEQ LT LTE GT GTE AND OR NOT IN IS BETWEEN LIKE ILIKE CASE WHEN THEN ELSE END ALIAS"
        " BOOLEAN SMALLINT INT BIGINT FLOAT DOUBLE VARCHAR TEXT DATE TIMESTAMP"
    ).split()
}
_CONSTANTS = frozenset({TokenType.NULL, TokenType.TRUE, TokenType.FALSE})
_OPERANDS = _NAMES | _CONSTANTS | {TokenType.NUMBER, TokenType.STRING}
# Of one expression; outside parentheses they separate or name expressions.
_INNER_TOKENS = frozenset({TokenType.COMMA, TokenType.ALIAS})


class _LanceSql(Dialect):  # type: ignore[misc]  # sqlglot is not followed by mypy
    class Tokenizer(Tokenizer):  # type: ignore[misc]
        IDENTIFIERS = ('"', "`")


def lancedb_query(source_query: str) -> str | None:
    """The SQL that LanceDB can read in `source_query`, SQL text or a LanceDB definition; else None.

    Names of the table and of the outputs are quoted, because LanceDB refuses some bare ones.
    """
    if len(source_query) > QUERY_CHARACTERS_MAX:
        return None
    text: Any = source_query
    if source_query.lstrip().startswith("{"):
        text = _query_of_definition(source_query)
    try:
        return _plain_select(text) if isinstance(text, str) else None
    except (SqlglotError, RecursionError):
        return None


def _query_of_definition(source_query: str) -> object:
    try:
        definition = read_json(source_query.encode(), "source_query")
    except InvalidInput:
        return None
    if definition.get("format") != LANCEDB_FORMAT or definition.get("kind") != "query":
        return None
    return definition.get("query")


def _plain_select(text: str) -> str | None:
    tokens: list[Token] = _LanceSql().tokenize(text)
    if tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    types = [token.token_type for token in tokens]
    if types.count(TokenType.FROM) != 1 or not all(_is_plain(token) for token in tokens):
        return None
    start = types.index(TokenType.FROM)
    if types[0] is not TokenType.SELECT or not _is_one_table(tokens[start + 1 :]):
        return None
    named = [tokens[start + 1]]
    items = list(_items(tokens[1:start]))
    for item in items:
        if len(item) > 2 and _has_alias(item):
            named.append(item[-1])
        elif not _is_column(item) and not (len(items) == 1 and _is_star(item)):
            return None
    # The tokens are of the form; the parser says whether the expressions between them are any.
    tree = sqlglot.parse_one(text, dialect=_LanceSql)
    stars = [star for star in tree.find_all(exp.Star) if not isinstance(star.parent, exp.Count)]
    if len(stars) > _is_star(items[0]):
        return None
    return _with_quoted(text, named)


def _is_plain(token: Token) -> bool:
    """Whether LanceDB reads the token as sqlglot does: no comments, no parameters."""
    bare = token.token_type is TokenType.VAR
    return not token.comments and (not bare or token.text.isidentifier())


def _is_one_table(tokens: Sequence[Token]) -> bool:
    """Whether the tokens after FROM are: name [WHERE predicate] [LIMIT n]."""
    if not tokens or tokens[0].token_type not in _NAMES:
        return False
    rest = list(tokens[1:])
    if len(rest) >= 2 and rest[-2].token_type is TokenType.LIMIT:
        limit = rest[-1]
        digits = limit.text.isascii() and limit.text.isdecimal()
        if not digits or int(limit.text) >= 2**63:
            return False
        del rest[-2:]
    if not rest:
        return True
    return rest[0].token_type is TokenType.WHERE and _is_expression(rest[1:])


def _items(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Split at the commas outside parentheses."""
    depth = start = 0
    for position, token in enumerate(tokens):
        depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
        if token.token_type is TokenType.COMMA and depth == 0:
            yield tokens[start:position]
            start = position + 1
    yield tokens[start:]


def _has_alias(item: Sequence[Token]) -> bool:
    alias, name = item[-2:]
    named = alias.token_type is TokenType.ALIAS and name.token_type in _NAMES
    return named and _is_expression(item[:-2])


def _is_column(item: Sequence[Token]) -> bool:
    """Whether the tokens are a path: name, dot, name, ..."""
    wanted = [_NAMES, {TokenType.DOT}]
    return len(item) % 2 == 1 and all(
        token.token_type in wanted[position % 2] for position, token in enumerate(item)
    )


def _is_star(item: Sequence[Token]) -> bool:
    return [token.token_type for token in item] == [TokenType.STAR]


def _is_expression(tokens: Sequence[Token]) -> bool:
    """Whether the tokens may be one expression: what sqlglot accepts beyond LanceDB is refused."""
    depth = cases = 0
    previous = [TokenType.COMMA, TokenType.COMMA]
    for token in tokens:
        kind = token.token_type
        depth += (kind is TokenType.L_PAREN) - (kind is TokenType.R_PAREN)
        cases += (kind is TokenType.CASE) - (kind is TokenType.END)
        if kind not in _EXPRESSION_TOKENS or (depth == 0 and kind in _INNER_TOKENS) or cases < 0:
            return False
        if not _may_follow(kind, previous):
            return False
        previous = [previous[1], kind]
    return bool(tokens) and _may_follow(TokenType.COMMA, previous)


def _may_follow(kind: TokenType, previous: list[TokenType]) -> bool:
    if previous[1] is TokenType.IN:
        return kind is TokenType.L_PAREN
    if previous[1] is TokenType.DOT:
        return kind in _NAMES
    if previous[1] is TokenType.L_PAREN and kind is TokenType.R_PAREN:
        return previous[0] is TokenType.VAR
    if previous == [TokenType.IS, TokenType.NOT]:
        return kind in _CONSTANTS
    if previous[1] is TokenType.IS:
        return kind in _CONSTANTS or kind is TokenType.NOT
    return not (kind in _OPERANDS and previous[1] in _OPERANDS)


def _with_quoted(text: str, names: Sequence[Token]) -> str:
    for token in sorted(names, key=lambda name: name.start, reverse=True):
        quoted = "`" + token.text.replace("`", "``") + "`"
        text = text[: token.start] + quoted + text[token.end + 1 :]
    return text.strip().rstrip(";").rstrip()
