"""Field paths as clients write them, and the fields that they mean."""

import pyarrow as pa
import pytest

from actors.field_paths import (
    format_field_path,
    parse_field_path,
    resolve_field_path,
    resolve_typed_field_path,
)
from cluster.errors import InvalidInput, TableColumnNotFound

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("Name", pa.string()),
        ("name", pa.string()),
        ("Total", pa.int64()),
        (
            "s",
            pa.struct(
                [("x", pa.int64()), ("y.z", pa.string()), ("Deep", pa.struct([("A", pa.int8())]))]
            ),
        ),
        ("items", pa.list_(pa.struct([("k", pa.int64())]))),
    ]
)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a", ("a",)),
        ("a.b.c", ("a", "b", "c")),
        ("a.`b.c`", ("a", "b.c")),
        ("`a`.`b`", ("a", "b")),
        ("a.`q``r`", ("a", "q`r")),
        ("with space.é", ("with space", "é")),
    ],
)
def test_path_is_split_at_dots_outside_backticks(text: str, parts: tuple[str, ...]) -> None:
    assert parse_field_path(text) == parts


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        ".a",
        "a.",
        "a..b",
        "``",
        "a.``",
        "`a",
        "a`",
        "a`b",
        "`a`b",
        "`a`.",
        "a.`b``",
        "`a``",
    ],
)
def test_path_is_refused_when_a_name_is_missing_or_a_backtick_is_stray(text: str) -> None:
    with pytest.raises(InvalidInput, match="field path"):
        parse_field_path(text)


def test_error_names_the_place_of_the_stray_backtick() -> None:
    with pytest.raises(InvalidInput, match="at character 4"):
        parse_field_path("`a`b")


def test_formatted_path_has_every_name_in_backticks() -> None:
    assert format_field_path(("a", "b.c", "q`r")) == "`a`.`b.c`.`q``r`"


def test_name_in_exactly_its_case_wins_when_others_differ_in_case() -> None:
    assert resolve_field_path(("Name",), SCHEMA) == ("Name",)
    assert resolve_field_path(("name",), SCHEMA) == ("name",)


def test_only_name_that_differs_in_case_is_found() -> None:
    assert resolve_field_path(("TOTAL",), SCHEMA) == ("Total",)
    assert resolve_field_path(("S", "DEEP", "a"), SCHEMA) == ("s", "Deep", "A")


def test_name_is_refused_when_several_differ_in_case() -> None:
    with pytest.raises(InvalidInput, match=r"'NAME' is ambiguous.*Name, name"):
        resolve_field_path(("NAME",), SCHEMA)


def test_type_of_a_nested_field_is_known() -> None:
    assert resolve_typed_field_path(("s", "deep", "a"), SCHEMA) == (("s", "Deep", "A"), pa.int8())


def test_unknown_column_error_lists_the_columns() -> None:
    with pytest.raises(
        TableColumnNotFound, match="unknown column 'zz'; the table has: id, Name, name, Total, s"
    ):
        resolve_field_path(("zz",), SCHEMA)


def test_unknown_field_error_lists_the_fields() -> None:
    with pytest.raises(TableColumnNotFound, match=r"s has no field 'q'; it has: x, `y.z`, Deep"):
        resolve_field_path(("s", "q"), SCHEMA)


def test_twenty_columns_are_listed_when_there_are_more() -> None:
    schema = pa.schema([(f"c{number}", pa.int64()) for number in range(25)])
    with pytest.raises(TableColumnNotFound, match=r"c19 and 5 more$"):
        resolve_field_path(("zz",), schema)


def test_field_of_a_list_is_refused_with_advice() -> None:
    with pytest.raises(TableColumnNotFound, match=r"items is a list.*items\[1\]\.k"):
        resolve_field_path(("items", "k"), SCHEMA)


def test_field_of_a_plain_value_is_refused() -> None:
    with pytest.raises(TableColumnNotFound, match="id is int64 and has no fields"):
        resolve_field_path(("id", "x"), SCHEMA)


def test_empty_path_is_refused() -> None:
    with pytest.raises(InvalidInput, match="empty"):
        resolve_field_path((), SCHEMA)
