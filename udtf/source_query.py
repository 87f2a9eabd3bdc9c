"""What can be recognised in a view's source query, which is opaque to the server otherwise.

Recognised are, without executing anything: this project's JSON envelope, the definitions that
LanceDB writes, and SQL text of the subset that source_query_sql.py describes. Text that is not
recognised is no error: it is kept, and its view cannot be refreshed.

LanceDB reads views of a plain form: SELECT columns FROM table [WHERE predicate] [LIMIT n]. It
refuses to list any view of a folder that holds one definition it cannot read, so only text that
surely has the form is offered to it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token, TokenType

from cluster.errors import InvalidInput
from cluster.identifiers import parse_branch
from udtf.checked import read_json, utf8
from udtf.source_query_sql import (
    LIMIT_MAX,
    NotOfTheForm,
    Select,
    SourceSql,
    limit_of,
    quoted,
    read_select,
)

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


_ENVELOPE = "lance-mv-query"
_ENVELOPE_KEYS = frozenset({"format", "version", "source", "columns", "filter", "limit", "dialect"})
_SOURCE_KEYS = frozenset({"id", "branch", "version", "tag"})
_LEGACY_KEYS = frozenset(
    {"kind", "source_table", "source_namespace", "projections", "filter", "limit", "inputs"}
)
_LEGACY_KINDS = ("select", "namespaced_select")
# What LanceDB's definitions of these formats hold besides columns of rows.
_LANCEDB_FORMATS = {2: "groups", 3: "pairs of rows", 4: "searches for duplicates"}
_ACCEPTED = (
    "accepted are SELECT columns FROM table [WHERE predicate] [LIMIT n], a JSON object of format"
    ' "lance-mv-query" version 1, and LanceDB definitions of format 1'
)


@dataclass(frozen=True, slots=True)
class RecognisedQuery:
    """A source query that can be executed: which rows of which table, and what of each.

    `source_id` are the names on the table's path. `columns` are output names with their SQL; None
    is every column. At most one of `version` and `tag` pins what is read.
    """

    source_id: tuple[str, ...]
    branch: str | None = None
    version: int | None = None
    tag: str | None = None
    columns: tuple[tuple[str, str], ...] | None = None
    filter: str | None = None
    limit: int | None = None


def recognise(source_query: str) -> RecognisedQuery | None:
    """What the source query says, if it is of a form that is executed here; else None."""
    try:
        return _read(source_query)
    except NotOfTheForm:
        return None


def why_not(source_query: str) -> str | None:
    """Why `recognise` does not know the query, in a sentence; None if it does."""
    try:
        _read(source_query)
    except NotOfTheForm as reason:
        return f"this server does not execute the source_query: {reason}; {_ACCEPTED}"
    return None


def _read(source_query: str) -> RecognisedQuery:
    text = source_query.strip()
    if not text.startswith("{"):
        return _of_select(_select(text))
    value = _json(text)
    if value.get("format") == _ENVELOPE:
        return _read_envelope(value)
    if "format" in value:
        return _read_lancedb(value)
    if value.get("kind") in _LEGACY_KINDS:
        return _read_legacy(value)
    raise NotOfTheForm("it is a JSON object of no known format")


def _json(text: str) -> Any:
    try:
        value = read_json(utf8(text, "it"), "it")
        # Escapes in JSON can spell half characters, of which no folder's name can be made.
        utf8(json.dumps(value, ensure_ascii=False), "it")
    except InvalidInput as error:
        raise NotOfTheForm(error.message) from None
    except RecursionError:
        raise NotOfTheForm("it is JSON nested too deeply") from None
    return value


def _select(text: object) -> Select:
    if not isinstance(text, str):
        raise NotOfTheForm("its query is not text")
    if len(text) > QUERY_CHARACTERS_MAX:
        raise NotOfTheForm(f"it is longer than {QUERY_CHARACTERS_MAX} characters")
    return read_select(text)


def _of_select(select: Select) -> RecognisedQuery:
    return RecognisedQuery(
        select.table, columns=select.columns, filter=select.filter, limit=select.limit
    )


def _read_envelope(value: Mapping[str, Any]) -> RecognisedQuery:
    _known_keys(value, _ENVELOPE_KEYS, "the object")
    if value.get("version") != 1 or isinstance(value["version"], bool):
        raise NotOfTheForm(f"version {value.get('version')!r} of the format is not known")
    if value.get("dialect") not in (None, "lance-sql"):
        raise NotOfTheForm(f"the dialect {value['dialect']!r} is not known")
    source = value.get("source")
    if not isinstance(source, dict):
        raise NotOfTheForm("its source is not an object")
    _known_keys(source, _SOURCE_KEYS, "source")
    branch, tag = _text(source, "branch"), _text(source, "tag")
    version = source.get("version")
    if version is not None and (type(version) is not int or not 1 <= version <= LIMIT_MAX):
        raise NotOfTheForm("source.version is not a whole number from 1")
    if tag is not None and (version is not None or branch is not None):
        raise NotOfTheForm("source.tag stands with a version or a branch; a tag names both")
    try:
        branch = parse_branch(branch)
    except InvalidInput as error:
        raise NotOfTheForm(f"source.branch: {error.message}") from None
    return RecognisedQuery(
        _path(source.get("id"), "source.id"),
        branch,
        version,
        tag,
        _envelope_columns(value.get("columns")),
        _text(value, "filter"),
        _limit(value.get("limit")),
    )


def _envelope_columns(value: object) -> tuple[tuple[str, str], ...] | None:
    if value is None:
        return None
    if isinstance(value, dict):
        pairs: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, list) and all(isinstance(item, str) for item in value):
        # Paths of fields, whose names may hold anything but dots.
        parts = [item.split(".") for item in value]
        pairs = [(path[-1], ".".join(map(quoted, path))) for path in parts]
    elif isinstance(value, list) and all(isinstance(item, dict) for item in value):
        for item in value:
            _known_keys(item, frozenset({"name", "expr"}), "columns")
        pairs = [(item.get("name"), item.get("expr")) for item in value]
    else:
        raise NotOfTheForm("columns is no list of names or of objects, and no object")
    return _checked_columns(pairs)


def _checked_columns(pairs: Sequence[tuple[Any, Any]]) -> tuple[tuple[str, str], ...]:
    if not pairs:
        raise NotOfTheForm("columns names none")
    for pair in pairs:
        if not all(isinstance(text, str) and text.strip() for text in pair):
            raise NotOfTheForm("columns has an output without a name or without an expression")
    return tuple(pairs)


def _read_lancedb(value: Mapping[str, Any]) -> RecognisedQuery:
    number = value["format"]
    if type(number) is int and number in _LANCEDB_FORMATS:
        raise NotOfTheForm(
            f"LanceDB definitions of format {number} are of {_LANCEDB_FORMATS[number]}, which only"
            " LanceDB computes"
        )
    if type(number) is not int or number != LANCEDB_FORMAT:
        raise NotOfTheForm(f"the format {number!r} is not known")
    if value.get("kind", "query") != "query":
        raise NotOfTheForm(f"LanceDB definitions of kind {value['kind']!r} are not known")
    return _of_select(_select(value.get("query")))


def _read_legacy(value: Mapping[str, Any]) -> RecognisedQuery:
    """LanceDB's older, structured layout."""
    _known_keys(value, _LEGACY_KEYS, "the object")
    namespace = value.get("source_namespace")
    path = [] if namespace is None else list(_path(namespace, "source_namespace", empty=True))
    columns = None
    projections = value.get("projections")
    if projections is not None:
        if not isinstance(projections, list) or not all(isinstance(p, dict) for p in projections):
            raise NotOfTheForm("projections is no list of objects")
        for item in projections:
            _known_keys(item, frozenset({"output", "output_column", "expression"}), "projections")
        outputs = [
            (item.get("output", item.get("output_column")), item.get("expression"))
            for item in projections
        ]
        columns = _checked_columns(outputs)
    return RecognisedQuery(
        _path([*path, value.get("source_table")], "source_table"),
        columns=columns,
        filter=_text(value, "filter"),
        limit=_limit(value.get("limit")),
    )


