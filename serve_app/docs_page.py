"""The `/docs` page: the OpenAPI document as one HTML page that needs nothing from the network."""

import json
from collections.abc import Mapping
from html import escape
from typing import Any

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Destrier API</title><style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em }
details { border: 1px solid #ccc; border-radius: 4px; margin: .4em 0; padding: .3em .8em }
summary { cursor: pointer } code, pre { font-family: ui-monospace, monospace; font-size: 13px }
pre { background: #f4f4f4; overflow: auto; padding: .6em } .off { color: #888 }
table { border-collapse: collapse } td { padding: .1em 1em .1em 0; vertical-align: top }
</style></head><body>
"""


def docs_page(document: Mapping[str, Any]) -> str:
    """Every operation with its parameters, body and answers, then every schema."""
    info = document["info"]
    parts = [_HEAD, f"<h1>{escape(info['title'])} API</h1><p>{escape(info['description'])}"]
    parts.append(' The same as data: <a href="openapi.json">openapi.json</a>.</p>')
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            shown = _operation(f"{method.upper()} {path}", operation)
            by_tag.setdefault(operation["tags"][0], []).append(shown)
    for tag, operations in by_tag.items():
        parts += [f"<h2>{escape(tag)}</h2>", *operations]
    parts.append("<h2>Schemas</h2>")
    for name, schema in sorted(document["components"]["schemas"].items()):
        body = escape(json.dumps(schema, indent=1))
        parts.append(
            f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
            f"<pre>{body}</pre></details>\n"
        )
    parts.append("</body></html>\n")
    return "".join(parts)


def _operation(route: str, operation: Mapping[str, Any]) -> str:
    is_built = "x-destrier-not-built" not in operation
    mark = "" if is_built else ' <span class="off">not built in this release</span>'
    rows = [
        _row(f"{parameter['in']} <code>{escape(parameter['name'])}</code>", parameter)
        for parameter in operation.get("parameters", ())
    ]
    if "requestBody" in operation:
        rows.append(_row("body", {}, operation["requestBody"]["content"]))
    for status, answer in operation["responses"].items():
        rows.append(_row(f"answer {escape(status)}", answer, answer.get("content", {})))
    return (
        f"<details><summary><b>{escape(operation['operationId'])}</b>"
        f" <code>{escape(route)}</code>{mark}</summary>"
        f"<p>{escape(operation.get('description', ''))}</p>"
        f"<table>{''.join(rows)}</table></details>\n"
    )


def _row(label: str, described: Mapping[str, Any], content: Mapping[str, Any] | None = None) -> str:
    bodies = " or ".join(_body(kind, media) for kind, media in (content or {}).items())
    return f"<tr><td>{label}</td><td>{escape(described.get('description', ''))} {bodies}</td></tr>"


def _body(kind: str, media: Mapping[str, Any]) -> str:
    schema = media.get("schema", {})
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}"><code>{name}</code></a>'
    return f"<code>{escape(kind)}</code>"
