"""Makes a client's predicate or expression safe and unambiguous before Lance sees it.

The text is read token by token and rewritten in place: every column becomes its exact path in
backticks, the rest stays as it was, and the whole goes into parentheses, so that nothing after a
complete expression (which Lance would ignore) can be left over. Grammar is checked only as far as
needed to tell columns from words of SQL; Lance checks the rest.

What Lance 14.0.2 reads otherwise than a caller would, and what is done about it:

- text after a complete predicate is ignored: refused;
- "x" is a string outside calls and a name inside them: always a column;
- a name that differs from several columns in case takes the first: refused;
- CASE, intervals, floor, trim and others are known inside calls only: put into coalesce();
- a field of a list's element is known outside calls only: x[1].f becomes x[1]['f'];
- an empty list is known inside calls only: becomes make_array();
- `?`, `$1`, N'x', is_valid() panic: refused;
- calls that make values of any size end the process: sizes are bounded (sql_growth.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from typing import NoReturn

import pyarrow as pa
from sqlglot.tokens import Token, TokenType

from actors.field_paths import is_list
from actors.sql_growth import check_growth
from actors.sql_names import SqlNames, field_of_value
from actors.sql_size import REPEATED_BY_CASE, SqlSize
from actors.sql_syntax import (
    interval_length,
    take_rest_of_is,
    take_type_after_colons,
    take_type_of_cast,
    take_typed_literal,
)
from actors.sql_text import SqlText
from actors.sql_tokens import place
from actors.sql_words import (
    ARITHMETIC,
    BINARY,
    CASTS,
    FUNCTION_NAME,
    LITERALS,
    NOW,
    QUERY_WORDS,
    REPEATING_CALLS,
    SPECIAL_CALLS,
    SYSTEM_COLUMNS,
    TRANSPARENT_CALLS,
    TRIM_SIDES,
)
from cluster.errors import InvalidInput
from cluster.settings import LimitSettings

# What was made of short texts on narrow tables: some kB each, and 1 MB where a column is a struct
# of ten thousand fields.
_REMEMBERED_MAX = 128
_REMEMBERED_CHARACTERS_MAX = 1_000
_REMEMBERED_COLUMNS_MAX = 100


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression as Lance is to read it, and the top-level columns that it reads.

    `makes_values` says that it has calls, casts or ||: what it compares may be larger than what is
    in the columns.
    """

    sql: str
    columns: frozenset[str]
    makes_values: bool


def prepare_predicate(
    text: str,
    schema: pa.Schema,
    limits: LimitSettings,
    system_columns: frozenset[str] = SYSTEM_COLUMNS,
) -> Expression:
    """The predicate `text` on a table of this schema, as Lance is to read it.

    `system_columns` are the names that may be used besides the schema's.

    Raises:
        InvalidInput: says what to change.
    """
    return _prepare(text, schema, limits, system_columns, "predicate")


def prepare_expression(
    text: str,
    schema: pa.Schema,
    limits: LimitSettings,
    system_columns: frozenset[str] = frozenset(),
) -> Expression:
    """As prepare_predicate, for an expression of any type."""
    return _prepare(text, schema, limits, system_columns, "expression")


def _prepare(
    text: str,
    schema: pa.Schema,
    limits: LimitSettings,
    system_columns: frozenset[str],
    what: str,
) -> Expression:
    if len(text) > limits.sql_characters_max:
        raise InvalidInput(f"{what} is longer than {limits.sql_characters_max} characters")
    try:
        if len(text) <= _REMEMBERED_CHARACTERS_MAX and len(schema) <= _REMEMBERED_COLUMNS_MAX:
            return _remembered(_Asked.of(text, schema, limits, system_columns))
        return _Rewriter(text, schema, limits, system_columns).rewrite()
    except InvalidInput as error:
        raise InvalidInput(f"{what}: {error.message}") from error.__cause__


@dataclass(frozen=True, slots=True)
class _Asked:
    """What an expression is made of; schemas with extension types have no hash, their bytes do."""

    text: str
    schema_ipc: bytes
    limits: LimitSettings
    system_columns: frozenset[str]
    schema: pa.Schema = field(compare=False)

    @staticmethod
    def of(
        text: str, schema: pa.Schema, limits: LimitSettings, system_columns: frozenset[str]
    ) -> "_Asked":
        plain = schema.remove_metadata()
        return _Asked(text, plain.serialize().to_pybytes(), limits, system_columns, plain)


