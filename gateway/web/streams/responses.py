"""Respond with a stream of events (WHATWG HTML 9.2) or of lines of JSON, or with a page of lines.

The hub makes the bytes of all events, so that this works with any ASGI server.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, unquote_plus

from sse_starlette import EventSourceResponse
from sse_starlette.sse import AppStatus
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from gateway.config import Route
from gateway.core.caches import cache_short
from gateway.core.client.terms import EndReason
from gateway.errors import (
    AccessDenied,
    Busy,
    GatewayError,
    GuardUnavailable,
    KafkaError,
    NotGranted,
    RequestError,
    UnknownTopic,
)
from gateway.hub.fanout import page
from gateway.hub.fanout.client import Handover
from gateway.hub.reads.dictionaries import Dictionaries, ViewDictionary
from gateway.hub.reads.view import View
from gateway.hub.wires.ndjson import NdjsonWire
from gateway.hub.wires.sse import SseWire, encode_control
from gateway.hub.wires.wire import Wire
from gateway.hub.wires.wrapping import ChunkedWire, DictionaryWire
from gateway.web.http import problems, query
from gateway.web.http.browsers import NOSNIFF_HEADERS
from gateway.web.http.content import (
    NOT_ACCEPTABLE,
    MediaPreference,
    get_accept_encoding,
    get_media_preference,
    negotiate_body,
    negotiate_wire,
    prefers_dcz,
)
from gateway.web.http.outlet import run_while_connected
from gateway.web.http.query import get_query_pairs
from gateway.web.routing.paths import SELECTION_PARAMETERS, Match, RoutePaused
from gateway.web.routing.routes import Routes
from gateway.wire import sse

from .http_stream import (
    AsgiResponse,
    DirectResponse,
    HttpStream,
    choose_wire,
    open_client,
)

log = logging.getLogger(__name__)

STREAM_HEADERS = {
    # `no-transform` keeps proxies from compressing the stream, for which they would hold events
    # back; nginx reads `X-Accel-Buffering`.
    "Cache-Control": "no-store, no-transform",
    "X-Accel-Buffering": "no",
    "Vary": "Origin, Accept, Accept-Encoding, Available-Dictionary",
    **NOSNIFF_HEADERS,
}
SSE_WIRE = SseWire()

# When an EventSource reconnects that could not be served; at random, so that not all come at once.
RETRY_AFTER_RANGE_S = (3.0, 10.0)
REFUSED_RETRY_AFTER_S = 60.0  # when one reconnects that asks for something wrong

# The hub ends streams when the gateway drains. sse-starlette would cut them off before that.
AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]


class _ClosingResponse(Response):
    """A response that calls `_on_close` at its end, also if it never begins."""

    _on_close: Callable[[], Any]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_close()


class SseResponse(_ClosingResponse, EventSourceResponse):
    """The ASGI response of a stream of events, for connections that cannot be taken over."""

    stream_type = "text/event-stream; charset=utf-8"

    def __init__(
        self, content: AsyncIterator[bytes], on_close: Callable[[], Any], headers: Mapping[str, str]
    ) -> None:
        super().__init__(content, headers=headers, ping=0)
        del self.headers["connection"]  # the ASGI server decides whether the connection lasts
        self._on_close = on_close

    async def _send_with_timeout(self, send: Send, message: Message) -> None:
        """Send without sse-starlette's cancel scope: an overhead of 0.6 us instead of 3.6."""
        await send(message)


async def respond_with_events(routes: Routes, match: Match, request: Request) -> AsgiResponse:
    """Return the response to a request for events, once the stream's BEGIN is due."""
    return await _respond_with_stream(routes, match, request, SSE_WIRE, SseResponse)


async def _respond_with_stream(
    routes: Routes,
    match: Match,
    request: Request,
    plain_wire: Wire,
    response_class: type[SseResponse | NdjsonResponse],
) -> AsgiResponse:
    coded_wire, coding_headers = await negotiate_stream(routes, match, request, plain_wire)
    wire, headers = choose_wire(coded_wire, request.scope), STREAM_HEADERS | coding_headers
    open_stream = partial(HttpStream.open, routes, match, request)
    stream = await open_stream(wire)
    media_type = response_class.stream_type
    if request.method == "HEAD":
        stream.close()
        return Response(headers=STREAM_HEADERS, media_type=media_type)

    def build_asgi_response(stream: HttpStream) -> AsgiResponse:
        return response_class(stream.iter_bytes(request.scope), stream.close, headers)

    await stream.wait_until_ready()
    if not isinstance(wire, ChunkedWire):
        return build_asgi_response(stream)

    async def build_fallback() -> AsgiResponse:
        fallback_stream = await open_stream(coded_wire)  # the wire without chunks
        await fallback_stream.wait_until_ready()
        return build_asgi_response(fallback_stream)

    return DirectResponse(stream, build_fallback, {**headers, "Content-Type": media_type})


