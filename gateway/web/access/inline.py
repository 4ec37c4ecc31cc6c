"""Users of the file, for development: by name and password (RFC 7617), or by a token."""

from __future__ import annotations

import base64
import binascii
import hmac

from starlette.requests import HTTPConnection

from gateway.config import Inline, User

from .credentials import Ambiguous, Places
from .grant import Grant
from .guard import Asked
from .refusal import Refusals


class InlineGuard:
    """See the module. Secrets are compared in a time that says nothing of them."""

    renewable = True

    def __init__(self, name: str, settings: Inline, realm: str) -> None:
        self._name = name
        self._users = settings.users
        self._places = Places(settings.credentials)
        how = f"send a name and password, or {self._places.said}"
        self.refusals = Refusals(name, realm, how, scheme="Basic")

    async def grant(self, asked: Asked) -> Grant:
        try:
            token = asked.token or self._places.find(asked.connection)
        except Ambiguous as exc:
            raise self.refusals.ambiguous(str(exc)) from None
        if token is not None:
            found = self._by_token(token)
        else:
            basic = _basic(asked.connection)
            if basic is None:
                raise self.refusals.unknown()
            found = self._by_password(*basic)
        if found is None:
            raise self.refusals.invalid("no user has these credentials")
        user = self._users[found]
        return Grant(self._name, found, frozenset(user.roles), user.attributes)

    def _by_token(self, token: str) -> str | None:
        """All are compared, whichever it is."""
        fits = [name for name, user in self._users.items() if _same(user, "token", token)]
        return fits[0] if fits else None

    def _by_password(self, name: str, password: str) -> str | None:
        user = self._users.get(name)
        fits = _same(user, "password", password)
        return name if fits else None


def _same(user: User | None, kind: str, given: str) -> bool:
    """Compared also where there is nothing to compare with."""
    secret = getattr(user, kind, None)
    held = "" if secret is None else secret.get_secret_value()
    same = hmac.compare_digest(
        held.encode("utf-8", "surrogatepass"), given.encode("utf-8", "surrogatepass")
    )
    return same and secret is not None


def _basic(connection: HTTPConnection) -> tuple[str, str] | None:
    scheme, _, encoded = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return "", ""
    name, _, password = text.partition(":")
    return name, password
