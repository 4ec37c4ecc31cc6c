"""Create and decode JSON Web Tokens (RFC 7519), for `gateway token`."""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import typer

from gateway.core.times import format_time
from gateway.errors import GatewayError

if TYPE_CHECKING:
    from gateway.config import Jwt

MIN_SECRET_BYTES = 32  # RFC 7518 3.2: at least the size of the hash
TIME_CLAIMS = ("exp", "nbf", "iat")
CURVE_ALGORITHMS = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


@dataclass(frozen=True)
class SigningKey:
    """A key that signs tokens: a secret, or a private key of the package `cryptography`."""

    key: Any
    algorithm: str
    key_id: str | None = None

    @property
    def is_weak(self) -> bool:
        return isinstance(self.key, bytes) and len(self.key) < MIN_SECRET_BYTES

    def sign(self, claims: Mapping[str, Any]) -> str:
        import warnings

        import jwt

        headers = None if self.key_id is None else {"kid": self.key_id}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of short secrets, which the command reports itself
            return jwt.encode(dict(claims), self.key, algorithm=self.algorithm, headers=headers)

    def to_jwk(self) -> dict[str, Any]:
        """Return the key that verifies the tokens: the public key, or the secret."""
        from jwt.algorithms import get_default_algorithms

        algorithm = get_default_algorithms()[self.algorithm]
        key = self.key if isinstance(self.key, bytes) else self.key.public_key()
        jwk: dict[str, Any] = dict(algorithm.to_jwk(key, as_dict=True))
        jwk.pop("key_ops", None)
        own = {} if self.key_id is None else {"kid": self.key_id}
        return {**jwk, "alg": self.algorithm, **own}


def load_signing_key(
    secret: str | None, file: Path | None, guard: Jwt | None, key_id: str | None
) -> SigningKey:
    """Return the key to sign with: the given secret, file or a shared secret of the guard."""
    if secret is not None:
        return SigningKey(secret.encode(), "HS256", key_id)
    if file is not None:
        key = _load_private_key(file)
        return SigningKey(key, _choose_algorithm(key, file), key_id)
    for listed in guard.keys if guard is not None and isinstance(guard.keys, tuple) else ():
        if listed.kty == "oct" and listed.algorithms:
            return SigningKey(listed.load_key(), listed.algorithms[0], key_id or listed.kid)
    why = "there is no key" if guard is None else "the guard lists no shared secret"
    raise typer.BadParameter(f"{why} to sign with; give --secret TEXT or --key FILE")


def _load_private_key(file: Path) -> Any:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(file.read_bytes(), password=None)
    except (ValueError, TypeError, OSError) as exc:
        raise GatewayError(
            f"--key {file}: it has no private key in PEM without a password ({exc}); make one, "
            "such as by `openssl genpkey -algorithm ed25519`"
        ) from None


def _choose_algorithm(key: Any, file: Path) -> str:
    from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

    if isinstance(key, rsa.RSAPrivateKey):
        return "RS256"
    if isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name in CURVE_ALGORITHMS:
        return CURVE_ALGORITHMS[key.curve.name]
    if isinstance(key, ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey):
        return "EdDSA"
    raise GatewayError(f"--key {file}: no JWT is signed with such a key; use RSA, P-256 or Ed25519")


def parse_claims(texts: Iterable[str]) -> dict[str, Any]:
    """Return the claims of NAME=VALUE; a value that is JSON is read as such."""
    claims: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and name):
            raise typer.BadParameter(f"'{text}' is not NAME=VALUE", param_hint="--claim")
        try:
            claims[name] = json.loads(value)
        except ValueError:
            claims[name] = value
    return claims


def build_claims(
    own: Mapping[str, Any], further: Mapping[str, Any], expires: str
) -> dict[str, Any]:
    """Return all claims of a token without those that are None; `further` override all others."""
    from gateway.config.types.units import parse_duration

    try:
        seconds = parse_duration(expires)
    except ValueError as exc:
        raise typer.BadParameter(str(exc), param_hint="--expires") from None
    now = int(time.time())
    claims = {**own, "iat": now, "exp": now + int(seconds), **further}
    return {name: value for name, value in claims.items() if value is not None}


def is_jwt(text: str) -> bool:
    """Return whether a text is meant as a JWT: resume tokens have no dots."""
    return text.count(".") == 2


@dataclass(frozen=True)
class DecodedJwt:
    """A JWT whose signature was not verified."""

    header: Mapping[str, Any]
    claims: Mapping[str, Any]

    @classmethod
    def decode(cls, text: str) -> Self:
        header, claims, _ = text.split(".")
        return cls(
            _decode_part(header, "the header of the token is"),
            _decode_part(claims, "the claims of the token are"),
        )

    def to_json(self) -> dict[str, Any]:
        return {"header": self.header, "claims": self.claims, "signature": "not verified"}

    def to_table(self) -> str:
        return "\n".join(self._iter_lines())

    def _iter_lines(self) -> Iterator[str]:
        header = " ".join(f"{name}={_format_value(value)}" for name, value in self.header.items())
        rows = [("header", header), ("signature", "not verified; see `gateway token check`")]
        rows += [(name, self.format_claim(name)) for name in self.claims]
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            yield f"{_format_value(name):<{width}}  {value}"

    def format_claim(self, name: str) -> str:
        value = self.claims[name]
        text = _format_value(value)
        if name in TIME_CLAIMS and isinstance(value, int | float) and not isinstance(value, bool):
            moment = format_time(value * 1000, "seconds")
            expired = ", expired" if name == "exp" and value <= time.time() else ""
            return f"{text} ({moment}{expired})"
        return text


def _decode_part(part: str, what: str) -> dict[str, Any]:
    try:
        decoded = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        raise GatewayError(f"{what} not JSON in base64url; copy the token again") from None
    if not isinstance(decoded, dict):
        kind = {list: "a list", str: "text", type(None): "null"}.get(type(decoded), "a number")
        kind = "true or false" if isinstance(decoded, bool) else kind
        raise GatewayError(f"{what} {kind} and not a JSON object; ask whoever issued the token")
    return decoded


def _format_value(value: Any) -> str:
    """Return a value as text. The token may be of anyone, so control characters are escaped."""
    from gateway.cli.tail.terminal import escape_controls

    return escape_controls(
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    )
