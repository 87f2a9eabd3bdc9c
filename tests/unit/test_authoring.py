"""The decorators of view code: what they learn from it, and what they refuse."""

import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import pyarrow as pa
import pytest

from cluster.errors import InvalidInput
from tests.unit.code_files import imported
from tests.unit.view_requests import check, encoded
from udtf import (
    Fail,
    Retry,
    Skip,
    chunker,
    fail_fast,
    retry_all,
    retry_transient,
    skip_on_error,
    udtf,
)
from udtf.authoring import ViewCode
from udtf.on_error import policy_json
from udtf.output_columns import read_schema


class Passage(NamedTuple):
    number: int
    text: str | None
    vector: Annotated[list[float], pa.list_(pa.float32(), 2)]


@dataclass
class Span:
    start: datetime
    words: list[str]


class Named(TypedDict):
    size: float
    flag: bool
    raw: bytes


@chunker
def passages(body: str, width: int = 3) -> Iterator[Passage]:
    """Cut a text."""
    for number, start in enumerate(range(0, len(body), width)):
        yield Passage(number, body[start : start + width], [0.0, 1.0])


@udtf(
    output_schema={"kind": str, "rows": pa.uint32()},
    partition_by="kind",
    num_cpus=0.5,
    num_gpus=1,
    memory=1 << 30,
    on_error=[Retry(ConnectionError, max_attempts=2), Skip("ValueError", match="bad")],
)
class Counted:
    """Count the rows of a kind."""

    def __init__(self, factor: int = 1) -> None:
        self.factor = factor

    def __call__(self, source: Any) -> Iterator[pa.Table]:
        yield source


