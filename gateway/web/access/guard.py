"""What a guard is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from urllib.parse import quote

from starlette.requests import HTTPConnection

from gateway.config import PathPattern, Route
from gateway.config.sections.produce import parse_location

from .grant import Grant
from .guard_errors import GuardErrors

REQUESTED_ACTION_SCOPE_KEY = "gateway.wanted"
"""The member of a scope that says what a client is about to be let in to: `Wanted`."""


class RequestedAction(NamedTuple):
    """What a client wants to do, and with what: a method, and a path as it came."""

    method: str
    path: str


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """What a client comes with, and what it wants.

    token: of a `token` message, which beats what the connection has; None if none came.
    """

    route: Route
    params: Mapping[str, str]
    connection: HTTPConnection
    token: str | None = None

    @property
    def method(self) -> str:
        """What the client wants to do, as HTTP calls it on any wire."""
        wanted: RequestedAction | None = self.connection.scope.get(REQUESTED_ACTION_SCOPE_KEY)
        if wanted is not None:
            return wanted.method
        return str(self.connection.scope.get("method", "GET"))

    @property
    def path(self) -> str:
        """The path of the route that the client asks for, its parameters filled in and
        percent-encoded; `/*` for a rest. A WebSocket has many streams, and its own path is none of
        theirs."""
        wanted: RequestedAction | None = self.connection.scope.get(REQUESTED_ACTION_SCOPE_KEY)
        for pattern in self._patterns:
            if set(pattern.params) != self.params.keys():
                continue
            if wanted is None or pattern.match(wanted.path) is not None:
                filled = [
                    quote(self.params[each[1:-1]], safe="") if each[:1] == "{" else each
                    for each in pattern.segments
                ]
                return "/" + "/".join([*filled, "*"] if pattern.has_wildcard else filled)
        return self.route.when[0].path

    @property
    def _patterns(self) -> Iterator[PathPattern]:
        """All that the route serves, that of replies included."""
        yield from (when.pattern for when in self.route.when)
        if self.route.with_.async_ is not None:
            yield parse_location(self.route.with_.async_.location)


class Guard(Protocol):
    """Says who a client is."""

    @property
    def errors(self) -> GuardErrors:
        """Its words for those that it does not let in."""

    @property
    def is_renewable(self) -> bool:
        """A `token` message is for it, too."""

    async def grant(self, request: AccessRequest) -> Grant:
        """Raises NotGranted and GuardUnavailable."""
