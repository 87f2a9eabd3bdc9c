"""Whatever a client writes, Lance reads one expression, on exactly the columns that were meant."""

from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.field_paths import format_field_path, parse_field_path, resolve_field_path
from actors.sql import prepare_expression, prepare_predicate
from cluster.errors import DestrierError, InvalidInput
from cluster.settings import LimitSettings

LIMITS = LimitSettings()

# All that can be stored and sent: no control characters, no halves of surrogate pairs.
CHARACTERS = st.characters(exclude_categories=("Cs", "Cc"))
NAMES = st.text(CHARACTERS, min_size=1, max_size=8)
AWKWARD_NAMES = st.one_of(
    NAMES, st.text("aA.`'\"é $()", min_size=1, max_size=6), st.sampled_from(["select", "null", "9"])
)

SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("S", pa.struct([("x", pa.int8())]))]
)
# Every sign and word that means something, and things that almost do.
SIGNS_AND_WORDS = r"""
id name S.x `id` "id" 'a' 'it''s' 1 -1 .5 1e3 0x1 2. null true not and or is in like between case
when then else end cast as int ::int ( ) [ ] , . + - * / || = <> < >= << & ; ? $1 :a -- /* */ ' " `
abs( coalesce( trim( is_valid( select from limit order by date interval N'a' X'00' E'a' array { } @
# \ ~ !
"""
TOKENS = st.sampled_from(SIGNS_AND_WORDS.split())
OPERANDS = st.sampled_from(
    ["id", "name", "S.x", "-1", "'it''s'", "null", "(id)", "abs(id)", "trim(name)", "id::int", ".5"]
)
OPERATORS = st.sampled_from(["+", "=", "||", "and", "or", "<>", "is not null and", "like", "<<"])


@st.composite
def soups(draw: st.DrawFn) -> str:
    """Mostly operands and operators in turn, with tokens strewn in, with and without spaces."""
    tokens = [draw(OPERANDS)]
    for _ in range(draw(st.integers(0, 3))):
        tokens += [draw(OPERATORS), draw(OPERANDS)]
    for _ in range(draw(st.integers(0, 2))):
        tokens.insert(draw(st.integers(0, len(tokens))), draw(TOKENS))
    return "".join(token + draw(st.sampled_from([" ", ""])) for token in tokens)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A table of two rows."""
    rows = pa.Table.from_pylist(
        [{"id": 1, "name": "a", "S": {"x": 1}}, {"id": 2, "name": None, "S": None}], schema=SCHEMA
    )
    return lance.write_dataset(rows, str(tmp_path_factory.mktemp("soup") / "t.lance"))


@given(st.lists(AWKWARD_NAMES, min_size=1, max_size=4))
def test_path_is_read_back_as_it_was_written(parts: list[str]) -> None:
    assert parse_field_path(format_field_path(parts)) == tuple(parts)


@given(st.text(max_size=12))
def test_any_text_is_a_path_or_refused(text: str) -> None:
    try:
        parts = parse_field_path(text)
    except InvalidInput:
        return
    assert parts and all(parts)
    assert parse_field_path(format_field_path(parts)) == parts


@given(st.data(), st.lists(AWKWARD_NAMES, min_size=1, max_size=6, unique=True))
def test_quoted_name_means_the_column_of_that_name(data: st.DataObject, names: list[str]) -> None:
    schema = pa.schema([(name, pa.int64()) for name in names])
    name = data.draw(st.sampled_from(names))
    quote = data.draw(st.sampled_from('`"'))
    written = quote + name.replace(quote, quote + quote) + quote
    expression = prepare_expression(f"abs({written})+1", schema, LIMITS)
    assert expression.columns == {name}
    assert expression.sql == f"(abs({format_field_path([name])})+1)"
    assert resolve_field_path([name], schema) == (name,)


@given(st.data(), st.lists(st.text("abAB", min_size=1, max_size=3), min_size=1, unique=True))
def test_name_in_another_case_is_found_only_when_one_fits(
    data: st.DataObject, names: list[str]
) -> None:
    schema = pa.schema([(name, pa.int64()) for name in names])
    written = data.draw(st.text("abAB", min_size=1, max_size=3))
    fitting = [name for name in names if name.lower() == written.lower()]
    if written in names:
        fitting = [written]
    if len(fitting) == 1:
        assert prepare_expression(written, schema, LIMITS).columns == set(fitting)
    else:
        with pytest.raises(InvalidInput):
            prepare_expression(written, schema, LIMITS)


@settings(max_examples=400, deadline=None)
@given(text=soups())
def test_no_text_gets_out_of_its_parentheses(table: Any, text: str) -> None:
    try:
        prepared = prepare_predicate(text, SCHEMA, LIMITS).sql
    except DestrierError:
        return
    try:
        selected = table.count_rows(f"false and {prepared}")
    except (OSError, ValueError):
        # Not a panic, which is no Exception: Lance has refused it in order.
        return
    assert selected == 0


@given(text=soups())
def test_prepared_text_is_prepared_already(text: str) -> None:
    try:
        once = prepare_predicate(text, SCHEMA, LIMITS).sql
        twice = prepare_predicate(once, SCHEMA, LIMITS).sql
    except DestrierError:
        return
    assert twice == f"({once})"


@settings(max_examples=50, deadline=None)
@given(text=st.one_of(st.text(CHARACTERS, max_size=20), st.text("'\"`\\;-/*?$ %_", max_size=8)))
def test_text_in_single_quotes_reaches_lance_unchanged(table: Any, text: str) -> None:
    literal = "'" + text.replace("'", "''") + "'"
    sql = prepare_expression(f"coalesce(nullif({literal}, name), 'a')", SCHEMA, LIMITS).sql
    rows = table.scanner(columns={"x": sql}).to_table()
    assert rows["x"].to_pylist() == [text, text]


@settings(max_examples=25, deadline=None)
@given(
    names=st.lists(AWKWARD_NAMES, min_size=1, max_size=5, unique=True),
    column=st.text("aAé '\"$(", min_size=1, max_size=4),
)
def test_field_of_any_name_is_read_by_lance(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], column: str
) -> None:
    values = {name: number for number, name in enumerate(names, 1)}
    table = pa.table({column: [values]}, schema=_struct_schema(column, names))
    folder = tmp_path_factory.mktemp("names")
    dataset = lance.write_dataset(table, str(folder / "t.lance"))
    for name, number in values.items():
        path = format_field_path([column, name])
        assert (
            dataset.count_rows(prepare_predicate(f"{path} = {number}", table.schema, LIMITS).sql)
            == 1
        )
        in_call = prepare_predicate(f"abs(({path})) = {number}", table.schema, LIMITS).sql
        assert dataset.count_rows(in_call) == 1


def _struct_schema(column: str, names: list[str]) -> pa.Schema:
    return pa.schema([(column, pa.struct([(name, pa.int64()) for name in names]))])
