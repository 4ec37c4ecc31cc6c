"""Write what a client sends as one record: a request, whose body is the value, or a message.

The route says what the topic, key and headers are. With `Idempotency-Key` a request that is
repeated stays a single record, as for WebSockets (`gateway/hub/writes/writer.py`). `If-Match` and
`If-None-Match` compare with the latest record of the key, where a route shows it as a document
(RFC 9110 13.1).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, Response

from gateway.config import ProduceWith, With
from gateway.core.channel.filters import MATCH_ALL, Filters
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import RequestError
from gateway.hub.reads.view import View
from gateway.hub.wires.models import header_names
from gateway.hub.writes.publisher import Produced
from gateway.web.http import content
from gateway.web.http.head import build_bad_request
from gateway.web.http.query import get_query_pairs
from gateway.web.routing.messages import ProduceMessage, QueryPairs, parse_target
from gateway.web.routing.paths import Match
from gateway.web.routing.routes import Routes
from gateway.web.routing.views import TemplateValues

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
    before, match = match, await routes.refresh(match, request)
    if match is not before:
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
        raise build_bad_request("a record is written to one topic; name one in the path")
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
        raise build_bad_request("Idempotency-Key is given more than once; a record has one")
    return keys[0] if keys else None


async def _read_value(request: Request) -> bytes | None:
    """Return the body of a request; None for a DELETE, which writes a tombstone."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            body = await _read_body(request)
    except TimeoutError:
        raise RequestError(408, "Request timeout", "the body did not come; try again") from None
    except ClientDisconnect:
        raise build_bad_request("the client went away before its body was complete") from None
    if request.method != "DELETE":
        return body
    if body:
        raise build_bad_request("a DELETE has no body here; use POST to write one")
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
        raise build_bad_request(f"If-Match, If-None-Match: {detail}")
    # Documents are looked up by the key that streams see, which may differ from the client's.
    preview = await preview_record(routes, write_request)
    key = write_request.key if preview is None or preview.key is None else preview.key
    if_match = ",".join(request.headers.getlist("if-match"))
    if_none_match = ",".join(request.headers.getlist("if-none-match"))

    client_key = write_request.match.get_client_key(request.scope)

    async def check_precondition() -> None:
        record = await hub.documents.get_latest(
            write_request.topic, key, write_request.filters, client_key, is_settled=True
        )
        record_id = (
            None
            if record is None
            else content.build_record_id(record, hub.topics.get_id(write_request.topic))
        )
        if (if_match and not content.lists_record(if_match, record_id)) or (
            if_none_match and content.lists_record(if_none_match, record_id, weakly=True)
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


Headers: TypeAlias = Sequence[tuple[str, bytes]]


class WriteRequest(NamedTuple):
    """A record that a client may write; a value of None is a tombstone.

    Equal idempotency keys of two scopes are different keys.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    scope: str
    match: Match
    cluster: str = ""
    filters: Filters = MATCH_ALL


async def parse_produce_message(
    routes: Routes,
    message: ProduceMessage,
    path: str | None,
    connection: HTTPConnection,
    token: str | None,
) -> WriteRequest:
    """Return the record that a `produce` message asks to write, and admit its client.

    A client that reads a part of a topic may write only that part: the record must pass the filters
    of the route. Without a path, the route is found by the topic.
    """
    key, value = message.content
    path, query = parse_target(
        path if path is not None else _find_write_path(routes, message.topic)
    )
    match = routes.match_writable(path)
    if value is None:  # guards see a tombstone as a DELETE
        match = match._replace(method="DELETE")
    match = await routes.admit(match, connection, token)
    with_ = match.route.with_
    if not with_.can_write:
        raise _build_forbidden_error(
            f"{path} takes no records; `produce: true` of its route allows them"
        )
    # A reply belongs to an HTTP request, which waits for it; a socket has no such thing.
    if with_.reply_topic is not None:
        raise _build_forbidden_error(f"{path} is answered with replies; ask by HTTP")
    routes.check_parameters(match, query)
    view = await routes.get_view(match, query)
    topic = _choose_topic(view.topics, message.topic)
    if (
        value is None
        and isinstance(with_, ProduceWith)
        and not any(match.route.get_method(when) == "DELETE" for when in match.route.when)
    ):
        raise _build_forbidden_error(
            f"{path} deletes nothing; a `when` with method: DELETE allows it"
        )
    for name in message.headers:
        if name.lower() in routes.settings.request_header_names:
            what = f"the header '{name}' tells services of a request where to reply"
            raise _build_forbidden_error(f"{what}; leave it out")
    values = build_template_values(match, query, message.idempotency_key)
    headers = [(name, text.encode()) for name, text in message.headers.items()]
    key, headers = resolve_key_and_headers(with_, values, key, headers)
    write_request = WriteRequest(topic, key, value, headers, get_idempotency_scope(match), match)
    return await check_filters(routes, view, write_request)


async def check_current(routes: Routes, write_request: WriteRequest) -> None:
    """Raise a 503 if the record's route or guards changed since its client was admitted."""
    if not routes.is_unchanged(write_request.match):
        detail = "its route was reconfigured meanwhile, and nothing is written; repeat it"
        raise RequestError(503, "Configured anew", detail, retry_after=1.0)


def build_template_values(
    match: Match, query: QueryPairs, idempotency_key: str | None
) -> TemplateValues:
    words = {} if idempotency_key is None else {"idempotencyKey": idempotency_key}
    return TemplateValues(match.params, dict(query), match.granted, words)


def resolve_key_and_headers(
    with_: With, values: TemplateValues, key: bytes | None, headers: Headers
) -> tuple[bytes | None, list[tuple[str, bytes]]]:
    """Return the key and headers of a record, with those that the route sets.

    The client's headers of the same names are replaced; another key than the route's is a 403.
    """
    if not isinstance(with_, ProduceWith):
        return key, list(headers)
    if with_.key is not None:
        route_key = values.render(with_.key).encode()
        if key not in (None, route_key):
            raise _build_forbidden_error("this route sets the key of records; leave it out")
        key = route_key
    overrides = {name: values.render(text).encode() for name, text in with_.overrides.items()}
    names = {name.lower() for name in overrides}
    kept = [header for header in headers if header[0].lower() not in names]
    return key, [*kept, *overrides.items()]


async def check_filters(routes: Routes, view: View, write_request: WriteRequest) -> WriteRequest:
    """Return the record as it will be written, if its route would show it.

    The filters are applied to the record that streams will see, after the model and the transforms
    of its topic. The client's headers of names that a transform sets are dropped: a filter matches
    any header of a name, and would match the client's.
    """
    transforms = (
        routes.hubs.get_hub(view.cluster).topics.get_settings(write_request.topic).transforms
    )
    names = header_names(transforms)
    headers = [header for header in write_request.headers if header[0].lower() not in names]
    write_request = write_request._replace(
        headers=headers, cluster=view.cluster, filters=view.filters
    )
    if view.filters.filters:
        record = await preview_record(routes, write_request)
        if record is None or not view.filters.matches(record):
            detail = "this record does not pass the filters of its route; write one that does"
            raise _build_forbidden_error(detail)
    return write_request


async def preview_record(routes: Routes, write_request: WriteRequest) -> Record | None:
    """Return the record as streams will show it; None if they will skip it."""
    hub = routes.hubs.get_hub(write_request.cluster)
    key, value = await hub.models.encode_record(
        write_request.topic, write_request.key, write_request.value
    )
    # Partition, offset, epoch and timestamp are not known yet. Filters do not use them.
    tp = TopicPartition(write_request.topic, 0)
    record = Record(tp, 0, 0, 0, key, value, tuple(write_request.headers))
    return await hub.models.preview(record)


def _find_write_path(routes: Routes, topic: str | None) -> str:
    for route in routes.settings.routes:
        topics = [source.literal for source in route.with_.topic_templates]
        if route.with_.can_write and topic in topics:
            for when in route.when:
                if not when.pattern.params and not when.pattern.has_wildcard:
                    return when.path
    raise RequestError(404, "Unknown path", "name the route to write to, as 'path'")


def _choose_topic(topics: Sequence[str], topic: str | None) -> str:
    if topic is None and len(topics) == 1:
        return topics[0]
    if topic is None or topic not in topics:
        raise build_bad_request(f"'topic' must be one of {', '.join(topics)}")
    return topic


def get_idempotency_scope(match: Match) -> str:
    """Return the scope of idempotency keys: the route and, if it has guards, the client.

    Clients of a route without guards share a scope, as nothing distinguishes them.
    """
    path = match.route.path
    return f"{path} {hash_requester(match)}" if match.granted else path


def hash_requester(match: Match) -> str:
    """Return a SHA-256 of a client and its route, in hexadecimal.

    It is written into records, which others may read, so it must not reveal the client. Every
    replica computes the same.
    """
    requester = json.dumps([match.route.path, sorted(match.granted.subject)])
    return sha256(requester.encode()).hexdigest()


def _build_forbidden_error(detail: str) -> RequestError:
    return RequestError(403, "Forbidden", detail)
