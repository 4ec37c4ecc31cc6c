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
from gateway.hub.wires.lines import Ndjson
from gateway.web.http.accept import NO, Preference, preference
from gateway.web.http.encoding import encoded, whole
from gateway.web.routing import query
from gateway.web.routing.routes import Match, Routes

from .direct import Answer, answered, framed
from .http_stream import HttpStream
from .sse import HEADERS

NAMES = ("application/x-ndjson", "application/jsonl", "application/ndjson")
MEDIA_TYPE = "application/x-ndjson; charset=utf-8"
_SAFE = "/?%&=+:;,@!$'()*~"  # and letters, digits, `_.-`: what came needs no more quoting
LONGEST_LINK = 4096  # characters of a token; a longer one is in the last line alone


def is_asked(request: Request) -> bool:
    """Does the client prefer lines to server-sent events? On a tie it does if it waits for a
    page: there is none of events."""
    lines, events = _wanted(",".join(request.headers.getlist("accept")))
    return lines > events or (lines == events != NO and "wait" in request.query_params)


@cache_short(256)  # 40 us a connect, of headers that are all alike
def _wanted(accept: str) -> tuple[Preference, Preference]:
    """How much lines are, and events."""
    lines = max(preference(accept, name) for name in NAMES)
    return lines, preference(accept, "text/event-stream")


class LinesResponse(StreamingResponse):
    """A stream. close: called when it is over, also when the client went away before the first
    byte."""

    def __init__(
        self, stream: AsyncIterator[bytes], close: Callable[[], Any], headers: Mapping[str, str]
    ) -> None:
        super().__init__(stream, headers=headers, media_type=MEDIA_TYPE)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


async def respond(routes: Routes, match: Match, request: Request) -> Answer:
    """The stream, once BEGIN is due, or a page. Raises RequestError, TokenError, KafkaError."""
    lines = Ndjson(query.positions(request), query.is_grouped(query.pairs(request)))
    wait = query.wait(request)
    if wait is not None:
        return await _page(routes, match, request, lines, wait)
    coded, coding = encoded(lines, match.route, request)
    wire, opened = framed(coded, request.scope), partial(HttpStream.open, routes, match, request)
    stream = await opened(wire)
    if request.method == "HEAD":
        stream.close()
        return Response(headers=HEADERS, media_type=MEDIA_TYPE)
    headers = HEADERS | coding

    def plain(stream: HttpStream) -> Answer:
        return LinesResponse(stream.stream(), stream.close, headers)

    typed = {**headers, "Content-Type": MEDIA_TYPE}
    return await answered(stream, wire, opened, plain, typed)


async def _page(
    routes: Routes, match: Match, request: Request, wire: Ndjson, wait: float
) -> Response:
    """One page, which counts as a connection while it is waited for."""
    leave = await routes.limits.enter(request.scope, match.granted)
    try:
        while True:
            match = await routes.refresh(match, request)
            client = await routes.open(match, request, wire, page=page.RECORDS)
            if request.method == "HEAD":
                client.close()
                return Response(headers=HEADERS, media_type=MEDIA_TYPE)
            answer = await _read(request, match, client, wire, wait)
            routes.mind_orders(match)  # it may have waited for long
            if routes.is_current(match):
                return answer
    finally:
        leave()


async def _read(
    request: Request, match: Match, client: Client, wire: Ndjson, wait: float
) -> Response:
    """The page, or nothing to a client that went away meanwhile."""
    reading = asyncio.create_task(page.read(client, wire, wait))
    leaving = asyncio.create_task(_gone(request))
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
    body, coding = whole(read.body, match.route, request)
    headers = HEADERS | coding
    if read.reason != "until" and len(read.position) <= LONGEST_LINK:
        headers["Link"] = f'<{after(request.scope, read.position.decode())}>; rel="next"'
    return Response(body, headers=headers, media_type=MEDIA_TYPE)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def after(scope: Scope, token: str) -> str:
    """What to ask for next, as a relative reference (RFC 3986 4.2): all of the query is kept but
    for the token."""
    path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    asked: bytes = scope["query_string"]
    kept = [each for each in asked.split(b"&") if each and _name(each) != "lastEventId"]
    query = b"&".join([*kept, b"lastEventId=" + token.encode()])
    return quote(path.partition(b"?")[0] + b"?" + query, safe=_SAFE)


def _name(parameter: bytes) -> str:
    return unquote_plus(parameter.partition(b"=")[0].decode("latin-1"))
