"""The latest record of a key, as a document (`capability: fetch`).

A page asks again with `If-None-Match`, and with `Prefer: wait=10` it is answered when there is
something else, or after 10 seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from gateway.api.stream import Stream
from gateway.core.log.record import Record
from gateway.errors import RequestError, StreamEnded
from gateway.formats import format_for
from gateway.formats.invalid import Invalid, Raw, checked
from gateway.hub.fanout.hub import Hub
from gateway.hub.fanout.view import View
from gateway.hub.reads.resume import Start
from gateway.web.http.document import names
from gateway.web.http.etag import tag_of
from gateway.web.http.media import JSON, SAFE, media_of
from gateway.web.http.prefer import preferences
from gateway.web.routing.query import pairs
from gateway.web.routing.routes import Match, Routes
from gateway.web.streams.leaving import while_there

CLOUDEVENTS = "application/cloudevents+json"


class Shown(NamedTuple):
    """A document as it is now."""

    record: Record
    tag: str


async def respond(routes: Routes, match: Match, request: Request) -> Response:
    """200, or 304 for one that is known. Raises RequestError, KafkaError and Left."""
    while True:
        response = await _respond(routes, match, request)
        if routes.is_current(match):
            return response
        match = await routes.refresh(match, request)  # it may have waited for long


async def _respond(routes: Routes, match: Match, request: Request) -> Response:
    view, key = _asked(await routes.view(match, pairs(request)))
    known = ",".join(request.headers.getlist("if-none-match"))
    wait = preferences(request).wait
    hub = routes.hubs.of(view.cluster)
    shown = await _latest(hub, view, key)
    if wait and _is_known(shown, known):
        coming = _other(hub, view, key, shown, _bounded(match, wait))
        shown = await while_there(request, coming)
    if shown is None:
        raise RequestError(404, "No document", "there is no record of this key, or it is deleted")
    cached = "private, no-cache" if match.route.guarded else "no-cache"
    headers = {"ETag": shown.tag, "Cache-Control": cached}
    if wait is not None:
        headers["Preference-Applied"] = f"wait={wait:g}"
    if names(known, shown.tag):
        return Response(status_code=304, headers=headers)
    content, media = _content(hub, view, shown.record)
    return Response(content, headers={**headers, **SAFE, "Content-Type": media})


def _asked(view: View) -> tuple[View, bytes]:
    keys = view.filters.keys
    if len(view.topics) != 1 or not keys or len(keys) > 1:
        raise RequestError(400, "Bad request", "a document is of one topic and one key; name them")
    return view, next(iter(keys))


async def _latest(hub: Hub, view: View, key: bytes) -> Shown | None:
    record = await hub.documents.latest(view.topics[0], key, view.filters)
    if record is None:
        return None
    return Shown(record, tag_of(record, hub.topics.id(view.topics[0]), view))


async def _other(
    hub: Hub, view: View, key: bytes, before: Shown | None, wait: float
) -> Shown | None:
    """What it is once it is not that any more; or still is, after so many seconds."""
    shown = before
    with contextlib.suppress(TimeoutError, StreamEnded):
        async with asyncio.timeout(wait), Stream(hub, view, Start()) as stream:
            shown = await _latest(hub, view, key)  # it may have come before the stream began
            while _tag(shown) == _tag(before):
                await anext(stream)
                shown = await _latest(hub, view, key)
    return shown


def _is_known(shown: Shown | None, known: str) -> bool:
    return shown is None or names(known, shown.tag)


def _tag(shown: Shown | None) -> str | None:
    return None if shown is None else shown.tag


def _bounded(match: Match, wait: float) -> float:
    """No longer than the client may have it."""
    expires = match.granted.expires
    return wait if expires is None else max(0.0, min(wait, expires - time.time()))


def _content(hub: Hub, view: View, record: Record) -> tuple[bytes, str]:
    """Raises RequestError 502 for a record that is none of its topic's model."""
    if isinstance(record.value, Invalid):
        raise RequestError(502, "Invalid document", f"it cannot be shown: {record.value.why}")
    if view.format == "value" and not view.fields and not isinstance(record.value, Raw):
        media = media_of(record.headers, hub.topics.settings(view.topics[0]))
        return record.value or b"", media
    format = format_for(view.format, binary=view.binary, fields=view.fields)
    if hub.models.decodes(view.topics[0]):
        format = checked(format, view.format)
    return format(record)[1], CLOUDEVENTS if view.format == "cloudevents" else JSON
