"""Source queries bound to a source: types, inputs, and what is refused."""

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from actors.sql import prepare_expression
from cluster.errors import (
    InvalidInput,
    TableBranchNotFound,
    TableColumnNotFound,
    TableTagNotFound,
    TableVersionNotFound,
)
from cluster.settings import LimitSettings
from tests.unit.view_requests import check, encoded, spec
from udtf.refresh_model import SourceLocation
from udtf.source_query import recognise
from udtf.source_rows import SourceReader
from udtf.sources import (
    BoundSource,
    SqlChecker,
    bind,
    definition_sha,
    open_source,
    output_schema_of,
    plain_sql,
    version_timestamp,
)
from udtf.spec import ViewDefinition

LIMITS = LimitSettings()
I64, TEXT = pa.int64(), pa.string()
META = pa.struct([("lang", TEXT), ("n", I64)])
ROWS = [
    {"id": 1, "v": 1.5, "text": "a", "meta": {"lang": "en", "n": 1}, "a b": 7},
    {"id": 2, "v": 2.5, "text": "b", "meta": None, "a b": None},
]
SCHEMA = pa.schema(
    [
        pa.field("id", I64, nullable=False),
        pa.field("v", pa.float64()),
        pa.field("text", TEXT),
        pa.field("meta", META),
        pa.field("a b", I64),
    ]
)
CHECKERS = pytest.mark.parametrize("checker", [prepare_expression, plain_sql])


@pytest.fixture
def source(tmp_path: Path) -> Any:
    rows = pa.Table.from_pylist(ROWS, schema=SCHEMA)
    return lance.write_dataset(rows, str(tmp_path / "s.lance"), enable_stable_row_ids=True)


def bound(
    source: Any,
    text: str,
    definition: ViewDefinition | None = None,
    checker: SqlChecker = prepare_expression,
) -> BoundSource:
    query = recognise(text)
    assert query is not None
    return bind(query, source, definition, LIMITS, checker)


def query_view(text: str, *fields: tuple[str, pa.DataType]) -> ViewDefinition:
    return check("query", text, encoded(pa.schema(list(fields))))


@CHECKERS
def test_query_is_typed_without_a_definition(source: Any, checker: SqlChecker) -> None:
    text = (
        'SELECT id, meta.lang, v * 2 AS d, upper(text) AS t, `a b` AS "c d" FROM s'
        " WHERE v > 0 AND text IS NOT NULL LIMIT 3"
    )
    found = bound(source, text, None, checker)
    assert output_schema_of(found) == pa.schema(
        [("id", I64), ("lang", TEXT), ("d", pa.float64()), ("t", TEXT), ("c d", I64)]
    )
    assert not found.input_schema.field("id").nullable
    assert (found.limit, found.stable_row_ids) == (3, True)
    assert found.inputs == {"id", "meta", "v", "text", "a b"}
    reader = SourceReader(source, dict(found.columns), found.filter, None, 10)
    rows = [row for batch in reader.read(_all(), list(reader.columns)) for row in batch.to_pylist()]
    assert [(row["id"], row["lang"], row["d"], row["t"], row["c d"]) for row in rows] == [
        (1, "en", 3.0, "A", 7),
        (2, None, 5.0, "B", None),
    ]


def _all() -> Any:
    from udtf.items import AllRows

    return AllRows()


def test_star_is_every_column_but_those_of_lineage(source: Any) -> None:
    source.add_columns({"__source_row_id": "id"})
    found = bound(lance.dataset(source.uri), "SELECT * FROM s")
    assert found.input_schema.names == SCHEMA.names
    assert found.inputs == set(SCHEMA.names)


def test_star_of_a_query_view_is_what_it_was_at_creation(source: Any) -> None:
    definition = query_view("SELECT * FROM s WHERE v > 1", ("id", I64), ("text", TEXT))
    found = bound(source, definition.source_query, definition)
    assert [name for name, _ in found.columns] == ["id", "text"]
    assert found.inputs == {"id", "text", "v"}
    source.drop_columns(["text"])
    with pytest.raises(TableColumnNotFound, match="no column 'text', which output_schema has"):
        bound(lance.dataset(source.uri), definition.source_query, definition)


