"""User code in envelopes, and what runs it in a process, for the tests of both."""

import json
import textwrap
from typing import Any

import pyarrow as pa
import pytest

from udtf.code_process import CodeFailed, CodeProcess, CodeSpec
from udtf.spec import ViewKind

ABIS = {
    "udtf": (ViewKind.UDTF, "arrow-partition"),
    "row": (ViewKind.CHUNKER, "row-chunker"),
    "batch": (ViewKind.CHUNKER, "arrow-batch-chunker"),
}
NUMBERS = pa.schema([("n", pa.int64())])
IMPORTS = "import os, pyarrow as pa\ndef rows(*n):\n    return pa.record_batch({'n': list(n)})\n"


def envelope(source: str, abi: str, **changes: Any) -> bytes:
    kind, name = ABIS[abi]
    value = {
        "format": "lance-udtf",
        "version": 1,
        "kind": kind.value,
        "entrypoint": "code",
        "artifact": {"encoding": "python-source", "data": IMPORTS + textwrap.dedent(source)},
        "abi": {"name": name, "version": 1},
        "runtime": {"python": "3.11"},
    }
    return json.dumps(value | changes).encode()


def spec_of(source: str, abi: str = "udtf", **changes: Any) -> CodeSpec:
    fields: dict[str, Any] = {
        "envelope": envelope(source, abi, **changes.pop("envelope", {})),
        "kind": ABIS[abi][0],
        "batch": abi == "batch",
        "input_schema_ipc": bytes(NUMBERS.serialize()),
        "output_schema_ipc": bytes(changes.pop("output", NUMBERS).serialize()),
        "memory_bytes": None,
        "start_timeout_s": 30,
        "item_timeout_s": 30,
        "output_bytes_max": 4_096,
    }
    return CodeSpec(**(fields | changes))


def numbers(*values: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"n": pa.array(values, pa.int64())})]


def run(process: CodeProcess, batches: Any = None) -> list[dict[str, Any]]:
    given = numbers(1, 2, 3) if batches is None else batches
    return [row for batch in process.run(given) for row in batch.to_pylist()]


def failure(source: str, abi: str = "udtf", **changes: Any) -> CodeFailed:
    with CodeProcess(spec_of(source, abi, **changes)) as process:
        with pytest.raises(CodeFailed) as caught:
            run(process)
        return caught.value
