"""A view as it is stored: the round trip, and what LanceDB makes of it."""

import base64
import json
from pathlib import Path
from typing import Any

import lance
import lancedb
import pyarrow as pa
import pytest

from cluster.errors import InvalidTableState
from tests.unit.view_requests import SCHEMA, check, encoded, envelope, spec
from udtf.source_query import lancedb_query
from udtf.spec import ViewDefinition
from udtf.view_record import (
    RESERVED_METADATA_PREFIXES,
    is_view,
    read_view,
    view_metadata,
    view_schema,
)

# Each as LanceDB gets it, which is quoted; None is kept from LanceDB.
QUERIES = {
    "SELECT * FROM docs": "SELECT * FROM `docs`",
    "select id from docs;": "select id from `docs`",
    'SELECT "id", meta.lang FROM "Docs"': 'SELECT "id", meta.lang FROM `Docs`',
    "SELECT id FROM order": "SELECT id FROM `order`",
    "SELECT id AS `a b`, v*2 AS Twice FROM docs\nWHERE v > 0 AND s LIKE 'it''s%' LIMIT 10": (
        "SELECT id AS `a b`, v*2 AS `Twice` FROM `docs`\nWHERE v > 0 AND s LIKE 'it''s%' LIMIT 10"
    ),
    "SELECT CASE WHEN v > 0 THEN upper(s) ELSE NULL END AS c FROM docs": (
        "SELECT CASE WHEN v > 0 THEN upper(s) ELSE NULL END AS `c` FROM `docs`"
    ),
    "SELECT CAST(v AS BIGINT) AS group FROM docs WHERE id IN (1, 2) OR NOT f": (
        "SELECT CAST(v AS BIGINT) AS `group` FROM `docs` WHERE id IN (1, 2) OR NOT f"
    ),
    '{"format":1,"kind":"query","query":"SELECT id FROM docs"}': "SELECT id FROM `docs`",
    '{"format":4,"kind":"query","query":"SELECT id FROM docs"}': None,
    '{"format":"lance-mv-query","version":1}': None,
    '{"format":1,"kind":"query","query":7}': None,
    "{": None,
    "q": None,
    "": None,
    "SELECT": None,
    "SELECT id": None,
    "SELECT id FROM": None,
    "SELECT v * 2 FROM docs": None,
    "SELECT v * 2 twice FROM docs": None,
    "SELECT v * AS twice FROM docs": None,
    "SELECT id, * FROM docs": None,
    "SELECT id, FROM docs": None,
    "SELECT DISTINCT id FROM docs": None,
    "SELECT id FROM docs d": None,
    "SELECT id FROM ns.docs": None,
    "SELECT id FROM 'docs'": None,
    "SELECT id FROM a, b": None,
    "SELECT id FROM a JOIN b ON a.x = b.x": None,
    "SELECT id FROM (SELECT id FROM docs)": None,
    "SELECT id FROM docs WHERE id IN (SELECT id FROM b)": None,
    "SELECT id FROM docs WHERE": None,
    "SELECT id FROM docs GROUP BY id": None,
    "SELECT id FROM docs ORDER BY id": None,
    "SELECT id FROM docs LIMIT 10 OFFSET 1": None,
    "SELECT id FROM docs LIMIT 1e2": None,
    "SELECT id FROM docs LIMIT 9223372036854775808": None,
    "SELECT id FROM docs; DROP TABLE docs": None,
    "SELECT id FROM docs -- all": None,
    "SELECT id FROM docs WHERE a DIV b": None,
    "SELECT count(*) AS n, f() AS g FROM docs WHERE v IS NOT NULL": (
        "SELECT count(*) AS `n`, f() AS `g` FROM `docs` WHERE v IS NOT NULL"
    ),
    # What sqlglot parses and LanceDB does not.
    "SELECT AS b AS a FROM docs": None,
    "SELECT * AS a FROM docs": None,
    "SELECT * FROM docs WHERE *": None,
    "SELECT id FROM docs WHERE a, b": None,
    "SELECT id FROM docs WHERE a,": None,
    "SELECT id FROM docs WHERE a IN b": None,
    "SELECT id FROM docs WHERE a IS b": None,
    "SELECT id FROM docs WHERE a IS NOT b": None,
    "SELECT id FROM docs WHERE v .5": None,
    "SELECT id FROM docs WHERE ()": None,
    "SELECT id, end AS a FROM docs": None,
    "SELECT $1 FROM docs": None,
    "SELECT id FROM docs LIMIT \uff13": None,
    "FROM docs SELECT id": None,
    "WITH a AS (SELECT 1) SELECT id FROM a": None,
    "SELECT " + "(" * 5_000 + "v" + ")" * 5_000 + " AS x FROM docs": None,
    "SELECT id FROM docs WHERE " + " OR ".join(["v = 1"] * 5_000): None,
}