def _known_keys(value: Mapping[str, Any], known: Set[str], what: str) -> None:
    unknown = sorted(set(value) - known)
    if unknown:
        raise NotOfTheForm(f"{what} has an unknown key {unknown[0]!r}")


def _path(value: object, field: str, *, empty: bool = False) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(n, str) and n for n in value):
        raise NotOfTheForm(f"{field} is no list of names")
    if not value and not empty:
        raise NotOfTheForm(f"{field} is empty")
    return tuple(value)


def _text(value: Mapping[str, Any], key: str) -> str | None:
    text = value.get(key)
    if text is not None and (not isinstance(text, str) or not text.strip()):
        raise NotOfTheForm(f"{key} is no text")
    return text


def _limit(value: object) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= LIMIT_MAX:
        raise NotOfTheForm("limit is not a whole number from 0")
    return value


def lancedb_query(source_query: str, columns: Sequence[str] = ()) -> str | None:
    """The SQL that LanceDB can read in `source_query`, SQL text or a LanceDB definition; else None.

    Names of the table and of the outputs are quoted, because LanceDB refuses some bare ones.
    `columns` are the view's, which take the place of `*`: to LanceDB that is every column of the
    source, those too that the view has not.
    """
    if len(source_query) > QUERY_CHARACTERS_MAX:
        return None
    text: Any = source_query
    if source_query.lstrip().startswith("{"):
        text = _query_of_definition(source_query)
    try:
        return _plain_select(text, columns) if isinstance(text, str) else None
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


def _plain_select(text: str, columns: Sequence[str]) -> str | None:
    tokens: list[Token] = SourceSql().tokenize(text)
    if tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    types = [token.token_type for token in tokens]
    if types.count(TokenType.FROM) != 1 or not all(_is_plain(token) for token in tokens):
        return None
    start = types.index(TokenType.FROM)
    if types[0] is not TokenType.SELECT or not _is_one_table(tokens[start + 1 :]):
        return None
    written = [_quoted_token(tokens[start + 1])]
    items = list(_items(tokens[1:start]))
    for item in items:
        if len(item) > 2 and _has_alias(item):
            written.append(_quoted_token(item[-1]))
        elif len(items) == 1 and _is_star(item) and columns:
            written.append((item[0], ", ".join(map(quoted, columns))))
        elif not _is_column(item) and not (len(items) == 1 and _is_star(item)):
            return None
    # The tokens are of the form; the parser says whether the expressions between them are any.
    tree = sqlglot.parse_one(text, dialect=SourceSql)
    stars = [star for star in tree.find_all(exp.Star) if not isinstance(star.parent, exp.Count)]
    if len(stars) > _is_star(items[0]):
        return None
    return _with(text, written)


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
        if limit_of(rest[-1].text) is None:
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


def _quoted_token(name: Token) -> tuple[Token, str]:
    return name, quoted(name.text)


def _with(text: str, written: Sequence[tuple[Token, str]]) -> str:
    """The text with other words in the place of some."""
    for token, instead in sorted(written, key=lambda item: item[0].start, reverse=True):
        text = text[: token.start] + instead + text[token.end + 1 :]
    return text.strip().rstrip(";").rstrip()
