"""What a message asks for, as the request that would ask the same by HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TypeAlias
from urllib.parse import parse_qsl, urlencode

from starlette.requests import HTTPConnection

from gateway.errors import RequestError
from gateway.web.http.head import check_query

from .messages import FilterJson, Selection, SubscribeMessage

QueryPairs: TypeAlias = list[tuple[str, str]]  # a name may be there again: filters are ANDed


def build_target(message: SubscribeMessage) -> tuple[str, QueryPairs]:
    """The path and the query of a subscription; members beat what the path's query says."""
    path, query = parse_target(message.path)
    told = {
        "from": message.from_,
        "until": None if message.until is None else str(message.until),
        "lastEventId": message.last_event_id,
        "credit": None if message.credit is None else str(message.credit),
    }
    given = {name: text for name, text in told.items() if text}
    return path, merge_query(query, given | build_selection_query(message))


def merge_query(query: Iterable[tuple[str, str]], overrides: Mapping[str, str]) -> QueryPairs:
    """The query with what is told in place of all that it said under the same names."""
    return [pair for pair in query if pair[0] not in overrides] + list(overrides.items())


def build_selection_query(selection: Selection) -> dict[str, str]:
    """What a message chooses to see, as a query."""
    query: dict[str, str] = {}
    if "filter" in selection.model_fields_set:  # orjson has no integers over 64 bits
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
    """A path, percent-encoded, and its query. Raises RequestError 400 for one that is too long."""
    check_query(path.encode())
    path, _, query = path.partition("?")
    return path, parse_qsl(query, keep_blank_values=True)


def build_request(path: str, query: QueryPairs) -> HTTPConnection:
    """That asks for this, and says nothing else."""
    asked = urlencode(query).encode()
    return HTTPConnection({"type": "http", "path": path, "query_string": asked, "headers": []})
