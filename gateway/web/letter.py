"""A client's record before it goes to Kafka: where to, and whether its route lets it."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from starlette.requests import HTTPConnection

from ..config import Route, With
from ..core.record import Record, TopicPartition
from ..errors import RequestError
from ..hub.view import View
from .messages import Produce
from .request import Query, split
from .routes import Match, Routes
from .views import Fill

Headers: TypeAlias = Sequence[tuple[str, bytes]]


class Letter(NamedTuple):
    """scope: of its idempotency key; equal keys of two routes are two. cluster: by its name."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    scope: str
    cluster: str = ""


async def letter_of(
    routes: Routes, said: Produce, path: str | None, connection: HTTPConnection, token: str | None
) -> Letter:
    """What a `produce` message asks for. path: with its query; None to find one by the topic.

    Who reads a part of a topic writes that part only: the record must pass the route's filters.
    Raises RequestError, and HTTPException 404.
    """
    path, query = split(path if path is not None else _path(routes, said.topic))
    match = routes.writable(path)
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
    return passed(view, Letter(topic, key, value, headers, scope_of(match)))


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


def passed(view: View, letter: Letter) -> Letter:
    """The same, if the route's filters let it through. Raises RequestError 403."""
    at = TopicPartition(letter.topic, 0)
    record = Record(at, 0, 0, 0, letter.key, letter.value, tuple(letter.headers))
    if not view.filters.matches(record):
        raise _forbidden("this record does not pass the filters of its route; write one that does")
    return letter._replace(cluster=view.cluster)


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
    text = json.dumps(said.value, ensure_ascii=False, separators=(",", ":"))
    return key, text.encode()


def _decoded(name: str, text: Any) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise RequestError(400, "Bad request", f"'{name}' is not base64 text") from None


def scope_of(match: Match) -> str:
    return match.route.when[0].path


def _forbidden(detail: str) -> RequestError:
    return RequestError(403, "Forbidden", detail)
