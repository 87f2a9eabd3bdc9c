"""Rows through both ways into a table's schema, and what a real Lance table then holds."""

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from actors.conform import conform_reader, conform_table
from cluster.errors import TableSchemaValidationError


def stored(rows: pa.Table, folder: Path) -> list[dict[str, Any]]:
    """Write rows that fit to a new table, append them again, and read the appended ones back."""
    uri = str(folder / "table.lance")
    lance.write_dataset(rows, uri)
    dataset = lance.write_dataset(rows, uri, mode="append")
    assert dataset.schema.equals(rows.schema)
    found = dataset.to_table().to_pylist()
    assert found[: rows.num_rows] == found[rows.num_rows :]
    return list(found[rows.num_rows :])


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """`rows` through both ways in, which must agree."""
    table = conform_table(rows, schema)
    assert table.schema.equals(schema, check_metadata=True)
    table.validate(full=True)
    read = conform_reader(rows.to_reader(), schema).read_all()
    assert read.equals(table)
    return table


def refusal(rows: pa.Table, schema: pa.Schema) -> str:
    """What the caller is told of rows that do not fit, by both ways in."""
    with pytest.raises(TableSchemaValidationError) as by_table:
        conform_table(rows, schema)
    with pytest.raises(TableSchemaValidationError) as by_reader:
        conform_reader(rows.to_reader(), schema).read_all()
    assert by_table.value.message == by_reader.value.message
    return by_table.value.message


def one(values: pa.Array, name: str = "c") -> pa.Table:
    return pa.table({name: values})


def schema_of(type_: pa.DataType, *, nullable: bool = True) -> pa.Schema:
    return pa.schema([pa.field("c", type_, nullable=nullable)])
