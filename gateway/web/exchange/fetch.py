"""Respond with the latest record of a key as a document (`capability: fetch`).

A client revalidates its copy by `If-None-Match`. With `Prefer: wait=10` as well, the response comes
when the document has changed, or after 10 seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

import orjson
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.stream import Stream
from gateway.core.client.terms import ClientKey
from gateway.core.log.record import Record
from gateway.errors import RequestError, StreamEnded
from gateway.formats import FORMATS, create_format
from gateway.formats.exact_values import InvalidValue, RawValue, wrap_format
from gateway.hub.fanout.hub import Hub
from gateway.hub.reads.position_resolver import StreamStart
from gateway.hub.reads.view import View
from gateway.web.http.content import (
    SAFE_HEADERS,
    build_etag,
    get_media_type,
    matches_if_none_match,
    parse_preferences,
)
from gateway.web.http.outlet import run_while_connected
from gateway.web.http.query import get_query_pairs
from gateway.web.routing.paths import Match
from gateway.web.routing.routes import Routes


class LatestDocument(NamedTuple):
    """The latest record of a key, and its entity tag.

    The record is None while its client has it and waits for another one.
    """

    record: Record | None
    etag: str


async def respond(routes: Routes, match: Match, request: Request) -> Response:
    """Return the document, 304 if the client has it, 404 without one, 502 if it is invalid."""
    routes.check_parameters(match, get_query_pairs(request))
    return await routes.respond_as_configured(
        match, request, partial(_respond_once, routes, request)
    )


async def _respond_once(routes: Routes, request: Request, match: Match) -> Response:
    view, key = _require_single_key(await routes.get_view(match, get_query_pairs(request)))
    if_none_match = ",".join(request.headers.getlist("if-none-match"))
    wait_s = parse_preferences(request).wait_s
    hub = routes.hubs.get_hub(view.cluster)
    client_key = match.get_client_key(request.scope)
    get_latest = partial(_get_latest, hub, view, key, client_key)
    document = await get_latest()
    is_unmodified = document is None or matches_if_none_match(if_none_match, document.etag)
    if wait_s and is_unmodified:
        document = document and document._replace(record=None)
        change = _wait_for_change(hub, view, get_latest, document, _limit_wait(match, wait_s))
        document = await run_while_connected(request, change)
    if document is None:
        raise RequestError(404, "No document", "there is no record of this key, or it is deleted")
    cache_control = "private, no-cache" if match.route.guarded else "no-cache"
    headers = {"ETag": document.etag, "Cache-Control": cache_control}
    if wait_s is not None:
        headers["Preference-Applied"] = f"wait={wait_s:g}"
    if document.record is None or matches_if_none_match(if_none_match, document.etag):
        return Response(status_code=304, headers=headers)
    content, media_type = _render_document(hub, view, document.record)
    return Response(content, headers={**headers, **SAFE_HEADERS, "Content-Type": media_type})


def _require_single_key(view: View) -> tuple[View, bytes]:
    """Return a view and the only key that it shows; a 400 if it shows several."""
    keys = view.filters.keys
    if len(view.topics) != 1 or not keys or len(keys) > 1:
        raise RequestError(400, "Bad request", "a document is of one topic and one key; name them")
    return view, next(iter(keys))


async def _get_latest(
    hub: Hub, view: View, key: bytes, client_key: ClientKey
) -> LatestDocument | None:
    record = await hub.documents.get_latest(view.topics[0], key, view.filters, client_key)
    if record is None:
        return None
    return LatestDocument(record, build_etag(record, hub.topics.get_id(view.topics[0]), view))


async def _wait_for_change(
    hub: Hub,
    view: View,
    get_latest: Callable[[], Awaitable[LatestDocument | None]],
    previous: LatestDocument | None,
    timeout_s: float,
) -> LatestDocument | None:
    """Return the document once it differs from the previous one, which is returned otherwise."""
    with contextlib.suppress(TimeoutError, StreamEnded):
        async with asyncio.timeout(timeout_s), Stream(hub, view, StreamStart()) as stream:
            # It may have changed before the stream began.
            while _get_etag(document := await get_latest()) == _get_etag(previous):
                del document  # or each client that waits would hold one
                await anext(stream)
            return document
    return previous


def _get_etag(document: LatestDocument | None) -> str | None:
    return None if document is None else document.etag


def _limit_wait(match: Match, wait_s: float) -> float:
    """Return how long to wait, in seconds: not beyond the expiry of the client's grants."""
    expires = match.granted.expires
    return wait_s if expires is None else max(0.0, min(wait_s, expires - time.time()))


def _render_document(hub: Hub, view: View, record: Record) -> tuple[bytes, str]:
    if isinstance(record.value, InvalidValue):
        raise RequestError(502, "Invalid document", f"it cannot be shown: {record.value.reason}")
    if view.format == "value" and not view.fields and not isinstance(record.value, RawValue):
        # The value as it is in Kafka.
        media_type = get_media_type(record.headers, hub.topics.get_settings(view.topics[0]))
        return record.value or b"", media_type
    format = create_format(view.format, binary=view.binary, fields=view.fields)
    if hub.models.has_model(view.topics[0]):
        format = wrap_format(format, view.format, hub.models.select_decoded(view.topics))
    name, content = format(record)
    if name == "error":
        raise RequestError(502, "Invalid document", orjson.loads(content)["message"])
    return content, FORMATS[view.format].media_type
