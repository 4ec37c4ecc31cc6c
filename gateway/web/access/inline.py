"""Users of the file, for development: by name and password (RFC 7617), or by a token."""

from __future__ import annotations

import base64
import binascii
import hmac

from starlette.requests import HTTPConnection

from gateway.config import Inline, User

from .credentials import AmbiguousCredentials, CredentialsLocations
from .grant import Grant
from .guard import AccessRequest
from .guard_errors import GuardErrors


class InlineGuard:
    """See the module. Secrets are compared in a time that says nothing of them."""

    is_renewable = True

    def __init__(self, name: str, settings: Inline, realm: str) -> None:
        self._name = name
        self._users = settings.users
        self._locations = CredentialsLocations(settings.credentials)
        how = f"send a name and password, or {self._locations.hint}"
        self.errors = GuardErrors(name, realm, how, scheme="Basic")

    async def grant(self, request: AccessRequest) -> Grant:
        try:
            token = request.token or self._locations.find(request.connection)
        except AmbiguousCredentials as exc:
            raise self.errors.build_ambiguous_credentials(str(exc)) from None
        if token is not None:
            found = self._find_by_token(token)
        else:
            basic = _parse_basic(request.connection)
            if basic is None:
                raise self.errors.build_missing_credentials()
            found = self._find_by_password(*basic)
        if found is None:
            raise self.errors.build_invalid_token("no user has these credentials")
        user = self._users[found]
        return Grant(self._name, found, frozenset(user.roles), user.attributes)

    def _find_by_token(self, token: str) -> str | None:
        """All are compared, whichever it is."""
        fits = [name for name, user in self._users.items() if _matches_secret(user, "token", token)]
        return fits[0] if fits else None

    def _find_by_password(self, name: str, password: str) -> str | None:
        user = self._users.get(name)
        fits = _matches_secret(user, "password", password)
        return name if fits else None


def _matches_secret(user: User | None, field: str, value: str) -> bool:
    """Compared also where there is nothing to compare with."""
    secret = getattr(user, field, None)
    held = "" if secret is None else secret.get_secret_value()
    same = hmac.compare_digest(
        held.encode("utf-8", "surrogatepass"), value.encode("utf-8", "surrogatepass")
    )
    return same and secret is not None


def _parse_basic(connection: HTTPConnection) -> tuple[str, str] | None:
    scheme, _, encoded = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return "", ""
    name, _, password = text.partition(":")
    return name, password
