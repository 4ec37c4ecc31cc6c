"""Guard streams by signed tokens (RFC 7519, RFC 8725).

Claims are used only after the signature was verified. Of the header only the key id and the
algorithm are used, to choose among the configured keys: keys that a token contains or points to
(`jwk`, `jku`, `x5u`) are ignored, and the algorithm must be one of the chosen key.

Verifying a token takes 70 us (HS256) to 150 us (EdDSA), most of it for the signature. Clients that
reconnect send the same token again, so its grant is cached by the token's digest until it expires
or the keys change; that takes 3 us.

A token without `exp` is valid for `maxLifetime` from its `iat`. Without `iat`, it is valid for
`maxLifetime` from each connect. `requireExpiry` refuses both.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

import jwt

# Verifying would import it at the first token, when there may be no free descriptor for that.
from cryptography.hazmat.backends.openssl import backend as _backend  # noqa: F401
from jwt import exceptions as jwt_errors
from jwt.utils import base64url_decode, base64url_encode

from gateway.config import Jwt
from gateway.config.types.template import find_field
from gateway.errors import NotGranted

from .grant import CredentialsLocations, Grant, format_claim, parse_roles
from .guard import (
    AccessRequest,
    Guard,
    GuardContext,
    GuardErrors,
    SecurityScheme,
    find_token,
    iter_credentials_schemes,
)
from .jwks import IssuerDiscovery, KeySet, KeySource, KeysUnavailable, RemoteKeySource

MAX_TOKEN_CHARS = 16 * 1024  # characters of a token

# What PyJWT raises for malformed tokens, besides its own exceptions.
_DECODE_ERRORS = (
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
)

_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (jwt_errors.ExpiredSignatureError, "the token is expired"),
    (jwt_errors.ImmatureSignatureError, "the token is not valid yet"),
    (jwt_errors.InvalidAudienceError, "the token is for another audience"),
    (jwt_errors.InvalidIssuerError, "the token is of another issuer"),
    (jwt_errors.InvalidSignatureError, "the signature of the token is wrong"),
)

_DECODE_OPTIONS = {"verify_sub": False, "verify_jti": False, "verify_iat": False}
"""Claims that are not used; `_build_grant` checks the one that names the client itself."""


class JwtGuard(Guard[Jwt]):
    """A guard that verifies signed tokens.

    A cached grant is valid only with the keys it was verified with.
    """

    is_renewable = True

    MAX_CACHED_TOKENS = 10_000

    def __init__(
        self,
        name: str,
        settings: Jwt,
        realm: str,
        key_sources: Mapping[str, KeySource],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create the guard; a single source in `key_sources` is for all tokens."""
        self._clock = clock
        self._name = name
        self._settings = settings
        self._locations = CredentialsLocations(settings.credentials)
        self._cache: OrderedDict[bytes, tuple[KeySet, Grant]] = OrderedDict()
        self.errors = GuardErrors(name, realm, self._locations.hint)
        self._key_sources = key_sources

    @classmethod
    def create(cls, section: Jwt, context: GuardContext) -> JwtGuard:
        key_sources: dict[str, KeySource]
        jwks, external_http = section.jwks, context.external_http
        if isinstance(section.keys, tuple):
            key_sources = {"": KeySource(KeySet(section.keys))}
        else:
            locations = (
                {"": section.keys}
                if section.keys
                else {
                    issuer: IssuerDiscovery(issuer, jwks, external_http)
                    for issuer in section.issuer
                }
            )
            key_sources = {
                issuer: RemoteKeySource(context.name, location, jwks, external_http)
                for issuer, location in locations.items()
            }
        return cls(context.name, section, context.realm, key_sources)

    @classmethod
    def describe(cls, section: Jwt) -> tuple[SecurityScheme, ...]:
        return tuple(iter_credentials_schemes(section.credentials))

    async def prepare(self) -> None:
        sources = self._key_sources.values()
        await asyncio.gather(*[source.get_current() for source in sources])

    def find_problem(self) -> str | None:
        problems = [source.find_problem() for source in self._key_sources.values()]
        return next((problem for problem in problems if problem is not None), None)

    async def grant(self, request: AccessRequest) -> Grant:
        token = find_token(request, self._locations, self.errors)
        if token is None:
            raise self.errors.build_missing_credentials()
        source = self._find_source(token)
        try:
            keys = await source.get_current()
            # surrogatepass: a token of a WebSocket message may contain half a surrogate pair.
            digest = sha256(token.encode("utf-8", "surrogatepass")).digest()
            cached = self._cache.get(digest)
            if cached is not None and cached[0] is keys and not self._is_expired(cached[1]):
                self._cache.move_to_end(digest)
                return self._with_expiry(cached[1])
            keys, claims = await self._verify_claims(token, source, keys)
        except KeysUnavailable as exc:
            raise self.errors.build_unavailable(str(exc)) from None
        grant = self._build_grant(claims)
        self._cache[digest] = keys, grant
        if len(self._cache) > self.MAX_CACHED_TOKENS:
            self._cache.popitem(last=False)
        return self._with_expiry(grant)

    def _is_expired(self, grant: Grant) -> bool:
        return grant.expires is not None and grant.expires <= self._clock()

    def _with_expiry(self, grant: Grant) -> Grant:
        """Return the grant with an expiry; without one, a token is valid from each connect."""
        if grant.expires is not None:
            return grant
        return replace(grant, expires=self._clock() + self._settings.max_lifetime)

    def _find_source(self, token: str) -> KeySource:
        """Return the keys of the issuer that a token names; only those can verify it."""
        if len(self._key_sources) == 1:
            return next(iter(self._key_sources.values()))
        self._parse_header(token)
        try:
            issuer = jwt.decode(token, options={"verify_signature": False}).get("iss")
        except (jwt_errors.PyJWTError, *_DECODE_ERRORS) as exc:
            raise self._build_invalid_token(exc) from None
        if not isinstance(issuer, str) or issuer not in self._key_sources:
            raise self._build_invalid_token(jwt_errors.InvalidIssuerError())
        return self._key_sources[issuer]

    async def _verify_claims(
        self, token: str, source: KeySource, keys: KeySet
    ) -> tuple[KeySet, Mapping[str, Any]]:
        """Verify the signature of a token; return its claims, and the keys that verified it."""
        kid, algorithm = self._parse_header(token)
        candidates = keys.find(kid, algorithm)
        if not candidates:  # the issuer may have a new key
            keys = await source.get_newer(keys, kid, algorithm)
            candidates = keys.find(kid, algorithm)
        if not candidates:
            raise self.errors.build_invalid_token("no key of the issuer signs such a token")
        error: Exception = jwt_errors.InvalidSignatureError()
        for key in candidates:
            try:
                return keys, self._decode(token, key, algorithm)
            except jwt_errors.InvalidSignatureError:
                continue  # several keys may have the same id, or none
            except (jwt_errors.PyJWTError, *_DECODE_ERRORS) as exc:
                error = exc
                break
        raise self._build_invalid_token(error) from None

    def _parse_header(self, token: str) -> tuple[str | None, str]:
        signed, _, signature = token.rpartition(".")
        try:
            # Without the signature: one that is no base64url is a wrong one, and still of a JWT,
            # and so is one whose last bits are not 0 (RFC 4648 3.5), which the library refuses.
            is_short = len(token) <= MAX_TOKEN_CHARS
            header = jwt.get_unverified_header(f"{signed}.") if is_short else {}
        except (jwt_errors.PyJWTError, *_DECODE_ERRORS):
            header = {}
        kid, algorithm = header.get("kid"), header.get("alg")
        if not isinstance(algorithm, str) or not isinstance(kid, (str, type(None))):
            raise self.errors.build_invalid_token("the token is no JWT")
        try:
            is_base64url = base64url_encode(base64url_decode(signature)) == signature.encode()
        except ValueError:
            is_base64url = False
        if not is_base64url:
            raise self._build_invalid_token(jwt_errors.InvalidSignatureError())
        if "crit" in header:  # RFC 7515 4.1.11: extensions that must be understood; none are here
            raise self.errors.build_invalid_token(
                "the token needs extensions that are unknown here"
            )
        if self._settings.algorithms and algorithm not in self._settings.algorithms:
            raise self.errors.build_invalid_token("the algorithm of the token is not accepted")
        return kid, algorithm

    def _decode(self, token: str, key: Any, algorithm: str) -> Mapping[str, Any]:
        settings = self._settings
        options: Any = {**_DECODE_OPTIONS, "verify_aud": bool(settings.audience)}
        if settings.require_expiry:
            options["require"] = ["exp"]
        return jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            options=options,
            audience=settings.audience or None,
            issuer=settings.issuer or None,
            leeway=settings.leeway,
        )

    def _build_invalid_token(self, exc: Exception) -> NotGranted:
        if isinstance(exc, jwt_errors.MissingRequiredClaimError):
            return self.errors.build_invalid_token(f"the token has no claim {exc.claim}")
        reason = next(
            (text for kind, text in _REASONS if isinstance(exc, kind)), "the token is no JWT"
        )
        return self.errors.build_invalid_token(reason)

    def _build_grant(self, claims: Mapping[str, Any]) -> Grant:
        settings = self._settings
        identity = format_claim(find_field(claims, settings.identity))
        if identity is None:
            cause = _explain_missing(claims, settings.identity)
            raise self.errors.build_invalid_token("the token names nobody", cause)
        found = {
            name: format_claim(find_field(claims, source))
            for name, source in settings.attributes.items()
        }
        attributes = {name: text for name, text in found.items() if text is not None}
        roles = parse_roles(find_field(claims, settings.roles))
        problems = {
            name: _explain_missing(claims, settings.attributes[name])
            for name in found.keys() - attributes.keys()
        }
        if not roles:
            problems[""] = _explain_missing(claims, settings.roles)
        expires = self._compute_expiry(claims)
        return Grant(self._name, identity, roles, attributes, expires, problems)

    def _compute_expiry(self, claims: Mapping[str, Any]) -> float | None:
        """Return when a token expires, in seconds since 1970; None for `maxLifetime` from now."""
        settings = self._settings
        if "exp" in claims:
            try:
                return float(int(claims["exp"])) + settings.leeway
            except OverflowError:  # an integer of more than 308 digits
                raise self.errors.build_invalid_token("the token is no JWT") from None
        issued_at = claims.get("iat")
        if isinstance(issued_at, bool) or not isinstance(issued_at, (int, float)):
            return None
        now = self._clock()
        # One from the future counts as issued now: the grant is kept, and would not end. Compared
        # without conversion: an integer may be larger than any float.
        expires = max(min(issued_at, now), 0) + settings.max_lifetime + settings.leeway
        if expires <= now:
            raise self.errors.build_invalid_token("the token has no exp and is too old")
        return float(expires)


def _explain_missing(claims: Mapping[str, Any], name: str) -> str:
    if find_field(claims, name) is None:
        return f"the token has no claim '{name}'"
    return f"the claim '{name}' of the token has nothing that can be used"
