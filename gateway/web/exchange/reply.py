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

from gateway.config.sections.producing import OWN, Correlation
from gateway.errors import RequestError
from gateway.hub.fanout.hub import Hub
from gateway.hub.writes.writer import Produced
from gateway.web.http.media import SAFE, media_of
from gateway.web.http.prefer import preferences
from gateway.web.routing.routes import Match, Routes
from gateway.web.streams.leaving import Left, while_there

from . import post
from .replies import WINDOW, Replies, Reply
from .write_request import requester

TIMEOUT = 30.0  # seconds
AGAIN = "1"  # seconds until a result is asked for again
BODILESS = frozenset({204, 304})

_ID = re.compile(r"([0-9a-f]{32}-([0-9a-f]{64}))\.([0-9a-f]{1,12})")  # of whom, and since when
_STATUS = re.compile(rb"[2-5][0-9][0-9]")
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_TEXT = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
# Of the connection, or of this answer: what a service says of them is not taken over.
_OURS = OWN | {
    *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding"),
    *("upgrade", "content-length", "content-type", "date", "server", "traceparent", "tracestate"),
    *(name.lower() for name in SAFE),
}


async def ask(routes: Routes, match: Match, request: Request) -> Response:
    """The reply, or 202. Raises RequestError (504 for no reply in time), KafkaError and Left."""
    with_, prefer = match.route.with_, preferences(request)
    letter = await post.letter_of(routes, match, request)
    id, replies = correlation_id(match, post.idempotency_key(request)), _replies(routes, match)
    named, topic = with_.correlation or Correlation(), replies.topic
    told = [(named.reply_to, topic.encode()), (named.correlation_id, id.encode())]
    within = TIMEOUT if with_.timeout is None else with_.timeout
    later = with_.async_ is not None and prefer.respond_async
    within = min(within, prefer.wait if prefer.wait is not None else 0.0 if later else within)
    await replies.begin()
    with replies.expect(id) as coming:
        done = await post.write(routes, request, letter._replace(headers=[*letter.headers, *told]))
        if done.repeated and not coming.done():
            await replies.recall()
        try:
            reply = await _reply(request, coming, within)
        except Left:
            replies.missed(id, "left")
            raise
    if reply is not None:
        replies.answered()
        return answer(routes.hub_of(match.route), replies.topic, reply)
    if later:
        return _accepted(request, _location(request, match, id), done)
    replies.missed(id, "timeout")
    what = f"no reply within {within:g} s; the request is written, and may be answered yet"
    raise RequestError(504, "No reply in time", what)


async def later(routes: Routes, match: Match, request: Request) -> Response:
    """The reply to a request that did not wait for it, 202 while there is none. Raises
    RequestError: 404 for that of another, 410 where it is too late; KafkaError and Left."""
    told = _ID.fullmatch(match.params["correlationId"])
    if told is None or told[2] != requester(match):
        raise RequestError(404, "No such reply", "there is no request of yours with this id")
    id, since = told[1], int(told[3], 16)
    replies = _replies(routes, match)
    await replies.begin()
    with replies.expect(id) as coming:
        if not coming.done():
            await replies.recall()
        reply = await _reply(request, coming, preferences(request).wait or 0.0)
    match = await routes.refresh(match, request)
    if reply is not None:
        replies.answered()
        return answer(routes.hub_of(match.route), replies.topic, reply)
    if time.time() - since > WINDOW:
        raise RequestError(410, "Reply gone", "a reply is kept for ten minutes; ask anew")
    return _accepted(request, request.scope.get("root_path", "").rstrip("/") + match.path, None)


def correlation_id(match: Match, idempotency_key: str | None) -> str:
    """Return what a reply is found by: of one client and route, and the same when a request is
    tried again. Its second half says whose it is; nobody else is told the reply."""
    owner = requester(match)
    if idempotency_key is None:
        return f"{uuid.uuid4().hex}-{owner}"
    whole = json.dumps([owner, idempotency_key])
    return f"{sha256(whole.encode()).hexdigest()[:32]}-{owner}"


def answer(hub: Hub, topic: str, reply: Reply) -> Response:
    """The reply as HTTP has it. Raises RequestError 502 for a `:status` that is none."""
    said = next((text for name, text in reply.headers if name == ":status" and text), b"200")
    if not _STATUS.fullmatch(said):
        what = "the service behind Kafka answered with a :status that is none; tell its owner"
        raise RequestError(502, "Reply not understood", what)
    status = int(said)
    response = Response(status_code=status)
    if status not in BODILESS:
        media = media_of(reply.headers, hub.topics.settings(topic))
        response = Response(reply.value or b"", status, headers={"Content-Type": media})
    for name, text in _kept(reply):
        response.headers.append(name, text)
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers.update(SAFE)
    return response


def _kept(reply: Reply) -> Iterator[tuple[str, str]]:
    """Headers for the client: none of the connection, and none between the two services."""
    for name, content in reply.headers:
        low = name.lower()
        if low in _OURS or low.startswith("zilla:") or content is None:
            continue
        if _NAME.fullmatch(name) and _TEXT.fullmatch(content):
            yield name, content.decode("latin-1")


def _replies(routes: Routes, match: Match) -> Replies:
    with_ = match.route.with_
    assert with_.reply_to is not None
    header = (with_.correlation or Correlation()).correlation_id
    return routes.replying.of(routes.hub_of(match.route), with_.reply_to, header)


async def _reply(request: Request, coming: asyncio.Future[Reply], within: float) -> Reply | None:
    """None where it does not come in time. Raises Left."""
    if within > 0 and not coming.done():
        await while_there(request, _wait(coming, within))
    return coming.result() if coming.done() else None


async def _wait(coming: asyncio.Future[Reply], within: float) -> None:
    await asyncio.wait({coming}, timeout=within)


def _location(request: Request, match: Match, id: str) -> str:
    assert match.route.with_.async_ is not None
    params = {name: quote(text, safe="") for name, text in match.params.items()}
    words = {"correlationId": f"{id}.{int(time.time()):x}"}
    root: str = request.scope.get("root_path", "").rstrip("/")
    return root + match.route.with_.async_.location.render(params=params, words=words)


def _accepted(request: Request, location: str, done: Produced | None) -> Response:
    headers = {**post.UNCACHED, "Location": location, "Retry-After": AGAIN}
    if done is None:
        return Response(status_code=202, headers=headers)
    headers["Preference-Applied"] = "respond-async"
    return JSONResponse(post.told(done), 202, headers)
