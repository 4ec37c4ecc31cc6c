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
from gateway.web.routing.query import get_query_pairs
from gateway.web.routing.routes import Match, Routes
from gateway.web.websocket.request import QueryPairs

from .write_request import (
    WriteRequest,
    build_template_values,
    check_current,
    check_filters,
    get_idempotency_scope,
    preview_record,
    resolve_key_and_headers,
)

MAX_BODY_BYTES = 64 * 1024  # bytes of a body: as the edge (`transport`) has it, for other servers
BODY_TIMEOUT_S = 30.0  # seconds for a body to come, likewise
NO_STORE_HEADERS = {"Cache-Control": "no-store"}

PreconditionCheck = Callable[[], Awaitable[None]]


async def respond(routes: Routes, match: Match, request: Request) -> Response:
    """201 with where the record is; 200 if it was there before, or nothing is there now. Raises
    RequestError and KafkaError."""
    letter = await read_write_request(routes, match, request)
    if match.route.with_.acks == "none" and not _is_conditional(request):
        routes.hubs.get_hub(letter.cluster).publisher.start_write(
            write_record(routes, request, letter)
        )
        return JSONResponse({"topic": letter.topic}, 202, NO_STORE_HEADERS)
    done = await write_record(routes, request, letter)
    made = letter.value is not None and not done.repeated
    return JSONResponse(describe_result(done), 201 if made else 200, NO_STORE_HEADERS)


def describe_result(result: Produced) -> dict[str, Any]:
    """Where a record is."""
    where = {"topic": result.topic, "partition": result.partition, "offset": result.offset}
    return {**where, "repeated": True} if result.repeated else where


async def read_write_request(routes: Routes, match: Match, request: Request) -> WriteRequest:
    """What a request asks to be written. Raises RequestError, UnknownTopic, KafkaError."""
    query = get_query_pairs(request)
    view = await _get_view(routes, match, query)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        what = "a record's value is written as it comes; send it without Content-Encoding"
        raise RequestError(415, "Unsupported media type", what)
    value = await _read_value(request)
    if not routes.is_current(match):
        match = await routes.refresh(match, request)
        view = await _get_view(routes, match, query)
    headers: list[tuple[str, bytes]] = []
    if "content-type" in request.headers:
        headers.append(("content-type", request.headers["content-type"].encode("latin-1")))
    if match.route.with_.reply_to is not None:
        headers += [(":method", request.method.encode()), (":path", match.path.encode())]
    fill = build_template_values(match, query, get_idempotency_key(request))
    key, headers = resolve_key_and_headers(match.route.with_, fill, None, headers)
    letter = WriteRequest(view.topics[0], key, value, headers, get_idempotency_scope(match), match)
    return await check_filters(routes, view, letter)


async def _get_view(routes: Routes, match: Match, query: QueryPairs) -> View:
    view = await routes.get_view(match, query)
    if len(view.topics) != 1:
        raise _build_bad_request("a record is written to one topic; name one in the path")
    return view


async def write_record(routes: Routes, request: Request, write_request: WriteRequest) -> Produced:
    """Whoever asks may come over another connection than at first, so each has a writer of its
    own. Raises as `Writer.send`, and RequestError 412."""
    allowed = await _build_precondition_check(routes, request, write_request)
    return (
        await routes.hubs.get_hub(write_request.cluster)
        .publisher.create_writer()
        .send(
            write_request.topic,
            write_request.key,
            write_request.value,
            write_request.headers,
            idempotency_key=get_idempotency_key(request),
            scope=write_request.scope,
            check_allowed=allowed,
        )
    )


def get_idempotency_key(request: Request) -> str | None:
    """Raises RequestError 400 for several."""
    keys = request.headers.getlist("idempotency-key")
    if len(keys) > 1:
        raise _build_bad_request("Idempotency-Key is given more than once; a record has one")
    return keys[0] if keys else None


async def _read_value(request: Request) -> bytes | None:
    """Of a DELETE none: a tombstone."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            body = await _read_body(request)
    except TimeoutError:
        raise RequestError(408, "Request timeout", "the body did not come; try again") from None
    except ClientDisconnect:
        raise _build_bad_request("the client went away before its body was complete") from None
    if request.method != "DELETE":
        return body
    if body:
        raise _build_bad_request("a DELETE has no body here; use POST to write one")
    return None


async def _read_body(request: Request) -> bytes:
    pieces: list[bytes] = []
    left = MAX_BODY_BYTES
    async for piece in request.stream():
        left -= len(piece)
        if left < 0:
            detail = f"the body is over {MAX_BODY_BYTES} bytes; send less"
            raise RequestError(413, "Content too large", detail)
        pieces.append(piece)
    return b"".join(pieces)


# conditions


def _is_conditional(request: Request) -> bool:
    return "if-match" in request.headers or "if-none-match" in request.headers


async def _build_precondition_check(
    routes: Routes, request: Request, write_request: WriteRequest
) -> PreconditionCheck:
    """Return what must hold when the record is written; it has its key for itself then."""
    if not _is_conditional(request):
        return partial(check_current, routes, write_request)
    hub = routes.hubs.get_hub(write_request.cluster)
    if write_request.key is None or not hub.documents.is_compared(write_request.topic):
        what = "this route compares nothing, as its records are no documents; leave it out"
        raise _build_bad_request(f"If-Match, If-None-Match: {what}")
    shown = await preview_record(routes, write_request)
    key = write_request.key if shown is None or shown.key is None else shown.key
    wanted = ",".join(request.headers.getlist("if-match"))
    unwanted = ",".join(request.headers.getlist("if-none-match"))

    async def check_precondition() -> None:
        record = await hub.documents.get_latest(write_request.topic, key, write_request.filters)
        place = (
            None
            if record is None
            else etag.build_record_id(record, hub.topics.get_id(write_request.topic))
        )
        if (wanted and not etag.matches_if_match(wanted, place)) or (
            unwanted and etag.matches_if_match(unwanted, place)
        ):
            what = "the document is not what it was; ask for it, and decide again"
            raise RequestError(412, "Precondition failed", what)
        await check_current(routes, write_request)

    return check_precondition


def _build_bad_request(detail: str) -> RequestError:
    return RequestError(400, "Bad request", detail)
