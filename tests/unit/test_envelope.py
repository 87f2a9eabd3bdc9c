"""The code envelope: what is checked of it without running any of the code."""

import base64
import pickle
from typing import Any

import pytest

from cluster.errors import InvalidInput
from cluster.settings import LimitSettings, ViewSettings
from tests.unit.view_requests import SOURCE, envelope
from udtf.envelope import Envelope, parse_envelope

SERVED = (3, 11)


def parse(data: bytes, kind: str = "udtf", batch: bool = False, **options: Any) -> Envelope:
    return parse_envelope(
        data,
        kind,
        batch,
        options.get("limits", LimitSettings()),
        options.get("views", ViewSettings()),
        SERVED,
    )


def made(kind: str = "udtf", /, **changes: Any) -> bytes:
    return envelope(kind, **({"runtime": {"python": "3.11"}} | changes))


def source(text: object) -> dict[str, object]:
    return {"encoding": "python-source", "data": text}


def refusal(data: bytes, kind: str = "udtf", batch: bool = False, **options: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        parse(data, kind, batch, **options)
    return caught.value.message


def test_envelope_is_read_whole() -> None:
    data = made(
        name="expand",
        udtf_version="1",
        init={"threshold": 3},
        runtime={"python": "3.11", "pyarrow": ">=15"},
        deterministic=False,
    )
    assert parse(data) == Envelope(
        kind="udtf",
        entrypoint="expand",
        encoding="python-source",
        code=SOURCE.encode(),
        abi="arrow-partition",
        init={"threshold": 3},
        name="expand",
        udtf_version="1",
        pyarrow=">=15",
        deterministic=False,
    )


@pytest.mark.parametrize(
    "data",
    [b"{}", b"[]", b'"lance-udtf"', b'{"format":"geneva","version":1}', b"null"],
)
def test_other_formats_are_refused_with_the_known_one(data: bytes) -> None:
    assert refusal(data) == (
        "the envelope in udtf_spec.udtf is not of a known format; send a JSON object with"
        ' "format": "lance-udtf" and "version": 1'
    )


@pytest.mark.parametrize("version", [0, 2, "1", True, [1]])
def test_other_versions_are_refused(version: object) -> None:
    assert "this server reads version 1" in refusal(made(version=version))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04K\x01.",
        b"{",
        b"\xff{}",
        b'{"format":"lance-udtf","format":"lance-udtf"}',
        b'{"format":NaN}',
        b'{"a":' + b"1" * 5_000 + b"}",
    ],
)
def test_text_that_is_not_strict_json_is_refused(data: bytes) -> None:
    assert "is not valid JSON" in refusal(data)


def test_deep_json_is_refused() -> None:
    assert refusal(b"[" * 100_000).endswith("is JSON nested too deeply")


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for level in range(levels - 1):
        value = {"a": [value]} if level % 2 else {"a": value}
    return value


def test_deep_init_is_refused() -> None:
    assert parse(made(init={"a": [1, {"b": 2}]})).init == {"a": [1, {"b": 2}]}
    assert parse(made(init=nested(20))).init == nested(20)
    assert "init is nested more than 32 levels" in refusal(made(init=nested(40)))


@pytest.mark.parametrize("init", [[], "x", {"not a name": 1}])
def test_init_must_be_keyword_arguments(init: object) -> None:
    assert "init must be an object of keyword arguments" in refusal(made(init=init))


@pytest.mark.parametrize("key", ["kind", "entrypoint", "artifact", "abi", "runtime"])
def test_missing_part_is_named(key: str) -> None:
    assert refusal(envelope("udtf", **{key: None})).endswith(f"lacks {key}")


def test_unknown_key_is_refused_by_name() -> None:
    assert "has the unknown key 'timeout'" in refusal(made(timeout=1))


def test_code_for_another_kind_is_refused() -> None:
    assert "is for kind 'chunker', but the view's is 'udtf'" in refusal(made("chunker"))


# Source and entrypoint


@pytest.mark.parametrize(
    "text",
    [
        "def expand(source): ...",
        "import os\n\n@decorated\nclass expand:\n    def __call__(self, source): ...",
    ],
)
def test_entrypoint_is_a_function_or_class_at_top_level(text: str) -> None:
    assert parse(made(artifact=source(text))).code == text.encode()


@pytest.mark.parametrize(
    "text",
    [
        "def other(source): ...",
        "expand = 1",
        "class A:\n    def expand(self): ...",
        "async def expand(source): ...",
        "# def expand(): ...",
    ],
)
def test_source_without_the_entrypoint_is_refused(text: str) -> None:
    message = refusal(made(artifact=source(text)))
    assert message.endswith("defines no function or class 'expand' at its top level")