UDTF = spec(
    "udtf",
    input_columns=["id"],
    partition_by="label",
    num_cpus=0.5,
    num_gpus=1,
    memory=1 << 30,
    error_handling={"default": "skip"},
    manifest='{"pip":[]}',
)
BATCHED = spec(
    "chunker", envelope("chunker", abi={"name": "arrow-batch-chunker", "version": 1}), batch=True
)
DEFINITIONS = {
    "sql": check(auto_refresh=True),
    "opaque": check(source_query="é not SQL"),
    "udtf": check("udtf", udtf_spec=UDTF),
    "indexed": check("udtf", udtf_spec=spec("udtf", partition_by_indexed_column="v")),
    "chunker": check("chunker", udtf_spec=spec("chunker")),
    "batched": check("chunker", udtf_spec=BATCHED),
}


def write(folder: Path, name: str, definition: ViewDefinition) -> dict[str, str]:
    """Create the view's table; returns the metadata that storage gives back."""
    schema = view_schema(definition).with_metadata(view_metadata(definition, f"life-of-{name}"))
    path = str(folder / f"{name}.lance")
    table = lance.write_dataset(schema.empty_table(), path, enable_stable_row_ids=True)
    return {key.decode(): value.decode() for key, value in table.schema.metadata.items()}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_definition_comes_back_from_storage(tmp_path: Path, name: str) -> None:
    metadata = write(tmp_path, name, DEFINITIONS[name])
    assert read_view(metadata) == DEFINITIONS[name]
    assert is_view(metadata)
    assert metadata["mv.incarnation"] == f"life-of-{name}"


def test_stored_udtf_spec_is_a_request_again() -> None:
    definition = DEFINITIONS["udtf"]
    stored = json.loads(view_metadata(definition, "1")["destrier.view.udtf_spec"])
    assert check("udtf", udtf_spec=stored) == definition
    assert stored["udtf"] == base64.b64encode(envelope("udtf")).decode()


def test_every_stored_key_is_reserved() -> None:
    for definition in DEFINITIONS.values():
        for key in view_metadata(definition, "1"):
            assert key.startswith(RESERVED_METADATA_PREFIXES), key


def test_tables_and_views_of_lancedb_have_no_definition_here() -> None:
    assert (is_view({}), read_view({})) == (False, None)
    assert (is_view({"owner": "me"}), read_view({"owner": "me"})) == (False, None)
    theirs = {"mv.definition": '{"format":1,"kind":"query","query":"SELECT id FROM docs"}'}
    assert (is_view(theirs), read_view(theirs)) == (True, None)


@pytest.mark.parametrize(
    "change",
    [
        {"destrier.view.kind": "table"},
        {"destrier.view.output_schema": "!"},
        {"destrier.view.udtf_spec": "{"},
        {"destrier.view.udtf_spec": "[]"},
        {"destrier.view.udtf_spec": "{}"},
    ],
)
def test_damaged_record_is_an_invalid_state(change: dict[str, str]) -> None:
    with pytest.raises(InvalidTableState, match="record in the schema metadata is damaged"):
        read_view(view_metadata(DEFINITIONS["udtf"], "1") | change)


def test_record_with_other_code_than_its_digest_is_an_invalid_state() -> None:
    metadata = view_metadata(DEFINITIONS["udtf"], "1")
    record = json.loads(metadata["destrier.view.udtf_spec"])
    record["udtf"] = base64.b64encode(b"other code").decode()
    with pytest.raises(InvalidTableState, match="udtf_sha does not match"):
        read_view(metadata | {"destrier.view.udtf_spec": json.dumps(record)})


