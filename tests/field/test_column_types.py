"""Types of columns that other systems lose, refuse or panic on."""

import datetime
import decimal
import json
from collections import Counter
from typing import Any

import lance
import pyarrow as pa
import pytest

from tests.clients.plain_http import Database, refusal, right, stream
from tests.clients.running_server import direct_only

pytestmark = [
    pytest.mark.cluster,
    direct_only,
]

D = decimal.Decimal
WIDE = 60
PAIR = pa.struct([("a", pa.struct([("b", pa.int8())]))])
VALUES = {
    "map": pa.array([[("a", 1), ("b", None)], [], None], pa.map_(pa.string(), pa.int64())),
    "list": pa.array([[1, None], [], None], pa.list_(pa.int32())),
    "large_list": pa.array([["a"], [None], None], pa.large_list(pa.string())),
    "vector": pa.array([[1.5, 2], None, [3, 4]], pa.list_(pa.float32(), 2)),
    "struct": pa.array([{"a": {"b": 1}}, {"a": None}, None], PAIR),
    "structs": pa.array([[{"a": {"b": 2}}, None], [], None], pa.list_(PAIR)),
    "decimal128": pa.array([D("1.25"), D("-0.01"), None], pa.decimal128(38, 2)),
    "decimal256": pa.array([D(10**WIDE), D(-1), None], pa.decimal256(76, 0)),
    "duration": pa.array([1, -1, None], pa.duration("ms")),
    "timestamp": pa.array([0, 10**15, None], pa.timestamp("us", "Europe/Paris")),
    "date32": pa.array([datetime.date(2013, 1, 1), None, None], pa.date32()),
    "date64": pa.array([86_400_000, None, 0], pa.date64()),
    "time64": pa.array([1, None, 2], pa.time64("ns")),
    "binary": pa.array([b"\0\xff", b"", None], pa.binary()),
    "fixed_binary": pa.array([b"abcd", None, b"\0\0\0\0"], pa.binary(4)),
    "float16": pa.array([1.5, None, -0.0], pa.float16()),
    "uint64": pa.array([2**64 - 1, None, 0], pa.uint64()),
    "bool": pa.array([True, None, False]),
    "nothing": pa.nulls(3),
}


def test_values_come_back_as_they_went_in(database: Database, table: str) -> None:
    rows = pa.table({"id": [1, 2, 3], **VALUES})
    database.create(table, rows)
    database.insert(table, rows)
    fields = database.ask(table, "describe")["schema"]["fields"]
    assert [field["name"] for field in fields] == rows.schema.names
    database.ask(table, "update", predicate="id = 2", updates=[["id", "20"]])
    database.ask(table, "delete", predicate="id = 3")
    found = database.rows(table).sort_by("id")
    assert found["id"].to_pylist() == [1, 1, 20, 20]
    for name, values in VALUES.items():
        assert found.schema.field(name).type == values.type
        assert found[name].combine_chunks().equals(values.take(pa.array([0, 0, 1, 1]))), name


def test_texts_in_views_come_back_as_texts(database: Database, table: str) -> None:
    """Lance has no view layouts; the values are kept in the nearest that it has."""
    rows = pa.table({"text": pa.array(["a", None, "x" * 99], pa.string_view())})
    database.create(table, rows)
    database.insert(table, rows)
    assert database.rows(table)["text"].to_pylist() == ["a", None, "x" * 99] * 2


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(
            pa.UnionArray.from_sparse(
                pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]
            ),
            id="union",
        ),
        pytest.param(pa.array([None, None], pa.month_day_nano_interval()), id="interval"),
        pytest.param(pa.RunEndEncodedArray.from_arrays([2], ["a"]), id="run ends"),
    ],
)
def test_a_type_that_lance_cannot_store_is_refused_with_its_column(
    database: Database, table: str, column: pa.Array
) -> None:
    answer = database.send_stream(
        table, "create", stream(pa.table({"good": [1, 2], "odd": column}))
    )
    assert refusal(answer) == (400, 20)
    assert "odd" in answer.json()["error"]
    assert refusal(database.post(f"table/{table}/describe")) == (404, 4)


