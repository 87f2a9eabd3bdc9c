"""One test for each rule of a view's definition: what is accepted, and what the refusal says."""

import base64
import pickle
from typing import Any

import pyarrow as pa
import pytest

from cluster.errors import InvalidInput
from cluster.settings import LimitSettings
from tests.unit.view_requests import SCHEMA, check, encoded, spec
from udtf.spec import ViewDefinition, ViewKind

# The definition as a whole


def test_query_view_keeps_what_was_asked() -> None:
    assert check(auto_refresh=True) == ViewDefinition(
        kind=ViewKind.QUERY,
        source_query="SELECT id, label FROM docs",
        output_schema=SCHEMA.serialize().to_pybytes(),
        udtf=None,
        auto_refresh=True,
    )


def test_definition_survives_pickling() -> None:
    definition = check("udtf", udtf_spec=spec("udtf", num_cpus=0.5, input_columns=["id"]))
    assert pickle.loads(pickle.dumps(definition)) == definition


@pytest.mark.parametrize(
    ("text", "kind"),
    [("query", ViewKind.QUERY), ("udtf", ViewKind.UDTF), ("chunker", ViewKind.CHUNKER)],
)
def test_kind_is_one_of_three(text: str, kind: ViewKind) -> None:
    assert check(text, udtf_spec=None if text == "query" else spec(text)).kind is kind


def test_scalar_udtf_is_another_name_of_chunker() -> None:
    assert check("scalar_udtf", udtf_spec=spec("chunker")).kind is ViewKind.CHUNKER


@pytest.mark.parametrize("kind", ["", "Query", "table", "view"])
def test_unknown_kind_is_refused_with_the_known_ones(kind: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check(kind)
    assert caught.value.message == f"kind must be one of query, udtf, chunker, not {kind!r}"


@pytest.mark.parametrize("kind", ["udtf", "chunker"])
def test_udtf_spec_is_required_for_code_views(kind: str) -> None:
    with pytest.raises(InvalidInput, match=f"udtf_spec is required when kind is {kind}"):
        check(kind)


@pytest.mark.parametrize("value", [{}, spec("udtf")])
def test_udtf_spec_must_be_null_for_query_views(value: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="udtf_spec must be null when kind is query"):
        check("query", udtf_spec=value)


@pytest.mark.parametrize(("value", "expected"), [(None, False), (False, False), (True, True)])
def test_auto_refresh_is_off_unless_asked_for(value: bool | None, expected: bool) -> None:
    assert check(auto_refresh=value).auto_refresh is expected


def test_auto_refresh_must_be_a_boolean() -> None:
    with pytest.raises(InvalidInput, match=r"auto_refresh must be true, false or null"):
        check(auto_refresh=1)


# source_query


@pytest.mark.parametrize("text", ["q", " \tSELECT\n", '{"format":"mine"}', "é𝄞\x00"])
def test_source_query_is_kept_as_it_came(text: str) -> None:
    assert check(source_query=text).source_query == text


@pytest.mark.parametrize("text", ["", " \n"])
def test_blank_source_query_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="source_query is empty"):
        check(source_query=text)


def test_source_query_is_bounded_in_bytes() -> None:
    limits = LimitSettings(source_query_bytes_max=4)
    assert check(source_query="éé", limits=limits).source_query == "éé"
    with pytest.raises(InvalidInput, match="source_query is longer than 4 bytes"):
        check(source_query="ééa", limits=limits)


def test_source_query_of_half_characters_is_refused() -> None:
    with pytest.raises(InvalidInput, match="source_query holds a lone surrogate"):
        check(source_query="\ud800")


# output_schema


def test_output_schema_may_be_a_whole_stream() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(SCHEMA.empty_table())
    text = base64.b64encode(sink.getvalue()).decode()
    assert check(output_schema=text).output_schema == SCHEMA.serialize().to_pybytes()


@pytest.mark.parametrize("text", ["QUJD!", "QUJ", "QU JD", "QUJD\n", "QUJD_-==", "é"])
def test_output_schema_must_be_strict_base64(text: str) -> None:
    with pytest.raises(InvalidInput, match="output_schema is not base64"):
        check(output_schema=text)


@pytest.mark.parametrize("data", [b"A", b"\x00" * 64, b"ARROW1\x00\x00", b"\xff\xff\xff\xff\x10"])
def test_output_schema_must_be_an_arrow_schema(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="output_schema is not an Arrow schema"):
        check(output_schema=base64.b64encode(data).decode())


def test_output_schema_cut_short_anywhere_is_refused() -> None:
    data = SCHEMA.serialize().to_pybytes()
    for length in range(1, len(data) - 8, 7):
        with pytest.raises(InvalidInput, match="output_schema is not an Arrow schema"):
            check(output_schema=base64.b64encode(data[:length]).decode())


def test_output_schema_is_bounded() -> None:
    size = len(SCHEMA.serialize().to_pybytes())
    assert check(limits=LimitSettings(output_schema_bytes_max=size))
    with pytest.raises(InvalidInput, match=f"output_schema is longer than {size - 1} bytes"):
        check(limits=LimitSettings(output_schema_bytes_max=size - 1))


def test_output_schema_needs_a_column() -> None:
    with pytest.raises(InvalidInput, match="output_schema has no columns"):
        check(output_schema=encoded(pa.schema([])))


def test_lineage_columns_are_left_out_of_the_output_schema() -> None:
    schema = SCHEMA.append(pa.field("__source_row_id", pa.uint64())).append(
        pa.field("__chunk_index", pa.int32())
    )
    assert check(output_schema=encoded(schema)) == check()


def test_lineage_columns_alone_are_no_output() -> None:
    schema = pa.schema([("__source_row_id", pa.uint64())])
    with pytest.raises(InvalidInput, match="output_schema has no columns"):
        check(output_schema=encoded(schema))


def test_repeated_output_column_is_refused() -> None:
    schema = pa.schema([("a", pa.int64()), ("a", pa.string())])
    with pytest.raises(InvalidInput, match="output_schema has two fields 'a'"):
        check(output_schema=encoded(schema))


def test_repeated_nested_field_is_refused_with_its_path() -> None:
    struct = pa.struct([pa.field("x", pa.int8()), pa.field("x", pa.int8())])
    schema = pa.schema([("s", pa.list_(struct))])
    with pytest.raises(InvalidInput, match=r"two fields 's\.item\.x'"):
        check(output_schema=encoded(schema))


def test_same_name_at_two_levels_is_accepted() -> None:
    schema = pa.schema([("a", pa.struct([("a", pa.int8())]))])
    assert check(output_schema=encoded(schema)).output_schema == schema.serialize().to_pybytes()


@pytest.mark.parametrize("name", ["_rowid", "_rowaddr", "_row_created_at_version"])
def test_output_column_that_lance_reserves_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"the column name '{name}' is reserved"):
        check(output_schema=encoded(pa.schema([(name, pa.int64())])))


def test_output_column_with_a_dot_or_no_name_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"'a\.b' holds a dot"):
        check(output_schema=encoded(pa.schema([("a.b", pa.int64())])))
    with pytest.raises(InvalidInput, match="a column without a name"):
        check(output_schema=encoded(pa.schema([("", pa.int64())])))


def test_output_fields_are_bounded_with_nested_ones_counted() -> None:
    schema = pa.schema([("a", pa.struct([("b", pa.int8()), ("c", pa.int8())]))])
    assert check(output_schema=encoded(schema), limits=LimitSettings(columns_max=3))
    with pytest.raises(InvalidInput, match="output_schema has more than 2 fields"):
        check(output_schema=encoded(schema), limits=LimitSettings(columns_max=2))
