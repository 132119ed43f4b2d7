"""The page at /docs: the request and the response of each endpoint, as one HTML file without scripts.

Input: the OpenAPI description.  Output: HTML that loads nothing from other servers.
"""

from __future__ import annotations

import json
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
summary { cursor: pointer; padding: .4rem 0 } summary code { font-size: 1rem; font-weight: 600 }
pre { overflow-x: auto; padding: .8rem; border: 1px solid #8886; border-radius: .3rem }
.verb { display: inline-block; width: 3.5rem; font-weight: 600 }
"""


def reference_page(description: dict[str, Any]) -> str:
    """Write the reference of all endpoints.

    Args:
        description: The OpenAPI description of the application.

    Returns:
        HTML: the endpoints by tag, with the schemas of their requests and responses.
    """
    groups: dict[str, list[str]] = {}
    for path, verbs in description["paths"].items():
        for verb, endpoint in verbs.items():
            section = _endpoint(verb, path, endpoint, description)
            groups.setdefault(endpoint.get("tags", ["other"])[0], []).append(section)
    sections = "".join(f"<h2>{escape(tag)}</h2>{''.join(parts)}" for tag, parts in groups.items())
    info = description["info"]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])}: HTTP interface</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info.get('summary', ''))} "
        'The same reference as <a href="openapi.json">OpenAPI</a>.</p>'
        f"{sections}</main></body></html>"
    )


def _endpoint(verb: str, path: str, endpoint: dict[str, Any], description: dict[str, Any]) -> str:
    """The section of one endpoint."""
    lines = [f"<p>{escape(endpoint.get('description', ''))}</p>"]
    body = endpoint.get("requestBody", {}).get("content", {}).get("application/json")
    if body:
        lines.append(f"<h3>Request</h3>{_code(_resolved(body['schema'], description))}")
    for status, answer in endpoint["responses"].items():
        kinds = answer.get("content", {})
        if status == "200":
            lines.append(f"<h3>Response</h3><p>{escape(', '.join(kinds))}</p>")
            if "application/json" in kinds:
                lines.append(_code(_resolved(kinds["application/json"].get("schema", {}), description)))
        else:
            lines.append(f"<p><strong>{escape(status)}</strong> {escape(answer['description'])}</p>")
    head = f'<span class="verb">{escape(verb.upper())}</span><code>{escape(path)}</code>'
    return f"<details><summary>{head}</summary>{''.join(lines)}</details>"


def _resolved(schema: Any, description: dict[str, Any]) -> Any:
    """The schema with its references resolved. None of the schemas is recursive."""
    if isinstance(schema, list):
        return [_resolved(item, description) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _resolved(description["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]], description)
    return {key: _resolved(value, description) for key, value in schema.items() if key != "title"}


def _code(value: Any) -> str:
    return f"<pre><code>{escape(json.dumps(value, indent=2, ensure_ascii=False))}</code></pre>"
