"""One test for each rule of `udtf_spec`: the code of a view and how to run it."""

import base64
import hashlib
import json
from typing import Any

import pytest

from cluster.errors import InvalidInput, PermissionDenied, Unsupported
from cluster.settings import LimitSettings, ViewSettings
from tests.unit.view_requests import check, envelope, spec
from udtf.spec import UdtfSpec

SHA = hashlib.sha256(envelope("udtf")).hexdigest()


def checked(view_kind: str = "udtf", /, **changes: Any) -> UdtfSpec:
    udtf = check(view_kind, udtf_spec=spec(view_kind, **changes)).udtf
    assert udtf is not None
    return udtf


def refusal(view_kind: str = "udtf", /, **changes: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        check(view_kind, udtf_spec=spec(view_kind, **changes))
    return caught.value.message


def test_udtf_spec_is_read_whole() -> None:
    assert checked(
        input_columns=["id", "meta.lang"],
        partition_by="meta.lang",
        num_cpus=0.5,
        num_gpus=2,
        memory=1e6,
        error_handling={"matchers": [{"action": "skip", "exceptions": ["ValueError"]}]},
        manifest='{"pip":[]}',
    ) == UdtfSpec(
        envelope=envelope("udtf"),
        sha256=SHA,
        name="expand",
        version="1",
        input_columns=("id", "meta.lang"),
        partition_by="meta.lang",
        num_cpus=0.5,
        num_gpus=2.0,
        memory_bytes=1_000_000,
        error_handling=(
            '{"default":"fail","matchers":[{"action":"skip","exceptions":["ValueError"]}]}'
        ),
        manifest='{"pip":[]}',
    )


def test_nulls_in_udtf_spec_are_as_if_left_out() -> None:
    keys = (
        "kind input_columns partition_by partition_by_indexed_column num_cpus num_gpus memory"
        " error_handling batch manifest manifest_checksum"
    )
    assert checked(**dict.fromkeys(keys.split())) == checked()


def test_unknown_key_is_refused_by_name() -> None:
    assert refusal(memory_mb=1).startswith("udtf_spec has the unknown key 'memory_mb'")


@pytest.mark.parametrize(("view_kind", "inner"), [("udtf", "chunker"), ("chunker", "udtf")])
def test_kind_inside_must_agree(view_kind: str, inner: str) -> None:
    message = f"udtf_spec.kind is '{inner}', but kind is {view_kind}; make them agree"
    assert refusal(view_kind, kind=inner) == message


def test_kind_inside_may_be_the_alias() -> None:
    assert checked("chunker", kind="scalar_udtf") == checked("chunker")


# The envelope and its digest


@pytest.mark.parametrize("text", ["", "QUJ", "QUJD!", None, 7])
def test_udtf_must_be_base64(text: object) -> None:
    assert refusal(udtf=text).startswith("udtf_spec.udtf ")


def test_envelope_is_bounded() -> None:
    size = len(envelope("udtf"))
    assert check("udtf", udtf_spec=spec("udtf"), limits=LimitSettings(udtf_envelope_bytes_max=size))
    with pytest.raises(InvalidInput, match=rf"udtf_spec\.udtf is longer than {size - 1} bytes"):
        check(
            "udtf",
            udtf_spec=spec("udtf"),
            limits=LimitSettings(udtf_envelope_bytes_max=size - 1),
        )


@pytest.mark.parametrize(
    "claimed",
    [SHA, SHA.upper(), f"sha256:{SHA}", f"SHA256:{SHA.upper()}"],
)
def test_digest_of_the_envelope_is_accepted_in_any_spelling(claimed: str) -> None:
    assert checked(udtf_sha=claimed).sha256 == SHA


def test_digest_of_the_base64_text_is_accepted_too() -> None:
    text = base64.b64encode(envelope("udtf"))
    assert checked(udtf_sha=hashlib.sha256(text).hexdigest()).sha256 == SHA


@pytest.mark.parametrize("claimed", ["0" * 64, SHA[:-1], f"md5:{SHA}", "x"])
def test_wrong_digest_is_refused_with_the_right_one(claimed: str) -> None:
    message = f"udtf_spec.udtf_sha does not match the content, whose SHA-256 is {SHA}"
    assert refusal(udtf_sha=claimed) == message


@pytest.mark.parametrize("claimed", [None, "", 5])
def test_digest_is_required(claimed: object) -> None:
    assert refusal(udtf_sha=claimed).startswith("udtf_spec.udtf_sha ")


def test_digest_is_checked_before_the_envelope_is_read() -> None:
    assert "udtf_sha does not match" in refusal(data=b"no envelope", udtf_sha="0" * 64)
    assert "envelope" in refusal(data=b"no envelope")


# Labels and columns


@pytest.mark.parametrize("name", ["GroupStats", "_x", "a.b-c_1", "a" * 256])
def test_udtf_name_is_kept(name: str) -> None:
    assert checked(udtf_name=name).name == name


@pytest.mark.parametrize("name", [None, "", "1a", "a b", "a/b", "é", "a" * 257, 3])
def test_udtf_name_must_be_like_an_identifier(name: object) -> None:
    assert refusal(udtf_name=name).startswith("udtf_spec.udtf_name ")


@pytest.mark.parametrize("version", [None, "", 1, "v" * 257])
def test_udtf_version_is_a_required_string(version: object) -> None:
    assert refusal(udtf_version=version).startswith("udtf_spec.udtf_version ")


def test_labels_inside_the_envelope_must_agree() -> None:
    assert checked(data=envelope("udtf", name="expand", udtf_version="1")).name == "expand"
    assert refusal(data=envelope("udtf", name="other")) == (
        "udtf_spec.udtf_name is 'expand', but the envelope says 'other'; make them agree"
    )
    assert refusal(data=envelope("udtf", udtf_version="2")).startswith("udtf_spec.udtf_version is")


@pytest.mark.parametrize("columns", ["id", [], [1], [""], ["a", "b", "a"], {"a": 1}])
def test_input_columns_must_be_a_list_of_different_names(columns: object) -> None:
    assert refusal(input_columns=columns).startswith("udtf_spec.input_columns ")


def test_input_columns_are_bounded() -> None:
    with pytest.raises(InvalidInput, match="input_columns has 3 items; the most is 2"):
        check(
            "udtf",
            udtf_spec=spec("udtf", input_columns=["a", "b", "c"]),
            limits=LimitSettings(columns_max=2),
        )


# Partitions and batches


def test_partition_is_by_value_or_by_index_and_not_both() -> None:
    assert checked(partition_by="a").partition_by == "a"
    assert checked(partition_by_indexed_column="v").partition_by_indexed_column == "v"
    assert refusal(partition_by="a", partition_by_indexed_column="v") == (
        "udtf_spec has both partition_by and partition_by_indexed_column; keep one"
    )


@pytest.mark.parametrize("key", ["partition_by", "partition_by_indexed_column"])
def test_partition_is_for_udtf_views_only(key: str) -> None:
    message = f"udtf_spec.{key} is for kind udtf only; leave it out"
    assert refusal("chunker", **{key: "a"}) == message
    assert refusal(**{key: ""}) == f"udtf_spec.{key} is empty; give a value"
    assert refusal(**{key: ["a"]}) == f"udtf_spec.{key} must be a string, not a list"


def test_batch_is_for_chunkers_only() -> None:
    data = envelope("chunker", abi={"name": "arrow-batch-chunker", "version": 1})
    assert checked("chunker", data=data, batch=True).batch is True
    assert checked(batch=False).batch is False
    assert refusal(batch=True) == "udtf_spec.batch is for kind chunker only; leave it out"
    assert refusal("chunker", batch=1).startswith("udtf_spec.batch must be true, false or null")


# Resources


@pytest.mark.parametrize(("amount", "expected"), [(0, 0.0), (0.25, 0.25), (16, 16.0)])
def test_num_cpus_is_any_amount(amount: float, expected: float) -> None:
    assert checked(num_cpus=amount).num_cpus == expected


@pytest.mark.parametrize(("amount", "expected"), [(0, 0.0), (0.5, 0.5), (1, 1.0), (3.0, 3.0)])
def test_num_gpus_is_a_share_or_whole(amount: float, expected: float) -> None:
    assert checked(num_gpus=amount).num_gpus == expected


def test_num_gpus_above_one_must_be_whole() -> None:
    message = "udtf_spec.num_gpus must be whole when above 1, not 1.5"
    assert refusal(num_gpus=1.5) == message


@pytest.mark.parametrize(("amount", "expected"), [(0, 0), (1 << 30, 1 << 30), (1.5, 2)])
def test_memory_is_bytes_rounded_up(amount: float, expected: int) -> None:
    assert checked(memory=amount).memory_bytes == expected


@pytest.mark.parametrize("key", ["num_cpus", "num_gpus", "memory"])
@pytest.mark.parametrize("amount", [-1, -0.5, float("nan"), float("inf"), 10**400, True, "1", [1]])
def test_resources_must_be_finite_numbers_from_zero(key: str, amount: object) -> None:
    assert refusal(**{key: amount}).startswith(f"udtf_spec.{key} ")


# Error handling


def policy(**matcher: Any) -> dict[str, Any]:
    return {"matchers": [{"action": "retry", "exceptions": ["OSError"]} | matcher]}


def stored(value: object) -> Any:
    text = checked(error_handling=value).error_handling
    assert text is not None
    return json.loads(text)


@pytest.mark.parametrize("value", [{}, {"matchers": []}, {"default": None, "matchers": None}])
def test_empty_error_handling_fails(value: object) -> None:
    assert stored(value) == {"default": "fail", "matchers": []}


def test_retry_gets_its_defaults_spelled_out() -> None:
    assert stored(policy())["matchers"] == [
        {"action": "retry", "exceptions": ["OSError"], "max_attempts": 3, "backoff": "exponential"}
    ]


def test_error_handling_keeps_order_and_choices() -> None:
    value = {
        "default": "skip",
        "matchers": [
            policy(max_attempts=100, backoff="fixed", match="busy|later")["matchers"][0],
            {"action": "fail", "exceptions": ["my.pkg.Error", "KeyError"]},
        ],
    }
    assert stored(value) == value


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("skip", "error_handling must be a JSON object, not a string"),
        ({"mode": "skip"}, "error_handling has the unknown key 'mode'"),
        ({"default": "retry"}, "error_handling.default must be fail or skip"),
        ({"default": "ignore"}, "error_handling.default must be one of fail, skip, retry"),
        ({"matchers": {}}, "error_handling.matchers must be a list"),
        ({"matchers": ["skip"]}, "error_handling.matchers[0] must be a JSON object"),
        (policy(when="x"), "error_handling.matchers[0] has the unknown key 'when'"),
        (policy(action="drop"), "error_handling.matchers[0].action must be one of"),
        (policy(exceptions=[]), "error_handling.matchers[0].exceptions is an empty list"),
        (policy(exceptions=["a b"]), "'a b' is not the name of a Python class"),
        (policy(match="("), "error_handling.matchers[0].match is not a regular expression"),
        (policy(match="(" * 900), "error_handling.matchers[0].match is not a regular expression"),
        (policy(match="x" * 1001), "error_handling.matchers[0].match is longer than 1000 bytes"),
        (policy(max_attempts=0), "max_attempts must be a whole number from 1 to 100"),
        (policy(max_attempts=101), "max_attempts must be a whole number from 1 to 100"),
        (policy(max_attempts=True), "max_attempts must be a whole number from 1 to 100"),
        (policy(backoff="jitter"), "backoff must be one of exponential, linear, fixed"),
        (policy(action="skip", max_attempts=3), "max_attempts is for the action retry only"),
        ({"matchers": policy()["matchers"] * 33}, "error_handling.matchers has 33 items"),
        (
            {"matchers": policy()["matchers"] + policy(backoff="fixed")["matchers"]},
            "every retry must have the same backoff",
        ),
    ],
)
def test_wrong_error_handling_is_refused(value: object, named: str) -> None:
    assert named in refusal(error_handling=value)


