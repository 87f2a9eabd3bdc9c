"""Each mistake is provoked with pylance itself, so that a new wording fails here first."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance import LanceOperation

from cluster.errors import (
    DestrierError,
    InternalError,
    InvalidInput,
    TableAlreadyExists,
    TableBranchNotFound,
    TableIndexNotFound,
    TableNotFound,
    TableSchemaValidationError,
    TableTagAlreadyExists,
    TableTagNotFound,
    TableVersionNotFound,
)
from udtf.lance_errors import CommitConflict, is_missing_transaction, translate

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("n", pa.string()),
        ("v", pa.float64()),
        ("d", pa.date32()),
    ]
)


def _rows() -> pa.Table:
    count = 5
    return pa.table(
        {
            "id": range(count),
            "n": [f"n{number}" for number in range(count)],
            "v": [float(number) for number in range(count)],
            "d": [None] * count,
        },
        schema=SCHEMA,
    )


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table of five rows."""
    folder = str(tmp_path / "t.lance")
    lance.write_dataset(_rows(), folder)
    return folder


def _failure(attempt: Callable[[], object]) -> BaseException:
    try:
        attempt()
    except BaseException as error:  # noqa: BLE001 (a panic of pylance is no Exception)
        return error
    raise AssertionError("nothing failed")


def _translated(attempt: Callable[[], object], context: str) -> DestrierError:
    """The error, checked for what no caller may see."""
    error = translate(_failure(attempt), context=context)
    for internal in (".rs", "/home/", "/root/", "rustc", "LanceError", "/t.lance", "Invalid user"):
        assert internal not in error.message
    assert len(error.message) < 700
    return error


# --- what is wrong with a predicate or an expression ----------------------------------------------

PREDICATES = {
    "id =": "syntax error: Expected: an expression, found: EOF",
    "zz = 1": "No field named zz.",
    "foo(id) = 1": "Invalid function 'foo'.",
    "abs(id, id) = 1": "Function 'abs' expects 1 arguments but received 2",
    "(id)": "does not return a boolean; compare it with something",
    "id = 'x'": 'literal Utf8("x") does not fit type Int64; write a literal of that type',
    "d = '2020-01-31'": "as in date '2024-01-31'",
    "n + 1 = 2": "Cannot coerce arithmetic expression Utf8 + Int64",
    "sum(id) = 2": "AggregateFunction is not supported; only what can be computed from one row",
    "(id between (n is null) and (d is null))": "Failed to coerce types Int64 and Boolean",
    "(d = date 'xx')": "Cannot cast string 'xx' to value of Date32 type",
    "(regexp_like(n, '('))": "regex parse error",
    "id / 0 = 1": "Divide by zero; exclude zeros, as in x / nullif(y, 0)",
    "cast(n as int) = 1": "Cannot cast string 'n0' to value of Int32 type; try_cast gives null",
    "n like 'a!%' escape '!'": "LIKE does not support escape_char",
    "n rlike 'a'": "is not supported SQL in lance",
    "(" * 60 + "true" + ")" * 60: "it is nested too deeply",
    "cast(id as varchar) = '1'": "Unsupported data type: Varchar",
}


@pytest.mark.parametrize("predicate", PREDICATES)
def test_mistake_in_a_predicate_is_the_callers(uri: str, predicate: str) -> None:
    table = lance.dataset(uri)
    for attempt in (
        lambda: table.count_rows(predicate),
        lambda: table.to_table(filter=predicate),
        lambda: table.delete(predicate),
    ):
        error = _translated(attempt, "predicate")
        assert type(error) is InvalidInput
        assert error.message.startswith("predicate: ")
        assert PREDICATES[predicate] in error.message


EXPRESSIONS = {
    "id /": "Expression is not valid",
    "id / 0": "Divide by zero; exclude zeros",
    "cast(n as double)": "Cannot cast string 'n0' to value of Float64 type; try_cast gives null",
    "foo(id)": "Invalid function 'foo'.",
    "sum(id)": "only what can be computed from one row",
    "case when id = 1 then 1 end": "is not supported SQL in lance",
}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_mistake_in_an_expression_is_the_callers(uri: str, expression: str) -> None:
    table = lance.dataset(uri)
    for attempt in (
        lambda: table.scanner(columns={"x": expression}).to_table(),
        lambda: list(table.scanner(columns={"x": expression}).to_batches()),
        lambda: table.update({"v": expression}),
    ):
        error = _translated(attempt, "expression")
        assert type(error) is InvalidInput
        assert EXPRESSIONS[expression] in error.message


def test_expression_without_a_column_is_refused_with_advice(uri: str) -> None:
    scanner = lance.dataset(uri).scanner(columns={"x": "1"})
    error = _translated(scanner.to_table, "expression")
    assert error.message == "expression: it reads no column; use at least one"


