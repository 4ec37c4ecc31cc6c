"""Guard streams by users in the configuration, for development.

They send a name and password (RFC 7617) or a token.
"""

from __future__ import annotations

import base64
import binascii
import hmac

from starlette.requests import HTTPConnection

from gateway.config import Inline, User

from .grant import CredentialsLocations, Grant
from .guard import (
    AccessRequest,
    Guard,
    GuardContext,
    GuardErrors,
    SecurityScheme,
    find_token,
    iter_credentials_schemes,
)


class InlineGuard(Guard[Inline]):
    """A guard with users in the configuration.

    Comparing secrets takes the same time whether they match or not.
    """

    is_renewable = True

    def __init__(self, name: str, settings: Inline, realm: str) -> None:
        self._name = name
        self._users = settings.users
        self._locations = CredentialsLocations(settings.credentials)
        hint = f"send a name and password, or {self._locations.hint}"
        self.errors = GuardErrors(name, realm, hint, scheme="Basic")

    @classmethod
    def create(cls, section: Inline, context: GuardContext) -> InlineGuard:
        return cls(context.name, section, context.realm)

    @classmethod
    def describe(cls, section: Inline) -> tuple[SecurityScheme, ...]:
        definition = {"type": "http", "scheme": "basic"}
        user = "NAME:PASSWORD"
        basic = SecurityScheme(definition, f"-u {user}", f"--auth {user}", is_sent_by_browser=True)
        return basic, *iter_credentials_schemes(section.credentials)

    async def grant(self, request: AccessRequest) -> Grant:
        token = find_token(request, self._locations, self.errors)
        if token is not None:
            username = self._find_by_token(token)
        else:
            credentials = _parse_basic(request.connection)
            if credentials is None:
                raise self.errors.build_missing_credentials()
            name, password = credentials
            is_match = _matches_secret(self._users.get(name), "password", password)
            username = name if is_match else None
        if username is None:
            raise self.errors.build_invalid_token("no user has these credentials")
        user = self._users[username]
        return Grant(self._name, username, frozenset(user.roles), user.attributes)

    def _find_by_token(self, token: str) -> str | None:
        """Return the name of the user with this token; the tokens of all users are compared."""
        matches = [
            name for name, user in self._users.items() if _matches_secret(user, "token", token)
        ]
        return matches[0] if matches else None


def _matches_secret(user: User | None, field: str, value: str) -> bool:
    """Return whether a user has this secret; it takes as long if there is no user or no secret."""
    secret = getattr(user, field, None)
    expected = "" if secret is None else secret.get_secret_value()
    is_same = hmac.compare_digest(
        expected.encode("utf-8", "surrogatepass"), value.encode("utf-8", "surrogatepass")
    )
    return is_same and secret is not None


def _parse_basic(connection: HTTPConnection) -> tuple[str, str] | None:
    """Return the name and password of a request; empty ones, which match no user, if malformed."""
    scheme, _, encoded = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return "", ""
    name, _, password = text.partition(":")
    return name, password