def test_error_handling_is_for_udtf_views_only() -> None:
    message = "udtf_spec.error_handling is for kind udtf only; leave it out"
    assert refusal("chunker", error_handling={}) == message


# Manifest


def test_manifest_is_kept_as_it_came_and_its_checksum_is_checked() -> None:
    manifest = '{"pip": ["é"]}\n'
    digest = hashlib.sha256(manifest.encode()).hexdigest()
    for claimed in (None, digest, f"sha256:{digest.upper()}"):
        assert checked(manifest=manifest, manifest_checksum=claimed).manifest == manifest
    assert refusal(manifest=manifest, manifest_checksum="0" * 64) == (
        f"udtf_spec.manifest_checksum does not match the content, whose SHA-256 is {digest}"
    )


def test_checksum_without_manifest_is_refused() -> None:
    message = "udtf_spec.manifest_checksum is given without a manifest"
    assert refusal(manifest_checksum="0" * 64) == message


def test_manifest_is_a_bounded_string() -> None:
    assert refusal(manifest={}) == "udtf_spec.manifest must be a string, not an object"
    limits = LimitSettings(udtf_manifest_bytes_max=3)
    with pytest.raises(InvalidInput, match=r"udtf_spec\.manifest is longer than 3 bytes"):
        check("udtf", udtf_spec=spec("udtf", manifest="éé"), limits=limits)


# What the deployment allows


@pytest.mark.parametrize("view_kind", ["udtf", "chunker"])
def test_code_is_refused_when_the_deployment_accepts_none(view_kind: str) -> None:
    with pytest.raises(Unsupported, match=r"views\.user_code"):
        check(view_kind, udtf_spec=spec(view_kind), views=ViewSettings(user_code="off"))


def test_query_views_need_no_user_code() -> None:
    assert check(views=ViewSettings(user_code="off")).udtf is None


@pytest.mark.parametrize("listed", [SHA, f"sha256:{SHA.upper()}"])
def test_listed_code_is_accepted(listed: str) -> None:
    views = ViewSettings(user_code="allow-list", user_code_sha256=(listed,))
    assert check("udtf", udtf_spec=spec("udtf"), views=views).udtf is not None


def test_code_that_is_not_listed_is_denied_with_its_digest() -> None:
    views = ViewSettings(user_code="allow-list", user_code_sha256=("0" * 64,))
    with pytest.raises(PermissionDenied, match=SHA):
        check("udtf", udtf_spec=spec("udtf"), views=views)