@pytest.mark.parametrize("expression", ["NULL", "nullif(id, 1)"])
def test_null_for_a_column_without_nulls_names_the_column(uri: str, expression: str) -> None:
    error = _translated(lambda: lance.dataset(uri).update({"id": expression}), "expression")
    assert type(error) is TableSchemaValidationError
    assert "column 'id' takes no nulls" in error.message


def test_overlong_text_is_cut_and_read_in_no_time(uri: str) -> None:
    predicate = f"n = '{') (' * 200_000}' and foo(id) = 1"
    error = _translated(lambda: lance.dataset(uri).count_rows(predicate), "predicate")
    assert error.message == "predicate: Invalid function 'foo'."
    unparsed = f"({predicate}"
    error = _translated(lambda: lance.dataset(uri).count_rows(unparsed), "predicate")
    assert error.message == "predicate: syntax error: Expected: ), found: EOF"


# --- what is wrong with data ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ({"id": ["x"]}, "`id` should have type int64 but type was string"),
        ({"n": ["x"]}, "missing=[id]"),
        ({"id": [1], "zz": [1]}, "unexpected=[zz]"),
        ({"id": pa.array([None], pa.int64())}, "column 'id' takes no nulls"),
    ],
)
def test_rows_of_another_schema_are_refused(uri: str, rows: dict[str, Any], reason: str) -> None:
    error = _translated(lambda: lance.write_dataset(pa.table(rows), uri, mode="append"), "write")
    assert type(error) is TableSchemaValidationError
    assert reason in error.message


@pytest.mark.parametrize(
    ("names", "reason"),
    [(["a.b"], "Top level field a.b cannot contain"), (["a", "a"], 'Duplicate field name "a"')],
)
def test_columns_that_lance_cannot_store_are_refused(
    tmp_path: Path, names: list[str], reason: str
) -> None:
    rows = pa.table([[1]] * len(names), names=names)
    error = _translated(lambda: lance.write_dataset(rows, str(tmp_path / "new")), "write")
    assert type(error) is TableSchemaValidationError
    assert reason in error.message


# --- what is not there ----------------------------------------------------------------------------


def test_missing_version_is_named(uri: str) -> None:
    table = lance.dataset(uri)
    table.create_branch("b1")
    for attempt, message in (
        (lambda: table.checkout_version(99), "the table has no version 99"),
        (lambda: lance.dataset(uri, version=99), "the table has no version 99"),
        (lambda: table.checkout_version(("b1", 77)), "branch 'b1' of the table has no version 77"),
        (lambda: table.tags.create("t", 1000), "the table has no version 1000"),
    ):
        error = _translated(attempt, "version")
        assert type(error) is TableVersionNotFound
        assert error.message == message


def test_missing_branch_is_named(uri: str) -> None:
    table = lance.dataset(uri)
    error = _translated(lambda: table.checkout_version(("no/b", None)), "version")
    assert type(error) is TableBranchNotFound
    assert error.message == "the table has no branch 'no/b'"


def test_missing_and_repeated_tags_are_named(uri: str) -> None:
    table = lance.dataset(uri)
    table.tags.create("t1", 1)
    for attempt, expected in (
        (lambda: table.checkout_version("zz"), TableTagNotFound),
        (lambda: table.tags.delete("zz"), TableTagNotFound),
        (lambda: table.tags.create("t1", 1), TableTagAlreadyExists),
        (lambda: table.create_branch("b 1/!"), InvalidInput),
    ):
        assert type(_translated(attempt, "version")) is expected


def test_missing_index_is_named(uri: str) -> None:
    table = lance.dataset(uri)
    for attempt in (lambda: table.stats.index_stats("zz"), lambda: table.drop_index("zz")):
        error = _translated(attempt, "index")
        assert type(error) is TableIndexNotFound
        assert error.message == "the table has no index 'zz'"


def test_missing_table_is_not_found(uri: str, tmp_path: Path) -> None:
    table = lance.dataset(uri)
    shutil.rmtree(uri)
    for attempt in (lambda: lance.dataset(str(tmp_path / "none.lance")), table.checkout_latest):
        assert type(_translated(attempt, "open")) is TableNotFound


def test_table_that_exists_is_named_so(uri: str) -> None:
    error = _translated(lambda: lance.write_dataset(_rows(), uri, mode="create"), "write")
    assert type(error) is TableAlreadyExists


# --- conflicts ------------------------------------------------------------------------------------


def _update(uri: str) -> None:
    lance.dataset(uri).update({"v": "v + 1"})


def _overwrite(uri: str) -> None:
    lance.write_dataset(pa.table({"other": [1]}), uri, mode="overwrite")


def _stale_delete(table: Any) -> LanceOperation.BaseOperation:
    return LanceOperation.Delete([table.get_fragment(0).delete("id = 1")], [], "id = 1")


def _stale_append(table: Any) -> LanceOperation.BaseOperation:
    fragments = lance.fragment.write_fragments(_rows(), table.uri, schema=table.schema)
    return LanceOperation.Append(fragments)


