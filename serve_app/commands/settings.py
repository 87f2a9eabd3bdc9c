"""`destrier settings`: what every setting is here and now, and where its value came from."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from cluster.errors import DestrierError, InvalidInput
from cluster.settings import (
    ENVIRONMENT_ALIASES,
    LoadedSettings,
    Section,
    Settings,
    environment_name,
    load_settings,
)
from serve_app.commands import failure

MASK = "********"

_REFERENCE_HEAD = """\
# Settings

Every setting, as `destrier settings --markdown` prints them. `destrier settings` shows the values
in effect and where each came from.

A setting takes the last of: its default, the TOML file given with `--config` (one table per
section), its environment variable, the command line. Lists in environment variables are separated
by commas. A setting that does not exist, or a value out of range, stops the start.
"""


def add_parser(subparsers: Any) -> None:
    """Add `settings`."""
    parser = subparsers.add_parser("settings", help="show every setting and where it came from")
    parser.add_argument("--config", type=Path, help="settings file (TOML)")
    parser.add_argument("--section", choices=sorted(Settings.model_fields), help="only this one")
    parser.add_argument(
        "--markdown",
        action="store_true",
        help="the reference of settings with their defaults, whatever is set here",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print; see the package for exit codes."""
    sections = [args.section] if args.section else list(Settings.model_fields)
    try:
        if args.markdown and args.config:
            raise InvalidInput("--markdown shows defaults and reads no file; leave --config out")
        if args.markdown:
            print(reference(sections), end="")
        else:
            print(effective(load_settings(args.config), sections), end="")
    except DestrierError as error:
        return failure.report(error)
    return 0


def effective(loaded: LoadedSettings, sections: list[str]) -> str:
    """The values in effect, as a settings file with a comment on each; secrets are masked."""
    return "\n".join(
        "\n".join(_effective_section(loaded, name, getattr(loaded.settings, name))) + "\n"
        for name in sections
    )


def _effective_section(loaded: LoadedSettings, name: str, section: Section) -> Iterator[str]:
    yield f"# {type(section).__doc__}"
    yield f"[{name}]"
    for field, info in type(section).model_fields.items():
        source = loaded.sources.get(f"{name}.{field}", "default")
        for line in (info.description or "").splitlines():
            yield f"# {line.strip()}"
        value = getattr(section, field)
        assignment = f"# {field} is not set" if value is None else f"{field} = {_toml(value)}"
        yield f"{assignment}  # {source}"


def _toml(value: Any) -> str:
    if isinstance(value, SecretStr):
        return _toml(MASK)
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_toml(key)} = {_toml(item)}' for key, item in value.items())}}}"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return json.dumps(str(value))


def reference(sections: list[str]) -> str:
    """Markdown tables of every setting: its values, default, environment variable and meaning."""
    parts = [_REFERENCE_HEAD]
    for name in sections:
        model = Settings.model_fields[name].annotation
        assert isinstance(model, type) and issubclass(model, Section)
        rows = [
            f"| {' | '.join(_cell(text) for text in _reference_row(name, field, schema))} |"
            for field, schema in model.model_json_schema()["properties"].items()
        ]
        parts.append(
            f"\n## {name}\n\n{model.__doc__}\n\n"
            "| setting | values | default | environment | meaning |\n|---|---|---|---|---|\n"
            + "\n".join(rows)
            + "\n"
        )
    return "".join(parts)


def _reference_row(section: str, field: str, schema: dict[str, Any]) -> Iterator[str]:
    variables = [environment_name(section, field)]
    variables += [alias for alias, at in ENVIRONMENT_ALIASES.items() if at == (section, field)]
    default = schema.get("default")
    yield f"`{field}`"
    yield _values(schema)
    yield "" if default in (None, {}) else f"`{json.dumps(default)}`"
    yield ", ".join(f"`{variable}`" for variable in dict.fromkeys(variables))
    yield schema.get("description", "")


def _values(schema: dict[str, Any]) -> str:
    """The accepted values, from a field's JSON schema."""
    for choice in schema.get("anyOf", ()):
        if choice["type"] != "null":
            return _values(choice)
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    bounds = {
        "exclusiveMinimum": "> {:g}",
        "minimum": ">= {:g}",
        "maximum": "<= {:g}",
    }
    limits = [form.format(schema[bound]) for bound, form in bounds.items() if bound in schema]
    secret = "secret " if schema.get("writeOnly") else ""
    kinds = {"array": "list", "object": "table", "string": "text"}
    return secret + " ".join([kinds.get(schema["type"], schema["type"]), ", ".join(limits)]).strip()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
