"""Guards that read signed tokens (RFC 7519, RFC 8725).

What a token says of itself is believed only once its signature fits, and of its header nothing
but which of our keys to try: keys it carries or points to (`jwk`, `jku`, `x5u`) are not looked at,
and an algorithm is taken only from a key that is good for it.

A token takes 70 us (HS256) to 150 (EdDSA), most of it for the signature, and who reconnects comes
with the same one: what it said is remembered by its digest until it is over or the keys are
others, which takes 3 us.

A token without `exp` is good for `maxLifetime` from its `iat` on, and one without that for as long
from each connect on; `requireExpiry` refuses both.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

import jwt
from jwt import exceptions as wrong

from gateway.config import Jwt
from gateway.errors import NotGranted

from .claims import claim, roles_of, text_of
from .credentials import Ambiguous, Places
from .grant import Grant
from .guard import Asked
from .jwks import Keys, KeysAway, KeySet
from .refusal import Refusals

REMEMBERED = 10_000  # tokens
LONGEST = 16 * 1024  # characters of a token

# What PyJWT may let slip of a token that is none, besides its own.
_SLIPS = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError)

_WHY: tuple[tuple[type[Exception], str], ...] = (
    (wrong.ExpiredSignatureError, "the token is expired"),
    (wrong.ImmatureSignatureError, "the token is not valid yet"),
    (wrong.InvalidAudienceError, "the token is for another audience"),
    (wrong.InvalidIssuerError, "the token is of another issuer"),
    (wrong.InvalidSignatureError, "the signature of the token is wrong"),
)

_OPTIONS = {"verify_sub": False, "verify_jti": False, "verify_iat": False}
"""Claims that we do not rely on; what names the client is looked at below."""


class JwtGuard:
    """See the module."""

    renewable = True

    def __init__(self, name: str, settings: Jwt, realm: str, keys: Keys) -> None:
        self._name = name
        self._settings = settings
        self._places = Places(settings.credentials)
        self._known: OrderedDict[bytes, tuple[KeySet, Grant]] = OrderedDict()
        self.refusals = Refusals(name, realm, self._places.said)
        self._keys = keys

    async def grant(self, asked: Asked) -> Grant:
        token = asked.token or self._token(asked)
        if token is None:
            raise self.refusals.unknown()
        try:
            keys = await self._keys.current()
            digest = sha256(token.encode("utf-8", "surrogatepass")).digest()
            known = self._known.get(digest)
            if known is not None and known[0] is keys and not _over(known[1]):
                self._known.move_to_end(digest)
                return self._limited(known[1])
            keys, claims = await self._claims(token, keys)
        except KeysAway as exc:
            raise self.refusals.uncertain(str(exc)) from None
        grant = self._granted(claims)
        self._known[digest] = keys, grant
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return self._limited(grant)

    def _limited(self, grant: Grant) -> Grant:
        """The same with an end; the one that is remembered has none if the token says nothing."""
        if grant.expires is not None:
            return grant
        return replace(grant, expires=time.time() + self._settings.max_lifetime)

    def _token(self, asked: Asked) -> str | None:
        try:
            return self._places.find(asked.connection)
        except Ambiguous as exc:
            raise self.refusals.ambiguous(str(exc)) from None

    async def _claims(self, token: str, keys: KeySet) -> tuple[KeySet, Mapping[str, Any]]:
        """What a token says, once its signature fits, and the keys that it was judged by."""
        kid, algorithm = self._header(token)
        found = keys.find(kid, algorithm)
        if not found:
            keys = await self._keys.after(keys)
            found = keys.find(kid, algorithm)
        if not found:
            raise self.refusals.invalid("no key of the issuer signs such a token")
        refused: Exception = wrong.InvalidSignatureError()
        for key in found:
            try:
                return keys, self._decoded(token, key, algorithm)
            except wrong.InvalidSignatureError:
                continue
            except (wrong.PyJWTError, *_SLIPS) as exc:
                refused = exc
                break
        raise self._invalid(refused) from None

    def _header(self, token: str) -> tuple[str | None, str]:
        """Which key is to be tried: its id, if there is one, and the algorithm."""
        try:
            header = jwt.get_unverified_header(token) if len(token) <= LONGEST else {}
        except (wrong.PyJWTError, *_SLIPS):
            header = {}
        kid, algorithm = header.get("kid"), header.get("alg")
        if not isinstance(algorithm, str) or not isinstance(kid, (str, type(None))):
            raise self.refusals.invalid("the token is no JWT")
        if "crit" in header:  # RFC 7515 4.1.11: what it must not be read without is unknown here
            raise self.refusals.invalid("the token needs extensions that are unknown here")
        if self._settings.algorithms and algorithm not in self._settings.algorithms:
            raise self.refusals.invalid("the algorithm of the token is not accepted")
        return kid, algorithm

    def _decoded(self, token: str, key: Any, algorithm: str) -> Mapping[str, Any]:
        settings = self._settings
        options: Any = {**_OPTIONS, "verify_aud": settings.audience is not None}
        if settings.require_expiry:
            options["require"] = ["exp"]
        return jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            options=options,
            audience=settings.audience,
            issuer=settings.issuer,
            leeway=settings.leeway,
        )

    def _invalid(self, exc: Exception) -> NotGranted:
        if isinstance(exc, wrong.MissingRequiredClaimError):
            return self.refusals.invalid(f"the token has no claim {exc.claim}")
        why = next((why for kind, why in _WHY if isinstance(exc, kind)), "the token is no JWT")
        return self.refusals.invalid(why)

    def _granted(self, claims: Mapping[str, Any]) -> Grant:
        settings = self._settings
        identity = text_of(claim(claims, settings.identity))
        if identity is None:
            raise self.refusals.invalid("the token names nobody")
        found = [
            (name, text_of(claim(claims, source))) for name, source in settings.attributes.items()
        ]
        return Grant(
            self._name,
            identity,
            roles_of(claim(claims, settings.roles)),
            {name: text for name, text in found if text is not None},
            self._expires(claims),
        )

    def _expires(self, claims: Mapping[str, Any]) -> float | None:
        """When the token is over, in seconds since 1970; None for `maxLifetime` from now on."""
        settings = self._settings
        if "exp" in claims:
            try:
                return float(int(claims["exp"])) + settings.leeway
            except OverflowError:  # of 309 digits
                raise self.refusals.invalid("the token is no JWT") from None
        issued = claims.get("iat")
        if isinstance(issued, bool) or not isinstance(issued, (int, float)):
            return None
        now = time.time()
        if issued > now:  # compared as what it is: an integer may have more digits than a float
            return None
        expires = max(issued, 0) + settings.max_lifetime + settings.leeway
        if expires <= now:
            raise self.refusals.invalid("the token has no exp and is too old")
        return float(expires)


def _over(grant: Grant) -> bool:
    return grant.expires is not None and grant.expires <= time.time()
