"""From where in a request a client's credentials are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from starlette.requests import HTTPConnection

from gateway.config import Credentials
from gateway.config.sections.credentials import PLACE

_SCHEME = "bearer."


def bearer(connection: HTTPConnection) -> str | None:
    """The bearer token that a connection came with (RFC 6750 2.1); browsers cannot set headers
    on a WebSocket, so there it may be offered as a subprotocol."""
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    return offered(connection)


def offered(connection: HTTPConnection) -> str | None:
    """The bearer token among the subprotocols of a WebSocket."""
    for protocol in connection.scope.get("subprotocols", ()):
        if protocol.startswith(_SCHEME):
            return str(protocol[len(_SCHEME) :])
    return None


class Ambiguous(ValueError):
    """Credentials came twice, and who is in front of the gateway may have read the others."""


class Place(NamedTuple):
    """One place: what is asked for by a name, and what stands around the credentials there.

    said: to people.
    """

    values: Callable[[HTTPConnection], list[str]]
    before: str
    after: str
    said: str

    def find(self, connection: HTTPConnection) -> str | None:
        values = self.values(connection)
        if len(values) > 1:
            raise Ambiguous(f"there are {len(values)} credentials in one place")
        for value in values:
            if len(value) > len(self.before) + len(self.after) and self._fits(value):
                return value[len(self.before) : len(value) - len(self.after)].strip() or None
        return None

    def _fits(self, value: str) -> bool:
        """The name of an authentication scheme may be in any case (RFC 9110 11.1)."""
        before = value[: len(self.before)]
        return before.lower() == self.before.lower() and value.endswith(self.after)


class Places:
    """All places of a guard; the first that has something is taken."""

    def __init__(self, credentials: Credentials) -> None:
        self._places = tuple(_places(credentials))

    def find(self, connection: HTTPConnection) -> str | None:
        """The credentials of a client. Raises Ambiguous."""
        for place in self._places:
            if found := place.find(connection):
                return found
        return None

    @property
    def said(self) -> str:
        """To people: how to send them."""
        return f"send a token as {' or '.join([place.said for place in self._places])}"


def _places(credentials: Credentials) -> Iterator[Place]:
    for name, form in credentials.headers.items():
        before, _, after = form.partition(PLACE)
        yield Place(_header(name), before, after, f"{name.title()}: {before}TOKEN{after}")
        if name == "authorization" and before.strip().lower() == "bearer":
            yield Place(_protocol, "", "", "the WebSocket subprotocol bearer.TOKEN")
    for name, form in credentials.cookies.items():
        before, _, after = form.partition(PLACE)
        yield Place(_cookie(name), before, after, f"the cookie {name}={before}TOKEN{after}")
    for name, form in credentials.query.items():
        before, _, after = form.partition(PLACE)
        yield Place(_parameter(name), before, after, f"?{name}={before}TOKEN{after}")


def _header(name: str) -> Callable[[HTTPConnection], list[str]]:
    return lambda connection: connection.headers.getlist(name)


def _protocol(connection: HTTPConnection) -> list[str]:
    found = offered(connection)
    return [] if found is None else [found]


def _cookie(name: str) -> Callable[[HTTPConnection], list[str]]:
    return lambda connection: [connection.cookies[name]] if name in connection.cookies else []


def _parameter(name: str) -> Callable[[HTTPConnection], list[str]]:
    return lambda connection: connection.query_params.getlist(name)
