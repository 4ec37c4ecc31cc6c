"""Define what a guard is, and what it is asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Self, TypeVar
from urllib.parse import quote

from starlette.requests import HTTPConnection

from gateway.config import GuardSection, PathPattern, Route
from gateway.config.capabilities import parse_location

from .external_http import ExternalHttp
from .grant import Grant
from .guard_errors import GuardErrors
from .security_schemes import SecurityScheme

SectionT = TypeVar("SectionT", bound=GuardSection)

REQUESTED_ACTION_SCOPE_KEY = "gateway.wanted"
"""The member of an ASGI scope that has the `RequestedAction` to be admitted."""


class RequestedAction(NamedTuple):
    """What a client wants to do: an HTTP method, and a path as it came."""

    method: str
    path: str


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """A client's request, as guards see it.

    `token` is that of a `token` message, which overrides the one of the connection.
    """

    route: Route
    params: Mapping[str, str]
    connection: HTTPConnection
    token: str | None = None

    @property
    def method(self) -> str:
        """What the client wants to do, as an HTTP method on any wire."""
        action: RequestedAction | None = self.connection.scope.get(REQUESTED_ACTION_SCOPE_KEY)
        if action is not None:
            return action.method
        return str(self.connection.scope.get("method", "GET"))

    @property
    def path(self) -> str:
        """The path of the route that the client asks for.

        Parameters are filled in and percent-encoded; `/*` stands for a wildcard. The path of a
        WebSocket is not used: it may carry many streams, and its own path is none of theirs.
        """
        action: RequestedAction | None = self.connection.scope.get(REQUESTED_ACTION_SCOPE_KEY)
        for pattern in self._patterns:
            if set(pattern.params) != self.params.keys():
                continue
            if action is None or pattern.match(action.path) is not None:
                segments = [
                    quote(self.params[part[1:-1]], safe="") if part[:1] == "{" else part
                    for part in pattern.segments
                ]
                return "/" + "/".join([*segments, "*"] if pattern.has_wildcard else segments)
        return self.route.path

    @property
    def _patterns(self) -> Iterator[PathPattern]:
        yield from (when.pattern for when in self.route.when)
        if self.route.with_.reply_location is not None:
            yield parse_location(self.route.with_.reply_location)


@dataclass(frozen=True, slots=True)
class GuardContext:
    """The dependencies of a guard; `realm` is for its challenges (RFC 9110 11.5)."""

    name: str
    realm: str
    external_http: ExternalHttp


class Guard(ABC, Generic[SectionT]):
    """Knows who a client is. Created and owned by `Guards`, one per configured guard.

    Each kind is a subclass, listed in `kinds.GUARD_LOADERS`. `is_renewable` says whether it uses
    the token of a `token` message.
    """

    is_renewable: bool
    errors: GuardErrors

    @classmethod
    @abstractmethod
    def create(cls, section: SectionT, context: GuardContext) -> Self: ...

    @classmethod
    @abstractmethod
    def describe(cls, section: SectionT) -> Sequence[SecurityScheme]:
        """Return how clients identify themselves to such a guard, the best way first."""

    async def prepare(self) -> None:
        """Fetch what is needed before the first client comes; a failure is ignored."""
        return

    def find_problem(self) -> str | None:
        """Return for operators why the guard cannot decide about any client; do not wait."""
        return None

    @abstractmethod
    async def grant(self, request: AccessRequest) -> Grant:
        """Return what the guard knows of a client.

        Raises:
            NotGranted: The guard does not know the client, or denies access.
            GuardUnavailable: The guard cannot decide now.
        """
