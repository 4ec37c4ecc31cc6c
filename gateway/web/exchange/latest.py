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
from gateway.formats import create_format
from gateway.formats.invalid_values import InvalidValue, RawValue, wrap_format
from gateway.hub.fanout.hub import Hub
from gateway.hub.fanout.view import View
from gateway.hub.reads.stream_start import StreamStart
from gateway.web.http.document import matches_if_none_match
from gateway.web.http.etag import build_etag
from gateway.web.http.media_type import JSON_MEDIA_TYPE, SAFE_HEADERS, get_media_type
from gateway.web.http.prefer import parse_preferences
from gateway.web.routing.query import get_query_pairs
from gateway.web.routing.routes import Match, Routes
from gateway.web.streams.disconnect import run_while_connected

CLOUDEVENTS_MEDIA_TYPE = "application/cloudevents+json"


class LatestDocument(NamedTuple):
    """A document as it is now."""

    record: Record
    etag: str


async def respond(routes: Routes, match: Match, request: Request) -> Response:
    """200, or 304 for one that is known. Raises RequestError, KafkaError and Left."""
    while True:
        response = await _respond_once(routes, match, request)
        if routes.is_current(match):
            return response
        match = await routes.refresh(match, request)  # it may have waited for long


async def _respond_once(routes: Routes, match: Match, request: Request) -> Response:
    view, key = _require_single_key(await routes.get_view(match, get_query_pairs(request)))
    known = ",".join(request.headers.getlist("if-none-match"))
    wait = parse_preferences(request).wait_s
    hub = routes.hubs.get_hub(view.cluster)
    shown = await _get_latest(hub, view, key)
    if wait and _is_unmodified(shown, known):
        coming = _wait_for_change(hub, view, key, shown, _limit_wait(match, wait))
        shown = await run_while_connected(request, coming)
    if shown is None:
        raise RequestError(404, "No document", "there is no record of this key, or it is deleted")
    cached = "private, no-cache" if match.route.guarded else "no-cache"
    headers = {"ETag": shown.etag, "Cache-Control": cached}
    if wait is not None:
        headers["Preference-Applied"] = f"wait={wait:g}"
    if matches_if_none_match(known, shown.etag):
        return Response(status_code=304, headers=headers)
    content, media = _render_document(hub, view, shown.record)
    return Response(content, headers={**headers, **SAFE_HEADERS, "Content-Type": media})


def _require_single_key(view: View) -> tuple[View, bytes]:
    keys = view.filters.keys
    if len(view.topics) != 1 or not keys or len(keys) > 1:
        raise RequestError(400, "Bad request", "a document is of one topic and one key; name them")
    return view, next(iter(keys))


async def _get_latest(hub: Hub, view: View, key: bytes) -> LatestDocument | None:
    record = await hub.documents.get_latest(view.topics[0], key, view.filters)
    if record is None:
        return None
    return LatestDocument(record, build_etag(record, hub.topics.get_id(view.topics[0]), view))


async def _wait_for_change(
    hub: Hub, view: View, key: bytes, previous: LatestDocument | None, timeout_s: float
) -> LatestDocument | None:
    """What it is once it is not that any more; or still is, after so many seconds."""
    shown = previous
    with contextlib.suppress(TimeoutError, StreamEnded):
        async with asyncio.timeout(timeout_s), Stream(hub, view, StreamStart()) as stream:
            shown = await _get_latest(hub, view, key)  # it may have come before the stream began
            while _get_etag(shown) == _get_etag(previous):
                await anext(stream)
                shown = await _get_latest(hub, view, key)
    return shown


def _is_unmodified(document: LatestDocument | None, if_none_match: str) -> bool:
    return document is None or matches_if_none_match(if_none_match, document.etag)


def _get_etag(document: LatestDocument | None) -> str | None:
    return None if document is None else document.etag


def _limit_wait(match: Match, wait_s: float) -> float:
    """No longer than the client may have it."""
    expires = match.granted.expires
    return wait_s if expires is None else max(0.0, min(wait_s, expires - time.time()))


def _render_document(hub: Hub, view: View, record: Record) -> tuple[bytes, str]:
    """Raises RequestError 502 for a record that is none of its topic's model."""
    if isinstance(record.value, InvalidValue):
        raise RequestError(502, "Invalid document", f"it cannot be shown: {record.value.reason}")
    if view.format == "value" and not view.fields and not isinstance(record.value, RawValue):
        media = get_media_type(record.headers, hub.topics.get_settings(view.topics[0]))
        return record.value or b"", media
    format = create_format(view.format, binary=view.binary, fields=view.fields)
    if hub.models.has_model(view.topics[0]):
        format = wrap_format(format, view.format)
    return format(record)[
        1
    ], CLOUDEVENTS_MEDIA_TYPE if view.format == "cloudevents" else JSON_MEDIA_TYPE
