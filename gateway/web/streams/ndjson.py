"""The answer in lines of JSON: a stream, or one page of it (`?wait=`, a long poll)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, unquote_plus

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from gateway.core.short_cache import cache_short
from gateway.hub.fanout.client import Client
from gateway.hub.reads import page
from gateway.hub.wires.ndjson import NdjsonWire
from gateway.web.http.accept import NOT_ACCEPTABLE, MediaPreference, get_media_preference
from gateway.web.http.encoding import negotiate_body, negotiate_wire
from gateway.web.routing import query
from gateway.web.routing.routes import Match, Routes

from .direct_response import AsgiResponse, build_response, choose_wire
from .http_stream import HttpStream
from .sse import STREAM_HEADERS

ACCEPTED_MEDIA_TYPES = ("application/x-ndjson", "application/jsonl", "application/ndjson")
MEDIA_TYPE = "application/x-ndjson; charset=utf-8"
_SAFE_CHARS = "/?%&=+:;,@!$'()*~"  # and letters, digits, `_.-`: what came needs no more quoting
MAX_LINK_TOKEN_CHARS = 4096  # characters of a token; a longer one is in the last line alone


def prefers_ndjson(request: Request) -> bool:
    """Does the client prefer lines to server-sent events? On a tie it does if it waits for a
    page: there is none of events."""
    lines, events = _parse_accept(",".join(request.headers.getlist("accept")))
    return lines > events or (lines == events != NOT_ACCEPTABLE and "wait" in request.query_params)


@cache_short(256)  # 40 us a connect, of headers that are all alike
def _parse_accept(accept: str) -> tuple[MediaPreference, MediaPreference]:
    """How much lines are, and events."""
    lines = max(get_media_preference(accept, name) for name in ACCEPTED_MEDIA_TYPES)
    return lines, get_media_preference(accept, "text/event-stream")


class NdjsonResponse(StreamingResponse):
    """A stream. close: called when it is over, also when the client went away before the first
    byte."""

    def __init__(
        self, content: AsyncIterator[bytes], on_close: Callable[[], Any], headers: Mapping[str, str]
    ) -> None:
        super().__init__(content, headers=headers, media_type=MEDIA_TYPE)
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_close()


async def respond(routes: Routes, match: Match, request: Request) -> AsgiResponse:
    """The stream, once BEGIN is due, or a page. Raises RequestError, TokenError, KafkaError."""
    lines = NdjsonWire(
        query.wants_positions(request), query.is_grouped(query.get_query_pairs(request))
    )
    wait = query.get_wait(request)
    if wait is not None:
        return await _respond_with_page(routes, match, request, lines, wait)
    coded, coding = negotiate_wire(lines, match.route, request)
    wire, opened = (
        choose_wire(coded, request.scope),
        partial(HttpStream.open, routes, match, request),
    )
    stream = await opened(wire)
    if request.method == "HEAD":
        stream.close()
        return Response(headers=STREAM_HEADERS, media_type=MEDIA_TYPE)
    headers = STREAM_HEADERS | coding

    def build_asgi_response(stream: HttpStream) -> AsgiResponse:
        return NdjsonResponse(stream.iter_bytes(), stream.close, headers)

    typed = {**headers, "Content-Type": MEDIA_TYPE}
    return await build_response(stream, wire, opened, build_asgi_response, typed)


async def _respond_with_page(
    routes: Routes, match: Match, request: Request, wire: NdjsonWire, wait_s: float
) -> Response:
    """One page, which counts as a connection while it is waited for."""
    leave = await routes.limits.acquire_slot(request.scope, match.granted)
    try:
        while True:
            match = await routes.refresh(match, request)
            client = await routes.open_client(
                match, request, wire, page_records=page.MAX_PAGE_RECORDS
            )
            if request.method == "HEAD":
                client.close()
                return Response(headers=STREAM_HEADERS, media_type=MEDIA_TYPE)
            answer = await _build_page_response(request, match, client, wire, wait_s)
            routes.check_blocklist(match)  # it may have waited for long
            if routes.is_current(match):
                return answer
    finally:
        leave()


async def _build_page_response(
    request: Request, match: Match, client: Client, wire: NdjsonWire, wait_s: float
) -> Response:
    """The page, or nothing to a client that went away meanwhile."""
    reading = asyncio.create_task(page.read_page(client, wire, wait_s))
    leaving = asyncio.create_task(_wait_for_disconnect(request))
    try:
        await asyncio.wait((reading, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            return Response(status_code=204)  # nobody hears it
        read = reading.result()
    finally:
        for task in (reading, leaving):
            task.cancel()
        await asyncio.gather(reading, leaving, return_exceptions=True)
        client.close()
    body, coding = negotiate_body(read.body, match.route, request)
    headers = STREAM_HEADERS | coding
    if read.reason != "until" and len(read.position) <= MAX_LINK_TOKEN_CHARS:
        headers["Link"] = f'<{build_next_link(request.scope, read.position.decode())}>; rel="next"'
    return Response(body, headers=headers, media_type=MEDIA_TYPE)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def build_next_link(scope: Scope, token: str) -> str:
    """What to ask for next, as a relative reference (RFC 3986 4.2): all of the query is kept but
    for the token."""
    path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    asked: bytes = scope["query_string"]
    kept = [
        each for each in asked.split(b"&") if each and _get_parameter_name(each) != "lastEventId"
    ]
    query = b"&".join([*kept, b"lastEventId=" + token.encode()])
    return quote(path.partition(b"?")[0] + b"?" + query, safe=_SAFE_CHARS)


def _get_parameter_name(parameter: bytes) -> str:
    return unquote_plus(parameter.partition(b"=")[0].decode("latin-1"))
