"""`GET /openapi.json`, and the same for people at `GET /docs`: a page without scripts."""

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
    """name: of the sidecar, as configured."""
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
    """The whole page."""
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
        operations="".join(_render_operation(*each, document) for each in operations),
        schemas="".join(_render_schema(*each) for each in sorted(schemas.items())),
    )


def _render_operation(
    path: str, method: str, operation: Mapping[str, Any], document: Mapping[str, Any]
) -> str:
    parameters = [_resolve_reference(document, each) for each in operation.get("parameters", ())]
    scopes = [scope for each in operation.get("security", ()) for scope in each.get("kafka_auth")]
    facts = "".join(_render_parameter(each) for each in parameters)
    bodies = "".join(_iter_bodies(operation.get("requestBody", {}), "body"))
    answers = "".join(
        _render_response(status, _resolve_reference(document, each))
        for status, each in operation.get("responses", {}).items()
    )
    description = operation.get("description", "")
    told = f"<p>{_render_text(description)}</p>" if description else ""
    scope = f'<p class="note">Scope {escape(", ".join(scopes))}</p>' if scopes else ""
    return f"""
<details class="operation" id="{escape(operation.get("operationId", ""))}">
  <summary><span class="method">{method.upper()}</span> <code>{escape(path)}</code>
    <span class="what">{escape(operation.get("summary", ""))}</span></summary>
  {told}{scope}
  <dl>{facts}{bodies}</dl>
  <h3>Answers</h3><dl>{answers}</dl>
</details>"""


def _render_parameter(parameter: Mapping[str, Any]) -> str:
    place = parameter["in"] + ("" if parameter.get("required") else ", optional")
    told = f"{parameter.get('description', '')} ({place}; {_describe_type(parameter['schema'])})"
    return (
        f"<div><dt><code>{escape(parameter['name'])}</code></dt><dd>{_render_text(told)}</dd></div>"
    )


def _iter_bodies(given: Mapping[str, Any], term: str) -> Iterator[str]:
    for kind, content in given.get("content", {}).items():
        shown = f"<code>{escape(kind)}</code> {_render_links(content.get('schema', {}))}"
        yield f"<div><dt>{term}</dt><dd>{shown}</dd></div>"


def _render_response(status: str, response: Mapping[str, Any]) -> str:
    shapes = [
        _render_links(each.get("schema", {})) for each in response.get("content", {}).values()
    ]
    told = f"{_render_text(response.get('description', ''))} {' '.join(dict.fromkeys(shapes))}"
    return f"<div><dt>{escape(status)}</dt><dd>{told}</dd></div>"


def _render_links(schema: Mapping[str, Any]) -> str:
    names = [
        str(each["$ref"]).rpartition("/")[2]
        for each in (schema, schema.get("items", {}), *schema.get("allOf", ()))
        if "$ref" in each
    ]
    return " and ".join(f'<a href="#schema-{escape(each)}">{escape(each)}</a>' for each in names)


def _render_schema(name: str, schema: Mapping[str, Any]) -> str:
    text = orjson.dumps(schema, option=orjson.OPT_INDENT_2).decode()
    return f"""
<section class="schema" id="schema-{escape(name)}" tabindex="-1"><h3>{escape(name)}</h3>
<pre>{escape(text)}</pre></section>"""


def _render_text(text: str) -> str:
    """What stands between backquotes is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _describe_type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    return str(schema.get("type", "any"))


def _resolve_reference(document: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in given:
        return given
    _, _, room, name = str(given["$ref"]).split("/")
    found: Mapping[str, Any] = document["components"][room][name]
    return found
