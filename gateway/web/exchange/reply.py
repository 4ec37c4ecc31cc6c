"""Respond to requests that write a record: with where it is, or with the reply to it (`replyTo`).

A reply comes from a service behind Kafka. The record of the request says where the reply goes
(`zilla:reply-to`) and how it is found (`zilla:correlation-id`). The service sends the correlation
id back as a header, with `content-type` and, if it is not 200, `:status`. With `Prefer:
respond-async` the response is 202, and says where to ask for the reply, which any worker can
answer.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import Iterator
from hashlib import sha256
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.background_tasks import Interrupted
from gateway.config import With
from gateway.config.capabilities import RESERVED_RECORD_HEADERS, Correlation
from gateway.errors import RequestError
from gateway.hub.fanout.hub import Hub
from gateway.hub.writes.publisher import Produced
from gateway.web.http.content import SAFE_HEADERS, get_media_type, parse_preferences
from gateway.web.http.outlet import run_while_connected
from gateway.web.routing.paths import AccessRevoked, Match
from gateway.web.routing.replies import REPLY_WINDOW_S, Reply, ReplyReader
from gateway.web.routing.routes import Routes

from . import produce
from .produce import hash_requester

DEFAULT_TIMEOUT_S = 30.0  # how long a request waits for its reply
RETRY_AFTER_S = "1"  # when a client is to ask for a reply again
BODILESS_STATUSES = frozenset({204, 304})

# A correlation id, whose second half is the hash of its owner, and when it was created, in seconds
# since 1970 as hexadecimal.
_REPLY_ID_PATTERN = re.compile(r"([0-9a-f]{32}-([0-9a-f]{64}))\.([0-9a-f]{1,12})")
_STATUS_PATTERN = re.compile(rb"[2-5][0-9][0-9]")
_HEADER_NAME_PATTERN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE_PATTERN = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
# Headers of the connection, or that the gateway sets itself. A service cannot set them.
_RESERVED_HEADERS = RESERVED_RECORD_HEADERS | {
    *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding"),
    *("upgrade", "content-length", "content-type", "date", "server", "traceparent", "tracestate"),
    *(name.lower() for name in SAFE_HEADERS),
}


def describe(with_: With) -> str:
    return "writes a record" + (", and answers with its reply" if with_.reply_topic else "")


async def respond(routes: Routes, match: Match, request: Request) -> Response:
    if match.is_reply:
        return await poll_reply(routes, match, request)
    if match.route.with_.reply_topic is not None:
        return await request_reply(routes, match, request)
    return await produce.respond(routes, match, request)


async def request_reply(routes: Routes, match: Match, request: Request) -> Response:
    """Write the record of a request, and return the reply to it.

    It is 202 if the client prefers to ask later, and an error 504 if there is no reply in time.
    """
    with_, preferences = produce.get_options(match), parse_preferences(request)
    write_request = await produce.read_write_request(routes, match, request)
    correlation_id = build_correlation_id(match, produce.get_idempotency_key(request))
    reader = _get_reader(routes, match)
    header_names = with_.correlation or Correlation()
    headers = [
        *write_request.headers,
        (header_names.reply_to, reader.topic.encode()),
        (header_names.correlation_id, correlation_id.encode()),
    ]
    timeout_s = DEFAULT_TIMEOUT_S if with_.timeout is None else with_.timeout
    may_respond_later = with_.async_ is not None and preferences.respond_async
    # A client that prefers to ask later waits not at all, unless it says how long.
    if preferences.wait_s is not None:
        timeout_s = min(timeout_s, preferences.wait_s)
    elif may_respond_later:
        timeout_s = min(timeout_s, 0.0)
    # Both before the record is written: the reply may come as soon as it is.
    await reader.start_reading()
    with reader.expect_reply(correlation_id) as future:
        result = await produce.write_record(
            routes, request, write_request._replace(headers=headers)
        )
        # A repeated request may have been answered before this worker began to read.
        if result.repeated and not future.done():
            await reader.load_recent()
        try:
            reply = await _wait_for_reply(request, future, timeout_s)
        except Interrupted:
            reader.mark_missed(correlation_id, "left")
            raise
    refusal = routes.stream_registry.find_refusal(match)
    # A paused route still answers: who repeats the request might write it again.
    if isinstance(refusal, AccessRevoked):
        raise refusal
    if reply is not None:
        reader.count_answered()
        return build_response(routes.get_hub(match.route), reader.topic, reply)
    if may_respond_later:
        location = _build_location(request, match, correlation_id)
        return _build_accepted_response(request, location, result)
    reader.mark_missed(correlation_id, "timeout")
    detail = f"no reply within {timeout_s:g} s; the request is written, and may still be answered"
    raise RequestError(504, "No reply in time", detail)


async def poll_reply(routes: Routes, match: Match, request: Request) -> Response:
    """Return the reply to an earlier request; 202 while there is none.

    An id of another client is a 404; after `REPLY_WINDOW_S` it is a 410.
    """
    parsed_id = _REPLY_ID_PATTERN.fullmatch(match.params["correlationId"])
    if parsed_id is None or parsed_id[2] != hash_requester(match):
        raise RequestError(404, "No such reply", "there is no request of yours with this id")
    correlation_id, requested_at = parsed_id[1], int(parsed_id[3], 16)
    reader = _get_reader(routes, match)
    await reader.start_reading()
    with reader.expect_reply(correlation_id) as future:
        if not future.done():
            await reader.load_recent()
        reply = await _wait_for_reply(request, future, parse_preferences(request).wait_s or 0.0)
    # The wait may have been long, and the configuration was reloaded meanwhile.
    match = await routes.refresh(match, request)
    if reply is not None:
        reader.count_answered()
        return build_response(routes.get_hub(match.route), reader.topic, reply)
    if time.time() - requested_at > REPLY_WINDOW_S:
        detail = "a reply is kept for ten minutes; send the request again"
        raise RequestError(410, "Reply gone", detail)
    return _build_accepted_response(
        request, request.scope.get("root_path", "").rstrip("/") + match.path, None
    )


def build_correlation_id(match: Match, idempotency_key: str | None) -> str:
    """Return the correlation id of a request.

    Its second half is a hash of the client and the route: no other client gets the reply. A
    repeated request has the same id by its idempotency key; without one, the id is random.
    """
    owner = hash_requester(match)
    if idempotency_key is None:
        return f"{uuid.uuid4().hex}-{owner}"
    request_key = json.dumps([owner, idempotency_key])
    return f"{sha256(request_key.encode()).hexdigest()[:32]}-{owner}"


def build_response(hub: Hub, topic: str, reply: Reply) -> Response:
    """Return a reply as an HTTP response; a 502 if the reply has an invalid `:status`."""
    status_text = next((text for name, text in reply.headers if name == ":status" and text), b"200")
    if not _STATUS_PATTERN.fullmatch(status_text):
        detail = "the service behind Kafka sent an invalid :status; report that to its owner"
        raise RequestError(502, "Reply not understood", detail)
    status = int(status_text)
    response = Response(status_code=status)
    if status not in BODILESS_STATUSES:
        media_type = get_media_type(reply.headers, hub.topics.get_settings(topic))
        response = Response(reply.value or b"", status, headers={"Content-Type": media_type})
    for name, text in _iter_headers(reply):
        response.headers.append(name, text)
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers.update(SAFE_HEADERS)
    return response


def _iter_headers(reply: Reply) -> Iterator[tuple[str, str]]:
    """Yield the headers for the client.

    Left out are headers of the connection, those that only services exchange, and malformed ones.
    """
    for name, content in reply.headers:
        lower_name = name.lower()
        if lower_name in _RESERVED_HEADERS or lower_name.startswith("zilla:") or content is None:
            continue
        if _HEADER_NAME_PATTERN.fullmatch(name) and _HEADER_VALUE_PATTERN.fullmatch(content):
            yield name, content.decode("latin-1")


def _get_reader(routes: Routes, match: Match) -> ReplyReader:
    with_ = produce.get_options(match)
    assert with_.reply_to is not None
    header = (with_.correlation or Correlation()).correlation_id
    return routes.reply_readers.get_reader(routes.get_hub(match.route), with_.reply_to, header)


async def _wait_for_reply(
    request: Request, future: asyncio.Future[Reply], timeout_s: float
) -> Reply | None:
    """Return the reply, or None if it does not come in time."""
    if timeout_s > 0 and not future.done():
        # `asyncio.wait_for` would cancel the future, for which others may wait.
        waiting = asyncio.wait({future}, timeout=timeout_s)
        await run_while_connected(request, waiting)
    return future.result() if future.done() else None


def _build_location(request: Request, match: Match, correlation_id: str) -> str:
    """Return the path where the reply to a request can be asked for, as the route has it."""
    template = match.route.with_.reply_location
    assert template is not None
    params = {name: quote(text, safe="") for name, text in match.params.items()}
    words = {"correlationId": f"{correlation_id}.{int(time.time()):x}"}
    root: str = request.scope.get("root_path", "").rstrip("/")
    return root + template.render(params=params, words=words)


def _build_accepted_response(request: Request, location: str, result: Produced | None) -> Response:
    headers = {**produce.NO_STORE_HEADERS, "Location": location, "Retry-After": RETRY_AFTER_S}
    if result is None:
        return Response(status_code=202, headers=headers)
    headers["Preference-Applied"] = "respond-async"
    return JSONResponse(produce.describe_result(result), 202, headers)
