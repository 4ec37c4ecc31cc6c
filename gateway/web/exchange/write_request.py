"""A client's record before it goes to Kafka: where to, and whether its route lets it."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

from starlette.requests import HTTPConnection

from gateway.config import Route, With
from gateway.core.channel.filters import MATCH_ALL, Filters
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import RequestError
from gateway.hub.fanout.view import View
from gateway.hub.wires.transform import header_names
from gateway.web.routing.routes import Match, Routes, get_route_name
from gateway.web.routing.views import TemplateValues
from gateway.web.websocket.messages import ProduceMessage
from gateway.web.websocket.request import QueryPairs, parse_target

Headers: TypeAlias = Sequence[tuple[str, bytes]]


class WriteRequest(NamedTuple):
    """A record that a client may write.

    scope:   of its idempotency key; equal keys of two routes, or of two identities, are two.
    cluster: by its name.
    filters: of the route that it is written by.
    match:   who writes it, and by which route.
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
    """What a `produce` message asks for. path: with its query; None to find one by the topic.

    Who reads a part of a topic writes that part only: the record must pass the route's filters.
    Raises RequestError, and HTTPException 404.
    """
    path, query = parse_target(
        path if path is not None else _find_write_path(routes, message.topic)
    )
    match = routes.match_writable(path)
    if message.value is None:
        match = match._replace(method="DELETE")
    match = await routes.admit(match, connection, token)
    with_ = match.route.with_
    if not with_.can_write:
        raise _build_forbidden_error(
            f"{path} takes no records; `produce: true` of its route allows them"
        )
    if with_.reply_to is not None:
        raise _build_forbidden_error(f"{path} is answered with replies; ask by HTTP")
    view = await routes.get_view(match, query)
    topic = _choose_topic(view.topics, message.topic)
    key, value = _encode_content(message)
    if value is None and with_.capability == "produce" and not _allows_delete(match.route):
        raise _build_forbidden_error(
            f"{path} deletes nothing; a `when` with method: DELETE allows it"
        )
    fill = build_template_values(match, query, message.idempotency_key)
    headers = [(name, text.encode()) for name, text in message.headers.items()]
    key, headers = resolve_key_and_headers(with_, fill, key, headers)
    letter = WriteRequest(topic, key, value, headers, get_idempotency_scope(match), match)
    return await check_filters(routes, view, letter)


async def check_current(routes: Routes, write_request: WriteRequest) -> None:
    """Raise RequestError 503 where a route, or its guards, were configured anew since its client
    was admitted: nothing is written by what was allowed before."""
    if not routes.is_unchanged(write_request.match):
        what = "its route was configured anew meanwhile, and nothing is written; repeat it"
        raise RequestError(503, "Configured anew", what, retry_after=1.0)


def build_template_values(
    match: Match, query: QueryPairs, idempotency_key: str | None
) -> TemplateValues:
    """What fills the texts of what is written."""
    words = {} if idempotency_key is None else {"idempotencyKey": idempotency_key}
    return TemplateValues(match.params, dict(query), match.granted, words)


def resolve_key_and_headers(
    with_: With, values: TemplateValues, key: bytes | None, headers: Headers
) -> tuple[bytes | None, list[tuple[str, bytes]]]:
    """Key and headers; those that the route gives no client chooses. Raises RequestError."""
    if with_.key is not None:
        own = values.render(with_.key).encode()
        if key not in (None, own):
            raise _build_forbidden_error("this route gives records their key; leave it out")
        key = own
    over = {name: values.render(text).encode() for name, text in with_.overrides.items()}
    names = {name.lower() for name in over}
    return key, [*[each for each in headers if each[0].lower() not in names], *over.items()]


async def check_filters(routes: Routes, view: View, write_request: WriteRequest) -> WriteRequest:
    """Return the letter as it is written, if its route would show the record.

    The filters look at what streams will look at: the record as its model and the transforms of its
    topic make it. Headers that a transform sets are the topic's, so those of the letter are left
    out: a filter takes any header of a name, and would take the client's.

    Raises:
        RequestError: 403 for a record that the route would not show; 400 and 503 as `Models`.
    """
    transforms = (
        routes.hubs.get_hub(view.cluster).topics.get_settings(write_request.topic).transforms
    )
    names = header_names(transforms)
    headers = [each for each in write_request.headers if each[0].lower() not in names]
    write_request = write_request._replace(
        headers=headers, cluster=view.cluster, filters=view.filters
    )
    if view.filters.filters:
        record = await preview_record(routes, write_request)
        if record is None or not view.filters.matches(record):
            what = "this record does not pass the filters of its route; write one that does"
            raise _build_forbidden_error(what)
    return write_request


async def preview_record(routes: Routes, write_request: WriteRequest) -> Record | None:
    """Return the record as streams will show it; None if they will skip it. Raises RequestError."""
    hub = routes.hubs.get_hub(write_request.cluster)
    key, value = await hub.models.encode_record(
        write_request.topic, write_request.key, write_request.value
    )
    at = TopicPartition(write_request.topic, 0)
    record = Record(at, 0, 0, 0, key, value, tuple(write_request.headers))
    return await hub.models.preview(record)


def _allows_delete(route: Route) -> bool:
    return any(route.get_method(when) == "DELETE" for when in route.when)


def _find_write_path(routes: Routes, topic: str | None) -> str:
    """The path of a route without parameters that takes records of the topic."""
    for route in routes.settings.routes:
        named = [source.literal for source in route.with_.topic_templates]
        if route.with_.can_write and topic in named:
            for when in route.when:
                if not when.pattern.params and not when.pattern.has_wildcard:
                    return when.path
    raise RequestError(404, "Unknown path", "name the route to write to, as 'path'")


def _choose_topic(topics: Sequence[str], topic: str | None) -> str:
    if topic is None and len(topics) == 1:
        return topics[0]
    if topic is None or topic not in topics:
        raise RequestError(400, "Bad request", f"'topic' must be one of {', '.join(topics)}")
    return topic


def _encode_content(message: ProduceMessage) -> tuple[bytes | None, bytes | None]:
    if message.base64:
        return _decode_base64("key", message.key), _decode_base64("value", message.value)
    key = None if message.key is None else message.key.encode()
    if message.value is None:
        return key, None
    if isinstance(message.value, str):
        return key, message.value.encode()
    try:
        text = json.dumps(message.value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise RequestError(400, "Bad request", "'value' is nested too deep; flatten it") from None
    return key, text.encode()


def _decode_base64(name: str, text: Any) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise RequestError(400, "Bad request", f"'{name}' is not base64 text") from None


def get_idempotency_scope(match: Match) -> str:
    """Return whose idempotency keys these are: the route's and, where guards know them, one
    client's. Clients of an open route share theirs, as nothing tells them apart."""
    path = get_route_name(match.route)
    return f"{path} {hash_requester(match)}" if match.granted else path


def hash_requester(match: Match) -> str:
    """Return who asks, and by which route: what each guard calls the client, as a whole SHA-256.

    It stands in records, which others may read, so it names nobody; and any replica makes the same.
    """
    whole = json.dumps([get_route_name(match.route), sorted(match.granted.subject)])
    return sha256(whole.encode()).hexdigest()


def _build_forbidden_error(detail: str) -> RequestError:
    return RequestError(403, "Forbidden", detail)