def build_error_response(exc: Exception) -> Response | None:
    """Return the response to an EventSource that cannot be served: 200 with `retry` and `end`.

    Any other status would end the EventSource for good, and its page could not read why
    (WHATWG HTML 9.2.3). None for errors of which the status says enough: the path or topic is
    unknown, or the client may not read it.
    """
    retry_after_s: float | None = None
    error = b""
    match exc:
        case Busy():
            reason, retry_after_s = EndReason.BUSY, exc.retry_after
        case RoutePaused():
            reason, retry_after_s = exc.reason, exc.retry_after
        case GuardUnavailable():
            reason = EndReason.GUARD_UNAVAILABLE
        case UnknownTopic() | AccessDenied() | NotGranted():
            return None
        case KafkaError():
            reason = EndReason.KAFKA_UNAVAILABLE
        case RequestError(status=400 | 403):
            reason, retry_after_s = EndReason.REFUSED, REFUSED_RETRY_AFTER_S
            data = {"code": problems.get_code(exc), **problems.build_members(exc)}
            error = encode_control("error", data) + b"\n"
        case GatewayError() | HTTPException():
            return None
        case _:
            log.error("a stream cannot begin: an internal error", exc_info=exc)
            reason = EndReason.ERROR
    retry_after_s = random.uniform(*RETRY_AFTER_RANGE_S) if retry_after_s is None else retry_after_s
    body = (
        sse.encode_retry(int(1000 * retry_after_s))
        + error
        + encode_control("end", {"reason": reason})
        + b"\n"
    )
    return Response(body, headers=STREAM_HEADERS, media_type="text/event-stream")


ACCEPTED_MEDIA_TYPES = ("application/x-ndjson", "application/jsonl", "application/ndjson")
NDJSON_TYPE = "application/x-ndjson; charset=utf-8"
# With letters, digits and `_.-`, the characters that a URL reference may hold: what a client has
# quoted is not quoted again.
_SAFE_CHARS = "/?%&=+:;,@!$'()*~"
MAX_LINK_TOKEN_CHARS = 4096  # a page with a longer token has no `Link`; its last line has the token


def prefers_lines(request: Request) -> bool:
    """Return whether a client prefers lines of JSON to server-sent events.

    On a tie it does if it waits for a page, as there are no pages of events.
    """
    lines, events = _parse_accept(",".join(request.headers.getlist("accept")))
    return lines > events or (lines == events != NOT_ACCEPTABLE and "wait" in request.query_params)


@cache_short(256)  # saves 40 us of a connect: clients send few different headers
def _parse_accept(accept: str) -> tuple[MediaPreference, MediaPreference]:
    lines = max(get_media_preference(accept, name) for name in ACCEPTED_MEDIA_TYPES)
    return lines, get_media_preference(accept, "text/event-stream")


class NdjsonResponse(_ClosingResponse, StreamingResponse):
    """The ASGI response of a stream of lines, for connections that cannot be taken over."""

    stream_type = NDJSON_TYPE

    def __init__(
        self, content: AsyncIterator[bytes], on_close: Callable[[], Any], headers: Mapping[str, str]
    ) -> None:
        super().__init__(content, headers=headers, media_type=NDJSON_TYPE)
        self._on_close = on_close


async def respond_with_lines(routes: Routes, match: Match, request: Request) -> AsgiResponse:
    """Return the response to a request for lines: the stream, once its BEGIN is due, or a page."""
    wire = NdjsonWire(query.wants_positions(request))
    wait_s = query.get_wait(request)
    if wait_s is not None:
        return await _respond_with_page(routes, match, request, wire, wait_s)
    return await _respond_with_stream(routes, match, request, wire, NdjsonResponse)


async def _respond_with_page(
    routes: Routes, match: Match, request: Request, wire: NdjsonWire, wait_s: float
) -> Response:
    """Return one page. The request counts as a connection while it waits.

    If a reload changes its route meanwhile, the page is read again from where it began.
    """
    release_slot = await routes.limits.acquire_slot(request.scope, match.granted)
    now = asyncio.get_running_loop().time
    deadline = now() + wait_s
    start: Handover | None = None

    async def respond(match: Match) -> Response:
        nonlocal start
        result: page.Page | None = None
        # Again if a reload changes how its topics are read.
        while result is None or result.reason is EndReason.CHANGED:
            if start is None:
                client = await open_client(
                    routes, match, request, wire, page_records=page.MAX_PAGE_RECORDS
                )
            else:
                query_pairs = query.get_query_pairs(request)
                client = await routes.resume_client(match, query_pairs, wire, start)
            if request.method == "HEAD":
                client.close()
                return Response(headers=STREAM_HEADERS, media_type=NDJSON_TYPE)
            with page.PageBuffer(wire, routes.hubs.client_memory) as buffer:
                try:
                    reading = page.read_page(client, buffer, max(0.0, deadline - now()))
                    result = await run_while_connected(request, reading)
                finally:
                    client.close()
            body, coding_headers = await negotiate_body(
                result.body, match.route, request, routes.hubs.client_memory
            )
            start = result.start
        headers = build_link_headers(request.scope, result) | coding_headers
        return Response(body, headers=STREAM_HEADERS | headers, media_type=NDJSON_TYPE)

    try:
        return await routes.respond_as_configured(match, request, respond)
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
        if parameter
        and unquote_plus(parameter.partition(b"=")[0].decode("latin-1")) != "lastEventId"
    ]
    next_query = b"&".join([*parameters, b"lastEventId=" + token.encode()])
    return quote(path.partition(b"?")[0] + b"?" + next_query, safe=_SAFE_CHARS)


