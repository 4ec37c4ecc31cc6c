"""One stream on a WebSocket: opened, changed in place, ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, urlencode

from starlette.requests import HTTPConnection

from ..hub.client import BUDGET, Client
from ..hub.messages import CHANGED, WebSocket
from .messages import Choice, Subscribe
from .routes import Match, Routes
from .socket import Socket

Query: TypeAlias = list[tuple[str, str]]  # a name may be there again: filters are ANDed

MOST_CREDIT = 2**53


class Next(NamedTuple):
    """What a stream is to show from its next opening on."""

    match: Match
    path: str
    query: Query
    topics: tuple[str, ...]


class Subscribed:
    """A stream from its first opening to its end, through every change of what it shows.

    match:  the route of `path`. query: as in a URL; what the messages chose is in there.
    """

    def __init__(
        self, routes: Routes, socket: Socket, label: str | None, path: str, query: Query
    ) -> None:
        self.label = label
        self.path = path
        self.query = query
        self.match = routes.match(path)
        self.reason = ""
        self.done = asyncio.Event()
        self._routes = routes
        self._socket = socket
        self._client: Client | None = None
        self._begun = False  # a change waits for BEGIN, when it is found out where to start
        self._next: Next | None = None
        self._stopped = False
        self._granted = 0

    @property
    def matches(self) -> list[Match]:
        """What it shows, and what it was told to show next."""
        return [self.match] if self._next is None else [self.match, self._next.match]

    async def run(self) -> None:
        """Send it all. Raises RequestError, TokenError and KafkaError when it cannot be opened,
        Disconnected."""
        changed = False
        while True:
            wire = WebSocket(self.label, self._socket.deflate, changed)
            request = request_of(self.path, self.query, self._socket.connection)
            client = await self._routes.open(self.match, request, wire)
            try:
                await self._send(client)
            finally:
                client.close()
                self._client, self._begun = None, False
            self.reason = client.subscription.ended or ""
            if self._next is None or self.reason != CHANGED:
                return
            self._move_on(client)
            changed = True

    def grant(self, records: int) -> None:
        if self._client is not None:
            self._client.grant(records)
        else:
            self._granted += records

    async def change(self, choice: Choice) -> None:
        """Show something else from where it stands. A path brings its own query; without one, all
        that is not chosen stays as the last change left it. Raises RequestError for what cannot
        be, and HTTPException 404; all is as it was then."""
        path, query = self.path, self.query
        if self._next is not None:
            path, query = self._next.path, self._next.query
        if choice.path is not None:
            ends = [pair for pair in query if pair[0] == "until"]
            path, query = split(choice.path)
            query = query if "until" in dict(query) else query + ends
        query = over(query, chosen(choice))
        match = self._routes.match(path)
        request = request_of(path, query, self._socket.connection)
        view = await self._routes.view(match, request)
        self._next = Next(match, path, query, view.topics)
        if self._client is not None and self._begun:
            self._client.end(CHANGED)

    def stop(self) -> None:
        self._stopped = True
        if self._client is not None:
            self._client.end("unsubscribed")

    async def _send(self, client: Client) -> None:
        self._client = client
        client.grant(self._granted)
        self._granted = 0
        if self._stopped:
            client.end("unsubscribed")
        await client.ready()
        self._begun = True
        if self._next is not None:
            client.end(CHANGED)
        async for data in client.stream():
            if data:
                await self._socket.send(data)
            if len(data) >= BUDGET // 2:
                await asyncio.sleep(0)  # a client that takes all at once leaves turns to others

    def _move_on(self, client: Client) -> None:
        """From where the client stands; among topics of which it read none, as a new stream."""
        assert self._next is not None
        self.match, self.path, query, topics = self._next
        self._next = None
        told, subscription = {"credit": "", "lastEventId": ""}, client.subscription
        if subscription.credit is not None:
            told["credit"] = str(min(subscription.credit, MOST_CREDIT))
        if subscription.count is not None:
            told["until"] = str(subscription.count)
        if not subscription.channel.tail.ids.keys().isdisjoint(topics):
            told["lastEventId"] = subscription.position.decode()
        self.query = over(query, told)


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
        query["filter"] = "" if choice.filter is None else json.dumps(choice.filter)
    if "fields_" in choice.model_fields_set:
        query["fields"] = json.dumps(choice.fields_) if choice.fields_ else ""
    return query


def split(path: str) -> tuple[str, Query]:
    """A path, percent-encoded, and its query."""
    path, _, query = path.partition("?")
    return path, parse_qsl(query, keep_blank_values=True)


def request_of(path: str, query: Query, connection: HTTPConnection) -> HTTPConnection:
    """What the same client would have asked by HTTP; a position is in the query only."""
    scope: dict[str, Any] = {
        **connection.scope,
        "type": "http",
        "path": path,
        "query_string": urlencode(query).encode(),
        "headers": [
            (name, text) for name, text in connection.scope["headers"] if name != b"last-event-id"
        ],
    }
    return HTTPConnection(scope)