def test_source_that_does_not_parse_is_refused_with_the_line() -> None:
    message = refusal(made(artifact=source("x = 1\ndef expand(:\n")))
    assert "the source does not parse: line 2: " in message


@pytest.mark.parametrize("text", ["not " * 10_000 + "1", "1" + "+1" * 50_000, "a" + ".b" * 50_000])
def test_source_nested_too_deeply_is_refused(text: str) -> None:
    assert refusal(made(artifact=source(text))).endswith("nested too deeply to parse")


def test_source_is_not_run() -> None:
    text = "raise SystemExit(1)\ndef expand(source): ..."
    assert parse(made(artifact=source(text))).entrypoint == "expand"


def test_source_is_bounded() -> None:
    limits = LimitSettings(udtf_source_bytes_max=len(SOURCE))
    assert parse(made(), limits=limits)
    limits = LimitSettings(udtf_source_bytes_max=len(SOURCE) - 1)
    assert f"is longer than {len(SOURCE) - 1} bytes" in refusal(made(), limits=limits)


@pytest.mark.parametrize("data", [None, "", 5, "\ud800"])
def test_source_must_be_text(data: object) -> None:
    assert "artifact.data" in refusal(made(artifact=source(data)))


def test_source_with_a_null_character_is_refused() -> None:
    message = refusal(made(artifact=source("\x00")))
    assert message.endswith("does not parse: source code string cannot contain null bytes")


@pytest.mark.parametrize("entrypoint", ["", "a.b", "a:b", "1a", 5, "a" * 257])
def test_entrypoint_must_be_a_name(entrypoint: object) -> None:
    assert "entrypoint" in refusal(made(entrypoint=entrypoint))


# Encodings


@pytest.mark.parametrize("encoding", ["package", "python-bundle", "wasm", None, 1, []])
def test_other_encodings_are_refused_with_the_accepted_one(encoding: object) -> None:
    message = refusal(made(artifact={"encoding": encoding, "data": "x"}))
    assert message.endswith("is not accepted by this server; use python-source")


def test_pickles_are_refused_unless_enabled_and_never_loaded() -> None:
    # A pickle whose loading would end this process.
    data = b"cbuiltins\nexit\n(I1\ntR."
    artifact = {"encoding": "cloudpickle", "data": base64.b64encode(data).decode()}
    assert "use python-source" in refusal(made(artifact=artifact))
    parsed = parse(made(artifact=artifact), views=ViewSettings(cloudpickle=True))
    assert (parsed.encoding, parsed.code) == ("cloudpickle", data)


def test_pickles_must_be_base64() -> None:
    artifact = {"encoding": "cloudpickle", "data": "not base64"}
    message = refusal(made(artifact=artifact), views=ViewSettings(cloudpickle=True))
    assert "artifact.data is not base64" in message


# ABI and runtime


@pytest.mark.parametrize(
    ("kind", "batch", "name"),
    [
        ("udtf", False, "arrow-partition"),
        ("chunker", False, "row-chunker"),
        ("chunker", True, "arrow-batch-chunker"),
    ],
)
def test_abi_follows_kind_and_batch(kind: str, batch: bool, name: str) -> None:
    assert parse(made(kind, abi={"name": name, "version": 1}), kind, batch).abi == name
    message = refusal(made(kind, abi={"name": "other", "version": 1}), kind, batch)
    assert f'abi must be {{"name": "{name}", "version": 1}}' in message
    assert "abi must be" in refusal(made(kind, abi={"name": name, "version": 2}), kind, batch)


@pytest.mark.parametrize("version", ["3.11", "3.11.0", "3.11.14"])
def test_code_for_the_servers_python_is_accepted(version: str) -> None:
    assert parse(made(runtime={"python": version})).entrypoint == "expand"


@pytest.mark.parametrize("version", ["3.12", "3.1", "2.7.18", "4.11"])
def test_code_for_another_python_is_refused_with_both_versions(version: str) -> None:
    message = refusal(made(runtime={"python": version}))
    assert f"the code is for Python {version}, but this server's workers run 3.11" in message


@pytest.mark.parametrize("version", [None, "", 3.11, "3", ">=3.11", "3.11rc1"])
def test_runtime_python_must_be_a_version(version: object) -> None:
    assert "runtime.python" in refusal(made(runtime={"python": version}))


@pytest.mark.parametrize("value", ["yes", 1, []])
def test_deterministic_must_be_a_boolean(value: object) -> None:
    assert "deterministic must be a boolean" in refusal(made(deterministic=value))


def test_envelope_survives_pickling() -> None:
    parsed = parse(made())
    assert pickle.loads(pickle.dumps(parsed)) == parsed