PARAMETER = "dictionary"
"""The parameter of the query with which a route's dictionary is asked for."""
DCZ_HEADERS = {"Content-Encoding": "dcz"}
MAX_AGE_S = 3600  # how long a browser keeps a dictionary

# What may have a meaning in a URLPattern.
_PATTERN_SYNTAX = re.compile(r"[^A-Za-z0-9._~%!$&'@,;=-]")


def wants_dictionary(request: Request) -> bool:
    return bool(request.scope["query_string"]) and PARAMETER in request.query_params


async def negotiate_stream(
    routes: Routes, match: Match, request: Request, wire: Wire
) -> tuple[Wire, dict[str, str]]:
    """Return the wire of a stream and the headers that name its coding."""
    field = request.headers.get("available-dictionary")
    if field is None or not has_dictionary(match.route):
        return negotiate_wire(wire, match.route, request)
    digest = _parse_digest(field)
    if digest is None or not prefers_dcz(get_accept_encoding(request)):
        return negotiate_wire(wire, match.route, request)
    id = request.headers.get("dictionary-id", "").strip().strip('"')
    dictionary = None
    with contextlib.suppress(KafkaError):  # it will be raised again when the stream is opened
        dictionaries, view = await _get_dictionaries(routes, match, request)
        dictionary = await dictionaries.find(view, match.route.name, digest, id)
    if dictionary is None:
        return negotiate_wire(wire, match.route, request)
    return DictionaryWire(wire, dictionary), DCZ_HEADERS


async def respond_with_dictionary(routes: Routes, match: Match, request: Request) -> Response:
    """Return the dictionary of a route, as this client sees the route."""
    routes.check_parameters(match, get_query_pairs(request))
    if not has_dictionary(match.route):
        detail = "this route has none; it needs `compression: dictionary` and `history: all`"
        raise RequestError(404, "No dictionary", detail)
    release_slot = await routes.limits.acquire_slot(request.scope, match.granted)
    try:
        return await routes.respond_as_configured(
            match, request, partial(_respond_with_newest, routes, request)
        )
    finally:
        release_slot()


async def _respond_with_newest(routes: Routes, request: Request, match: Match) -> Response:
    dictionaries, view = await _get_dictionaries(routes, match, request)
    newest = await dictionaries.get_newest(view, match.route.name)
    return _build_response(routes, match, request, newest)


def has_dictionary(route: Route) -> bool:
    """Return whether a route has dictionaries.

    They hold records of the past, so that one that limits the history has none.
    """
    stream = route.stream
    return stream.compression == "dictionary" and stream.history == "all"


def _build_response(
    routes: Routes, match: Match, request: Request, newest: ViewDictionary
) -> Response:
    use = f'match="{build_match(_get_encoded_path(request.scope))}"'
    own_headers = routes.list_credential_headers(match.route)
    if newest.id:
        use += f', id="{newest.id}"'
    headers = {
        "Use-As-Dictionary": use,
        # A browser uses a dictionary as long as it is fresh. It is for one client: others who use
        # the browser later have other credentials.
        "Cache-Control": f"private, max-age={MAX_AGE_S}",
        "Vary": ", ".join(["Origin", "Cookie", "Authorization", *own_headers]),
        **NOSNIFF_HEADERS,
    }
    content = newest.dictionary.content
    return Response(content, headers=headers, media_type="application/octet-stream")


def build_match(path: str) -> str:
    """Return the URLPattern of the streams of a path, with any query.

    It is relative to the path, so that it is right behind proxies that add to the path. The path is
    percent-encoded as it came.
    """
    segment = path.partition("?")[0].rpartition("/")[2]
    # The backslash of the pattern is written as two in a string of a structured field.
    return _PATTERN_SYNTAX.sub(lambda found: "\\\\" + found[0], segment) + "?*"


async def _get_dictionaries(
    routes: Routes, match: Match, request: Request
) -> tuple[Dictionaries, View]:
    """Return the dictionaries of the route's cluster, and the view that they are looked up by.

    The view is without the client's choice of records or fields.
    """
    pairs = [pair for pair in get_query_pairs(request) if pair[0] not in SELECTION_PARAMETERS]
    view = await routes.get_view(match, pairs)
    return routes.hubs.get_hub(view.cluster).dictionaries, view


def _get_encoded_path(scope: Scope) -> str:
    raw_path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    return raw_path.decode("latin-1")


def _parse_digest(field: str) -> bytes | None:
    """Return the digest of `Available-Dictionary`; None if there is none (RFC 9842 2.2)."""
    text = field.strip()
    if len(text) != 46 or not (text.startswith(":") and text.endswith(":")):
        return None
    try:
        return base64.b64decode(text[1:-1], validate=True)
    except ValueError:
        return None
