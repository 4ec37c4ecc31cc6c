"""The answer to an EventSource: finished bytes, under any ASGI server."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

from sse_starlette import EventSourceResponse
from sse_starlette.sse import AppStatus
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gateway.errors import AccessDenied, KafkaError, UnknownTopic
from gateway.hub.wires.sse import SseWire, encode_control
from gateway.web.http.encoding import negotiate_wire
from gateway.web.http.security_headers import NOSNIFF_HEADERS
from gateway.web.routing import query
from gateway.web.routing.routes import Match, Routes
from gateway.wire import sse

from .direct_response import AsgiResponse, build_response, choose_wire
from .http_stream import HttpStream

STREAM_HEADERS = {
    "Cache-Control": "no-store, no-transform",
    "X-Accel-Buffering": "no",
    "Vary": "Origin, Accept, Accept-Encoding",
    **NOSNIFF_HEADERS,
}
MEDIA_TYPE = "text/event-stream; charset=utf-8"
SSE_WIRES = {grouped: SseWire(grouped) for grouped in (False, True)}
RETRY_AFTER_RANGE_S = (
    3.0,
    10.0,
)  # seconds after which an EventSource tries again when Kafka is away

# Streams end by themselves when the gateway drains; sse-starlette would cut them off first.
AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]


class SseResponse(EventSourceResponse):
    """A stream whose bytes, heartbeats included, are the hub's.

    close: called when it is over, also when the client went away before the first byte.
    """

    def __init__(
        self, content: AsyncIterator[bytes], on_close: Callable[[], Any], headers: Mapping[str, str]
    ) -> None:
        super().__init__(content, headers=headers, ping=0)
        del self.headers["connection"]  # the server's to say, which may say another
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_close()

    async def _send_with_timeout(self, send: Send, message: Message) -> None:
        """Without the cancel scope around each send, for a timeout that is never set here: 0.6 us
        of overhead instead of 3.6."""
        await send(message)


async def respond(routes: Routes, match: Match, request: Request) -> AsgiResponse:
    """The stream, once BEGIN is due. Raises RequestError, TokenError and KafkaError."""
    events, coding = negotiate_wire(
        SSE_WIRES[query.is_grouped(query.get_query_pairs(request))], match.route, request
    )
    wire, headers = choose_wire(events, request.scope), STREAM_HEADERS | coding
    opened = partial(HttpStream.open, routes, match, request)
    try:
        stream = await opened(wire)
    except (UnknownTopic, AccessDenied):
        raise
    except KafkaError:
        if query.is_event_source(request):
            return build_unavailable_response("kafka-unavailable")
        raise
    if request.method == "HEAD":
        stream.close()
        return Response(headers=STREAM_HEADERS, media_type="text/event-stream")

    def build_asgi_response(stream: HttpStream) -> AsgiResponse:
        return SseResponse(stream.iter_bytes(), stream.close, headers)

    typed = {**headers, "Content-Type": MEDIA_TYPE}
    return await build_response(stream, wire, opened, build_asgi_response, typed)


def build_unavailable_response(reason: str, retry_after_s: float | None = None) -> Response:
    """What an EventSource is told when it cannot be served now: any other status would end it
    for good (WHATWG HTML 9.2.3). after: seconds until it is to come again."""
    retry_after_s = random.uniform(*RETRY_AFTER_RANGE_S) if retry_after_s is None else retry_after_s
    body = (
        sse.encode_retry(int(1000 * retry_after_s))
        + encode_control("end", {"reason": reason})
        + b"\n"
    )
    return Response(body, headers=STREAM_HEADERS, media_type="text/event-stream")
