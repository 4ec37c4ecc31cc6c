"""What is served here: `GET /`, a page for people and JSON for programs, and `/asyncapi.json`.

The page is written by the server, whole and readable without scripts; its script adds the
trying. Where another page has `/` (that of `gateway demo`), programs still find the JSON
there, and people find the streams at `/streams`, a path that is otherwise free for routes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.config import Settings
from gateway.errors import RequestError
from gateway.web.http.accept import preference
from gateway.web.http.document import Document
from gateway.web.http.security_headers import PAGE

from .asyncapi import document
from .description import description
from .html import render

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]

ELSEWHERE = "/streams"
LONGEST_HOST = 261  # a domain name of 253 characters (RFC 1035), a colon and a port, and some
WIDTH = 100  # characters of a line of JSON
ADDRESSES = 8  # by which the same gateway is known at once; more are written anew each time

_FILES = Path(__file__).parent / "page"


def routes(settings: Settings, *, home: Endpoint | None = None) -> list[BaseRoute]:
    """home: the page that people get at `/` instead of the streams."""
    page = _told(lambda base: render(settings, base), "text/html", PAGE)
    programs = _told(lambda base: pretty(description(settings, base)), "application/json")
    asyncapi = _told(lambda base: pretty(document(settings, base)), "application/json")
    return [
        Route("/", _negotiated(home or page, programs)),
        Route("/asyncapi.json", asyncapi),
        Route("/discovery.css", _file("discovery.css", "text/css")),
        Route("/discovery.js", _file("discovery.js", "text/javascript")),
        *([Route(ELSEWHERE, page)] if home else []),
    ]


def wants_page(accept: str) -> bool:
    """Is a page preferred to JSON? Whoever takes anything, as curl does, has no preference."""
    pages = (preference(accept, media) for media in ("text/html", "application/xhtml+xml"))
    return max(pages) > preference(accept, "application/json")


def base_of(request: Request) -> str:
    """The URL of the gateway as this client knows it. Raises RequestError for no host name."""
    host = request.base_url.netloc
    if len(host) > LONGEST_HOST:
        raise RequestError(400, "Bad request", "Host is longer than a host name can be")
    # Not all of base_url: mounted in another application, its path is that one's.
    below = quote(request.scope.get("root_path", "").rstrip("/"))
    return f"{request.base_url.scheme}://{host}{below}"


def pretty(told: Any) -> str:
    """JSON that a person can read too: what fits on a line is on one."""
    return _pretty(told, "") + "\n"


def _pretty(told: Any, indent: str) -> str:
    line = json.dumps(told, ensure_ascii=False)
    if not isinstance(told, dict | list | tuple) or len(indent) + len(line) <= WIDTH:
        return line
    deeper = indent + "  "
    if isinstance(told, dict):
        parts = [f"{json.dumps(k)}: {_pretty(v, deeper)}" for k, v in told.items()]
        return "{\n" + ",\n".join(deeper + part for part in parts) + f"\n{indent}}}"
    parts = [_pretty(each, deeper) for each in told]
    return "[\n" + ",\n".join(deeper + part for part in parts) + f"\n{indent}]"


def _negotiated(page: Endpoint, programs: Endpoint) -> Endpoint:
    async def either(request: Request) -> Response:
        endpoint = page if wants_page(",".join(request.headers.getlist("accept"))) else programs
        response = await endpoint(request)
        response.headers.add_vary_header("Accept")
        return response

    return either


def _told(
    write: Callable[[str], str], kind: str, headers: Mapping[str, str] | None = None
) -> Endpoint:
    """write: the text, from the URL of the gateway."""
    written = lru_cache(ADDRESSES)(lambda base: Document(write(base).encode(), kind, headers))

    async def told(request: Request) -> Response:
        return written(base_of(request)).respond(request)

    return told


def _file(name: str, kind: str) -> Endpoint:
    document = Document((_FILES / name).read_bytes(), kind)

    async def file(request: Request) -> Response:
        return document.respond(request)

    return file
