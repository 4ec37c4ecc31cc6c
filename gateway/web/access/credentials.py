"""Find the credentials of a client in its request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from starlette.requests import HTTPConnection, cookie_parser

from gateway.config import Credentials
from gateway.config.guards.credentials import CREDENTIALS_PLACEHOLDER

_SUBPROTOCOL_PREFIX = "bearer."


def get_bearer_token(connection: HTTPConnection) -> str | None:
    """Return the bearer token of a connection (RFC 6750 2.1).

    Browsers cannot set headers on a WebSocket, so there it may also be offered as a subprotocol.
    """
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    return get_subprotocol_token(connection)


def get_subprotocol_token(connection: HTTPConnection) -> str | None:
    for protocol in connection.scope.get("subprotocols", ()):
        if protocol.startswith(_SUBPROTOCOL_PREFIX):
            return str(protocol[len(_SUBPROTOCOL_PREFIX) :])
    return None


class AmbiguousCredentials(ValueError):
    """Credentials came more than once, and a proxy in front may have checked the other ones."""


class CredentialsLocation(NamedTuple):
    """One location of credentials in a request; `hint` describes it for people."""

    get_values: Callable[[HTTPConnection], list[str]]
    prefix: str
    suffix: str
    hint: str

    def find(self, connection: HTTPConnection) -> str | None:
        """Return the credentials; raise `AmbiguousCredentials` if the location has several."""
        values = self.get_values(connection)
        if len(values) > 1:
            raise AmbiguousCredentials(f"there are {len(values)} credentials in one place")
        for value in values:
            if len(value) > len(self.prefix) + len(self.suffix) and self._has_affixes(value):
                return value[len(self.prefix) : len(value) - len(self.suffix)].strip() or None
        return None

    def _has_affixes(self, value: str) -> bool:
        """Compare the affixes; the authentication scheme may be in any case (RFC 9110 11.1)."""
        before = value[: len(self.prefix)]
        return before.lower() == self.prefix.lower() and value.endswith(self.suffix)


class CredentialsLocations:
    """All locations of a guard's credentials; the first that has some is used."""

    def __init__(self, credentials: Credentials) -> None:
        self._locations = tuple(_iter_locations(credentials))

    def find(self, connection: HTTPConnection) -> str | None:
        for location in self._locations:
            if credentials := location.find(connection):
                return credentials
        return None

    @property
    def hint(self) -> str:
        return f"send a token as {' or '.join([location.hint for location in self._locations])}"


def _iter_locations(credentials: Credentials) -> Iterator[CredentialsLocation]:
    for name, form in credentials.headers.items():
        prefix, _, suffix = form.partition(CREDENTIALS_PLACEHOLDER)
        yield CredentialsLocation(
            _build_header_getter(name), prefix, suffix, f"{name.title()}: {prefix}TOKEN{suffix}"
        )
        # Browsers cannot set headers on a WebSocket: there the token may be a subprotocol.
        if name == "authorization" and prefix.strip().lower() == "bearer":
            yield CredentialsLocation(
                _get_subprotocol_tokens,
                "",
                "",
                "the WebSocket subprotocols gateway.v1, bearer.TOKEN",
            )
    for name, form in credentials.cookies.items():
        prefix, _, suffix = form.partition(CREDENTIALS_PLACEHOLDER)
        yield CredentialsLocation(
            _build_cookie_getter(name), prefix, suffix, f"the cookie {name}={prefix}TOKEN{suffix}"
        )
    for name, form in credentials.query.items():
        prefix, _, suffix = form.partition(CREDENTIALS_PLACEHOLDER)
        yield CredentialsLocation(
            _build_query_getter(name), prefix, suffix, f"?{name}={prefix}TOKEN{suffix}"
        )


def _build_header_getter(name: str) -> Callable[[HTTPConnection], list[str]]:
    return lambda connection: connection.headers.getlist(name)


def _get_subprotocol_tokens(connection: HTTPConnection) -> list[str]:
    token = get_subprotocol_token(connection)
    return [] if token is None else [token]


def _build_cookie_getter(name: str) -> Callable[[HTTPConnection], list[str]]:
    def get_values(connection: HTTPConnection) -> list[str]:
        for pair in "; ".join(connection.headers.getlist("cookie")).split(";"):
            # Of several, the first has the longest path (RFC 6265 5.4). Starlette takes the last.
            if value := cookie_parser(pair).get(name):
                return [value]
        return []

    return get_values


def _build_query_getter(name: str) -> Callable[[HTTPConnection], list[str]]:
    return lambda connection: connection.query_params.getlist(name)
