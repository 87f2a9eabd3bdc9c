"""User code that cannot be loaded, or gives rows that do not fit, in real processes."""

import base64

import pyarrow as pa
import pytest

from tests.fault.code_specs import NUMBERS, envelope, failure
from udtf.abi import PARENT
from udtf.code_process import CodeFailed, test_code
from udtf.spec import ViewKind


@pytest.mark.parametrize(
    ("source", "abi", "message"),
    [
        ("def code(source): yield pa.record_batch({'m': [1]})", "udtf", "column 'n' is missing"),
        (
            "def code(source): yield pa.record_batch({'n': ['1']})",
            "udtf",
            "the column 'n' must be int64, and the code gave string",
        ),
        ("def code(source): return None", "udtf", "returned None"),
        ("def code(source): yield {'n': 1}", "udtf", "gave a dict"),
        ("def code(n): yield {'n': 'x'}", "row", "must be int64, and the code gave 'x' (str)"),
        ("def code(n): yield {'m': 1}", "row", "the column 'm' is not in output_schema"),
        ("def code(n): pass", "row", "returned None"),
        ("def code(n): return {'n': 1}", "row", "returned a single dict"),
        ("def code(batch): yield batch", "batch", "the column 'parent' is missing"),
        (
            "def code(batch): yield pa.record_batch({'n': [1], 'parent': [3]})",
            "batch",
            "'parent' has 3, but the batch that was given has the rows 0 to 2",
        ),
    ],
)
def test_rows_that_do_not_fit_name_the_column(source: str, abi: str, message: str) -> None:
    error = failure(source, abi).error
    assert (error.kind, error.type) == ("schema", "SchemaError")
    assert message in error.message


def test_code_that_cannot_be_loaded_says_why() -> None:
    source = "def code(source): yield rows(1)"
    older = failure(source, envelope={"runtime": {"python": "3.8"}}).error
    assert older.kind == "system"
    assert "for Python 3.8, but this worker runs 3.11" in older.message
    assert "no code" not in older.message
    missing = failure("import no_such_module\ndef code(source): ...").error
    assert (missing.kind, missing.type) == ("user", "ModuleNotFoundError")
    assert "import no_such_module" in missing.traceback
    pickled = base64.b64encode(b"cno_such_module\nf\n.").decode()
    artifact = {"encoding": "cloudpickle", "data": pickled}
    error = failure(source, envelope={"artifact": artifact}).error
    assert error.kind == "system"
    assert "needs the module 'no_such_module'" in error.message
    artifact["data"] = base64.b64encode(b"garbage").decode()
    assert "cannot be loaded here" in failure(source, envelope={"artifact": artifact}).error.message


def test_code_is_tested_as_a_worker_runs_it() -> None:
    table = pa.table({"n": [2, 0, 1]})
    source = envelope("def code(n):\n    for i in range(n): yield (i,)", "row")
    found = test_code(source, ViewKind.CHUNKER, table, NUMBERS)
    assert found.to_pydict() == {"n": [0, 1, 0], PARENT: [0, 0, 2]}
    none = envelope("def code(n): return []", "row")
    assert test_code(none, ViewKind.CHUNKER, table, NUMBERS).schema.names == ["n", PARENT]
    wide = NUMBERS.append(pa.field("m", pa.int64()))
    lacking = envelope("def code(n): yield {'n': n}", "row")
    with pytest.raises(CodeFailed, match="'m' is missing"):
        test_code(lacking, ViewKind.CHUNKER, table, wide)