@CHECKERS
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT nope FROM s", "column 'nope' of the source query: .*nope"),
        ("SELECT id, nope + 1 AS x FROM s", "column 'x' of the source query: .*nope"),
        ("SELECT id, sum(id) AS x FROM s", "column 'x' of the source query: "),
        ("SELECT nofun(id) AS x FROM s", "column 'x' of the source query: .*nofun"),
        (
            "SELECT random() AS x FROM s",
            r"column 'x' of the source query: random\(\) gives another",
        ),
        ("SELECT id FROM s WHERE v > random()", r"filter of the source query: random\(\) gives"),
        ("SELECT id FROM s WHERE d < current_date", "current_date"),
        ("SELECT id FROM s WHERE v + 1", "filter of the source query is double, not boolean"),
        ("SELECT id FROM s WHERE NULL", "filter of the source query is null, not boolean"),
        ("SELECT id FROM s WHERE 1 = 1", "filter of the source query reads no column"),
        ("SELECT 1 AS one FROM s", "the source query reads no column"),
        ("SELECT id FROM s WHERE nope > 1", "filter of the source query: .*nope"),
        ("SELECT id, v AS id FROM s", "two columns 'id'"),
        ("SELECT id AS __source_row_id FROM s", "a name that views need"),
        ('SELECT id AS "a.b" FROM s', "holds a dot"),
    ],
)
def test_what_cannot_be_computed_is_refused(
    source: Any, checker: SqlChecker, text: str, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        bound(source, text, None, checker)


def test_text_after_an_expression_is_refused_by_the_plain_checker() -> None:
    for text in ("v) > 1 OR (v", "v > 1; v", "v > 1 -- v", "'"):
        with pytest.raises(InvalidInput):
            plain_sql(text, SCHEMA, LIMITS)
    with pytest.raises(InvalidInput, match="longer than"):
        plain_sql("v" * 100, SCHEMA, LimitSettings(sql_characters_max=99))


def test_query_view_gives_exactly_the_output_schema(source: Any) -> None:
    text = "SELECT id, v FROM s"
    missing = query_view(text, ("id", I64), ("v", pa.float64()), ("x", I64))
    with pytest.raises(InvalidInput, match="column 'x' that the source query does not give"):
        bound(source, text, missing)
    with pytest.raises(InvalidInput, match="gives a column 'v' that output_schema has not"):
        bound(source, text, query_view(text, ("id", I64)))


def test_types_that_cannot_be_converted_are_named(source: Any) -> None:
    text = "SELECT id, meta FROM s"
    assert bound(source, text, query_view(text, ("id", pa.int32()), ("meta", META)))
    with pytest.raises(
        InvalidInput, match=r"column 'meta' is int64 in output_schema, but struct<.*> in the source"
    ):
        bound(source, text, query_view(text, ("id", I64), ("meta", I64)))


def test_code_depends_on_what_it_is_given_and_its_chunks_inherit(source: Any) -> None:
    text = "SELECT id, text, v * 2 AS d, meta.lang FROM s WHERE `a b` > 0"
    output = encoded(pa.schema([("id", I64), ("word", TEXT)]))
    chunker = check("chunker", text, output, spec("chunker", input_columns=["text"]))
    assert bound(source, text, chunker).inputs == {"id", "text", "a b"}
    everything = check("chunker", text, output, spec("chunker"))
    assert bound(source, text, everything).inputs == {"id", "text", "v", "meta", "a b"}
    udtf = check("udtf", text, output, spec("udtf", input_columns=["text"], partition_by="lang"))
    assert bound(source, text, udtf).inputs == {"text", "meta", "a b"}


def test_code_can_have_only_what_the_query_gives(source: Any) -> None:
    text = "SELECT id FROM s"
    definition = check("chunker", text, udtf_spec=spec("chunker", input_columns=["v"]))
    with pytest.raises(InvalidInput, match="names the column 'v', which the source query does not"):
        bound(source, text, definition)
    wrong = encoded(pa.schema([("id", pa.list_(I64))]))
    with pytest.raises(InvalidInput, match=r"column 'id' is list<.*> in output_schema, but int64"):
        bound(source, text, check("chunker", text, wrong, spec("chunker")))


def test_message_names_some_of_many_columns(source: Any) -> None:
    columns = ", ".join(f"id AS c{number}" for number in range(40))
    with pytest.raises(InvalidInput, match=r"it gives 'c0', .*, 'c31' and 8 more$"):
        bound(source, f"SELECT {columns} FROM s", query_view("SELECT id FROM s", ("id", I64)))


# Definitions and pins


def test_definition_sha_is_of_what_rows_depend_on() -> None:
    base = definition_sha(check("chunker", udtf_spec=spec("chunker")))
    same = spec("chunker", num_cpus=2.0, memory=1 << 30)
    assert definition_sha(check("chunker", udtf_spec=same, auto_refresh=True)) == base
    only_id = encoded(pa.schema([("id", I64)]))
    others = [
        check("udtf", udtf_spec=spec("udtf")),
        check("chunker", "SELECT id FROM docs", udtf_spec=spec("chunker")),
        check("chunker", udtf_spec=spec("chunker", input_columns=["id"])),
        check("chunker", udtf_spec=spec("chunker", udtf_version="2")),
        check("udtf", udtf_spec=spec("udtf", error_handling={"default": "skip"})),
        check("chunker", output_schema=only_id, udtf_spec=spec("chunker")),
    ]
    found = {definition_sha(definition) for definition in others}
    assert len(found) == len(others)
    assert base not in found


def test_source_is_opened_at_what_is_pinned(source: Any) -> None:
    source.delete("id = 1")
    branch = source.create_branch("b")
    branch.delete("true")
    source.tags.create("t", 1)

    def rows(**pins: Any) -> tuple[int, int]:
        opened = open_source(SourceLocation(("s",), source.uri, **pins), None)
        return opened.count_rows(), int(opened.version)

    assert rows() == (1, 2)
    assert rows(version=1) == (2, 1)
    assert rows(tag="t") == (2, 1)
    assert rows(branch="b") == (0, 3)
    assert rows(branch="b", version=2) == (1, 2)


def test_pins_that_are_not_there_are_named(source: Any) -> None:
    def opened(**pins: Any) -> Any:
        return open_source(SourceLocation(("s",), source.uri, **pins), None)

    with pytest.raises(TableVersionNotFound, match="no version 7; its latest is 1"):
        opened(version=7)
    with pytest.raises(TableBranchNotFound, match="no branch 'b'"):
        opened(branch="b")
    with pytest.raises(TableTagNotFound, match="no tag 't'"):
        opened(tag="t")


def test_timestamp_is_of_the_version_and_exact(source: Any) -> None:
    source.delete("id = 1")
    versions = [SourceLocation((), source.uri, version=number) for number in (1, 2)]
    stamps = [version_timestamp(open_source(version, None)) for version in versions]
    assert stamps == [item["timestamp"] for item in source._ds.versions()]
    assert stamps[0] < stamps[1]
