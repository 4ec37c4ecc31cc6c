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

from .claims import format_claim, get_claim, parse_roles
from .credentials import AmbiguousCredentials, CredentialsLocations
from .grant import Grant
from .guard import AccessRequest
from .guard_errors import GuardErrors
from .jwks import KeySet, KeySource, KeysUnavailable

MAX_CACHED_TOKENS = 10_000  # tokens
MAX_TOKEN_CHARS = 16 * 1024  # characters of a token

# What PyJWT may let slip of a token that is none, besides its own.
_DECODE_ERRORS = (
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
)

_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (wrong.ExpiredSignatureError, "the token is expired"),
    (wrong.ImmatureSignatureError, "the token is not valid yet"),
    (wrong.InvalidAudienceError, "the token is for another audience"),
    (wrong.InvalidIssuerError, "the token is of another issuer"),
    (wrong.InvalidSignatureError, "the signature of the token is wrong"),
)

_DECODE_OPTIONS = {"verify_sub": False, "verify_jti": False, "verify_iat": False}
"""Claims that we do not rely on; what names the client is looked at below."""


class JwtGuard:
    """See the module."""

    is_renewable = True

    def __init__(self, name: str, settings: Jwt, realm: str, key_source: KeySource) -> None:
        self._name = name
        self._settings = settings
        self._locations = CredentialsLocations(settings.credentials)
        self._cache: OrderedDict[bytes, tuple[KeySet, Grant]] = OrderedDict()
        self.errors = GuardErrors(name, realm, self._locations.hint)
        self._key_source = key_source

    async def grant(self, request: AccessRequest) -> Grant:
        token = request.token or self._find_token(request)
        if token is None:
            raise self.errors.build_missing_credentials()
        try:
            keys = await self._key_source.get_current()
            digest = sha256(token.encode("utf-8", "surrogatepass")).digest()
            known = self._cache.get(digest)
            if known is not None and known[0] is keys and not _is_expired(known[1]):
                self._cache.move_to_end(digest)
                return self._with_expiry(known[1])
            keys, claims = await self._verify_claims(token, keys)
        except KeysUnavailable as exc:
            raise self.errors.build_unavailable(str(exc)) from None
        grant = self._build_grant(claims)
        self._cache[digest] = keys, grant
        if len(self._cache) > MAX_CACHED_TOKENS:
            self._cache.popitem(last=False)
        return self._with_expiry(grant)

    def _with_expiry(self, grant: Grant) -> Grant:
        """The same with an end; the one that is remembered has none if the token says nothing."""
        if grant.expires is not None:
            return grant
        return replace(grant, expires=time.time() + self._settings.max_lifetime)

    def _find_token(self, request: AccessRequest) -> str | None:
        try:
            return self._locations.find(request.connection)
        except AmbiguousCredentials as exc:
            raise self.errors.build_ambiguous_credentials(str(exc)) from None

    async def _verify_claims(self, token: str, keys: KeySet) -> tuple[KeySet, Mapping[str, Any]]:
        """What a token says, once its signature fits, and the keys that it was judged by."""
        kid, algorithm = self._parse_header(token)
        found = keys.find(kid, algorithm)
        if not found:
            keys = await self._key_source.get_newer(keys)
            found = keys.find(kid, algorithm)
        if not found:
            raise self.errors.build_invalid_token("no key of the issuer signs such a token")
        refused: Exception = wrong.InvalidSignatureError()
        for key in found:
            try:
                return keys, self._decode(token, key, algorithm)
            except wrong.InvalidSignatureError:
                continue
            except (wrong.PyJWTError, *_DECODE_ERRORS) as exc:
                refused = exc
                break
        raise self._build_invalid_token(refused) from None

    def _parse_header(self, token: str) -> tuple[str | None, str]:
        """Which key is to be tried: its id, if there is one, and the algorithm."""
        try:
            header = jwt.get_unverified_header(token) if len(token) <= MAX_TOKEN_CHARS else {}
        except (wrong.PyJWTError, *_DECODE_ERRORS):
            header = {}
        kid, algorithm = header.get("kid"), header.get("alg")
        if not isinstance(algorithm, str) or not isinstance(kid, (str, type(None))):
            raise self.errors.build_invalid_token("the token is no JWT")
        if "crit" in header:  # RFC 7515 4.1.11: what it must not be read without is unknown here
            raise self.errors.build_invalid_token(
                "the token needs extensions that are unknown here"
            )
        if self._settings.algorithms and algorithm not in self._settings.algorithms:
            raise self.errors.build_invalid_token("the algorithm of the token is not accepted")
        return kid, algorithm

    def _decode(self, token: str, key: Any, algorithm: str) -> Mapping[str, Any]:
        settings = self._settings
        options: Any = {**_DECODE_OPTIONS, "verify_aud": settings.audience is not None}
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

    def _build_invalid_token(self, exc: Exception) -> NotGranted:
        if isinstance(exc, wrong.MissingRequiredClaimError):
            return self.errors.build_invalid_token(f"the token has no claim {exc.claim}")
        why = next((why for kind, why in _REASONS if isinstance(exc, kind)), "the token is no JWT")
        return self.errors.build_invalid_token(why)

    def _build_grant(self, claims: Mapping[str, Any]) -> Grant:
        settings = self._settings
        identity = format_claim(get_claim(claims, settings.identity))
        if identity is None:
            raise self.errors.build_invalid_token("the token names nobody")
        found = [
            (name, format_claim(get_claim(claims, source)))
            for name, source in settings.attributes.items()
        ]
        return Grant(
            self._name,
            identity,
            parse_roles(get_claim(claims, settings.roles)),
            {name: text for name, text in found if text is not None},
            self._compute_expiry(claims),
        )

    def _compute_expiry(self, claims: Mapping[str, Any]) -> float | None:
        """When the token is over, in seconds since 1970; None for `maxLifetime` from now on."""
        settings = self._settings
        if "exp" in claims:
            try:
                return float(int(claims["exp"])) + settings.leeway
            except OverflowError:  # of 309 digits
                raise self.errors.build_invalid_token("the token is no JWT") from None
        issued = claims.get("iat")
        if isinstance(issued, bool) or not isinstance(issued, (int, float)):
            return None
        now = time.time()
        if issued > now:  # compared as what it is: an integer may have more digits than a float
            return None
        expires = max(issued, 0) + settings.max_lifetime + settings.leeway
        if expires <= now:
            raise self.errors.build_invalid_token("the token has no exp and is too old")
        return float(expires)


def _is_expired(grant: Grant) -> bool:
    return grant.expires is not None and grant.expires <= time.time()
