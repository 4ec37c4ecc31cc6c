"""Define the keys that verify signed tokens (RFC 7517).

They come from the YAML file, from a JWKS in another file, or from the URL of a JWKS, which
`web/access/jwks.py` fetches.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    model_validator,
)

from gateway.config.source.substitution import safe_repr
from gateway.config.types.address import validate_url
from gateway.config.types.fields import SecretText, Text
from gateway.config.types.section import Problem, Section, create_section_error, create_value_error

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
    """A key. Members that are not named here are ignored, as RFC 7517 4 requires.

    A key is validated when it is created, so that `load_key` succeeds afterwards.
    """

    model_config = ConfigDict(extra="ignore", alias_generator=None)

    kty: Literal["RSA", "EC", "OKP", "oct"] = Field(description="The key type. For guards.")
    kid: Text | None = Field(
        default=None, description="The key id, which tokens name. For key rotation."
    )
    alg: Text | None = Field(default=None, description="The algorithm, such as RS256. For guards.")
    use: Text | None = Field(
        default=None,
        description="The purpose: `sig`; keys for other purposes are ignored. For guards.",
    )
    n: Text | None = Field(default=None, description="The modulus. For RSA.")
    e: Text | None = Field(default=None, description="The exponent. For RSA.")
    crv: Text | None = Field(default=None, description="The curve. For EC and OKP.")
    x: Text | None = Field(default=None, description="The x coordinate. For EC and OKP.")
    y: Text | None = Field(default=None, description="The y coordinate. For EC.")
    k: SecretText | None = Field(
        default=None, description="The shared secret, in base64url. For oct."
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
