"""Respond to a request with lines of JSON: a stream, or one page of it (`?wait=`, a long poll)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, unquote_plus

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from gateway.core.caches import cache_short
from gateway.core.client.terms import EndReason
from gateway.hub.reads import page
from gateway.hub.wires.ndjson import NdjsonWire
from gateway.web.http.negotiation import (
    NOT_ACCEPTABLE,
    MediaPreference,
    get_media_preference,
    negotiate_body,
)
from gateway.web.routing import query
from gateway.web.routing.paths import Match
from gateway.web.routing.routes import Routes

from .dictionary import negotiate_stream
from .http_stream import (
    AsgiResponse,
    ClientDisconnected,
    HttpStream,
    build_response,
    choose_wire,
    run_while_connected,
)
from .sse import STREAM_HEADERS

ACCEPTED_MEDIA_TYPES = ("application/x-ndjson", "application/jsonl", "application/ndjson")
MEDIA_TYPE = "application/x-ndjson; charset=utf-8"
# With letters, digits and `_.-`, the characters that a URL reference may hold: what a client has
# quoted is not quoted again.
_SAFE_CHARS = "/?%&=+:;,@!$'()*~"
MAX_LINK_TOKEN_CHARS = 4096  # a page with a longer token has no `Link`; its last line has the token


def prefers_ndjson(request: Request) -> bool:
    """Return whether a client prefers lines of JSON to server-sent events.

    On a tie it does if it waits for a page, as there are no pages of events.
    """
    lines, events = _parse_accept(",".join(request.headers.getlist("accept")))
    return lines > events or (lines == events != NOT_ACCEPTABLE and "wait" in request.query_params)


@cache_short(256)  # saves 40 us of a connect: clients send few different headers
def _parse_accept(accept: str) -> tuple[MediaPreference, MediaPreference]:
    lines = max(get_media_preference(accept, name) for name in ACCEPTED_MEDIA_TYPES)
    return lines, get_media_preference(accept, "text/event-stream")


class NdjsonResponse(StreamingResponse):
    """The ASGI response of a stream of lines, for connections that cannot be taken over."""

    def __init__(
        self, content: AsyncIterator[bytes], on_close: Callable[[], Any], headers: Mapping[str, str]
    ) -> None:
        """Prepare a response; `on_close` is called also if it never begins."""
        super().__init__(content, headers=headers, media_type=MEDIA_TYPE)
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_close()


async def respond(routes: Routes, match: Match, request: Request) -> AsgiResponse:
    """Return the response to a request for lines: the stream, once its BEGIN is due, or a page."""
    plain_wire = NdjsonWire(query.wants_positions(request))
    wait_s = query.get_wait(request)
    if wait_s is not None:
        return await _respond_with_page(routes, match, request, plain_wire, wait_s)
    coded_wire, coding_headers = await negotiate_stream(routes, match, request, plain_wire)
    wire = choose_wire(coded_wire, request.scope)
    open_stream = partial(HttpStream.open, routes, match, request)
    stream = await open_stream(wire)
    if request.method == "HEAD":
        stream.close()
        return Response(headers=STREAM_HEADERS, media_type=MEDIA_TYPE)
    headers = STREAM_HEADERS | coding_headers

    def build_asgi_response(stream: HttpStream) -> AsgiResponse:
        return NdjsonResponse(stream.iter_bytes(request.scope), stream.close, headers)

    direct_headers = {**headers, "Content-Type": MEDIA_TYPE}
    return await build_response(stream, wire, open_stream, build_asgi_response, direct_headers)


async def _respond_with_page(
    routes: Routes, match: Match, request: Request, wire: NdjsonWire, wait_s: float
) -> Response:
    """Return one page. The request counts as a connection while it waits.

    If a reload changes its route meanwhile, the page is read again from where it began.
    """
    release_slot = await routes.limits.acquire_slot(request.scope, match.granted)
    now, start = asyncio.get_running_loop().time, None
    deadline = now() + wait_s
    try:
        while True:
            match = await routes.refresh(match, request)
            if start is None:
                client = await routes.open_client(
                    match, request, wire, page_records=page.MAX_PAGE_RECORDS
                )
            else:
                query_pairs = query.get_query_pairs(request)
                client = await routes.resume_client(match, query_pairs, wire, start)
            if request.method == "HEAD":
                client.close()
                return Response(headers=STREAM_HEADERS, media_type=MEDIA_TYPE)
            with page.PageBuffer(wire, routes.hubs.client_memory) as buffer:
                try:
                    reading = page.read_page(client, buffer, max(0.0, deadline - now()))
                    result = await run_while_connected(request, reading)
                finally:
                    client.close()
                body, coding_headers = await negotiate_body(result.body, match.route, request)
            # The wait may have been long: what was configured or blocked meanwhile counts.
            routes.check_blocklist(match)
            if routes.is_unchanged(match):
                headers = build_link_headers(request.scope, result) | coding_headers
                return Response(body, headers=STREAM_HEADERS | headers, media_type=MEDIA_TYPE)
            start = result.start
    except ClientDisconnected:
        return Response(status_code=204)  # the client does not receive it
    finally:
        release_slot()


def build_link_headers(scope: Scope, result: page.Page) -> dict[str, str]:
    """Return the `Link` to the next page, unless its token is too long for a header.

    A page that has reached `until` is the last one.
    """
    if result.reason is EndReason.UNTIL or len(result.position) > MAX_LINK_TOKEN_CHARS:
        return {}
    next_link = build_next_link(scope, result.position.decode())
    return {"Link": f'<{next_link}>; rel="next"'}


def build_next_link(scope: Scope, token: str) -> str:
    """Return the URL of the next page, as a relative reference (RFC 3986 4.2).

    The query is kept except for its token.
    """
    path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    query_string: bytes = scope["query_string"]
    parameters = [
        parameter
        for parameter in query_string.split(b"&")
        if parameter and _get_parameter_name(parameter) != "lastEventId"
    ]
    next_query = b"&".join([*parameters, b"lastEventId=" + token.encode()])
    return quote(path.partition(b"?")[0] + b"?" + next_query, safe=_SAFE_CHARS)


def _get_parameter_name(parameter: bytes) -> str:
    return unquote_plus(parameter.partition(b"=")[0].decode("latin-1"))