@lru_cache(_REMEMBERED_MAX)
def _remembered(asked: _Asked) -> Expression:
    """As rewritten before: programs ask with the same text again and again."""
    return _Rewriter(asked.text, asked.schema, asked.limits, asked.system_columns).rewrite()


class _Kind(Enum):
    GROUP = auto()
    IN_LIST = auto()
    CALL = auto()
    LIST = auto()
    SUBSCRIPT = auto()
    CASE = auto()


_HOLDS_COMMAS = (_Kind.IN_LIST, _Kind.CALL, _Kind.LIST)


@dataclass(slots=True)
class _Open:
    """A bracket, call or CASE that has not ended yet."""

    kind: _Kind
    token: Token
    # Number of tokens read when it began: as long as it is that, nothing is inside.
    begun: int
    # Lower-case name of a call.
    name: str = ""
    # Whether DataFusion's planner, not Lance's, reads what is inside.
    in_call: bool = False
    # Whether it was put into coalesce().
    wrapped: bool = False
    # Of a subscript: the type of what it picks from, if known.
    picks_from: pa.DataType | None = None


class _Rewriter:
    """Reads one text once, from left to right."""

    def __init__(
        self, text: str, schema: pa.Schema, limits: LimitSettings, system_columns: frozenset[str]
    ) -> None:
        self._source = SqlText(text)
        self._names = SqlNames(schema, system_columns)
        self._size = SqlSize(limits)
        self._open: list[_Open] = []
        # Whether a value is expected, rather than an operator or an end.
        self._wants_value = True
        # Type of the value that was read last, if it is known.
        self._type: pa.DataType | None = None
        self._makes_values = False

    def rewrite(self) -> Expression:
        """The text rewritten; errors as in prepare_predicate."""
        if self._source.at_end:
            raise InvalidInput("it is empty")
        check_growth(self._source.tokens)
        while not self._source.at_end:
            token = self._source.take()
            if self._wants_value:
                self._read_value(token)
            else:
                self._read_after_value(token)
        if self._open:
            opened = self._open[-1].token
            raise InvalidInput(f"{opened.text!r} {place(opened)} is never closed")
        if self._wants_value:
            raise InvalidInput("it ends where a value is expected")
        self._size.finish()
        columns = frozenset(self._names.columns)
        return Expression(f"({self._source.rewritten()})", columns, self._makes_values)

    # --- where a value is expected ----------------------------------------------------------------

    def _read_value(self, token: Token) -> None:
        kind = token.token_type
        if kind in (TokenType.NUMBER, TokenType.STRING):
            self._value_was_read()
        elif kind == TokenType.IDENTIFIER:
            self._read_column(token)
        elif kind == TokenType.VAR:
            self._read_word(token, token.text.upper())
        elif token.text == "(":
            after_in = self._source.word(-2) == "IN"
            self._begin(_Kind.IN_LIST if after_in else _Kind.GROUP, token)
        elif token.text == "[":
            self._begin(_Kind.LIST, token)
        elif token.text in ("-", "+"):
            self._source.keep_apart()
            # The sign of a number costs nothing, and an IN list may hold thousands.
            if self._source.kind() != TokenType.NUMBER:
                self._size.unary(arithmetic=True)
        elif (
            token.text == "."
            and self._source.kind() == TokenType.NUMBER
            and self._source.token(0).start == token.end + 1
        ):
            self._source.take()
            self._value_was_read()
        elif token.text in (")", "]"):
            self._end_empty(token)
        else:
            self._refuse(token)

    def _read_word(self, token: Token, word: str) -> None:
        source = self._source
        if word == "NOT":
            self._size.unary()
        elif word == "CASE":
            self._begin(_Kind.CASE, token, wrap=not self._in_call)
            if source.word() == "WHEN":
                source.take()
        elif word in LITERALS and source.sign() != "(":
            self._value_was_read()
        elif word == "INTERVAL" and (length := interval_length(source)):
            self._read_interval(token, length)
        elif take_typed_literal(source, token):
            self._value_was_read()
        elif self._is_word_of_call(word):
            # Only FROM after it makes it stand for a value.
            self._wants_value = source.word() != "FROM"
        elif source.sign() == "(":
            self._begin_call(token)
        elif self._names.is_column(token.text) or source.sign() == ".":
            self._read_column(token)
        elif word in NOW:
            self._value_was_read()
        elif word == "ARRAY" and source.sign() == "[":
            source.take()
            self._begin(_Kind.LIST, token)
        elif word in QUERY_WORDS:
            raise InvalidInput(f"{token.text} {place(token)}: sub-queries are not supported")
        else:
            self._read_column(token)

    def _read_interval(self, token: Token, length: int) -> None:
        last = self._source.take(length)
        if not self._in_call:
            self._source.insert(token.start, "coalesce(")
            self._source.insert(last.end + 1, ")")
        self._value_was_read()

    def _is_word_of_call(self, word: str) -> bool:
        """Whether `word`, just read, is the first in extract(year from x) or trim(both from x)."""
        source = self._source
        if not self._open or self._open[-1].begun != source.read - 1:
            return False
        name = self._open[-1].name
        if name == "extract":
            return source.word() == "FROM"
        values = (TokenType.STRING, TokenType.VAR, TokenType.IDENTIFIER)
        return name == "trim" and word in TRIM_SIDES and source.kind() in values

    def _begin_call(self, token: Token) -> None:
        if not FUNCTION_NAME.fullmatch(token.text):
            raise InvalidInput(f"{token.text!r} {place(token)} is not a function's name")
        name = token.text.lower()
        self._source.take()
        wrap = name in SPECIAL_CALLS and not self._in_call
        repeated = REPEATING_CALLS.get(name, 1)
        self._begin(_Kind.CALL, token, name=name, wrap=wrap, repeated=repeated)

    def _read_column(self, token: Token) -> None:
        """Read a path of names and replace it by the column's exact path."""
        source = self._source
        parts = [token.text]
        last = token
        while source.sign() == ".":
            if source.kind(1) not in (TokenType.VAR, TokenType.IDENTIFIER):
                raise InvalidInput(
                    f"after the dot {place(source.token(0))} a field's name is missing; a name"
                    " that begins with a digit stands in backticks"
                )
            last = source.take(2)
            parts.append(last.text)
        if source.sign() == "(":
            written = source.text[token.start : last.end + 1]
            raise InvalidInput(
                f"{written!r} {place(token)} is not a function's name; write it without quotes"
                " and dots"
            )
        double_quoted = source.text[token.start] == '"'
        path, found = self._names.column(token, parts, double_quoted=double_quoted)
        source.replace(token.start, last.end + 1, path)
        self._value_was_read(found)

    # --- after a value ----------------------------------------------------------------------------

    def _read_after_value(self, token: Token) -> None:
        kind = token.token_type
        if kind == TokenType.VAR:
            self._read_word_after_value(token, token.text.upper())
        elif kind in (TokenType.STRING, TokenType.NUMBER, TokenType.IDENTIFIER):
            raise InvalidInput(f"an operator is missing {place(token)}, before {token.text!r}")
        elif token.text in BINARY:
            self._source.keep_apart()
            self._size.operator(arithmetic=token.text in ARITHMETIC)
            self._makes_values |= token.text == "||"
            self._wants_value = True
        elif token.text == ",":
            if not self._open or self._open[-1].kind not in _HOLDS_COMMAS:
                self._refuse(token)
            self._expect_value(self._size.separate)
        elif token.text in (")", "]"):
            self._end(token)
        elif token.text == "[":
            self._size.suffix()
            self._begin(_Kind.SUBSCRIPT, token, picks_from=self._type)
        elif token.text == "::":
            self._size.cast()
            self._makes_values = True
            take_type_after_colons(self._source)
            self._type = None
        elif token.text == "." and self._source.sign(-2) in (")", "]"):
            self._read_field(token)
        elif token.text == ";":
            raise InvalidInput(f"';' {place(token)}: leave it and what follows out")
        else:
            self._refuse(token)

    def _read_word_after_value(self, token: Token, word: str) -> None:
        source = self._source
        opened = self._open[-1] if self._open else None
        in_case = opened is not None and opened.kind == _Kind.CASE
        words_of_call = SPECIAL_CALLS.get(opened.name, ()) if opened is not None else ()
        if word in ("AND", "OR"):
            self._size.operator()
            self._expect_value(self._size.separate)
        elif word == "IS":
            if take_rest_of_is(source):
                self._expect_value(self._size.operator)
            else:
                self._size.suffix()
                self._type = None
        elif word == "NOT" and source.word() in ("IN", "LIKE", "ILIKE", "BETWEEN"):
            self._read_word_after_value(source.take(), source.word(-1))
        elif word in words_of_call:
            self._expect_value(self._size.separate)
        elif word == "IN":
            if source.sign() != "(":
                raise InvalidInput(f"IN {place(token)}: a list in parentheses has to follow")
            self._expect_value(self._size.operator)
        elif word == "BETWEEN":
            self._expect_value(self._size.between)
        elif word in ("LIKE", "ILIKE", "ESCAPE"):
            self._expect_value(self._size.operator)
        elif word in ("WHEN", "ELSE") and in_case:
            self._expect_value(self._size.separate)
        elif word == "THEN" and in_case:
            self._size.separate(repeated=REPEATED_BY_CASE)
            self._expect_value(self._size.operator)
        elif word == "END" and in_case:
            self._close()
        elif word == "AS" and opened is not None and opened.name in CASTS:
            take_type_of_cast(source)
            self._close()
        elif word == "AT" and source.word() == "TIME" and source.word(1) == "ZONE":
            source.take(2)
            self._expect_value(self._size.operator)
        else:
            raise InvalidInput(
                f"{token.text!r} {place(token)} is not expected after a complete value; leave it"
                " out, or put an operator before it"
            )

    def _read_field(self, token: Token) -> None:
        """Replace .name after a bracket by ['name'], which Lance takes inside calls too."""
        if self._source.kind() not in (TokenType.VAR, TokenType.IDENTIFIER):
            self._refuse(token)
        field = self._source.take()
        name, self._type = field_of_value(field, self._type)
        quoted = name.replace("'", "''")
        self._source.replace(token.start, field.end + 1, f"['{quoted}']")
        self._size.suffix()

    # --- brackets ---------------------------------------------------------------------------------

    def _begin(
        self,
        kind: _Kind,
        token: Token,
        *,
        name: str = "",
        wrap: bool = False,
        repeated: int = 1,
        picks_from: pa.DataType | None = None,
    ) -> None:
        is_call = kind in (_Kind.CALL, _Kind.CASE)
        self._makes_values |= is_call
        in_call = self._in_call or (is_call and name not in TRANSPARENT_CALLS)
        if wrap:
            self._source.insert(token.start, "coalesce(")
        self._size.open(is_call=is_call, repeated=repeated)
        begun = self._source.read
        self._open.append(_Open(kind, token, begun, name, in_call, wrap, picks_from))
        self._wants_value = True

    def _end(self, token: Token) -> None:
        """Close what `token`, a bracket after a value, closes."""
        wanted = {_Kind.LIST, _Kind.SUBSCRIPT}
        if token.text == ")":
            wanted = {_Kind.GROUP, _Kind.IN_LIST, _Kind.CALL}
        if not self._open:
            raise InvalidInput(f"{token.text!r} {place(token)} closes nothing")
        opened = self._open[-1]
        if opened.kind not in wanted:
            raise InvalidInput(
                f"{token.text!r} {place(token)} does not close {opened.token.text!r}"
                f" {place(opened.token)}"
            )
        if opened.name in CASTS:
            raise InvalidInput(f"{opened.token.text} {place(opened.token)} lacks AS and a type")
        self._close()

    def _end_empty(self, token: Token) -> None:
        """Close f() or []; refuse any other bracket where a value is missing."""
        opened = self._open[-1] if self._open else None
        if opened is not None and opened.begun == self._source.read - 1:
            if (
                token.text == ")"
                and opened.kind == _Kind.CALL
                and opened.name not in TRANSPARENT_CALLS
            ):
                self._close()
                return
            if token.text == "]" and opened.kind == _Kind.LIST:
                self._source.replace(opened.token.start, token.end + 1, "make_array()")
                self._close()
                return
        raise InvalidInput(f"a value is missing {place(token)}, before {token.text!r}")

    def _close(self) -> None:
        self._size.close()
        opened = self._open.pop()
        if opened.wrapped:
            self._source.insert(self._source.token(-1).end + 1, ")")
        self._wants_value = False
        source = opened.picks_from
        self._type = source.value_type if source is not None and is_list(source) else None

    @property
    def _in_call(self) -> bool:
        return bool(self._open) and self._open[-1].in_call

    # --- what is expected next --------------------------------------------------------------------

    def _value_was_read(self, data_type: pa.DataType | None = None) -> None:
        self._size.operand()
        self._wants_value = False
        self._type = data_type

    def _expect_value(self, measure: Callable[[], None]) -> None:
        measure()
        self._wants_value = True

    def _refuse(self, token: Token) -> NoReturn:
        expected = "a value" if self._wants_value else "an operator or the end"
        raise InvalidInput(
            f"unexpected {token.text!r} {place(token)}, where {expected} is expected"
        )
