"""The page at /docs: what to send to each endpoint and what it returns, as one HTML file without scripts.

Input: the OpenAPI description, and the address of the server.  Output: HTML that loads nothing from other servers.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from html import escape
from typing import Any

STYLE = """
:root {
  color-scheme: light dark; font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
  --paper: #fdfcfa; --raised: #ffffff; --ink: #1c2430; --ink-soft: #566072; --line: #dcdfe5; --link: #1a5a9e;
}
@media (prefers-color-scheme: dark) {
  :root { --paper: #14181f; --raised: #1b212b; --ink: #e8ebf0; --ink-soft: #a4aebd; --line: #333c4a; --link: #8cc0f5 }
}
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; background: var(--paper); color: var(--ink) }
a { color: var(--link) }
h2 { margin: 2rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--line) }
h2::first-letter { text-transform: uppercase }
.name { margin: 1.25rem 0 .25rem } .name code { font-size: 1.05rem; font-weight: 600 }
.verb { display: inline-block; min-width: 3.5rem; color: var(--ink-soft); font-weight: 600 }
p { margin: .25rem 0; overflow-wrap: anywhere }
pre { overflow-x: auto; margin: .4rem 0; padding: .6rem .8rem; background: var(--raised); border: 1px solid var(--line);
  border-radius: .3rem }
.curl { white-space: pre-wrap; overflow-wrap: anywhere } .curl code { user-select: all; -webkit-user-select: all }
summary { cursor: pointer; color: var(--ink-soft) }
"""


def reference_page(description: dict[str, Any], *, address: str, needs_key: bool) -> str:
    """Write the reference of all endpoints.

    Args:
        description: The OpenAPI description of the application. The schemas of requests have examples.
        address: The address of the server, without a slash at the end.
        needs_key: Whether requests need an API key.

    Returns:
        HTML: for each endpoint, by tag, a request with curl, then the schemas of its request and its response.
    """
    groups: dict[str, list[str]] = {}
    errors: dict[str, str] = {}
    for path, verbs in description["paths"].items():
        for verb, endpoint in verbs.items():
            command = _curl(verb, f"{address}{path}", _example(endpoint, description), needs_key=needs_key)
            section = _endpoint(verb, path, endpoint, command, description)
            groups.setdefault(endpoint.get("tags", ["other"])[0], []).append(section)
            for status, answer in endpoint["responses"].items():
                if status != "200":
                    errors.setdefault(status, answer["description"])
    sections = "".join(f"<h2>{escape(tag)}</h2>{''.join(parts)}" for tag, parts in groups.items())
    statuses = "".join(f"<p><strong>{status}</strong> {escape(text)}</p>" for status, text in sorted(errors.items()))
    info = description["info"]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="icon.svg" type="image/svg+xml">'
        f"<title>{escape(info['title'])}: HTTP interface</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info.get('summary', ''))} "
        'The same reference as <a href="openapi.json">OpenAPI</a>. <a href="./">Explorer</a></p>'
        f"{sections}<h2>errors</h2>{statuses}</main></body></html>"
    )


def _endpoint(verb: str, path: str, endpoint: dict[str, Any], command: str, description: dict[str, Any]) -> str:
    """The section of one endpoint: a request first, the schemas on demand."""
    kinds = endpoint["responses"]["200"].get("content", {})
    schemas = [f"<p>Response: {escape(', '.join(kinds))}</p>"]
    if "application/json" in kinds:
        schemas.append(_code(_resolved(kinds["application/json"].get("schema", {}), description)))
    if request := _request_schema(endpoint):
        schemas = ["<p>Request</p>", _code(_resolved(request, description)), *schemas]
    return (
        f'<h3 class="name"><span class="verb">{escape(verb.upper())}</span> <code>{escape(path)}</code></h3>'
        f'<pre class="curl"><code>{escape(command)}</code></pre><p>{_prose(endpoint.get("description", ""))}</p>'
        f"<details><summary>Schemas</summary>{''.join(schemas)}</details>"
    )


def _prose(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _curl(verb: str, url: str, body: Any, *, needs_key: bool) -> str:
    """A command that sends a request."""
    words = ["curl", "-s", shlex.quote(url.replace("{name}", "NAME"))]
    if needs_key:
        words += ["-H", '"Authorization: Bearer $ELMOKIT_API_KEY"']
    if verb == "post":
        words += ["-H", "'Content-Type: application/json'", "-d", shlex.quote(json.dumps(body, ensure_ascii=False))]
    return " ".join(words)


def _request_schema(endpoint: dict[str, Any]) -> Any:
    return endpoint.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")


def _example(endpoint: dict[str, Any], description: dict[str, Any]) -> Any:
    """The first example of a request; None without a body."""
    return next(_examples(_resolved(_request_schema(endpoint), description)), None)


def _examples(schema: Any) -> Iterator[Any]:
    """The examples of a schema, or of the schemas of which it is one."""
    for option in (schema or {}).get("oneOf", [schema or {}]):
        yield from option.get("examples", [])


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
