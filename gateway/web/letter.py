"""A client's record before it goes to Kafka: where to, and whether its route lets it."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from starlette.requests import HTTPConnection

from ..core.record import Record, TopicPartition
from ..errors import RequestError
from .messages import Produce
from .request import request_of, split
from .routes import Match, Routes


class Letter(NamedTuple):
    """scope: of its idempotency key; equal keys of two routes are two."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    scope: str


async def letter_of(
    routes: Routes, said: Produce, path: str | None, connection: HTTPConnection, token: str | None
) -> Letter:
    """What a `produce` message asks for. path: with its query; None to find one by the topic.

    Who reads a part of a topic writes that part only: the record must pass the route's filters.
    Raises RequestError, and HTTPException 404.
    """
    path, query = split(path if path is not None else _path(routes, said.topic))
    match = routes.match(path)
    match = await routes.admit(match, connection, token)
    if not match.route.with_.produce:
        raise _forbidden(f"{path} takes no records; `produce: true` of its route allows them")
    view = await routes.view(match, request_of(path, query, connection))
    topic = _topic(view.topics, said.topic)
    headers = [(name, text.encode()) for name, text in said.headers.items()]
    key, value = _content(said)
    record = Record(TopicPartition(topic, 0), 0, 0, 0, key, value, tuple(headers))
    if not view.filters.matches(record):
        raise _forbidden(f"this record does not pass the filters of {path}; write one that does")
    return Letter(topic, key, value, headers, _scope(match))


def _path(routes: Routes, topic: str | None) -> str:
    """The path of a route without parameters that takes records of the topic."""
    for route in routes.settings.routes:
        named = [source.literal for source in route.with_.sources]
        if route.with_.produce and topic in named:
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


def _scope(match: Match) -> str:
    return match.route.when[0].path


def _forbidden(detail: str) -> RequestError:
    return RequestError(403, "Forbidden", detail)
