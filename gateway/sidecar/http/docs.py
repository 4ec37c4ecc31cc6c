"""Serve the OpenAPI document as `/openapi.json`, and as the page `/docs` without scripts.

The server writes the HTML once: 160 kB for 50 operations, without a request to another host, in the
colours that the user prefers. Vendored pages were tried under a Content-Security-Policy that allows
scripts of the same origin:

- Redoc 2.5.4 (1.1 MB) and Scalar 1.46.4 (3.6 MB) need `style-src 'unsafe-inline'`. Redoc loads a
  logo from another host and ignores dark mode. Scalar has its maker's proxy and API built in.
- Swagger UI 5.35.0 (1.9 MB) needs no more than that, but ignores dark mode.

They show nothing without scripts, take 1 to 2.6 s to show this document (this page 0.2 s), and
would add 22 to 71 % to the 5 MB of the package. Scalar and Swagger UI can also send requests; they
can be pointed at `/openapi.json` for that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from .body_fields import resolve_reference
from .spec import METHODS, Spec

CSS = Path(__file__).parent / "page" / "docs.css"
_PAGE = Template((Path(__file__).parent / "page" / "docs.html").read_text("utf-8"))

HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


def build_routes(spec: Spec, name: str) -> Sequence[BaseRoute]:
    page, style = render_page(spec.document, name).encode(), CSS.read_bytes()
    return [
        Route("/openapi.json", _create_endpoint(spec.json, "application/json")),
        Route("/docs", _create_endpoint(page, "text/html; charset=utf-8")),
        Route("/docs.css", _create_endpoint(style, "text/css; charset=utf-8")),
    ]


def _create_endpoint(content: bytes, content_type: str) -> Any:
    async def endpoint(request: Request) -> Response:
        return Response(content, headers={**HEADERS, "Content-Type": content_type})

    return endpoint


def render_page(document: Mapping[str, Any], name: str) -> str:
    operations = [
        (path, method, item[method])
        for path, item in document["paths"].items()
        for method in METHODS
        if method in item
    ]
    schemas = document["components"]["schemas"]
    return _PAGE.substitute(
        name=escape(name),
        version=escape(document["info"]["version"]),
        count=f"{len(operations)} operation{'' if len(operations) == 1 else 's'}",
        contents="".join(
            f'<li><a href="#{_get_group_id(tag)}">{escape(_get_title(tag))}</a></li>\n'
            for tag in document["tags"]
        ),
        operations="".join(_render_group(tag, operations, document) for tag in document["tags"]),
        schemas="".join(_render_schema(name, schema) for name, schema in sorted(schemas.items())),
    )


def _render_group(
    tag: Mapping[str, Any],
    operations: Sequence[tuple[str, str, Mapping[str, Any]]],
    document: Mapping[str, Any],
) -> str:
    rendered = "".join(
        _render_operation(path, method, operation, document)
        for path, method, operation in operations
        if operation["tags"] == [tag["name"]]
    )
    return f"""
<section aria-labelledby="{_get_group_id(tag)}">
<h2 id="{_get_group_id(tag)}" tabindex="-1">{escape(_get_title(tag))}</h2>
<p class="note">{_render_text(tag.get("description", ""))}</p>{rendered}
</section>"""


def _get_group_id(tag: Mapping[str, Any]) -> str:
    return f"group-{escape(tag['name'])}"


def _get_title(tag: Mapping[str, Any]) -> str:
    return str(tag.get("x-displayName", tag["name"]))


def _render_operation(
    path: str, method: str, operation: Mapping[str, Any], document: Mapping[str, Any]
) -> str:
    references = operation.get("parameters", ())
    parameters = [resolve_reference(document, reference) for reference in references]
    scopes = [
        scope for scheme in operation.get("security", ()) for scope in scheme.get("kafka_auth")
    ]
    facts = "".join(_render_parameter(parameter) for parameter in parameters)
    bodies = "".join(_iter_bodies(operation.get("requestBody", {}), "body"))
    responses = "".join(
        _render_response(status, resolve_reference(document, response))
        for status, response in operation.get("responses", {}).items()
    )
    description = operation.get("description", "")
    paragraph = f"<p>{_render_text(description)}</p>" if description else ""
    scope = f'<p class="note">Scope {escape(", ".join(scopes))}</p>' if scopes else ""
    return f"""
<details class="operation" id="{escape(operation.get("operationId", ""))}">
  <summary><span class="method">{method.upper()}</span> <code>{escape(path)}</code>
    <span class="what">{escape(operation.get("summary", ""))}</span></summary>
  {paragraph}{scope}
  <dl>{facts}{bodies}</dl>
  <h3>Responses</h3><dl>{responses}</dl>
</details>"""


def _render_parameter(parameter: Mapping[str, Any]) -> str:
    location = parameter["in"] + ("" if parameter.get("required") else ", optional")
    text = f"{parameter.get('description', '')} ({location}; {_describe_type(parameter['schema'])})"
    return (
        f"<div><dt><code>{escape(parameter['name'])}</code></dt><dd>{_render_text(text)}</dd></div>"
    )


def _iter_bodies(body: Mapping[str, Any], term: str) -> Iterator[str]:
    for content_type, content in body.get("content", {}).items():
        text = f"<code>{escape(content_type)}</code> {_render_links(content.get('schema', {}))}"
        yield f"<div><dt>{term}</dt><dd>{text}</dd></div>"


def _render_response(status: str, response: Mapping[str, Any]) -> str:
    links = [
        _render_links(content.get("schema", {})) for content in response.get("content", {}).values()
    ]
    text = f"{_render_text(response.get('description', ''))} {' '.join(dict.fromkeys(links))}"
    return f"<div><dt>{escape(status)}</dt><dd>{text}</dd></div>"


def _render_links(schema: Mapping[str, Any]) -> str:
    names = [
        str(reference["$ref"]).rpartition("/")[2]
        for reference in (schema, schema.get("items", {}), *schema.get("allOf", ()))
        if "$ref" in reference
    ]
    return " and ".join(
        f'<a href="#schema-{escape(reference)}">{escape(reference)}</a>' for reference in names
    )


def _render_schema(name: str, schema: Mapping[str, Any]) -> str:
    text = orjson.dumps(schema, option=orjson.OPT_INDENT_2).decode()
    return f"""
<section class="schema" id="schema-{escape(name)}" tabindex="-1"><h3>{escape(name)}</h3>
<pre>{escape(text)}</pre></section>"""


def _render_text(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _describe_type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    return str(schema.get("type", "any"))
