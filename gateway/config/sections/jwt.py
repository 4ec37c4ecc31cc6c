"""Define the guard `jwt`, which verifies tokens that an issuer signed (RFC 7519), and its keys.

The keys (RFC 7517) come from the YAML file, from a JWKS in another file, or from the URL of a JWKS,
which `web/access/jwks.py` fetches.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    model_validator,
)

from gateway.config.types.address import validate_url
from gateway.config.types.fields import Duration, Flag, SecretText, Text, in_range
from gateway.config.types.forms import TextOrList
from gateway.config.types.section import (
    Problem,
    Section,
    as_list,
    create_section_error,
    create_value_error,
)
from gateway.config.types.substitution import UnresolvedText, safe_repr
from gateway.config.types.units import format_duration

from .guard_section import (
    BEARER_CREDENTIALS,
    ChallengeDuration,
    Credentials,
    GuardSection,
    check_issuer_url,
)

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512",
    "ES256", "ES384", "ES512", "EdDSA", "HS256", "HS384", "HS512",
]  # fmt: skip

_RSA_ALGORITHMS: tuple[Algorithm, ...] = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
SHARED_SECRET_ALGORITHMS: tuple[Algorithm, ...] = ("HS256", "HS384", "HS512")
"""The algorithms whose key is a shared secret: everybody who can verify a token can sign one."""

_REQUIRED_MEMBERS = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x"), "oct": ("k",)}
# Each curve has exactly one algorithm (RFC 7518 3.4, RFC 8037 3.1).
_CURVES: Mapping[str, Mapping[str, Algorithm]] = {
    "EC": {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"},
    "OKP": {"Ed25519": "EdDSA", "Ed448": "EdDSA"},
}


class Jwk(Section):
    """A key. Members that are not named here are ignored, as RFC 7517 4 requires."""

    model_config = ConfigDict(extra="ignore", alias_generator=None)

    kty: Literal["RSA", "EC", "OKP", "oct"] = Field(description="The key type.")
    kid: Text | None = Field(default=None, description="The key id, which tokens name.")
    alg: Text | None = Field(default=None, description="The algorithm, such as RS256.")
    use: Text | None = Field(
        default=None, description="The purpose: `sig`; keys for other purposes are ignored."
    )
    n: Text | None = Field(default=None, description="The modulus, for RSA.")
    e: Text | None = Field(default=None, description="The exponent, for RSA.")
    crv: Text | None = Field(default=None, description="The curve, for EC and OKP.")
    x: Text | None = Field(default=None, description="The x coordinate, for EC and OKP.")
    y: Text | None = Field(default=None, description="The y coordinate, for EC.")
    k: SecretText | None = Field(
        default=None, description="The shared secret in base64url, for oct."
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        key_type = raw.get("kty")
        for name in _REQUIRED_MEMBERS.get(key_type, ()) if isinstance(key_type, str) else ():
            if name not in raw:
                what = f"'{name}' is missing, kty {key_type} needs it; add it"
                yield Problem((), what, is_key=True)
        if "d" in raw:
            yield Problem(("d",), "a private key does not belong here; remove 'd'", is_key=True)

    @model_validator(mode="after")
    def _check_key(self) -> Self:
        """Refuse an unknown curve, an algorithm of another type, and members that are no key."""
        algorithms = _list_algorithms(self.kty, self.crv)
        if not algorithms:
            curves = ", ".join(_CURVES[self.kty])
            raise create_section_error(
                Problem(("crv",), f"{self.crv!r} is not a known curve; use {curves}")
            )
        if self.alg is not None and self.alg not in algorithms:
            hint = f"use {', '.join(algorithms)}, or leave it out"
            raise create_section_error(
                Problem(("alg",), f"a key of this type cannot sign with {self.alg}; {hint}")
            )
        try:
            self.load_key()
        except ValueError:
            raise create_section_error(
                Problem((), "holds no key; copy the complete key of the issuer")
            ) from None
        return self

    @property
    def algorithms(self) -> tuple[Algorithm, ...]:
        """The signature algorithms of the key; none if it is for another purpose."""
        if self.use not in (None, "sig"):
            return ()
        return tuple(
            algorithm
            for algorithm in _list_algorithms(self.kty, self.crv)
            if self.alg in (None, algorithm)
        )

    @property
    def key_bits(self) -> int:
        """The size of the modulus or of the shared secret in bits; 0 for keys on a curve."""
        from jwt.utils import base64url_decode  # late: see `load_key`

        secret = self.k.get_secret_value() if self.k is not None else None
        encoded = self.n if self.kty == "RSA" else secret
        return 0 if encoded is None else 8 * len(base64url_decode(encoded).lstrip(b"\0"))

    def load_key(self) -> Any:
        """Return the key for PyJWT; raise ValueError if the members are no key."""
        # Imported late: it takes 45 ms, and most configurations list no keys.
        from jwt import PyJWK
        from jwt.exceptions import PyJWTError

        members = {name: getattr(self, name) for name in ("kty", "crv", "n", "e", "x", "y")}
        jwk = {name: value for name, value in members.items() if value is not None}
        if self.k is not None:
            jwk["k"] = self.k.get_secret_value()
        try:
            # PyJWT builds the same key for all algorithms of a type, so the first one will do.
            return PyJWK(jwk, algorithm=_list_algorithms(self.kty, self.crv)[0]).key
        except (PyJWTError, ValueError, TypeError, ArithmeticError) as error:
            raise ValueError(f"no key: {error}") from None


def _list_algorithms(key_type: str, curve: str | None) -> tuple[Algorithm, ...]:
    if key_type in _CURVES:
        algorithm = _CURVES[key_type].get(curve or "")
        return () if algorithm is None else (algorithm,)
    return _RSA_ALGORITHMS if key_type == "RSA" else SHARED_SECRET_ALGORITHMS


def _validate_keys(value: object) -> tuple[Jwk, ...] | str:
    """Return the keys of a list or of the text of a JWKS (`${file:jwks.json}`), or a URL."""
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        return validate_url(value)
    keys = _parse_jwks(value) if isinstance(value, str) else value
    if not isinstance(keys, (list, tuple)) or not keys:
        raise create_value_error("holds no key; use a URL, a list of keys or ${file:jwks.json}")
    return _KEY_LIST_ADAPTER.validate_python(keys)


def _parse_jwks(value: str) -> list[object]:
    """Return the keys, not validated yet, of the text of a JWKS (RFC 7517 5)."""
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        document = None
    keys = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, list):
        raise create_value_error(f"{safe_repr(value)} is no JWKS; use a URL or ${{file:jwks.json}}")
    return keys


def _serialize_keys(keys: tuple[Jwk, ...] | str) -> object:
    return keys if isinstance(keys, str) else [key.model_dump() for key in keys]


_KEY_LIST_ADAPTER = TypeAdapter(tuple[Jwk, ...])

Keys: TypeAlias = Annotated[
    tuple[Jwk, ...] | str,
    PlainValidator(_validate_keys, json_schema_input_type=tuple[Jwk, ...] | str),
    PlainSerializer(_serialize_keys, return_type=Any),
]
"""A list of keys, or the URL of a JWKS."""


MIN_KEY_BITS = {"RSA": 2048, "oct": 256}
"""The least bits of a key, by its type (RFC 7518 3.2, 3.3)."""


class Jwks(Section):
    """How often the keys of a URL are fetched, and how long they are used."""

    refresh: Annotated[Duration, in_range(0.1, 86_400)] = Field(
        default=600.0, description="The age at which keys are fetched again."
    )
    cooldown: Annotated[Duration, in_range(0.1, 3600)] = Field(
        default=10.0,
        description="The least time between two fetches; tokens with unknown keys cause them.",
    )
    timeout: Annotated[Duration, in_range(0.1, 60)] = Field(
        default=5.0, description="How long a fetch may take."
    )
    max_age: Annotated[Duration, in_range(1, 30 * 86_400)] = Field(
        default=86_400.0,
        description="How long keys are used while the issuer is unavailable.",
    )

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        """Refuse keys that would be too old before they are fetched again."""
        if self.max_age < self.refresh:
            minimum = format_duration(self.refresh)
            # The problem is reported at an option that the file has, so that it has a line.
            loc = ("maxAge",) if "max_age" in self.model_fields_set else ("refresh",)
            raise create_section_error(
                Problem(loc, f"maxAge is less than refresh, {minimum}; use {minimum} or more")
            )
        return self


class Jwt(GuardSection):
    """A guard that verifies signed tokens."""

    type: Literal["jwt"] = Field(description="The kind of guard.")
    issuer: TextOrList = Field(
        default=(),
        description="The `iss` that tokens must have, one of them; without `keys` the URL of an "
        "issuer with OpenID Connect discovery.",
    )
    audience: TextOrList = Field(
        default=(), description="The `aud` that tokens must have, one of them."
    )
    keys: Keys | None = Field(
        default=None,
        description="The keys that verify tokens: a list, ${file:jwks.json} or the URL of a "
        "JWKS; default those that `issuer` names.",
    )
    jwks: Jwks = Field(default=Jwks(), description="How the keys of a URL are fetched.")
    algorithms: tuple[Algorithm, ...] = Field(
        default=(),
        description="Accepted signature algorithms; default those of the keys, for a URL never "
        "one with a shared secret.",
    )
    leeway: Annotated[Duration, in_range(0, 300)] = Field(
        default=0.0,
        description="How far the issuer's clock may differ in `exp` and `nbf`.",
    )
    require_expiry: Flag = Field(default=False, description="Refuse tokens without `exp`.")
    max_lifetime: Annotated[Duration, in_range(1, 10 * 365 * 86_400)] = Field(
        default=86_400.0,
        description="How long a token without `exp` is valid after its `iat`; without `iat`, "
        "after each connect.",
    )
    credentials: Credentials = Field(
        default=BEARER_CREDENTIALS, description="Where in a request the token is."
    )
    roles: Text = Field(
        default="scope",
        description="The claim with the roles: a list, a text with spaces, or an object whose "
        "members are the roles. Dots select a nested claim, such as `realm_access.roles`; names "
        "may have dots.",
    )
    challenge: ChallengeDuration = 30.0
    identity: Text = Field(default="sub", description="The claim that names the client.")
    attributes: dict[Text, Text] = Field(
        default={}, description="Attributes of the client, each with the claim of its value."
    )

    @property
    def secret_parameters(self) -> Iterable[str]:
        return self.credentials.query

    @property
    def credential_headers(self) -> Iterable[str]:
        return self.credentials.headers

    def admits_all_of(self, other: GuardSection) -> bool:
        """Return True also if only keys were added to a list of keys."""
        keys, other_keys = self.keys, other.keys if isinstance(other, Jwt) else None
        if isinstance(keys, tuple) and isinstance(other_keys, tuple):
            is_same_else = self.model_copy(update={"keys": other_keys}) == other
            return is_same_else and all(key in keys for key in other_keys)
        return super().admits_all_of(other)

    def iter_warnings(self) -> Iterator[Problem]:
        urls = self.issuer if self.keys is None else (self.keys,)
        for url in urls:
            yield from check_issuer_url("issuer" if self.keys is None else "keys", url)
        keys = self.keys if isinstance(self.keys, tuple) else ()
        if not self.audience and not (keys and all(key.kty == "oct" for key in keys)):
            what = "tokens of the issuer for other services are taken, too; set audience"
            yield Problem((), what)
        for index, key in enumerate(keys):
            least = MIN_KEY_BITS.get(key.kty, 0)
            if key.key_bits < least:
                what = f"a key of {key.key_bits} bits can be found out; use {least} or more"
                yield Problem(("keys", index), what)

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if "keys" not in raw:
            issuers = [raw["issuer"]] if isinstance(raw.get("issuer"), str) else raw.get("issuer")
            is_url = [
                isinstance(each, UnresolvedText) or str(each).startswith(("http://", "https://"))
                for each in as_list(issuers)
            ]
            if not is_url or not all(is_url):
                hint = "add it, or an issuer that is a URL, whose keys are then discovered"
                yield Problem((), f"'keys' is missing; {hint}", is_key=True)
        if raw.get("algorithms") in ([], ()):
            yield Problem(("algorithms",), "is empty; list at least one, or leave it out")
        if raw.get("requireExpiry") in (True, "true") and "maxLifetime" in raw:
            what = "'maxLifetime' is for tokens without `exp`, which requireExpiry refuses"
            yield Problem(("maxLifetime",), f"{what}; remove it", is_key=True)

    @model_validator(mode="after")
    def _check_agreement(self) -> Self:
        """Refuse algorithms and options that the keys make useless."""
        problems = list(self._iter_disagreements())
        if problems:
            raise create_section_error(*problems)
        return self

    def _iter_disagreements(self) -> Iterable[Problem]:
        listed_keys = self.keys if isinstance(self.keys, tuple) else None
        if listed_keys is not None and self.jwks != Jwks():
            yield Problem(("jwks",), "is for keys of a URL; remove it", is_key=True)
        for index, algorithm in enumerate(self.algorithms):
            loc = ("algorithms", index)
            if listed_keys is None and algorithm in SHARED_SECRET_ALGORITHMS:
                what = f"{algorithm} has a shared secret, which must not be public at a URL"
                yield Problem(loc, f"{what}; list the key, or use another algorithm")
            elif listed_keys is not None and not any(
                algorithm in key.algorithms for key in listed_keys
            ):
                yield Problem(loc, f"no key of this guard can verify {algorithm}; remove it")
