"""Tables with a bit of everything, made from a seed."""

import datetime
import decimal
from random import Random
from typing import Any

import pyarrow as pa

Row = dict[str, Any]

WORDS = ("red", "green", "blue", "blue'ish", "", "BLUE")

STRUCT = pa.struct([pa.field("x", pa.int64()), pa.field("label", pa.utf8())])
DEEP = pa.struct(
    [
        pa.field("inner", pa.struct([pa.field("y", pa.float64()), pa.field("z.w", pa.int64())])),
        pa.field("kept", pa.utf8()),
    ]
)
FIELDS = {
    field.name: field
    for field in (
        pa.field("id", pa.int64(), nullable=False),
        pa.field("must", pa.utf8(), nullable=False, metadata={"why": "it must be there"}),
        pa.field("n", pa.int64()),
        pa.field("m", pa.int32()),
        pa.field("f", pa.float64()),
        pa.field("Name", pa.utf8()),
        pa.field("flag", pa.bool_()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us")),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("tags", pa.list_(pa.utf8())),
        pa.field("colour", pa.dictionary(pa.int32(), pa.utf8())),
        pa.field("s", STRUCT),
        pa.field("deep", DEEP),
        pa.field("a b", pa.int64()),
    )
}
ALWAYS = ("id", "must", "n", "Name")
ROWS_PER_INSERT_MAX = 12


def random_schema(random: Random) -> pa.Schema:
    """Some of the columns, in any order."""
    others = [name for name in FIELDS if name not in ALWAYS]
    chosen = [*ALWAYS, *random.sample(others, random.randint(0, len(others)))]
    random.shuffle(chosen)
    return pa.schema([FIELDS[name] for name in chosen], metadata={"owner": "test"})


def random_rows(random: Random, schema: pa.Schema, first_id: int) -> list[Row]:
    """Some rows; ids go up from `first_id`."""
    count = random.randint(1, ROWS_PER_INSERT_MAX)
    return [
        {
            name: first_id + number if name == "id" else _value(random, schema.field(name))
            for name in schema.names
        }
        for number in range(count)
    ]


def to_table(rows: list[Row], schema: pa.Schema) -> pa.Table:
    """The rows as Arrow."""
    return pa.Table.from_pylist(rows, schema)


def _value(random: Random, field: pa.Field) -> Any:
    if field.nullable and random.random() < 0.2:
        return None
    data_type = field.type
    if pa.types.is_struct(data_type):
        return {child.name: _value(random, child) for child in data_type}
    if pa.types.is_list(data_type):
        return [random.choice(WORDS) for _ in range(random.randint(0, 3))]
    if pa.types.is_boolean(data_type):
        return random.random() < 0.5
    if pa.types.is_integer(data_type):
        return random.randint(-3, 6)
    if pa.types.is_floating(data_type):
        return random.randint(-8, 8) / 4
    if pa.types.is_decimal(data_type):
        return decimal.Decimal(random.randint(-8, 8) * 25).scaleb(-2)
    if pa.types.is_date(data_type):
        return datetime.date(2024, 2, random.randint(27, 29))
    if pa.types.is_timestamp(data_type):
        return datetime.datetime(2024, 3, 1, random.randint(0, 2), 30, 0, 1)
    return random.choice(WORDS)
