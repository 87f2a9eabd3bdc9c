"""Predicates and expressions as Lance gets them: what they answer, and what is refused."""

import datetime
import threading
import time
from collections.abc import Callable
from typing import Any

import lance
import pyarrow as pa
import pytest

from actors.sql import prepare_expression, prepare_predicate
from cluster.errors import InvalidInput
from cluster.settings import LimitSettings

LIMITS = LimitSettings()

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("Name", pa.string()),
        ("name", pa.string()),
        ("CamelCase", pa.int64()),
        ("with space", pa.int64()),
        ("select", pa.int64()),
        ("order", pa.int64()),
        ("end", pa.int64()),
        ("value", pa.int64()),
        ("timestamp", pa.int64()),
        ("year", pa.int64()),
        ("date", pa.date32()),
        ("ts", pa.timestamp("us")),
        ("flag", pa.bool_()),
        ("v", pa.float64()),
        ("b", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("items", pa.list_(pa.struct([("K", pa.int64())]))),
        (
            "s",
            pa.struct(
                [
                    ("x", pa.int64()),
                    ("y.z", pa.string()),
                    ("q`r", pa.int64()),
                    ("Deep", pa.struct([("A", pa.int64())])),
                ]
            ),
        ),
    ]
)

ROWS = 10


def _row(number: int) -> dict[str, Any]:
    same = ["id", "CamelCase", "with space", "select", "order", "end", "value", "timestamp", "year"]
    return dict.fromkeys(same, number) | {
        "Name": f"N{number}",
        "name": f"n{number}",
        "date": datetime.date(2020, 1, 1 + number),
        "ts": datetime.datetime(2020, 1, 1 + number),
        "flag": number % 2 == 0,
        "v": number / 2,
        "b": bytes([number]),
        "tags": ["x", "y"] if number % 2 else [],
        "items": [{"K": number}],
        "s": {"x": number, "y.z": f"z{number}", "q`r": number * 2, "Deep": {"A": number}},
    }


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A table of ten rows numbered from 0."""
    rows = pa.Table.from_pylist([_row(number) for number in range(ROWS)], schema=SCHEMA)
    return lance.write_dataset(rows, str(tmp_path_factory.mktemp("sql") / "t.lance"))


def _predicate(text: str) -> str:
    return prepare_predicate(text, SCHEMA, LIMITS).sql


def _expression(text: str) -> str:
    return prepare_expression(text, SCHEMA, LIMITS).sql


@pytest.mark.parametrize(
    ("text", "count"),
    [
        # Names in any case and any quotes.
        ("id = 1", 1),
        ("ID = 1", 1),
        ("`ID` = 1", 1),
        ('"id" = 1', 1),
        ("camelcase = 2", 1),
        ("name = 'n1'", 1),
        ("Name = 'N1'", 1),
        ("\"name\" = 'n1'", 1),
        ('`with space` = 1 AND "with space" = 1', 1),
        ("abs(ID) = 1", 1),
        ('abs("CAMELCASE") = 1', 1),
        # Fields.
        ("s.x = 3", 1),
        ("S.X = 3", 1),
        ("`s`.`x` = 3", 1),
        ('s."x" = 3', 1),
        ("s.`y.z` = 'z3'", 1),
        ("s.`q``r` = 4", 1),
        ("s.deep.a = 3", 1),
        ("abs(s.DEEP.A) = 3", 1),
        ("s['x'] = 3", 1),
        ("(s).x = 3", 1),
        ("abs((s).x) = 3", 1),
        ("items[1].k = 3", 1),
        ("abs(items[1].K) = 3", 1),
        ("tags[1] = 'x'", 5),
        ("named_struct('a', id).a = 1", 1),
        # Columns named like words of SQL.
        ("select = 1", 1),
        ("order = 1 and end = 1", 1),
        ("value = 1", 1),
        ("timestamp = 1", 1),
        ("year + 1 = 2", 1),
        ("date = date '2020-01-02'", 1),
        ("case when end = 1 then true else false end", 1),
        # Literals.
        ("name = 'it''s'", 0),
        ("name = 'a\\'", 0),
        ("name = 'a\\' or name = 'n1'", 1),
        ("name <> 'b''); drop'", 10),
        ("name <> '\"id\" /* -- ;'", 10),
        ("ts = timestamp '2020-01-02 00:00:00'", 1),
        ("ts = timestamp(3) '2020-01-02'", 1),
        ("ts - interval '1 day' = timestamp '2020-01-01'", 1),
        ("ts - interval 1 day = timestamp '2020-01-01'", 1),
        ("v = .5", 1),
        ("v = 1.", 1),
        ("v = 1e0", 1),
        ("id=-1", 0),
        ("id = -1 or id=+1", None),
        ("b = X'01'", 1),
        ("null", None),
        ("true", 10),
        ("id in (-1,1,2)", 2),
        # Operators.
        ("not id = 1", 9),
        ("NOT NOT id = 1", 1),
        ("id == 1 or id != 1", 10),
        ("id between 1 and 3 and flag", 1),
        ("id not between 1 and 3", 7),
        ("id NOT IN (1, 2)", 8),
        ("name like 'n%' and name not like 'x%'", 10),
        ("name ILIKE 'N1'", 1),
        ("flag is true", 5),
        ("flag is not false", 5),
        ("id is not null", 10),
        ("id is not distinct from 1", 1),
        ("id is distinct from 1", 9),
        ("id << 1 = 2", 1),
        ("id%2=1", 5),
        ("- - id = 1", 1),
        ("id*-1=-1", 1),
        ("name || 'x' = 'n1x'", 1),
        ("coalesce(id & 1) = 1", 5),
        # Casts.
        ("cast(id as string) = '1'", 1),
        ("CAST(id AS decimal(10, 2)) = 1", 1),
        ("cast(id as int unsigned) = 1", 1),
        ("id::string = '1'", 1),
        ("id::decimal(10,2) = 1", 1),
        ("id::int unsigned = 1", 1),
        ("try_cast(name as int) is null", 10),
        ("cast(floor(v) as int) = 1", 2),
        # Calls, among them those that Lance itself knows inside other calls only.
        ("ABS(id) = 1", 1),
        ("floor(v) = 1", 2),
        ("ceil(v) in (1, 2)", 4),
        ("trim(name) = 'n1'", 1),
        ("trim(both 'n' from name) = '1'", 1),
        ("substr(name, 2, 1) = '1'", 1),
        ("substring(name from 2 for 1) = '1'", 1),
        ("position('1' in name) = 2", 1),
        ("overlay(name placing 'x' from 1) = 'x1'", 1),
        ("extract(year from ts) = 2020", 10),
        ("extract(day from ts) = year + 1", 10),
        ("abs(extract(year from ts)) = 2020", 10),
        ("date_part('year', ts) = 2020", 10),
        ("CASE WHEN id = 1 THEN true ELSE false END", 1),
        ("case id when 1 then true when 2 then true else false end", 2),
        ("coalesce(case when id = 1 then true end, false)", 1),
        ("array_has(tags, 'x')", 5),
        ("array_has(['n1', 'n2'], name)", 2),
        ("array_length(tags) = 2", 5),
        ("tags = []", 5),
        ("regexp_match(name, 'n[12]')", 2),
        ("is_valid(id)", 10),
        ("starts_with(name, 'n')", 10),
        ("now() > ts and current_timestamp > ts and current_date > date", 10),
        # System columns.
        ("_rowoffset = 1", 1),
        ("_rowid is not null and _rowaddr >= 0", 10),
        ("_row_created_at_version = 1 and _row_last_updated_at_version = 1", 10),
        # Space.
        ("\t id\r\n=\n1 ", 1),
    ],
)
def test_predicate_selects_the_rows_it_says(table: Any, text: str, count: int | None) -> None:
    prepared = _predicate(text)
    if count is None:
        # Lance itself refuses these; they only have to arrive intact.
        with pytest.raises(OSError, match=r"Unary operator|does not return a boolean"):
            table.count_rows(prepared)
    else:
        assert table.count_rows(prepared) == count


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("id + 1", [1, 2]),
        ("SELECT * 2", [0, 2]),
        ("case when id = 1 then 'one' else name end", ["n0", "one"]),
        (
            "case when id = 1 then named_struct('x', 5) else named_struct('x', id) end",
            [{"x": 0}, {"x": 5}],
        ),
        ("items[1].k", [0, 1]),
        ("s.deep", [{"A": 0}, {"A": 1}]),
        ("make_array(id, 7)", [[0, 7], [1, 7]]),
        ("coalesce([id, 7])", [[0, 7], [1, 7]]),
    ],
)
def test_expression_gives_the_values_it_says(table: Any, text: str, first: list[Any]) -> None:
    rows = table.scanner(columns={"x": _expression(text)}, limit=2).to_table()
    assert rows["x"].to_pylist() == first


@pytest.mark.parametrize(("text", "value"), [("[1, 2]", [1.0, 2.0]), ("[]", [])])
def test_list_can_be_assigned(tmp_path: Any, text: str, value: list[float]) -> None:
    schema = pa.schema([("l", pa.list_(pa.float32()))])
    rows = pa.table({"l": [[0.0]]}, schema=schema)
    table = lance.write_dataset(rows, str(tmp_path / "t.lance"))
    table.update({"l": prepare_expression(text, schema, LIMITS).sql})
    assert table.to_table()["l"].to_pylist() == [value]


def test_text_between_names_stays_as_it_was() -> None:
    assert _predicate("ID  =1 and\tname= 'it''s'") == "(`id`  =1 and\t`name`= 'it''s')"


def test_columns_read_are_known_by_their_top_level_names() -> None:
    expression = prepare_expression("ID + s.deep.a + abs(items[V::int].k) - 1", SCHEMA, LIMITS)
    assert expression.columns == {"id", "s", "items", "v"}


def test_words_inside_literals_are_no_columns() -> None:
    assert prepare_expression("date '2020-01-01' || 'id'", SCHEMA, LIMITS).columns == frozenset()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty"),
        (" \n", "it is empty"),
        # What Lance would ignore after a complete predicate.
        ("id = 1; drop table t", "';' at character 7"),
        ("id = 1;", "';' at character 7"),
        ("id = 1 order by id", "'order' at character 8"),
        ("id = 1 limit 1", "'limit' at character 8"),
        ("id = 1 garbage", "'garbage' at character 8"),
        ("id isnull", "'isnull' at character 4"),
        ("id, name", "unexpected ',' at character 3"),
        ("id as x", "'as' at character 4"),
        ("id = 1)", "'\\)' at character 7 closes nothing"),
        ("name = 'a' 'b'", "an operator is missing at character 12"),
        ("id 1", "an operator is missing at character 4"),
        ("id = 1 -- c", "comment at character 8"),
        ("id = 1 /* c */", "comment at character 8"),
        ("id = --1", "comment at character 6"),
        ("{# c #} id = 1", "unexpected character '{' at character 1"),
        # What is not closed.
        ("name = 'a", "the quote ' at character 8 is not closed"),
        ("`name = 1", "the quote ` at character 1 is not closed"),
        ('"name = 1', 'the quote " at character 1 is not closed'),
        ("/* c", "comment at character 1"),
        ("(id = 1", "'\\(' at character 1 is never closed"),
        ("abs(id = 1", "'abs' at character 1 is never closed"),
        ("tags[1 = 1", "'\\[' at character 5 is never closed"),
        ("tags[1) = 1", "'\\)' at character 7 does not close '\\[' at character 5"),
        ("case when flag then true", "'case' at character 1 is never closed"),
        ("cast(id) = 1", "cast at character 1 lacks AS and a type"),
        # Characters.
        ("name = '\x00'", "control character U\\+0000 at character 9"),
        ("id\x0b= 1", "control character U\\+000B at character 3"),
        ("name = '\ud800'", "surrogate pair at character 9"),
        ("id\u00a0= 1", "unexpected character '\\\\xa0' at character 3"),
        # What makes Lance panic.
        ("id = ?", "unexpected '\\?' at character 6"),
        ("id = $1", "unknown column '\\$1'"),
        ("id = :a", "unexpected ':' at character 6"),
        ("name = N'a'", "N'...' at character 8"),
        ("name = N'('", "N'...' at character 8"),
        ("name = R'a'", "unknown column 'R'"),
        ("b = B'1'", "an operator is missing at character 6"),
        ("name = $$a$$", "unknown column '\\$\\$a\\$\\$'"),
        ("is_valid()", "a value is missing at character 10"),
        # Values that are missing.
        ("id =", "it ends where a value is expected"),
        ("id = 1 and", "it ends where a value is expected"),
        ("()", "a value is missing at character 2"),
        ("id in ()", "a value is missing at character 8"),
        ("id in (1,)", "a value is missing at character 10"),
        ("abs(id,)", "a value is missing at character 8"),
        ("count(*) = 1", "unexpected '\\*' at character 7"),
        ("id in 1", "IN at character 4: a list in parentheses"),
        ("id is 1", "IS at character 4"),
        ("id::", "a type's name has to follow"),
        ("id::int(a)", "numbers of a type have to follow"),
        ("cast(id as 'int')", "a type and '\\)' have to follow"),
        ("b = X'123'", "pairs of hexadecimal digits"),
        # Numbers and names that begin like one.
        ("id = 0x1", "'0x1' at character 6 is not a number"),
        ("id = 1L", "'1L' at character 6"),
        ("id = 1_0", "'1_0' at character 6"),
        ("id = 1e", "'1e' at character 6 is not a number"),
        ("s.1 = 1", "after the dot at character 2"),
        ("s.* = 1", "after the dot at character 2"),
        # Queries.
        ("id in (with t as (values (1)) table t)", "sub-queries are not supported"),
        ("exists(select 1)", "character 15"),
        # Names.
        ("zz = 1", "unknown column 'zz'; the table has: id, Name, name, CamelCase, `with space`"),
        ('name = "n1"', "unknown column 'n1'.*single quotes"),
        ("NAME = 'n1'", "'NAME' is ambiguous: write one of Name, name"),
        ("s.zz = 1", "s has no field 'zz'; it has: x, `y.z`, `q``r`, Deep"),
        ("items.k = 1", "items is a list"),
        ("items[1].zz = 1", "the value before the dot has no field 'zz'; it has: K"),
        ("id.x = 1", "id is int64 and has no fields"),
        ("t.id = 1", "unknown column 't'"),
        ("`abs`(id) = 1", "is not a function's name"),
        ("s.abs(id) = 1", "'s.abs' at character 1 is not a function's name"),
        ("é(id) = 1", "is not a function's name"),
        ("_distance < 1", "unknown column '_distance'"),
        # Operators that Lance reads otherwise or not at all.
        ("name ~ 'n'", "unexpected '~' at character 6"),
        ("name -> 'a' = 1", "unexpected '>' at character 7"),
        ("id <=> 1", "unexpected '>' at character 6"),
        ("tags[1:2] = tags", "unexpected ':' at character 7"),
        ("(id, 1) = (1, 1)", "unexpected ',' at character 4"),
        ("{fn abs(id)} = 1", "unexpected '{' at character 1"),
    ],
)
def test_predicate_is_refused_with_the_place_of_the_mistake(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"^predicate: .*{message}"):
        _predicate(text)


def test_words_of_queries_are_refused_unless_they_are_columns() -> None:
    schema = pa.schema([("id", pa.int64())])
    with pytest.raises(InvalidInput, match="sub-queries are not supported"):
        prepare_predicate("id in (select 1)", schema, LIMITS)
    with pytest.raises(InvalidInput, match="an operator is missing"):
        _predicate("id in (select 1)")


def test_system_columns_are_refused_in_expressions_unless_allowed() -> None:
    with pytest.raises(InvalidInput, match="unknown column '_rowid'"):
        prepare_expression("_rowid", SCHEMA, LIMITS)
    allowed = frozenset({"_distance"})
    expression = prepare_expression("_distance + id", SCHEMA, LIMITS, allowed)
    assert expression.sql == "(`_distance` + `id`)"
    assert expression.columns == {"id"}


def _nested(before: str, depth: int, inner: str, after: str) -> str:
    return before * depth + inner + after * depth


# Of each shape the largest text that the limits let through; one more is refused.
LARGEST: dict[str, tuple[Callable[[int], str], int, str]] = {
    "or": (lambda n: " or ".join(f"name like 'a{i}%'" for i in range(n)), 500, "operators"),
    "and": (lambda n: " and ".join(f"id <> {i}" for i in range(n)), 500, "operators"),
    "calls": (lambda n: f"array_has([{','.join(['abs(1)'] * n)}], id)", 999, "operators"),
    "comparisons": (lambda n: "flag" + " = flag" * n, 256, "one another's results"),
    "is not null": (lambda n: "flag" + " is not null" * n, 256, "one another's results"),
    "additions": (lambda n: "v" + " + v" * n + " > 1", 200, "arithmetic"),
    "concatenations": (lambda n: "name" + " || name" * n + " = 'a'", 200, "arithmetic"),
    "parentheses": (lambda n: _nested("(", n, "flag", ")"), 32, "nest more than 32"),
    "not": (lambda n: "not " * n + "flag", 32, "nest more than 32"),
    "minus": (lambda n: "- " * n + "id = 1", 32, "nest more than 32"),
    "casts": (lambda n: _nested("cast(", n, "id", " as double)") + " = 1", 10, "calls, casts"),
    "colons": (lambda n: _nested("(", n, "id", "::double)") + " = 1", 10, "calls, casts"),
    "abs": (lambda n: _nested("abs(", n, "id", ")") + " = 1", 10, "calls, casts"),
    "coalesce": (lambda n: _nested("coalesce(", n, "flag", ", true)"), 6, "too large to plan"),
    "between": (lambda n: _nested("(", n, "flag", " between flag and true)"), 6, "too large"),
    "case": (
        lambda n: _nested("case when ", n, "flag", " then flag else flag end"),
        9,
        "too large to plan",
    ),
    "or in coalesce": (
        lambda n: _nested("coalesce(", 4, " or ".join(["name like 'a%'"] * n), ", true)"),
        11,
        "too large to plan",
    ),
    "case when": (
        lambda n: "case " + "".join(f"when id = {i} then flag " for i in range(n)) + "end",
        499,
        "operators",
    ),
}


@pytest.mark.parametrize("shape", LARGEST)
def test_largest_text_of_a_shape_runs_in_a_thread_within_seconds(table: Any, shape: str) -> None:
    make, largest, _ = LARGEST[shape]
    prepared = _predicate(make(largest))
    seconds: list[float] = []

    def run() -> None:
        started = time.perf_counter()
        table.count_rows(prepared)
        table.scanner(columns={"x": prepared, "id": "id"}).to_table()
        seconds.append(time.perf_counter() - started)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    # 0.1 s on an idle machine at the most; an explosion takes minutes, and overflow kills the run.
    assert seconds and seconds[0] < 5


@pytest.mark.parametrize("shape", LARGEST)
def test_text_of_a_shape_is_refused_when_it_is_one_larger(shape: str) -> None:
    make, largest, message = LARGEST[shape]
    with pytest.raises(InvalidInput, match=message):
        _predicate(make(largest + 1))


def test_long_list_of_values_is_let_through(table: Any) -> None:
    numbers = ", ".join(str(number - 10_000) for number in range(20_000))
    assert table.count_rows(_predicate(f"id in ({numbers})")) == ROWS


def test_text_is_refused_when_it_is_too_long() -> None:
    limits = LimitSettings(sql_characters_max=8)
    assert prepare_predicate("id = 123", SCHEMA, limits).sql == "(`id` = 123)"
    with pytest.raises(InvalidInput, match="longer than 8 characters"):
        prepare_predicate("id = 1234", SCHEMA, limits)


@pytest.mark.parametrize(
    ("text", "makes_values"),
    [
        ("id = 1 and not (id + 2 * id > 3) or id in (1, 2)", False),
        ("id between 1 and 2 or id is null", False),
        ("length(repeat(name, 2)) > 3", True),
        ("case when id = 1 then true else false end", True),
        ("'a' || 'b' = 'ab'", True),
        ("cast(id as varchar) = '1'", True),
        ("id::varchar = '1'", True),
    ],
)
def test_expressions_say_whether_they_make_values(text: str, makes_values: bool) -> None:
    assert prepare_predicate(text, SCHEMA, LIMITS).makes_values is makes_values


def test_the_same_text_means_something_else_on_another_table() -> None:
    other = pa.schema([("ID", pa.int64())])
    for _ in range(2):
        assert prepare_predicate("id = 1", SCHEMA, LIMITS).sql == "(`id` = 1)"
        assert prepare_predicate("id = 1", other, LIMITS).sql == "(`ID` = 1)"


def test_columns_of_types_that_cannot_be_hashed_are_read() -> None:
    schema = pa.schema([pa.field("id", pa.int64()), lance.blob_field("blob")])
    with pytest.raises(TypeError, match="unhashable"):
        hash(schema)
    for _ in range(2):
        prepared = prepare_predicate("ID = 1 and blob is not null", schema, LIMITS)
        assert prepared.columns == {"id", "blob"}


def test_a_text_that_was_read_before_is_still_refused_where_less_is_allowed() -> None:
    text = "id = 1 or id = 2 or id = 3"
    prepare_predicate(text, SCHEMA, LIMITS)
    with pytest.raises(InvalidInput, match="operators"):
        prepare_predicate(text, SCHEMA, LIMITS.model_copy(update={"sql_operators_max": 2}))