def test_a_table_with_a_blob_column_takes_updates_of_its_other_columns(
    database: Database, table: str
) -> None:
    blobs = [b"p" * 100_000, b"", None]
    schema = pa.schema([pa.field("id", pa.int64()), lance.blob_field("blob")])
    rows = pa.table({"id": pa.array([1, 2, 3]), "blob": lance.blob_array(blobs)}, schema=schema)
    database.create(table, rows)
    database.insert(table, rows)
    assert database.ask(table, "update", updates=[["id", "id * 10"]])["updated_rows"] == 6
    assert database.ask(table, "delete", predicate="id = 20")["num_deleted_rows"] == 2
    assert database.count(table, "id > 0") == 4
    dataset = lance.dataset(database.ask(table, "describe")["location"])
    ids = dataset.to_table(columns=["id"])["id"].to_pylist()
    kept = dataset.take_blobs("blob", indices=[ids.index(10)])
    assert kept[0].read() == blobs[0]


JSON = pa.table(
    {
        "id": [1, 2, 3],
        "doc": pa.array(['{"a": 1, "b": [1, 2]}', '{"a": "text"}', None], pa.json_()),
    }
)


def test_a_table_with_a_json_column_takes_every_change(database: Database, table: str) -> None:
    database.create(table, JSON)
    database.insert(table, JSON)
    assert database.ask(table, "update", updates=[["id", "id + 10"]])["updated_rows"] == 6
    assert database.count(table, "json_extract(doc, '$.a') = '1'") == 2
    assert database.count(table, "doc IS NULL") == 2
    assert database.ask(table, "delete", predicate="id = 12")["num_deleted_rows"] == 2
    assert documents(database, table) == [{"a": 1, "b": [1, 2]}, {"a": 1, "b": [1, 2]}, None, None]


def test_a_json_column_itself_is_updated(database: Database, table: str) -> None:
    database.create(table, JSON)
    changed = database.ask(
        table, "update", predicate="id = 2", updates=[["doc", "'{\"new\": true}'"]]
    )
    assert changed["updated_rows"] == 1
    assert documents(database, table) == [{"a": 1, "b": [1, 2]}, {"new": True}, None]


def documents(database: Database, table: str) -> list[Any]:
    """The documents, in order of id, as Python values."""
    rows = database.rows(table).sort_by("id")
    assert rows.schema.field("doc").type == pa.json_()
    texts = rows["doc"].combine_chunks().storage.to_pylist()
    return [None if text is None else json.loads(text) for text in texts]


STRICT = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("note", pa.string()),
    ]
)


def test_null_into_a_column_that_forbids_it_is_refused_and_nothing_else_is(
    database: Database, table: str
) -> None:
    database.create(table, pa.table({"id": [1], "name": ["a"], "note": [None]}, schema=STRICT))
    # The schema allows nulls, the values hold none.
    assert (
        database.insert(table, pa.table({"id": [2], "name": ["b"], "note": ["n"]}))["version"] == 2
    )
    # Columns in another order, and one that may be null left out.
    database.insert(table, pa.table({"name": ["c"], "id": [3]}))

    for body, column in (
        (pa.table({"id": [4], "name": pa.array([None], pa.string())}), "name"),
        (pa.table({"id": pa.array([None], pa.int64()), "name": ["d"]}), "id"),
        (pa.table({"id": [4]}), "name"),
    ):
        answer = database.send_stream(table, "insert", stream(body))
        assert refusal(answer) == (400, 20)
        assert column in answer.json()["error"]
    assert refusal(database.post(f"table/{table}/update", {"updates": [["name", "NULL"]]})) in {
        (400, 13),
        (400, 20),
    }
    assert database.rows(table).to_pydict() == {
        "id": [1, 2, 3],
        "name": ["a", "b", "c"],
        "note": [None, "n", None],
    }


