"""What a message asks for, as the request that would ask the same by HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TypeAlias
from urllib.parse import parse_qsl, urlencode

from starlette.requests import HTTPConnection

from gateway.errors import RequestError
from gateway.web.http.head import check_query

from .messages import Choice, Filter, Subscribe

Query: TypeAlias = list[tuple[str, str]]  # a name may be there again: filters are ANDed


def asked(message: Subscribe) -> tuple[str, Query]:
    """The path and the query of a subscription; members beat what the path's query says."""
    path, query = split(message.path)
    told = {
        "from": message.from_,
        "until": None if message.until is None else str(message.until),
        "lastEventId": message.last_event_id,
        "credit": None if message.credit is None else str(message.credit),
    }
    given = {name: text for name, text in told.items() if text}
    return path, over(query, given | chosen(message))


def over(query: Iterable[tuple[str, str]], told: Mapping[str, str]) -> Query:
    """The query with what is told in place of all that it said under the same names."""
    return [pair for pair in query if pair[0] not in told] + list(told.items())


def chosen(choice: Choice) -> dict[str, str]:
    """What a message chooses to see, as a query."""
    query: dict[str, str] = {}
    if "filter" in choice.model_fields_set:  # orjson has no integers over 64 bits
        query["filter"] = "" if choice.filter is None else _text(choice.filter)
    if "fields_" in choice.model_fields_set:
        query["fields"] = json.dumps(choice.fields_) if choice.fields_ else ""
    return query


def _text(filter: Filter) -> str:
    try:
        return json.dumps(filter)
    except RecursionError:
        raise RequestError(400, "Bad request", "'filter' is nested too deep; flatten it") from None


def split(path: str) -> tuple[str, Query]:
    """A path, percent-encoded, and its query. Raises RequestError 400 for one that is too long."""
    check_query(path.encode())
    path, _, query = path.partition("?")
    return path, parse_qsl(query, keep_blank_values=True)


def request_of(path: str, query: Query) -> HTTPConnection:
    """That asks for this, and says nothing else."""
    asked = urlencode(query).encode()
    return HTTPConnection({"type": "http", "path": path, "query_string": asked, "headers": []})