@pytest.mark.parametrize(
    ("other_writer", "stale_operation"),
    [(_update, _stale_delete), (_overwrite, _stale_delete), (_overwrite, _stale_append)],
)
def test_stale_commit_is_a_conflict(
    uri: str,
    other_writer: Callable[[str], None],
    stale_operation: Callable[[Any], LanceOperation.BaseOperation],
) -> None:
    table = lance.dataset(uri)
    other_writer(uri)

    def commit() -> None:
        operation = stale_operation(table)
        lance.LanceDataset.commit(uri, operation, read_version=table.version)

    assert type(_translated(commit, "commit")) is CommitConflict


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.delete("id = 1"),
        lambda table: table.update({"v": "1"}),
        lambda table: table.update_schema_metadata({"k": "v"}),
        lambda table: lance.write_dataset(_rows(), table, mode="append"),
    ],
)
def test_change_of_an_overwritten_table_is_a_conflict(
    uri: str, change: Callable[[Any], object]
) -> None:
    table = lance.dataset(uri)
    _overwrite(uri)
    assert type(_translated(lambda: change(table), "commit")) is CommitConflict


def test_schema_metadata_changed_twice_is_a_conflict(uri: str) -> None:
    table = lance.dataset(uri)
    lance.dataset(uri).update_schema_metadata({"a": "1"})
    attempt = lambda: table.update_schema_metadata({"b": "2"})  # noqa: E731
    assert type(_translated(attempt, "commit")) is CommitConflict


def test_first_commit_of_a_table_that_exists_is_a_conflict(uri: str) -> None:
    first = lance.Transaction(0, LanceOperation.Overwrite(SCHEMA, []))
    error = _translated(
        lambda: lance.LanceDataset.commit(
            uri, first, enable_stable_row_ids=True, enable_v2_manifest_paths=True, max_retries=0
        ),
        "commit",
    )
    assert type(error) is CommitConflict


def test_a_transaction_whose_own_file_is_gone_is_missing(uri: str) -> None:
    table = lance.dataset(uri)
    large = lance.Transaction(
        table.version, LanceOperation.Append([]), transaction_properties={"k": "v" * (21 << 20)}
    )
    table = lance.LanceDataset.commit(table, large)
    with pytest.raises(OSError) as of_no_version:
        table.read_transaction(table.version + 1)
    shutil.rmtree(Path(uri) / "_transactions")
    with pytest.raises(OSError) as of_no_file:
        table.read_transaction(table.version)
    assert is_missing_transaction(of_no_file.value)
    assert not is_missing_transaction(of_no_version.value)


# --- faults of ours -------------------------------------------------------------------------------


def _truncate(path: Path) -> None:
    os.truncate(path, 100)


def _scramble(path: Path) -> None:
    path.write_bytes(bytes(byte ^ 0x55 for byte in path.read_bytes()))


@pytest.mark.parametrize("damage", [_truncate, _scramble, Path.unlink])
def test_damaged_data_file_is_a_fault_of_ours(uri: str, damage: Callable[[Path], None]) -> None:
    for path in Path(uri, "data").iterdir():
        damage(path)
    table = lance.dataset(uri)
    for attempt, context in (
        (table.to_table, "expression"),
        (lambda: table.count_rows("id = 1"), "predicate"),
        (lambda: table.update({"v": "1"}), "write"),
    ):
        error = _translated(attempt, context)
        assert type(error) is InternalError
        assert error.message == f"the server failed while it worked on this: {context}"


def test_damaged_manifest_is_a_fault_of_ours(uri: str) -> None:
    for path in Path(uri, "_versions").glob("*.manifest"):
        os.truncate(path, 10)
    assert type(_translated(lambda: lance.dataset(uri), "open")) is InternalError


def test_panic_is_a_fault_of_ours(uri: str, capfd: pytest.CaptureFixture[str]) -> None:
    table = lance.dataset(uri)
    failure = _failure(lambda: table.count_rows("n = ?"))
    assert not isinstance(failure, Exception)
    assert type(translate(failure, context="predicate")) is InternalError
    assert "panicked" in capfd.readouterr().err


def test_storage_that_no_one_knows_is_a_fault_of_ours() -> None:
    assert type(_translated(lambda: lance.dataset("zz://a/b"), "write")) is InternalError


def test_callers_mistake_is_a_fault_of_ours_where_no_caller_is_heard(uri: str) -> None:
    table = lance.dataset(uri)
    assert type(_translated(lambda: table.count_rows("id ="), "open")) is InternalError


# --- what is passed on ----------------------------------------------------------------------------


def test_error_of_ours_stays_as_it_is() -> None:
    error = TableNotFound("gone")
    assert translate(error, context="write") is error


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(), GeneratorExit(), asyncio.CancelledError()]
)
def test_end_of_work_is_raised_as_it_is(error: BaseException) -> None:
    with pytest.raises(type(error)):
        translate(error, context="write")
