"""What can be recognised in a view's source query, which is opaque to the server otherwise.

LanceDB reads views of a plain form: SELECT columns FROM table [WHERE predicate] [LIMIT n]. It
refuses to list any view of a folder that holds one definition it cannot read, so only text that
surely has the form is offered to it. Text that is not recognised is no error.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import sqlglot
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
    if any(token.comments for token in tokens) or types.count(TokenType.FROM) != 1:
        return None
    start = types.index(TokenType.FROM)
    if types[0] is not TokenType.SELECT or not _is_one_table(tokens[start + 1 :]):
        return None
    named = [tokens[start + 1]]
    items = list(_items(tokens[1:start]))
    for item in items:
        if item and item[-1].token_type in _NAMES and len(item) > 2 and _has_alias(item):
            named.append(item[-1])
        elif not _is_column(item) and not (len(items) == 1 and _is_star(item)):
            return None
    # The tokens are of the form; the parser says whether the expressions between them are any.
    sqlglot.parse_one(text, dialect=_LanceSql)
    return _with_quoted(text, named)


def _is_one_table(tokens: Sequence[Token]) -> bool:
    """Whether the tokens after FROM are: name [WHERE predicate] [LIMIT n]."""
    if not tokens or tokens[0].token_type not in _NAMES:
        return False
    rest = list(tokens[1:])
    if len(rest) >= 2 and rest[-2].token_type is TokenType.LIMIT:
        limit = rest[-1]
        if not limit.text.isdecimal() or int(limit.text) >= 2**63:
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
    return item[-2].token_type is TokenType.ALIAS and _is_expression(item[:-2])


def _is_column(item: Sequence[Token]) -> bool:
    """Whether the tokens are a path: name, dot, name, ..."""
    wanted = [_NAMES, {TokenType.DOT}]
    return len(item) % 2 == 1 and all(
        token.token_type in wanted[position % 2] for position, token in enumerate(item)
    )


def _is_star(item: Sequence[Token]) -> bool:
    return [token.token_type for token in item] == [TokenType.STAR]


def _is_expression(tokens: Sequence[Token]) -> bool:
    return bool(tokens) and all(token.token_type in _EXPRESSION_TOKENS for token in tokens)


def _with_quoted(text: str, names: Sequence[Token]) -> str:
    for token in sorted(names, key=lambda name: name.start, reverse=True):
        quoted = "`" + token.text.replace("`", "``") + "`"
        text = text[: token.start] + quoted + text[token.end + 1 :]
    return text.strip().rstrip(";").rstrip()
