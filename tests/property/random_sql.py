"""Predicates and assignments made from a seed, each with what it means in plain Python.

The meaning is written from the SQL standard: None is unknown, and only rows of which a predicate is
true are selected.
"""

import datetime
import decimal
import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa

from actors.model import Assignment
from tests.property.random_rows import WORDS, Row

Meaning = Callable[[Row], Any]


@dataclass(frozen=True)
class Sql:
    """An expression and its value for a row."""

    text: str
    of: Meaning


@dataclass(frozen=True)
class Change:
    """An assignment, and the value that it gives its target."""

    target: tuple[str, ...]
    value: Sql

    @property
    def assignment(self) -> Assignment:
        return Assignment(self.target, self.value.text)


def column(*path: str) -> Sql:
    """A column or a field inside one, in backticks."""

    def of(row: Row) -> Any:
        value: Any = row
        for name in path:
            value = None if value is None else value[name]
        return value

    return Sql(".".join(f"`{name}`" for name in path), of)


def literal(value: Any) -> Sql:
    """A constant."""
    if value is None:
        text = "NULL"
    elif isinstance(value, str):
        text = "'" + value.replace("'", "''") + "'"
    elif isinstance(value, datetime.datetime):
        text = f"timestamp '{value.isoformat(sep=' ')}'"
    elif isinstance(value, datetime.date):
        text = f"date '{value.isoformat()}'"
    else:
        text = str(value)
    return Sql(text, lambda _row: value)


def _price(value: float) -> Sql:
    price = decimal.Decimal(str(value)).quantize(decimal.Decimal("0.01"))
    return Sql(f"cast({value} AS decimal(10, 2))", lambda _row: price)


def call(template: str, function: Callable[..., Any], *parts: Sql) -> Sql:
    """An operator that is null when an operand is."""

    def of(row: Row) -> Any:
        values = [part.of(row) for part in parts]
        return None if None in values else function(*values)

    return Sql(template.format(*(part.text for part in parts)), of)


def remainder(value: int, divisor: int) -> int:
    """SQL's: the sign is that of the value."""
    return int(math.fmod(value, divisor))


def _not(part: Sql) -> Sql:
    return call("NOT ({})", lambda value: not value, part)


def _and(left: Sql, right: Sql) -> Sql:
    def of(row: Row) -> bool | None:
        values = (left.of(row), right.of(row))
        return False if False in values else None if None in values else True

    return Sql(f"({left.text}) AND ({right.text})", of)


def _or(left: Sql, right: Sql) -> Sql:
    def of(row: Row) -> bool | None:
        values = (left.of(row), right.of(row))
        return True if True in values else None if None in values else False

    return Sql(f"({left.text}) OR ({right.text})", of)


def _compare(random: Random, left: Sql, right: Sql) -> Sql:
    operators: list[tuple[str, Callable[[Any, Any], bool]]] = [
        ("=", lambda a, b: a == b),
        ("<>", lambda a, b: a != b),
        ("<", lambda a, b: a < b),
        (">=", lambda a, b: a >= b),
    ]
    sign, function = random.choice(operators)
    return call(f"{{}} {sign} {{}}", function, left, right)


def _is_null(part: Sql, *, negated: bool) -> Sql:
    text = f"{part.text} IS {'NOT ' if negated else ''}NULL"
    return Sql(text, lambda row: (part.of(row) is None) != negated)


def _in_list(random: Random, part: Sql) -> Sql:
    values = random.sample(range(-3, 7), 3)
    text = f"{part.text} IN ({', '.join(map(str, values))})"
    return Sql(text, call("{}", lambda value: value in values, part).of)


def _between(random: Random, part: Sql) -> Sql:
    low = random.randint(-3, 4)
    text = f"{part.text} BETWEEN {low} AND {low + 2}"
    return Sql(text, call("{}", lambda value: low <= value <= low + 2, part).of)


def _like(part: Sql) -> Sql:
    return call("{} LIKE 'b%'", lambda value: value.startswith("b"), part)


def _numbers(schema: pa.Schema) -> list[Sql]:
    paths = [("id",), ("n",), ("m",), ("a b",), ("s", "x"), ("deep", "inner", "z.w")]
    return [column(*path) for path in paths if path[0] in schema.names]


def _texts(schema: pa.Schema) -> list[Sql]:
    paths = [("must",), ("Name",), ("s", "label"), ("deep", "kept")]
    return [column(*path) for path in paths if path[0] in schema.names]


def _number_test(random: Random, schema: pa.Schema) -> Sql:
    number = random.choice(_numbers(schema))
    other = random.choice([literal(random.randint(-2, 5)), random.choice(_numbers(schema))])
    divided = call("{} % {}", remainder, number, literal(3))
    return random.choice(
        [
            _compare(random, number, other),
            _compare(random, call("({} + {})", lambda a, b: a + b, number, other), other),
            _compare(random, divided, literal(random.randint(-1, 2))),
            _in_list(random, number),
            _between(random, number),
        ]
    )


