"""A request that is answered with the reply of a service behind Kafka (`replyTo`).

Its record says where the reply goes (`zilla:reply-to`) and what it is found by
(`zilla:correlation-id`); the service sends that back as a header, with `content-type` and, if it
is not 200, `:status`. `Prefer: respond-async` gives 202 and where to ask for the reply, of any
worker.
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

from gateway.config.sections.produce import RESERVED_RECORD_HEADERS, Correlation
from gateway.errors import RequestError
from gateway.hub.fanout.hub import Hub
from gateway.hub.writes.writer import Produced
from gateway.web.http.media_type import SAFE_HEADERS, get_media_type
from gateway.web.http.prefer import parse_preferences
from gateway.web.routing.routes import Match, Routes
from gateway.web.streams.disconnect import ClientDisconnected, run_while_connected

from . import produce
from .replies import REPLY_WINDOW_S, Reply, ReplyReader
from .write_request import hash_requester

DEFAULT_TIMEOUT_S = 30.0  # seconds
RETRY_AFTER_S = "1"  # seconds until a result is asked for again
BODILESS_STATUSES = frozenset({204, 304})

_REPLY_ID_PATTERN = re.compile(
    r"([0-9a-f]{32}-([0-9a-f]{64}))\.([0-9a-f]{1,12})"
)  # of whom, and since when
_STATUS_PATTERN = re.compile(rb"[2-5][0-9][0-9]")
_HEADER_NAME_PATTERN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE_PATTERN = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
# Of the connection, or of this answer: what a service says of them is not taken over.
_RESERVED_HEADERS = RESERVED_RECORD_HEADERS | {
    *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding"),
    *("upgrade", "content-length", "content-type", "date", "server", "traceparent", "tracestate"),
    *(name.lower() for name in SAFE_HEADERS),
}


async def request_reply(routes: Routes, match: Match, request: Request) -> Response:
    """The reply, or 202. Raises RequestError (504 for no reply in time), KafkaError and Left."""
    with_, prefer = match.route.with_, parse_preferences(request)
    letter = await produce.read_write_request(routes, match, request)
    id, replies = (
        build_correlation_id(match, produce.get_idempotency_key(request)),
        _get_reader(routes, match),
    )
    named, topic = with_.correlation or Correlation(), replies.topic
    told = [(named.reply_to, topic.encode()), (named.correlation_id, id.encode())]
    within = DEFAULT_TIMEOUT_S if with_.timeout is None else with_.timeout
    later = with_.async_ is not None and prefer.respond_async
    within = min(within, prefer.wait_s if prefer.wait_s is not None else 0.0 if later else within)
    await replies.start_reading()
    with replies.expect_reply(id) as coming:
        done = await produce.write_record(
            routes, request, letter._replace(headers=[*letter.headers, *told])
        )
        if done.repeated and not coming.done():
            await replies.load_recent()
        try:
            reply = await _wait_for_reply(request, coming, within)
        except ClientDisconnected:
            replies.mark_missed(id, "left")
            raise
    if reply is not None:
        replies.count_answered()
        return build_response(routes.get_hub(match.route), replies.topic, reply)
    if later:
        return _build_accepted_response(request, _build_location(request, match, id), done)
    replies.mark_missed(id, "timeout")
    what = f"no reply within {within:g} s; the request is written, and may be answered yet"
    raise RequestError(504, "No reply in time", what)


async def poll_reply(routes: Routes, match: Match, request: Request) -> Response:
    """The reply to a request that did not wait for it, 202 while there is none. Raises
    RequestError: 404 for that of another, 410 where it is too late; KafkaError and Left."""
    told = _REPLY_ID_PATTERN.fullmatch(match.params["correlationId"])
    if told is None or told[2] != hash_requester(match):
        raise RequestError(404, "No such reply", "there is no request of yours with this id")
    id, since = told[1], int(told[3], 16)
    replies = _get_reader(routes, match)
    await replies.start_reading()
    with replies.expect_reply(id) as coming:
        if not coming.done():
            await replies.load_recent()
        reply = await _wait_for_reply(request, coming, parse_preferences(request).wait_s or 0.0)
    match = await routes.refresh(match, request)
    if reply is not None:
        replies.count_answered()
        return build_response(routes.get_hub(match.route), replies.topic, reply)
    if time.time() - since > REPLY_WINDOW_S:
        raise RequestError(410, "Reply gone", "a reply is kept for ten minutes; ask anew")
    return _build_accepted_response(
        request, request.scope.get("root_path", "").rstrip("/") + match.path, None
    )


def build_correlation_id(match: Match, idempotency_key: str | None) -> str:
    """Return what a reply is found by: of one client and route, and the same when a request is
    tried again. Its second half says whose it is; nobody else is told the reply."""
    owner = hash_requester(match)
    if idempotency_key is None:
        return f"{uuid.uuid4().hex}-{owner}"
    whole = json.dumps([owner, idempotency_key])
    return f"{sha256(whole.encode()).hexdigest()[:32]}-{owner}"


def build_response(hub: Hub, topic: str, reply: Reply) -> Response:
    """The reply as HTTP has it. Raises RequestError 502 for a `:status` that is none."""
    said = next((text for name, text in reply.headers if name == ":status" and text), b"200")
    if not _STATUS_PATTERN.fullmatch(said):
        what = "the service behind Kafka answered with a :status that is none; tell its owner"
        raise RequestError(502, "Reply not understood", what)
    status = int(said)
    response = Response(status_code=status)
    if status not in BODILESS_STATUSES:
        media = get_media_type(reply.headers, hub.topics.get_settings(topic))
        response = Response(reply.value or b"", status, headers={"Content-Type": media})
    for name, text in _iter_headers(reply):
        response.headers.append(name, text)
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers.update(SAFE_HEADERS)
    return response


def _iter_headers(reply: Reply) -> Iterator[tuple[str, str]]:
    """Headers for the client: none of the connection, and none between the two services."""
    for name, content in reply.headers:
        low = name.lower()
        if low in _RESERVED_HEADERS or low.startswith("zilla:") or content is None:
            continue
        if _HEADER_NAME_PATTERN.fullmatch(name) and _HEADER_VALUE_PATTERN.fullmatch(content):
            yield name, content.decode("latin-1")


def _get_reader(routes: Routes, match: Match) -> ReplyReader:
    with_ = match.route.with_
    assert with_.reply_to is not None
    header = (with_.correlation or Correlation()).correlation_id
    return routes.reply_readers.get_reader(routes.get_hub(match.route), with_.reply_to, header)


async def _wait_for_reply(
    request: Request, future: asyncio.Future[Reply], timeout_s: float
) -> Reply | None:
    """None where it does not come in time. Raises Left."""
    if timeout_s > 0 and not future.done():
        await run_while_connected(request, _wait_for_future(future, timeout_s))
    return future.result() if future.done() else None


async def _wait_for_future(future: asyncio.Future[Reply], timeout_s: float) -> None:
    await asyncio.wait({future}, timeout=timeout_s)


def _build_location(request: Request, match: Match, id: str) -> str:
    assert match.route.with_.async_ is not None
    params = {name: quote(text, safe="") for name, text in match.params.items()}
    words = {"correlationId": f"{id}.{int(time.time()):x}"}
    root: str = request.scope.get("root_path", "").rstrip("/")
    return root + match.route.with_.async_.location.render(params=params, words=words)


def _build_accepted_response(request: Request, location: str, result: Produced | None) -> Response:
    headers = {**produce.NO_STORE_HEADERS, "Location": location, "Retry-After": RETRY_AFTER_S}
    if result is None:
        return Response(status_code=202, headers=headers)
    headers["Preference-Applied"] = "respond-async"
    return JSONResponse(produce.describe_result(result), 202, headers)