def test_what_is_decorated_is_called_as_before() -> None:
    assert [passage.text for passage in passages("abcde", 2)] == ["ab", "cd", "e"]
    assert passages.name == "passages"
    assert passages.__doc__ == "Cut a text."
    assert Counted(factor=3).factor == 3


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            Passage,
            pa.schema(
                {"number": pa.int64(), "text": pa.string(), "vector": pa.list_(pa.float32(), 2)}
            ),
        ),
        (Span, pa.schema({"start": pa.timestamp("us"), "words": pa.list_(pa.string())})),
        (Named, pa.schema({"size": pa.float64(), "flag": pa.bool_(), "raw": pa.binary()})),
        (
            {"span": Span, "n": int},
            pa.schema(
                {
                    "span": pa.struct(
                        {"start": pa.timestamp("us"), "words": pa.list_(pa.string())}
                    ),
                    "n": pa.int64(),
                }
            ),
        ),
    ],
)
def test_columns_come_from_annotated_classes_and_dicts(given: Any, expected: pa.Schema) -> None:
    assert read_schema(given) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": complex}, "column 'x'"),
        ({"x": int | str}, "has no Arrow type of its own"),
        ({}, "no columns"),
        (str, "must be a pyarrow schema"),
    ],
)
def test_columns_without_an_arrow_type_are_refused(given: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_schema(given)


def test_the_request_says_what_the_author_said() -> None:
    spec = Counted.with_init(factor=2).udtf_spec(["kind", "size"])
    data = base64.b64decode(spec["udtf"])
    assert spec["udtf_sha"] == hashlib.sha256(data).hexdigest()
    assert json.loads(data)["init"] == {"factor": 2}
    assert spec["partition_by"] == "kind"
    assert (spec["num_cpus"], spec["num_gpus"], spec["memory"]) == (0.5, 1, 1 << 30)
    assert "input_columns" not in spec
    definition = check("udtf", "SELECT 1", encoded(Counted.options.output_schema), udtf_spec=spec)
    assert definition.udtf is not None
    assert definition.udtf.name == "Counted"
    assert json.loads(definition.udtf.error_handling or "")["matchers"] == [
        {
            "action": "retry",
            "exceptions": ["ConnectionError"],
            "max_attempts": 2,
            "backoff": "exponential",
        },
        {"action": "skip", "exceptions": ["ValueError"], "match": "bad"},
    ]


def test_a_chunkers_request_passes_the_servers_check() -> None:
    spec = passages.udtf_spec(["id", "body"])
    definition = check("chunker", "SELECT 1", encoded(passages.options.output_schema), spec)
    assert definition.udtf is not None
    assert definition.udtf.input_columns == ("body",)


def test_a_chunker_is_given_the_columns_that_it_names() -> None:
    assert passages.input_columns(["id", "width", "body"]) == ("body", "width")
    with pytest.raises(InvalidInput, match=r"parameters body, which are no columns .* id, text"):
        passages.input_columns(["id", "text"])


def test_input_columns_must_be_columns_of_the_source() -> None:
    narrowed = Counted.with_options(input_columns=("kind", "other"))
    with pytest.raises(InvalidInput, match="input_columns names other"):
        narrowed.input_columns(["kind", "size"])


def test_resources_can_be_changed_for_one_view() -> None:
    assert Counted.with_options(num_gpus=0).options.num_gpus == 0
    assert Counted.options.num_gpus == 1


def test_policies_are_those_that_servers_read() -> None:
    assert policy_json(fail_fast()) == {"default": "fail", "matchers": []}
    assert policy_json(skip_on_error()) == {"default": "skip", "matchers": []}
    (transient,) = policy_json(retry_transient(5, "fixed"))["matchers"]
    assert transient["exceptions"] == ["ConnectionError", "TimeoutError", "OSError"]
    assert (transient["max_attempts"], transient["backoff"]) == (5, "fixed")
    assert policy_json(retry_all())["matchers"][0]["exceptions"] == ["Exception"]
    assert policy_json([Fail(KeyError)])["matchers"][0]["action"] == "fail"


@pytest.mark.parametrize(
    ("on_error", "message"),
    [
        (lambda: [Retry(OSError), Retry(KeyError, backoff="fixed")], "same backoff"),
        (lambda: [Skip(ValueError, match="(")], "regular expression"),
        (lambda: [Retry(ValueError, max_attempts=0)], "max_attempts"),
        (lambda: [Retry()], "names no exception"),
        (lambda: [Skip(3)], "no exception class"),  # type: ignore[arg-type]
        (lambda: ["skip"], "use Retry, Skip and Fail"),
        (lambda: "skip", "must be a policy"),
    ],
)
def test_wrong_policies_are_refused_where_they_are_written(on_error: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        udtf(output_schema={"n": int}, on_error=on_error())


def test_wrong_decorations_are_refused() -> None:
    with pytest.raises(InvalidInput, match="keep one"):
        udtf(output_schema={"n": int}, partition_by="a", partition_by_indexed_column="b")
    with pytest.raises(InvalidInput, match="reserved"):
        udtf(output_schema={"__source_row_id": int})
    with pytest.raises(InvalidInput, match="a list of names"):
        udtf(output_schema={"n": int}, input_columns="abc")
    with pytest.raises(InvalidInput, match="not known; annotate"):
        chunker(lambda body: [])
    with pytest.raises(InvalidInput, match="must take one argument, its source"):
        udtf(output_schema={"n": int})(lambda: None)

    class NoCall:
        pass

    with pytest.raises(InvalidInput, match="has no __call__"):
        udtf(output_schema={"n": int})(NoCall)


def test_columns_cannot_be_taken_by_star(tmp_path: Path) -> None:
    @chunker(output_schema={"n": int})
    def anything(**columns: Any) -> list[dict[str, int]]:
        return [{"n": len(columns)}]

    with pytest.raises(InvalidInput, match=r"takes \*\*columns"):
        anything.input_columns(["a"])


def test_a_manifest_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "m"}')
    code = chunker(output_schema={"n": int}, manifest=tmp_path / "manifest.json")(len)
    assert code.options.manifest == '{"name": "m"}'


def test_batched_chunkers_say_so() -> None:
    code = chunker(batch=True, output_schema={"n": int})(Counted.target)
    assert code.abi == "arrow-batch-chunker"
    assert isinstance(code, ViewCode)


def test_a_test_runs_the_code_as_a_worker_would(tmp_path: Path) -> None:
    module = imported(
        tmp_path,
        """
        from collections.abc import Iterator
        from typing import NamedTuple
        import pyarrow as pa
        from udtf import chunker, udtf

        class Word(NamedTuple):
            text: str

        @chunker
        def words(body: str) -> Iterator[Word]:
            for text in body.split():
                yield Word(text)

        @udtf(output_schema={"rows": int})
        def counted(source):
            yield pa.table({"rows": [source.to_arrow().num_rows]})
        """,
    )
    table = pa.table({"id": [7, 8, 9], "body": ["a b", "", "c"]})
    chunks = module.words.test(table)
    assert chunks.select(["text", "__parent"]).to_pylist() == [
        {"text": "a", "__parent": 0},
        {"text": "b", "__parent": 0},
        {"text": "c", "__parent": 2},
    ]
    assert module.counted.test(table).to_pylist() == [{"rows": 3}]


def test_workers_that_import_the_package_pay_for_none_of_it() -> None:
    program = """
import sys
import udtf
loaded = {"httpx", "tqdm", "pyarrow", "cluster"} & {name.partition(".")[0] for name in sys.modules}
assert not loaded, loaded
assert udtf.chunker.__module__ == "udtf.authoring"
loaded = {"httpx", "tqdm"} & set(sys.modules)
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