# The schema of the view's table


def test_query_view_has_nullable_columns_and_the_source_row() -> None:
    assert view_schema(DEFINITIONS["sql"]) == pa.schema(
        [
            pa.field("id", pa.int64(), nullable=True),
            pa.field("label", pa.string()),
            pa.field("__source_row_id", pa.uint64(), nullable=False),
        ]
    )


def test_udtf_view_has_exactly_the_output_schema() -> None:
    assert view_schema(DEFINITIONS["udtf"]) == SCHEMA


def test_chunker_view_has_the_source_row_and_the_position_of_the_chunk() -> None:
    assert view_schema(DEFINITIONS["chunker"]) == pa.schema(
        [
            *SCHEMA,
            pa.field("__source_row_id", pa.uint64(), nullable=False),
            pa.field("__chunk_index", pa.int32(), nullable=False),
        ]
    )


def test_creators_schema_metadata_cannot_pretend_to_be_a_record() -> None:
    metadata = {"owner": "me", "mv.definition": "{}", "destrier.view.kind": "udtf"}
    definition = check(output_schema=encoded(SCHEMA.with_metadata(metadata)))
    assert view_schema(definition).metadata == {b"owner": b"me"}


# What LanceDB sees


@pytest.mark.parametrize("source_query", QUERIES)
def test_plain_selects_are_offered_to_lancedb(source_query: str) -> None:
    assert lancedb_query(source_query) == QUERIES[source_query]


def test_every_column_of_a_view_is_named_to_lancedb() -> None:
    """To LanceDB a star is every column of the source, those too that the view has not."""
    names = ["id", "a `b`"]
    query = "SELECT * FROM docs WHERE v * 2 > 1"
    assert lancedb_query(query, names) == "SELECT `id`, `a ``b``` FROM `docs` WHERE v * 2 > 1"
    assert lancedb_query("SELECT id FROM docs", names) == "SELECT id FROM `docs`"


def test_overlong_query_is_not_looked_at() -> None:
    assert lancedb_query("SELECT id FROM docs WHERE v = '" + "x" * 20_000 + "'") is None


def test_definition_is_written_as_lancedb_writes_it() -> None:
    definition = view_metadata(DEFINITIONS["sql"], "1")["mv.definition"]
    assert definition == ('{"format":1,"kind":"query","query":"SELECT id, label FROM `docs`"}')
    for name in ("opaque", "udtf", "chunker"):
        assert "mv.definition" not in view_metadata(DEFINITIONS[name], "1")


def test_sql_of_a_udtf_view_is_not_offered_to_lancedb() -> None:
    definition = check("udtf", source_query="SELECT id FROM docs", udtf_spec=spec("udtf"))
    assert "mv.definition" not in view_metadata(definition, "1")


def test_lancedb_lists_and_reads_query_views_and_ignores_the_others(tmp_path: Path) -> None:
    """One definition that LanceDB cannot read breaks its listing of the whole folder."""
    for number, source_query in enumerate(QUERIES):
        write(tmp_path, f"q{number}", check(source_query=source_query or "-"))
    for name, definition in DEFINITIONS.items():
        write(tmp_path, name, definition)
    database = lancedb.connect(tmp_path)
    readable = [f"q{number}" for number, query in enumerate(QUERIES.values()) if query]
    assert sorted(database.list_materialized_views()) == sorted([*readable, "sql"])
    view = database.open_materialized_view("sql")
    assert view.definition.query == "SELECT id, label FROM docs"


def test_lancedb_refreshes_a_view_written_here(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"id": 1, "label": "a"}, {"id": 2, "label": None}]
    lance.write_dataset(
        pa.Table.from_pylist(rows), str(tmp_path / "docs.lance"), enable_stable_row_ids=True
    )
    write(tmp_path, "view", DEFINITIONS["sql"])
    view = lancedb.connect(tmp_path).open_materialized_view("view")
    assert view.refresh().rows_written == 2
    assert view.table.to_arrow().drop_columns(["__source_row_id"]).to_pylist() == rows