def _text_test(random: Random, schema: pa.Schema) -> Sql:
    text = random.choice(_texts(schema))
    return random.choice(
        [
            _compare(random, text, literal(random.choice(WORDS))),
            _compare(random, call("upper({})", str.upper, text), literal("BLUE")),
            _compare(random, call("length({})", len, text), literal(4)),
            _like(text),
        ]
    )


def _other_tests(random: Random, schema: pa.Schema) -> list[Sql]:
    quarter = random.randint(-6, 6) / 4
    day = datetime.date(2024, 2, 28)
    at = datetime.datetime(2024, 3, 1, 1, 30, 0, 1)
    tests = {
        "f": _compare(random, column("f"), literal(quarter)),
        "flag": column("flag"),
        "day": _compare(random, column("day"), literal(day)),
        "at": _compare(random, column("at"), literal(at)),
        "price": _compare(random, column("price"), _price(quarter)),
        "colour": call("{} = 'blue'", lambda value: value == "blue", column("colour")),
        "tags": call("array_length({}) > 1", lambda value: len(value) > 1, column("tags")),
        "deep": _compare(random, column("deep", "inner", "y"), literal(quarter)),
    }
    return [test for name, test in tests.items() if name in schema.names]


def random_predicate(random: Random, schema: pa.Schema, depth: int = 2) -> Sql:
    """A predicate on columns of the schema."""
    if depth and random.random() < 0.6:
        left = random_predicate(random, schema, depth - 1)
        right = random_predicate(random, schema, depth - 1)
        return random.choice([_and(left, right), _or(left, right), _not(left)])
    kinds = [
        _number_test(random, schema),
        _text_test(random, schema),
        _is_null(column(random.choice(schema.names)), negated=random.random() < 0.5),
        *_other_tests(random, schema),
    ]
    return random.choice(kinds)


def equals(name: str, value: Any) -> Sql:
    """A predicate that an index on the column answers."""
    if value is None:
        return _is_null(column(name), negated=False)
    if isinstance(value, bool):
        return column(name) if value else _not(column(name))
    return call("{} = {}", lambda a, b: a == b, column(name), literal(value))


def random_changes(random: Random, schema: pa.Schema) -> list[Change]:
    """Assignments to different columns; each of them reads the row as it was."""
    number = random.choice(_numbers(schema))
    text = random.choice(_texts(schema))
    plus_one = call("{} + 1", lambda value: value + 1, number)
    quarter = random.randint(-6, 6) / 4
    possible = [
        Change(("n",), random.choice([plus_one, call("-{}", lambda value: -value, number)])),
        Change(("m",), random.choice([literal(None), literal(7)])),
        Change(("f",), call("{} * 2.0", lambda value: value * 2.0, column("f"))),
        Change(("Name",), call("upper({})", str.upper, text)),
        Change(("must",), Sql(f"coalesce({text.text}, 'none')", _or_else(text, "none"))),
        Change(("flag",), call("NOT {}", lambda value: not value, column("flag"))),
        Change(("day",), literal(datetime.date(2023, 1, 31))),
        Change(("at",), literal(datetime.datetime(2023, 1, 31, 7, 0, 0))),
        Change(("price",), _price(quarter)),
        Change(("colour",), random.choice([literal("blue"), literal("violet")])),
        Change(("tags",), literal(None)),
        Change(("s", "x"), plus_one),
        Change(("s", "label"), text),
        Change(("s",), literal(None)),
        Change(("deep", "inner", "z.w"), number),
        Change(("deep", "inner", "y"), literal(quarter)),
        Change(("a b",), column("n")),
    ]
    chosen: list[Change] = []
    random.shuffle(possible)
    for change in possible[: random.randint(1, 5)]:
        taken = {other.target[0] for other in chosen}
        nested = len(change.target) > 1 and all(
            other.target != change.target and len(other.target) > 1
            for other in chosen
            if other.target[0] == change.target[0]
        )
        if change.target[0] in schema.names and (change.target[0] not in taken or nested):
            chosen.append(change)
    return chosen or [Change(("n",), plus_one)]


def swap(schema: pa.Schema) -> list[Change]:
    """Two columns that take each other's values."""
    del schema
    return [Change(("Name",), column("must")), Change(("must",), _coalesced("Name"))]


def _coalesced(name: str) -> Sql:
    return Sql(f"coalesce(`{name}`, 'none')", _or_else(column(name), "none"))


def _or_else(part: Sql, default: Any) -> Meaning:
    def of(row: Row) -> Any:
        value = part.of(row)
        return default if value is None else value

    return of


def changed(row: Row, changes: list[Change]) -> Row:
    """The row after the assignments."""
    new = dict(row)
    for change in changes:
        column_name = change.target[0]
        new[column_name] = _replaced(new[column_name], change.target[1:], change.value.of(row))
    return new


def _replaced(old: Any, path: tuple[str, ...], value: Any) -> Any:
    if not path:
        return value
    # A parent that is null stays null.
    return old if old is None else {**old, path[0]: _replaced(old[path[0]], path[1:], value)}
