"""Convert a WebSocket message to the HTTP request that would ask for the same stream."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias
from urllib.parse import parse_qsl, urlencode

from starlette.requests import HTTPConnection

from gateway.errors import RequestError
from gateway.web.http.head import check_query

from .messages import FilterJson, Selection, SubscribeMessage

QueryPairs: TypeAlias = Sequence[tuple[str, str]]
"""The decoded parameters of a query. A name may occur again: filters are combined by AND."""


def build_target(message: SubscribeMessage) -> tuple[str, QueryPairs]:
    """Return the path and query of a subscription.

    Members of the message override the query of its path.
    """
    path, query = parse_target(message.path)
    members = {
        "from": message.from_,
        "until": None if message.until is None else str(message.until),
        "lastEventId": message.last_event_id,
        "credit": None if message.credit is None else str(message.credit),
    }
    overrides = {name: text for name, text in members.items() if text}
    return path, merge_query(query, overrides | build_selection_query(message))


def merge_query(query: Iterable[tuple[str, str]], overrides: Mapping[str, str]) -> QueryPairs:
    """Return a query in which each override replaces all parameters of its name."""
    return [pair for pair in query if pair[0] not in overrides] + list(overrides.items())


def build_selection_query(selection: Selection) -> dict[str, str]:
    """Return the selection of a message as query parameters.

    A member that the message does not have is left out. One that is null or empty becomes an empty
    parameter, which selects everything.
    """
    query: dict[str, str] = {}
    # Not by orjson, which cannot write integers of more than 64 bits.
    if "filter" in selection.model_fields_set:
        query["filter"] = "" if selection.filter is None else _dump_filter(selection.filter)
    if "fields_" in selection.model_fields_set:
        query["fields"] = json.dumps(selection.fields_) if selection.fields_ else ""
    return query


def _dump_filter(filter: FilterJson) -> str:
    try:
        return json.dumps(filter)
    except RecursionError:
        raise RequestError(400, "Bad request", "'filter' is nested too deep; flatten it") from None


def parse_target(path: str) -> tuple[str, QueryPairs]:
    """Return the path, percent-encoded as it came, and the query of a request target."""
    check_query(path.encode())
    path, _, query = path.partition("?")
    return path, parse_qsl(query, keep_blank_values=True)


def build_request(path: str, query: QueryPairs) -> HTTPConnection:
    encoded = urlencode(query).encode()
    return HTTPConnection({"type": "http", "path": path, "query_string": encoded, "headers": []})
