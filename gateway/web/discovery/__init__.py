"""Describe what the gateway serves: `GET /` for people and programs, and `/asyncapi.json`.

`GET /` answers with a page or with JSON, by the header Accept. The server writes the whole page,
which can be read without scripts; its script adds a form to try each stream. If another page is
served at `/`, such as that of `gateway demo`, programs still get the JSON there, and people find
the streams at `/streams`, a path that routes may use otherwise. `app.app` adds these routes. Start
with `description`, which says what may be known of a stream.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.background_tasks import Interrupted
from gateway.config import Settings
from gateway.errors import RequestError
from gateway.web.http.browsers import PAGE_HEADERS
from gateway.web.http.content import StaticDocument, get_media_preference
from gateway.web.http.outlet import run_while_connected

from .asyncapi import build_document
from .description import build_description
from .html import render_page

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]

STREAMS_PATH = "/streams"
MAX_HOST_CHARS = 261  # a domain name of 253 characters (RFC 1035), a colon and a port, and some
MAX_LINE_CHARS = 100  # characters of a line of JSON
MAX_CACHED_DOCUMENTS = 8  # base URLs for which a document is cached; for more it is written again

_writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="documents")
_PAGE_DIRECTORY = Path(__file__).parent / "page"


def build_routes(settings: Settings, *, home_endpoint: Endpoint | None = None) -> list[BaseRoute]:
    page = _build_document_endpoint(
        lambda base: render_page(settings, base), "text/html", PAGE_HEADERS
    )
    description = _build_document_endpoint(
        lambda base: format_json(build_description(settings, base)), "application/json"
    )
    asyncapi = _build_document_endpoint(
        lambda base: format_json(build_document(settings, base)), "application/json"
    )
    return [
        Route("/", _build_negotiated_endpoint(home_endpoint or page, description)),
        Route("/asyncapi.json", asyncapi),
        Route("/discovery.css", _build_file_endpoint("discovery.css", "text/css")),
        Route("/discovery.js", _build_file_endpoint("discovery.js", "text/javascript")),
        *([Route(STREAMS_PATH, page)] if home_endpoint else []),
    ]


def prefers_page(accept: str) -> bool:
    """Return whether a page is preferred to JSON; a client that accepts anything gets JSON."""
    pages = (
        get_media_preference(accept, media) for media in ("text/html", "application/xhtml+xml")
    )
    return max(pages) > get_media_preference(accept, "application/json")


def get_base_url(request: Request) -> str:
    """Return the URL of the gateway as this client knows it, without a slash at the end."""
    host = request.base_url.netloc
    if len(host) > MAX_HOST_CHARS:
        raise RequestError(400, "Bad request", "Host is longer than a host name can be")
    # `base_url` also has a path, which in a mounted gateway is that of the application around it.
    root_path = quote(request.scope.get("root_path", "").rstrip("/"))
    return f"{request.base_url.scheme}://{host}{root_path}"


def format_json(value: Any) -> str:
    """Return JSON that people can read, too: an object or list is on one line if it fits."""
    return _format_value(value, "") + "\n"


def _format_value(value: Any, indent: str) -> str:
    """Return the JSON of a value whose first line is already indented."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list | tuple) or len(indent) + len(line) <= MAX_LINE_CHARS:
        return line
    deeper = indent + "  "
    if isinstance(value, dict):
        parts = [f"{json.dumps(k)}: {_format_value(v, deeper)}" for k, v in value.items()]
        return "{\n" + ",\n".join(deeper + part for part in parts) + f"\n{indent}}}"
    parts = [_format_value(item, deeper) for item in value]
    return "[\n" + ",\n".join(deeper + part for part in parts) + f"\n{indent}]"


def _build_negotiated_endpoint(page_endpoint: Endpoint, json_endpoint: Endpoint) -> Endpoint:
    async def negotiate(request: Request) -> Response:
        endpoint = (
            page_endpoint
            if prefers_page(",".join(request.headers.getlist("accept")))
            else json_endpoint
        )
        response = await endpoint(request)
        response.headers.add_vary_header("Accept")
        return response

    return negotiate


def _build_document_endpoint(
    build_text: Callable[[str], str], content_type: str, headers: Mapping[str, str] | None = None
) -> Endpoint:
    # The base URL comes from the client's Host header, so the cache must be bounded, and whoever
    # names another host each time must not hold up the event loop: 100 routes take 0.2 s.
    documents: dict[str, StaticDocument] = {}  # only the thread changes it

    def write_document(base: str) -> StaticDocument:
        document = documents.get(base)  # by now, for another request
        if document is None:
            document = StaticDocument(build_text(base).encode(), content_type, headers).compress()
            if len(documents) == MAX_CACHED_DOCUMENTS:
                del documents[next(iter(documents))]
            documents[base] = document
        return document

    async def serve_document(request: Request) -> Response:
        base = get_base_url(request)
        document = documents.get(base)
        if document is None:
            # Nothing is written for a client that has left, and the thread keeps no request.
            writing = asyncio.get_running_loop().run_in_executor(_writer, write_document, base)
            try:
                document = await run_while_connected(request, writing)
            except Interrupted:
                return Response(status_code=204)  # the client does not receive it
        return document.respond(request)

    return serve_document


def _build_file_endpoint(name: str, content_type: str) -> Endpoint:
    document = StaticDocument((_PAGE_DIRECTORY / name).read_bytes(), content_type)

    async def serve_file(request: Request) -> Response:
        return document.respond(request)

    return serve_file
