"""What a guard is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from urllib.parse import quote

from starlette.requests import HTTPConnection

from gateway.config import PathPattern, Route
from gateway.config.sections.producing import pattern_of

from .grant import Grant
from .refusal import Refusals

WANTED = "gateway.wanted"
"""The member of a scope that says what a client is about to be let in to: `Wanted`."""


class Wanted(NamedTuple):
    """What a client wants to do, and with what: a method, and a path as it came."""

    method: str
    path: str


@dataclass(frozen=True, slots=True)
class Asked:
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
        wanted: Wanted | None = self.connection.scope.get(WANTED)
        if wanted is not None:
            return wanted.method
        return str(self.connection.scope.get("method", "GET"))

    @property
    def path(self) -> str:
        """The path of the route that the client asks for, its parameters filled in and
        percent-encoded; `/*` for a rest. A WebSocket has many streams, and its own path is none of
        theirs."""
        wanted: Wanted | None = self.connection.scope.get(WANTED)
        for pattern in self._patterns:
            if set(pattern.params) != self.params.keys():
                continue
            if wanted is None or pattern.match(wanted.path) is not None:
                filled = [
                    quote(self.params[each[1:-1]], safe="") if each[:1] == "{" else each
                    for each in pattern.segments
                ]
                return "/" + "/".join([*filled, "*"] if pattern.rest else filled)
        return self.route.when[0].path

    @property
    def _patterns(self) -> Iterator[PathPattern]:
        """All that the route serves, that of replies included."""
        yield from (when.pattern for when in self.route.when)
        if self.route.with_.async_ is not None:
            yield pattern_of(self.route.with_.async_.location)


class Guard(Protocol):
    """Says who a client is."""

    @property
    def refusals(self) -> Refusals:
        """Its words for those that it does not let in."""

    @property
    def renewable(self) -> bool:
        """A `token` message is for it, too."""

    async def grant(self, asked: Asked) -> Grant:
        """Raises NotGranted and GuardUnavailable."""
