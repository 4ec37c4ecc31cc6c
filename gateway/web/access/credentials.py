"""From where in a request a client's credentials are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from starlette.requests import HTTPConnection

from gateway.config import Credentials
from gateway.config.sections.credentials import CREDENTIALS_PLACEHOLDER

_SUBPROTOCOL_PREFIX = "bearer."


def get_bearer_token(connection: HTTPConnection) -> str | None:
    """The bearer token that a connection came with (RFC 6750 2.1); browsers cannot set headers
    on a WebSocket, so there it may be offered as a subprotocol."""
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    return get_subprotocol_token(connection)


def get_subprotocol_token(connection: HTTPConnection) -> str | None:
    """The bearer token among the subprotocols of a WebSocket."""
    for protocol in connection.scope.get("subprotocols", ()):
        if protocol.startswith(_SUBPROTOCOL_PREFIX):
            return str(protocol[len(_SUBPROTOCOL_PREFIX) :])
    return None


class AmbiguousCredentials(ValueError):
    """Credentials came twice, and who is in front of the gateway may have read the others."""


class CredentialsLocation(NamedTuple):
    """One place: what is asked for by a name, and what stands around the credentials there.

    said: to people.
    """

    get_values: Callable[[HTTPConnection], list[str]]
    prefix: str
    suffix: str
    hint: str

    def find(self, connection: HTTPConnection) -> str | None:
        values = self.get_values(connection)
        if len(values) > 1:
            raise AmbiguousCredentials(f"there are {len(values)} credentials in one place")
        for value in values:
            if len(value) > len(self.prefix) + len(self.suffix) and self._has_affixes(value):
                return value[len(self.prefix) : len(value) - len(self.suffix)].strip() or None
        return None

    def _has_affixes(self, value: str) -> bool:
        """The name of an authentication scheme may be in any case (RFC 9110 11.1)."""
        before = value[: len(self.prefix)]
        return before.lower() == self.prefix.lower() and value.endswith(self.suffix)


class CredentialsLocations:
    """All places of a guard; the first that has something is taken."""

    def __init__(self, credentials: Credentials) -> None:
        self._locations = tuple(_iter_locations(credentials))

    def find(self, connection: HTTPConnection) -> str | None:
        """The credentials of a client. Raises Ambiguous."""
        for place in self._locations:
            if found := place.find(connection):
                return found
        return None

    @property
    def hint(self) -> str:
        """To people: how to send them."""
        return f"send a token as {' or '.join([place.hint for place in self._locations])}"


def _iter_locations(credentials: Credentials) -> Iterator[CredentialsLocation]:
    for name, form in credentials.headers.items():
        before, _, after = form.partition(CREDENTIALS_PLACEHOLDER)
        yield CredentialsLocation(
            _build_header_getter(name), before, after, f"{name.title()}: {before}TOKEN{after}"
        )
        if name == "authorization" and before.strip().lower() == "bearer":
            yield CredentialsLocation(
                _get_subprotocol_tokens, "", "", "the WebSocket subprotocol bearer.TOKEN"
            )
    for name, form in credentials.cookies.items():
        before, _, after = form.partition(CREDENTIALS_PLACEHOLDER)
        yield CredentialsLocation(
            _build_cookie_getter(name), before, after, f"the cookie {name}={before}TOKEN{after}"
        )
    for name, form in credentials.query.items():
        before, _, after = form.partition(CREDENTIALS_PLACEHOLDER)
        yield CredentialsLocation(
            _build_query_getter(name), before, after, f"?{name}={before}TOKEN{after}"
        )


def _build_header_getter(name: str) -> Callable[[HTTPConnection], list[str]]:
    return lambda connection: connection.headers.getlist(name)


def _get_subprotocol_tokens(connection: HTTPConnection) -> list[str]:
    found = get_subprotocol_token(connection)
    return [] if found is None else [found]


def _build_cookie_getter(name: str) -> Callable[[HTTPConnection], list[str]]:
    return lambda connection: [connection.cookies[name]] if name in connection.cookies else []


def _build_query_getter(name: str) -> Callable[[HTTPConnection], list[str]]:
    return lambda connection: connection.query_params.getlist(name)
