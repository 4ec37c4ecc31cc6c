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
from gateway.core.channel.filters import ALL, Filters
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import RequestError
from gateway.hub.fanout.view import View
from gateway.hub.wires.transform import header_names
from gateway.web.routing.routes import Match, Routes, name_of
from gateway.web.routing.views import Fill
from gateway.web.websocket.messages import Produce
from gateway.web.websocket.request import Query, split

Headers: TypeAlias = Sequence[tuple[str, bytes]]


class Letter(NamedTuple):
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
    filters: Filters = ALL


async def letter_of(
    routes: Routes, said: Produce, path: str | None, connection: HTTPConnection, token: str | None
) -> Letter:
    """What a `produce` message asks for. path: with its query; None to find one by the topic.

    Who reads a part of a topic writes that part only: the record must pass the route's filters.
    Raises RequestError, and HTTPException 404.
    """
    path, query = split(path if path is not None else _path(routes, said.topic))
    match = routes.writable(path)
    if said.value is None:
        match = match._replace(method="DELETE")
    match = await routes.admit(match, connection, token)
    with_ = match.route.with_
    if not with_.writes:
        raise _forbidden(f"{path} takes no records; `produce: true` of its route allows them")
    if with_.reply_to is not None:
        raise _forbidden(f"{path} is answered with replies; ask by HTTP")
    view = await routes.view(match, query)
    topic = _topic(view.topics, said.topic)
    key, value = _content(said)
    if value is None and with_.capability == "produce" and not _deletes(match.route):
        raise _forbidden(f"{path} deletes nothing; a `when` with method: DELETE allows it")
    fill = fill_of(match, query, said.idempotency_key)
    headers = [(name, text.encode()) for name, text in said.headers.items()]
    key, headers = addressed(with_, fill, key, headers)
    letter = Letter(topic, key, value, headers, scope_of(match), match)
    return await check_filters(routes, view, letter)


async def check_current(routes: Routes, letter: Letter) -> None:
    """Raise RequestError 503 where a route, or its guards, were configured anew since its client
    was admitted: nothing is written by what was allowed before."""
    if not routes.is_unchanged(letter.match):
        what = "its route was configured anew meanwhile, and nothing is written; repeat it"
        raise RequestError(503, "Configured anew", what, retry_after=1.0)


def fill_of(match: Match, query: Query, idempotency_key: str | None) -> Fill:
    """What fills the texts of what is written."""
    words = {} if idempotency_key is None else {"idempotencyKey": idempotency_key}
    return Fill(match.params, dict(query), match.granted, words)


def addressed(
    with_: With, fill: Fill, key: bytes | None, headers: Headers
) -> tuple[bytes | None, list[tuple[str, bytes]]]:
    """Key and headers; those that the route gives no client chooses. Raises RequestError."""
    if with_.key is not None:
        own = fill.text(with_.key).encode()
        if key not in (None, own):
            raise _forbidden("this route gives records their key; leave it out")
        key = own
    over = {name: fill.text(text).encode() for name, text in with_.overrides.items()}
    names = {name.lower() for name in over}
    return key, [*[each for each in headers if each[0].lower() not in names], *over.items()]


async def check_filters(routes: Routes, view: View, letter: Letter) -> Letter:
    """Return the letter as it is written, if its route would show the record.

    The filters look at what streams will look at: the record as its model and the transforms of its
    topic make it. Headers that a transform sets are the topic's, so those of the letter are left
    out: a filter takes any header of a name, and would take the client's.

    Raises:
        RequestError: 403 for a record that the route would not show; 400 and 503 as `Models`.
    """
    transforms = routes.hubs.of(view.cluster).topics.settings(letter.topic).transforms
    names = header_names(transforms)
    headers = [each for each in letter.headers if each[0].lower() not in names]
    letter = letter._replace(headers=headers, cluster=view.cluster, filters=view.filters)
    if view.filters.filters:
        record = await preview(routes, letter)
        if record is None or not view.filters.matches(record):
            what = "this record does not pass the filters of its route; write one that does"
            raise _forbidden(what)
    return letter


async def preview(routes: Routes, letter: Letter) -> Record | None:
    """Return the record as streams will show it; None if they will skip it. Raises RequestError."""
    hub = routes.hubs.of(letter.cluster)
    key, value = await hub.models.written(letter.topic, letter.key, letter.value)
    at = TopicPartition(letter.topic, 0)
    record = Record(at, 0, 0, 0, key, value, tuple(letter.headers))
    return await hub.models.preview(record)


def _deletes(route: Route) -> bool:
    return any(route.method(when) == "DELETE" for when in route.when)


def _path(routes: Routes, topic: str | None) -> str:
    """The path of a route without parameters that takes records of the topic."""
    for route in routes.settings.routes:
        named = [source.literal for source in route.with_.sources]
        if route.with_.writes and topic in named:
            for when in route.when:
                if not when.pattern.params and not when.pattern.rest:
                    return when.path
    raise RequestError(404, "Unknown path", "name the route to write to, as 'path'")


def _topic(topics: Sequence[str], wanted: str | None) -> str:
    if wanted is None and len(topics) == 1:
        return topics[0]
    if wanted is None or wanted not in topics:
        raise RequestError(400, "Bad request", f"'topic' must be one of {', '.join(topics)}")
    return wanted


def _content(said: Produce) -> tuple[bytes | None, bytes | None]:
    if said.base64:
        return _decoded("key", said.key), _decoded("value", said.value)
    key = None if said.key is None else said.key.encode()
    if said.value is None:
        return key, None
    if isinstance(said.value, str):
        return key, said.value.encode()
    try:
        text = json.dumps(said.value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise RequestError(400, "Bad request", "'value' is nested too deep; flatten it") from None
    return key, text.encode()


def _decoded(name: str, text: Any) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise RequestError(400, "Bad request", f"'{name}' is not base64 text") from None


def scope_of(match: Match) -> str:
    """Return whose idempotency keys these are: the route's and, where guards know them, one
    client's. Clients of an open route share theirs, as nothing tells them apart."""
    path = name_of(match.route)
    return f"{path} {requester(match)}" if match.granted else path


def requester(match: Match) -> str:
    """Return who asks, and by which route: what each guard calls the client, as a whole SHA-256.

    It stands in records, which others may read, so it names nobody; and any replica makes the same.
    """
    whole = json.dumps([name_of(match.route), sorted(match.granted.subject)])
    return sha256(whole.encode()).hexdigest()


def _forbidden(detail: str) -> RequestError:
    return RequestError(403, "Forbidden", detail)
