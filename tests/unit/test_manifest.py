"""Manifests: what is refused, and what Ray is given."""

import hashlib
import json
import sys
from typing import Any

import pytest

from cluster.errors import DestrierError, InvalidInput, PermissionDenied
from cluster.settings import ViewSettings
from udtf.checked import canonical_json
from udtf.manifest import manifest_checksum, parse_manifest, runtime_env

OPEN = ViewSettings(pip=True, environment_variables=("MODE",))
CLOSED = ViewSettings()
HERE = ".".join(map(str, sys.version_info[:2]))


def env(value: Any, views: ViewSettings = OPEN) -> dict[str, Any]:
    return runtime_env(parse_manifest(json.dumps(value), views))


def test_what_a_manifest_asks_for_is_what_ray_is_given() -> None:
    asked = {
        "name": "mine",
        "python_version": HERE,
        "pip": ["numpy>=2,<3", "x[extra] == 1.*"],
        "py_modules": ["https://example.com/code.zip"],
        "env_vars": {"MODE": "fast"},
    }
    assert env(asked) == {
        "pip": ["numpy>=2,<3", "x[extra] == 1.*"],
        "py_modules": ["https://example.com/code.zip"],
        "env_vars": {"MODE": "fast"},
    }
    assert env({"worker_image": "registry/image:1"}) == {"image_uri": "registry/image:1"}
    assert env({"conda": {"dependencies": ["numpy"]}}) == {"conda": {"dependencies": ["numpy"]}}


def test_an_empty_manifest_changes_nothing() -> None:
    assert env({}, CLOSED) == {}
    assert env({"pip": [], "env_vars": {}, "conda": None}, CLOSED) == {}


@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        ({"pip": ["numpy"]}, PermissionDenied, "views.pip"),
        ({"conda": {"dependencies": ["numpy"]}}, PermissionDenied, "views.pip"),
        ({"py_modules": ["https://example.com/code.zip"]}, PermissionDenied, "views.pip"),
        ({"worker_image": "x"}, PermissionDenied, "views.pip"),
        ({"env_vars": {"MODE": "fast"}}, PermissionDenied, "MODE"),
    ],
)
def test_what_the_deployment_does_not_allow_is_refused(
    value: Any, error: type[DestrierError], says: str
) -> None:
    with pytest.raises(error, match=says):
        env(value, CLOSED)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"packages": ["numpy"]}, "packages"),
        ({"requirements_path": "requirements.txt"}, "requirements_path"),
        ({"pip": "numpy"}, "list"),
        ({"pip": ["--index-url=https://example.com"]}, "--index-url"),
        ({"pip": ["numpy @ https://example.com/x.whl"]}, "example.com"),
        ({"pip": ["../numpy"]}, "numpy"),
        ({"pip": ["a"], "conda": {"dependencies": ["b"]}}, "exclude"),
        ({"pip": ["a"], "worker_image": "b"}, "exclude"),
        ({"py_modules": ["/etc"]}, "/etc"),
        ({"py_modules": ["file:///etc/x.zip"]}, "file:"),
        ({"env_vars": ["MODE"]}, "object"),
        ({"env_vars": {"MODE": 1}}, "MODE"),
        ({"python_version": "2.7"}, "2.7"),
        ({"python_version": "three"}, "three"),
        ({"python_version": 3.11}, "string"),
        ({"checksum": "0" * 64}, "checksum"),
        ([], "object"),
    ],
)
def test_a_malformed_manifest_is_refused_and_the_message_names_the_field(
    value: Any, says: str
) -> None:
    with pytest.raises(InvalidInput, match=says):
        env(value)


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(InvalidInput, match="JSON"):
        parse_manifest("pip: [numpy]", OPEN)


def test_the_checksum_inside_is_of_everything_else() -> None:
    value: dict[str, Any] = {"pip": ["numpy"], "name": "n"}
    digest = hashlib.sha256(canonical_json(value).encode()).hexdigest()
    assert env({**value, "checksum": digest}) == {"pip": ["numpy"]}


def test_the_checksum_of_a_manifest_is_of_its_bytes() -> None:
    text = '{"name": "é"}'
    assert manifest_checksum(text) == hashlib.sha256(text.encode()).hexdigest()
    assert manifest_checksum(text) != manifest_checksum(text + " ")
