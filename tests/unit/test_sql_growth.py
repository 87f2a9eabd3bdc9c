"""Calls that make values of any size: which are let through, and which never reach Lance."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from actors.sql import prepare_expression, prepare_predicate
from cluster.errors import InvalidInput
from cluster.settings import LimitSettings

LIMITS = LimitSettings()
ROWS = pa.table({"x": [1, 2], "s": ["a<", "b"], "tags": [["a", "b"], ["a"]]})


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("length(repeat(s, 2500))", [5000, 2500]),
        ("repeat(s, 2)", ["a<a<", "bb"]),
        ("repeat(s, 00002)", ["a<a<", "bb"]),
        ("lpad(s, 3, '0')", ["0a<", "00b"]),
        ("rpad(lpad(s, 2, '.'), 2400)", [f"{'a<':<2400}", f"{'.b':<2400}"]),
        ("array_length(make_array(x, array_length(range(-3, 2))))", [2, 2]),
        ("array_length(generate_series(1, 9, 2)) + x", [6, 7]),
        ("replace(replace(s, '&', '&amp;'), '<', '&lt;')", ["a&lt;", "b"]),
        ("replace(s, 'a" + "x" * 3_000 + "', s)", ["a<", "b"]),
        (
            "replace(replace(replace(replace(replace(s, '&', '&amp;'), '<', '&lt;'), '>', '&gt;'),"
            """ '"', '&quot;'), '''', '&#39;')""",
            ["a&lt;", "b"],
        ),
        ("regexp_replace(s, 'a', s)", ["a<<", "b"]),
        ("array_to_string(tags, ', ')", ["a, b", "a"]),
        ("arrow_cast(x, 'Int8')", [1, 2]),
        ("s || ' repeat(s, 9999)'", ["a< repeat(s, 9999)", "b repeat(s, 9999)"]),
    ],
)
def test_values_of_bounded_size_are_made(tmp_path: Path, text: str, values: list[object]) -> None:
    dataset = lance.write_dataset(ROWS, tmp_path / "t.lance")
    sql = prepare_expression(text, ROWS.schema, LIMITS).sql
    assert dataset.scanner(columns={"value": sql}).to_table()["value"].to_pylist() == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("array_repeat(x, 4000000000000000)", "array_repeat at character .* not supported"),
        ("list_repeat(x, 2)", "list_repeat .* write the list out"),
        ("array_resize([x], 2)", "not supported"),
        ("LIST_RESIZE([x], 2)", "not supported"),
        ("coalesce(1, array_length(Array_Repeat (x, 2)))", "not supported"),
        ("length(repeat(s, 2501))", "may make 2501 .* the most is 2500"),
        ("repeat(s, 99999999999999999999999)", "the most is 2500"),
        ("repeat(s, " + "9" * 5_000 + ")", "the most is 2500"),
        ("repeat(s, x)", "argument 2 of repeat .* whole number"),
        ("repeat(s, 10 * 10)", "argument 2 of repeat"),
        ("repeat(s, 1e3)", "argument 2 of repeat"),
        ("repeat(s, cast('9' as int))", "argument 2 of repeat"),
        ("repeat(repeat(s, 51), 50)", "the most is 2500"),
        ("repeat(concat(lpad(s, 51), 'x'), 50)", "the most is 2500"),
        ("repeat(concat(s, '" + "x" * 1_000 + "'), 2000)", "100000 of the texts"),
        ("length(repeat(concat(" + "s, " * 1_000 + "s), 2000))", "100000 of the texts"),
        ("lpad(s, 600000000)", "the most is 2500"),
        ("rpad(s, x, 'y')", "argument 2 of rpad"),
        ("range(0, x)", "argument 2 of range"),
        ("range(4000000000)", "the most is 2500"),
        ("generate_series(-4000000000, 0)", "the most is 2500"),
        (
            "range(date '2020-01-01', date '2021-01-01', interval '1' day)",
            "argument 1 of range",
        ),
        ("replace(replace(s, 'a', '" + "a" * 51 + "'), 'a', '" + "a" * 50 + "')", "the most"),
        ("replace(replace(s, '', s), '', s)", "the most is 2500"),
        ("regexp_replace(repeat(s, 1000), '.', 'abc')", "the most is 2500"),
        ("array_to_string(range(0, 1000), ' - ')", "the most is 2500"),
        ("arrow_cast(NULL, 'FixedSizeList(500000000, Int64)')", "8192 items at most"),
        ("arrow_try_cast([x], 'FixedSizeList(99 x FixedSizeList(99 x Int8))')", "8192 items"),
        ("arrow_cast(x, s)", "a type's name in single quotes"),
    ],
    ids=lambda text: text[:40],
)
def test_values_of_any_size_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"^expression: .*{message}"):
        prepare_expression(text, ROWS.schema, LIMITS)
    with pytest.raises(InvalidInput, match=f"^predicate: .*{message}"):
        prepare_predicate(f"x > 0 and {text} is not null", ROWS.schema, LIMITS)
