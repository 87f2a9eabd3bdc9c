"""The environment that a view's code runs in, as its author describes it, and as Ray makes it.

    {"python_version": "3.11", "pip": ["numpy>=2"], "env_vars": {"MODE": "fast"}}

A manifest is a JSON object. What brings software (`pip`, `conda`, `py_modules`, `worker_image`)
runs installers or images on the workers, and is refused unless the deployment allows it; `env_vars`
may set the variables that the deployment names. `name`, `version`, `created_at` and `created_by`
are labels. `checksum`, if there, is the SHA-256 of the canonical JSON of everything else. Ray takes
unknown fields without a word, so they are refused here.
"""

import hashlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.errors import InvalidInput, PermissionDenied
from cluster.settings import ViewSettings
from udtf.checked import (
    canonical_json,
    json_type,
    normal_sha256,
    read_json,
    read_list,
    read_object,
    read_text,
    utf8,
)

_LABELS = frozenset({"name", "version", "created_at", "created_by"})
_SOFTWARE = ("pip", "conda", "py_modules", "worker_image")
_FIELDS = _LABELS | {*_SOFTWARE, "python_version", "env_vars", "checksum"}

# A list that people wrote; longer ones are an environment that belongs in an image.
_PACKAGES_MAX = 256
_VARIABLES_MAX = 256
_TEXT_BYTES_MAX = 4_096
# A name with versions, from the index that the deployment has: no options, paths or addresses.
_REQUIREMENT = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._, -]+\])?\s*"
    r"([<>=!~]{1,3}\s*[A-Za-z0-9.*+!_-]+(\s*,\s*[<>=!~]{1,3}\s*[A-Za-z0-9.*+!_-]+)*)?",
    re.ASCII,
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_MODULE_URI = re.compile(r"(s3|gs|https)://\S+\.zip")
_PYTHON = re.compile(r"(\d+)\.(\d+)(\.\S+)?")


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checked manifest; what is not given is empty or None."""

    pip: tuple[str, ...] = ()
    conda: Mapping[str, Any] | None = None
    py_modules: tuple[str, ...] = ()
    worker_image: str | None = None
    env_vars: Mapping[str, str] = field(default_factory=dict)


def parse_manifest(text: str, views: ViewSettings) -> Manifest:
    """Read and check a manifest.

    Raises:
        InvalidInput: it is malformed, or asks for another Python than the workers have.
        PermissionDenied: it asks for what the deployment does not allow.
    """
    value = read_object(read_json(utf8(text, "manifest"), "manifest"), "manifest", _FIELDS)
    for label in sorted(_LABELS & set(value)):
        if value[label] is not None:
            read_text(value[label], f"manifest.{label}", _TEXT_BYTES_MAX)
    _check_checksum(value)
    _check_python(value.get("python_version"))
    brought = [name for name in _SOFTWARE if value.get(name)]
    if brought and not views.pip:
        raise PermissionDenied(
            f"manifest.{brought[0]}: this deployment installs nothing for views; use what its"
            " workers have, or ask its operator to set views.pip"
        )
    if len(brought) > 1 and set(brought) != {"pip", "py_modules"}:
        raise InvalidInput(f"manifest: {brought[0]} and {brought[1]} exclude each other; keep one")
    return Manifest(
        pip=_pip(value.get("pip")),
        conda=_conda(value.get("conda")),
        py_modules=_modules(value.get("py_modules")),
        worker_image=_image(value.get("worker_image")),
        env_vars=_variables(value.get("env_vars"), views),
    )


def runtime_env(manifest: Manifest) -> dict[str, Any]:
    """As Ray takes it for a whole driver; empty if the workers are to run as they are."""
    wanted = {
        "pip": list(manifest.pip),
        "conda": dict(manifest.conda or {}),
        "py_modules": list(manifest.py_modules),
        "image_uri": manifest.worker_image,
        "env_vars": dict(manifest.env_vars),
    }
    return {name: value for name, value in wanted.items() if value}


def manifest_checksum(text: str) -> str:
    """SHA-256 of the manifest as it was sent, in hexadecimal."""
    return hashlib.sha256(utf8(text, "manifest")).hexdigest()


def _check_checksum(value: Mapping[str, Any]) -> None:
    claimed = value.get("checksum")
    if claimed is None:
        return
    rest = {name: item for name, item in value.items() if name != "checksum"}
    found = hashlib.sha256(canonical_json(rest).encode()).hexdigest()
    if normal_sha256(read_text(claimed, "manifest.checksum", 128)) != found:
        raise InvalidInput(f"manifest.checksum does not match the content, which has {found}")


def _check_python(wanted: object) -> None:
    if wanted is None:
        return
    match = _PYTHON.fullmatch(read_text(wanted, "manifest.python_version", 64).strip())
    if match is None:
        raise InvalidInput(f"manifest.python_version must be like 3.11, not {wanted!r}")
    if (int(match[1]), int(match[2])) != sys.version_info[:2]:
        here = ".".join(map(str, sys.version_info[:2]))
        raise InvalidInput(
            f"manifest.python_version is {wanted}, and the workers run Python {here}; write the"
            " code for that version"
        )


def _pip(value: object) -> tuple[str, ...]:
    if not value:
        return ()
    packages = read_list(value, "manifest.pip", _PACKAGES_MAX)
    for package in packages:
        text = read_text(package, "manifest.pip", _TEXT_BYTES_MAX).strip()
        if not _REQUIREMENT.fullmatch(text):
            raise InvalidInput(
                f"manifest.pip: {text!r} is no package with versions, like numpy>=2; options,"
                " addresses and paths are not taken"
            )
    return tuple(text.strip() for text in packages)


def _conda(value: object) -> Mapping[str, Any] | None:
    if not value:
        return None
    return read_object(value, "manifest.conda", {"name", "channels", "dependencies"})


def _modules(value: object) -> tuple[str, ...]:
    if not value:
        return ()
    modules = read_list(value, "manifest.py_modules", _PACKAGES_MAX)
    for module in modules:
        if not _MODULE_URI.fullmatch(read_text(module, "manifest.py_modules", _TEXT_BYTES_MAX)):
            raise InvalidInput(
                f"manifest.py_modules: {module!r} is no address of a zip file that workers can"
                " reach (https://, s3:// or gs://)"
            )
    return tuple(modules)


def _image(value: object) -> str | None:
    return read_text(value, "manifest.worker_image", _TEXT_BYTES_MAX) if value else None


def _variables(value: object, views: ViewSettings) -> Mapping[str, str]:
    if not value:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInput(f"manifest.env_vars must be a JSON object, not {json_type(value)}")
    if len(value) > _VARIABLES_MAX:
        raise InvalidInput(f"manifest.env_vars has more than {_VARIABLES_MAX} entries")
    for name, text in value.items():
        if not _VARIABLE.fullmatch(name) or not isinstance(text, str):
            raise InvalidInput(f"manifest.env_vars: {name!r} must be a name and its value a string")
        if name not in views.environment_variables:
            allowed = ", ".join(views.environment_variables) or "none"
            raise PermissionDenied(
                f"manifest.env_vars: {name} may not be set here; the deployment allows {allowed}"
                " (setting views.environment_variables)"
            )
    return dict(value)
