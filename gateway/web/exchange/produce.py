"""Write a request as one record, whose value is the body.

The route says what the topic, key and headers are. With `Idempotency-Key` a request that is
repeated stays a single record, as for WebSockets (`gateway/hub/writes/writer.py`). `If-Match` and
`If-None-Match` compare with the latest record of the key, where a route shows it as a document
(RFC 9110 13.1).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from gateway.config import ProduceWith
from gateway.errors import RequestError
from gateway.hub.fanout.view import View
from gateway.hub.writes.publisher import Produced
from gateway.web.http import document
from gateway.web.routing.paths import Match
from gateway.web.routing.query import get_query_pairs
from gateway.web.routing.routes import Routes
from gateway.web.websocket.messages import QueryPairs

from .write_request import (
    WriteRequest,
    build_template_values,
    check_current,
    check_filters,
    get_idempotency_scope,
    preview_record,
    resolve_key_and_headers,
)

# The limits of `web/http/transport.py` on a body are for our own server only. These are for any.
MAX_BODY_BYTES = 64 * 1024
BODY_TIMEOUT_S = 30.0
NO_STORE_HEADERS = {"Cache-Control": "no-store"}

PreconditionCheck = Callable[[], Awaitable[None]]
"""Raises if a record may not be written; called when its key is locked."""


async def respond(routes: Routes, match: Match, request: Request) -> Response:
    """Write the record of a request.

    Returns:
        201 and where the record is; 200 if it was there before, or is a tombstone; 202 before it is
        written, where the route does not wait for that.
    """
    write_request = await read_write_request(routes, match, request)
    # A condition has a result that the client must learn, so it is waited for.
    waits = get_options(match).acks != "none" or _is_conditional(request)
    result = await write_record(routes, request, write_request, waits=waits)
    if not waits:
        return JSONResponse({"topic": write_request.topic}, 202, NO_STORE_HEADERS)
    is_created = write_request.value is not None and not result.repeated
    return JSONResponse(describe_result(result), 201 if is_created else 200, NO_STORE_HEADERS)


def get_options(match: Match) -> ProduceWith:
    assert isinstance(match.route.with_, ProduceWith)
    return match.route.with_


def describe_result(result: Produced) -> dict[str, Any]:
    members = {"topic": result.topic, "partition": result.partition, "offset": result.offset}
    return {**members, "repeated": True} if result.repeated else members


async def read_write_request(routes: Routes, match: Match, request: Request) -> WriteRequest:
    """Read the record that a request asks to write."""
    query = get_query_pairs(request)
    routes.check_parameters(match, query)
    view = await _get_view(routes, match, query)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        detail = "a record's value is written as it comes; send it without Content-Encoding"
        raise RequestError(415, "Unsupported media type", detail)
    value = await _read_value(request)
    # To read the body may have taken long, and the configuration was reloaded meanwhile.
    if not routes.is_current(match):
        match = await routes.refresh(match, request)
        view = await _get_view(routes, match, query)
    headers: list[tuple[str, bytes]] = []
    if "content-type" in request.headers:
        headers.append(("content-type", request.headers["content-type"].encode("latin-1")))
    if match.route.with_.reply_topic is not None:
        headers += [(":method", request.method.encode()), (":path", match.path.encode())]
    values = build_template_values(match, query, get_idempotency_key(request))
    key, headers = resolve_key_and_headers(match.route.with_, values, None, headers)
    scope = get_idempotency_scope(match)
    write_request = WriteRequest(view.topics[0], key, value, headers, scope, match)
    return await check_filters(routes, view, write_request)


async def _get_view(routes: Routes, match: Match, query: QueryPairs) -> View:
    view = await routes.get_view(match, query)
    if len(view.topics) != 1:
        raise _build_bad_request("a record is written to one topic; name one in the path")
    return view


async def write_record(
    routes: Routes, request: Request, write_request: WriteRequest, *, waits: bool = True
) -> Produced:
    """Write a record, if the conditions of its request hold; else raise a 412.

    Each request has a writer of its own: a request that is repeated may come over another
    connection.
    """
    check_allowed = await _build_precondition_check(routes, request, write_request)
    return (
        await routes.hubs.get_hub(write_request.cluster)
        .create_writer()
        .send(
            write_request.topic,
            write_request.key,
            write_request.value,
            write_request.headers,
            idempotency_key=get_idempotency_key(request),
            scope=write_request.scope,
            check_allowed=check_allowed,
            waits=waits,
        )
    )


def get_idempotency_key(request: Request) -> str | None:
    keys = request.headers.getlist("idempotency-key")
    if len(keys) > 1:
        raise _build_bad_request("Idempotency-Key is given more than once; a record has one")
    return keys[0] if keys else None


async def _read_value(request: Request) -> bytes | None:
    """Return the body of a request; None for a DELETE, which writes a tombstone."""
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
    remaining_bytes = MAX_BODY_BYTES
    async for piece in request.stream():
        remaining_bytes -= len(piece)
        if remaining_bytes < 0:
            detail = f"the body is over {MAX_BODY_BYTES} bytes; send less"
            raise RequestError(413, "Content too large", detail)
        pieces.append(piece)
    return b"".join(pieces)


# Preconditions (RFC 9110 13.1).

# What proxies that compress make of a tag: nginx a weak one, Apache and Caddy one with a suffix.
_COMPRESSED_TAG_PATTERN = re.compile(r'W/|-(?:gzip|br|zstd)"')


def _is_conditional(request: Request) -> bool:
    return "if-match" in request.headers or "if-none-match" in request.headers


async def _build_precondition_check(
    routes: Routes, request: Request, write_request: WriteRequest
) -> PreconditionCheck:
    """Return the check that runs just before the record is written, while its key is locked.

    It covers the conditions of the request, and whether the configuration still allows it.
    """
    if not _is_conditional(request):
        return partial(check_current, routes, write_request)
    hub = routes.hubs.get_hub(write_request.cluster)
    if write_request.key is None or not hub.document_locks.is_compared(write_request.topic):
        detail = "this route compares nothing, as its records are no documents; leave it out"
        raise _build_bad_request(f"If-Match, If-None-Match: {detail}")
    # Documents are looked up by the key that streams see, which may differ from the client's.
    preview = await preview_record(routes, write_request)
    key = write_request.key if preview is None or preview.key is None else preview.key
    if_match = ",".join(request.headers.getlist("if-match"))
    if_none_match = ",".join(request.headers.getlist("if-none-match"))

    async def check_precondition() -> None:
        record = await hub.documents.get_latest(
            write_request.topic, key, write_request.filters, is_settled=True
        )
        record_id = (
            None
            if record is None
            else document.build_record_id(record, hub.topics.get_id(write_request.topic))
        )
        if (if_match and not document.lists_record(if_match, record_id)) or (
            if_none_match and document.lists_record(if_none_match, record_id, weakly=True)
        ):
            detail = "the document has changed; fetch it, and decide again"
            if _COMPRESSED_TAG_PATTERN.search(if_match):
                detail = (
                    "a weak tag, or one with the coding of a proxy, matches nothing; "
                    "let the proxy not compress documents"
                )
            raise RequestError(412, "Precondition failed", detail)
        await check_current(routes, write_request)

    return check_precondition


def _build_bad_request(detail: str) -> RequestError:
    return RequestError(400, "Bad request", detail)