# Arrow knows three forms of text and three sizes of index that matter here.
DICTIONARIES = {
    "small": pa.dictionary(pa.int8(), pa.string()),
    "large": pa.dictionary(pa.int32(), pa.large_string()),
    "unsigned": pa.dictionary(pa.uint16(), pa.binary()),
}


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_dictionaries_that_change_from_batch_to_batch_give_their_values(
    database: Database, table: str, compression: str | None
) -> None:
    parts: list[list[str | None]] = [["a", "b", None, "a"], ["c", "a"], ["b" * 50, "d", "c"]]
    texts = [text for part in parts for text in part]
    schema = pa.schema([("id", pa.int64()), *DICTIONARIES.items()])
    batches: list[pa.RecordBatch] = []
    for part in parts:
        ids = pa.array(range(len(batches) * 10, len(batches) * 10 + len(part)))
        columns = [encoded(part, kind) for kind in DICTIONARIES.values()]
        batches.append(pa.record_batch([ids, *columns], schema=schema))
    body = stream(pa.Table.from_batches(batches), compression)
    right(database.send_stream(table, "create", body))
    right(database.send_stream(table, "insert", body))
    found = database.rows(table).sort_by("id")
    for name, kind in DICTIONARIES.items():
        values = found[name].to_pylist()
        if kind.value_type == pa.binary():
            values = [None if value is None else value.decode() for value in values]
        assert values == [text for text in texts for _ in range(2)]
        assert database.count(table, f"{name} IS NULL") == 2


@pytest.mark.parametrize("engine", ["lance", "daft"])
def test_dictionaries_of_each_fragment_give_their_values(
    database: Database, table: str, engine: str
) -> None:
    parts: list[list[str | None]] = [["a", "b", None], ["c", "a"], ["e", "d", "c"]]
    texts = [text for part in parts for text in part]
    kind, context = pa.dictionary(pa.int32(), pa.string()), {"engine": engine}
    for number, part in enumerate(parts):
        words = encoded(part, kind)
        nested = pa.StructArray.from_arrays([words], ["x"])
        rows = pa.table({"text": part, "word": words, "nested": nested})
        database.send(table, "insert" if number else "create", rows)
    found = database.rows(table, context=context)
    assert found["text"].to_pylist() == found["word"].to_pylist() == texts
    assert found["nested"].to_pylist() == [{"x": text} for text in texts]
    assert (found.schema.field("word").type, found.schema.field("nested").type.field(0).type) == (
        kind,
        kind,
    )
    chosen = database.rows(table, filter="word IN ('c', 'b')", context=context)
    assert chosen["text"].to_pylist() == chosen["word"].to_pylist() == ["b", "c", "c"]
    assert database.count(table, "nested.x = 'a'", context=context) == 2
    # What a refusal of dictionaries that cannot be joined advises.
    aliases = {"column_aliases": {"plain": "arrow_cast(word, 'Utf8')"}}
    plain = database.rows(table, columns=aliases, context=context)["plain"]
    assert (plain.type, plain.to_pylist()) == (pa.string(), texts)
    updates = [["word", "'z'"]]
    database.ask(table, "update", predicate="word = 'a'", updates=updates, context=context)
    database.ask(table, "delete", predicate="word = 'c'", context=context)
    left = database.rows(table, context=context)["word"].to_pylist()
    assert Counter(left) == Counter(["z", "b", None, "z", "e", "d"])


def encoded(texts: list[str | None], kind: pa.DictionaryType) -> pa.Array:
    """The texts in a dictionary of their own, of the type `kind`."""
    plain = pa.array(texts, pa.string()).cast(kind.value_type).dictionary_encode()
    return pa.DictionaryArray.from_arrays(plain.indices.cast(kind.index_type), plain.dictionary)
