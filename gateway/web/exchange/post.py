"""A request that is written as one record: its body is the value, the rest is as its route says.

`Idempotency-Key` makes one that is tried again a single record, as for WebSockets (`hub.writer`).
`If-Match` and `If-None-Match: *` compare with the latest record of the key, where a route shows
it as a document.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from gateway.errors import RequestError
from gateway.hub.fanout.view import View
from gateway.hub.writes.writer import Produced
from gateway.web.http import etag
from gateway.web.routing.query import pairs
from gateway.web.routing.routes import Match, Routes
from gateway.web.websocket.request import Query

from .write_request import (
    Letter,
    addressed,
    check_current,
    check_filters,
    fill_of,
    preview,
    scope_of,
)

MOST = 64 * 1024  # bytes of a body: as the edge (`transport`) has it, for other servers
SLOWEST = 30.0  # seconds for a body to come, likewise
UNCACHED = {"Cache-Control": "no-store"}

Allowed = Callable[[], Awaitable[None]]


async def respond(routes: Routes, match: Match, request: Request) -> Response:
    """201 with where the record is; 200 if it was there before, or nothing is there now. Raises
    RequestError and KafkaError."""
    letter = await letter_of(routes, match, request)
    if match.route.with_.acks == "none" and not _is_conditional(request):
        routes.hubs.of(letter.cluster).publisher.begin(write(routes, request, letter))
        return JSONResponse({"topic": letter.topic}, 202, UNCACHED)
    done = await write(routes, request, letter)
    made = letter.value is not None and not done.repeated
    return JSONResponse(told(done), 201 if made else 200, UNCACHED)


def told(done: Produced) -> dict[str, Any]:
    """Where a record is."""
    where = {"topic": done.topic, "partition": done.partition, "offset": done.offset}
    return {**where, "repeated": True} if done.repeated else where


async def letter_of(routes: Routes, match: Match, request: Request) -> Letter:
    """What a request asks to be written. Raises RequestError, UnknownTopic, KafkaError."""
    query = pairs(request)
    view = await _view(routes, match, query)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        what = "a record's value is written as it comes; send it without Content-Encoding"
        raise RequestError(415, "Unsupported media type", what)
    value = await _value(request)
    if not routes.is_current(match):
        match = await routes.refresh(match, request)
        view = await _view(routes, match, query)
    headers: list[tuple[str, bytes]] = []
    if "content-type" in request.headers:
        headers.append(("content-type", request.headers["content-type"].encode("latin-1")))
    if match.route.with_.reply_to is not None:
        headers += [(":method", request.method.encode()), (":path", match.path.encode())]
    fill = fill_of(match, query, idempotency_key(request))
    key, headers = addressed(match.route.with_, fill, None, headers)
    letter = Letter(view.topics[0], key, value, headers, scope_of(match), match)
    return await check_filters(routes, view, letter)


async def _view(routes: Routes, match: Match, query: Query) -> View:
    view = await routes.view(match, query)
    if len(view.topics) != 1:
        raise _bad("a record is written to one topic; name one in the path")
    return view


async def write(routes: Routes, request: Request, letter: Letter) -> Produced:
    """Whoever asks may come over another connection than at first, so each has a writer of its
    own. Raises as `Writer.send`, and RequestError 412."""
    allowed = await _condition(routes, request, letter)
    return (
        await routes.hubs.of(letter.cluster)
        .publisher.writer()
        .send(
            letter.topic,
            letter.key,
            letter.value,
            letter.headers,
            idempotency_key=idempotency_key(request),
            scope=letter.scope,
            allowed=allowed,
        )
    )


def idempotency_key(request: Request) -> str | None:
    """Raises RequestError 400 for several."""
    keys = request.headers.getlist("idempotency-key")
    if len(keys) > 1:
        raise _bad("Idempotency-Key is given more than once; a record has one")
    return keys[0] if keys else None


async def _value(request: Request) -> bytes | None:
    """Of a DELETE none: a tombstone."""
    try:
        async with asyncio.timeout(SLOWEST):
            body = await _body(request)
    except TimeoutError:
        raise RequestError(408, "Request timeout", "the body did not come; try again") from None
    except ClientDisconnect:
        raise _bad("the client went away before its body was complete") from None
    if request.method != "DELETE":
        return body
    if body:
        raise _bad("a DELETE has no body here; use POST to write one")
    return None


async def _body(request: Request) -> bytes:
    pieces: list[bytes] = []
    left = MOST
    async for piece in request.stream():
        left -= len(piece)
        if left < 0:
            detail = f"the body is over {MOST} bytes; send less"
            raise RequestError(413, "Content too large", detail)
        pieces.append(piece)
    return b"".join(pieces)


# conditions


def _is_conditional(request: Request) -> bool:
    return "if-match" in request.headers or "if-none-match" in request.headers


async def _condition(routes: Routes, request: Request, letter: Letter) -> Allowed:
    """Return what must hold when the record is written; it has its key for itself then."""
    if not _is_conditional(request):
        return partial(check_current, routes, letter)
    hub = routes.hubs.of(letter.cluster)
    if letter.key is None or not hub.documents.is_compared(letter.topic):
        what = "this route compares nothing, as its records are no documents; leave it out"
        raise _bad(f"If-Match, If-None-Match: {what}")
    shown = await preview(routes, letter)
    key = letter.key if shown is None or shown.key is None else shown.key
    wanted = ",".join(request.headers.getlist("if-match"))
    unwanted = ",".join(request.headers.getlist("if-none-match"))

    async def allowed() -> None:
        record = await hub.documents.latest(letter.topic, key, letter.filters)
        place = None if record is None else etag.place_of(record, hub.topics.id(letter.topic))
        if (wanted and not etag.matches(wanted, place)) or (
            unwanted and etag.matches(unwanted, place)
        ):
            what = "the document is not what it was; ask for it, and decide again"
            raise RequestError(412, "Precondition failed", what)
        await check_current(routes, letter)

    return allowed


def _bad(detail: str) -> RequestError:
    return RequestError(400, "Bad request", detail)
