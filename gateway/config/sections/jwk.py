"""Keys that tokens are signed with (RFC 7517), as the file lists them or a JWKS has them."""

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
"""Whoever can check such a signature can make one."""

_REQUIRED_MEMBERS = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x"), "oct": ("k",)}
_CURVES: Mapping[str, Mapping[str, Algorithm]] = {
    "EC": {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"},
    "OKP": {"Ed25519": "EdDSA", "Ed448": "EdDSA"},
}


class Jwk(Section):
    """One key. Members not named here are ignored, as RFC 7517 4 asks."""

    model_config = ConfigDict(extra="ignore", alias_generator=None)

    kty: Literal["RSA", "EC", "OKP", "oct"] = Field(description="Key type. For guards.")
    kid: Text | None = Field(default=None, description="Key id. For rotation.")
    alg: Text | None = Field(default=None, description="Such as RS256. For guards.")
    use: Text | None = Field(default=None, description="sig. For guards.")
    n: Text | None = Field(default=None, description="Modulus. For RSA.")
    e: Text | None = Field(default=None, description="Exponent. For RSA.")
    crv: Text | None = Field(default=None, description="Curve. For EC and OKP.")
    x: Text | None = Field(default=None, description="Coordinate. For EC and OKP.")
    y: Text | None = Field(default=None, description="Coordinate. For EC.")
    k: SecretText | None = Field(default=None, description="Shared secret, base64url. For oct.")

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        kind = raw.get("kty")
        for name in _REQUIRED_MEMBERS.get(kind, ()) if isinstance(kind, str) else ():
            if name not in raw:
                yield Problem((), f"'{name}' is missing, kty {kind} needs it; add it", is_key=True)
        if "d" in raw:
            yield Problem(("d",), "a private key does not belong here; remove 'd'", is_key=True)

    @model_validator(mode="after")
    def _check_key(self) -> Self:
        able = _list_algorithms(self.kty, self.crv)
        if not able:
            curves = ", ".join(_CURVES[self.kty])
            raise create_section_error(
                Problem(("crv",), f"{self.crv!r} is not known here; use {curves}")
            )
        if self.alg is not None and self.alg not in able:
            what = f"a key of this type signs no {self.alg}; use {', '.join(able)}, or leave it out"
            raise create_section_error(Problem(("alg",), what))
        try:
            self.load_key()
        except ValueError:
            raise create_section_error(
                Problem((), "holds no key; copy it whole from who issued it")
            ) from None
        return self

    @property
    def algorithms(self) -> tuple[Algorithm, ...]:
        """What may be signed with it: its `alg`, or what its type is good for; none if it is for
        encryption."""
        if self.use not in (None, "sig"):
            return ()
        return tuple(
            each for each in _list_algorithms(self.kty, self.crv) if self.alg in (None, each)
        )

    @property
    def key_bits(self) -> int:
        """Of the modulus, or of the shared secret; 0 for keys whose curve says it."""
        from jwt.utils import base64url_decode

        secret = self.k.get_secret_value() if self.k is not None else None
        held = self.n if self.kty == "RSA" else secret
        return 0 if held is None else 8 * len(base64url_decode(held).lstrip(b"\0"))

    def load_key(self) -> Any:
        """What PyJWT checks signatures with. Raises ValueError if there is none in it."""
        from jwt import PyJWK
        from jwt.exceptions import PyJWTError

        members = {name: getattr(self, name) for name in ("kty", "crv", "n", "e", "x", "y")}
        made = {name: value for name, value in members.items() if value is not None}
        if self.k is not None:
            made["k"] = self.k.get_secret_value()
        try:
            return PyJWK(made, algorithm=_list_algorithms(self.kty, self.crv)[0]).key
        except (PyJWTError, ValueError, TypeError, ArithmeticError) as error:
            raise ValueError(f"no key: {error}") from None


def _list_algorithms(kind: str, curve: str | None) -> tuple[Algorithm, ...]:
    if kind in _CURVES:
        found = _CURVES[kind].get(curve or "")
        return () if found is None else (found,)
    return _RSA_ALGORITHMS if kind == "RSA" else SHARED_SECRET_ALGORITHMS


def _validate_keys(value: object) -> tuple[Jwk, ...] | str:
    """A list of keys, a JWKS text (as `${file:jwks.json}` gives), or a URL of one."""
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        return validate_url(value)
    keys = _parse_jwks(value) if isinstance(value, str) else value
    if not isinstance(keys, (list, tuple)) or not keys:
        raise create_value_error("holds no key; use a URL, a list of keys or ${file:jwks.json}")
    return _KEY_LIST_ADAPTER.validate_python(keys)


def _parse_jwks(value: str) -> list[object]:
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        read = None
    keys = read.get("keys") if isinstance(read, dict) else None
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
"""Keys, or the URL of a JWKS."""
