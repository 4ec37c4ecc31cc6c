"""Create and decode JSON Web Tokens (RFC 7519), and ask guards about them, for `gateway token`."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import typer

from gateway.cli.output import escape_controls, format_table, format_value
from gateway.core.times import format_time
from gateway.errors import GatewayError, GuardUnavailable, RequestError

if TYPE_CHECKING:
    from gateway.config import GuardSection, Jwt, Settings
    from gateway.web.access.grant import Grant


MIN_SECRET_BYTES = 32  # RFC 7518 3.2: at least the size of the hash
TIME_CLAIMS = ("exp", "nbf", "iat")
CURVE_ALGORITHMS = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


@dataclass(frozen=True)
class SigningKey:
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
    own: Mapping[str, Any], further: Mapping[str, Any], lifetime_s: float
) -> dict[str, Any]:
    """Return all claims of a token without those that are None; `further` override all others."""
    now = int(time.time())
    claims = {**own, "iat": now, "exp": now + int(lifetime_s), **further}
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
        header = " ".join(f"{name}={format_value(value)}" for name, value in self.header.items())
        rows = [("header", header), ("signature", "not verified; see `gateway token check`")]
        rows += [(format_value(name), self.format_claim(name)) for name in self.claims]
        return "\n".join(format_table(rows))

    def format_claim(self, name: str) -> str:
        value = self.claims[name]
        text = format_value(value)
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
        raise GatewayError(f"{what} not a JSON object; ask whoever issued the token")
    return decoded


@dataclass(frozen=True)
class Verdict:
    """The decision of a guard on a token.

    Attributes:
        grant: The guard's knowledge of the client; None if it refuses the token.
        is_decided: Whether the guard could decide at all.
    """

    guard: str
    grant: Grant | None = None
    reason: str = ""
    details: tuple[str, ...] = ()
    is_decided: bool = True

    @property
    def is_accepted(self) -> bool:
        return self.grant is not None

    def to_json(self) -> dict[str, Any]:
        if self.grant is None:
            refusal = {"guard": self.guard, "accepted": False, "reason": self.reason}
            return {**refusal, "details": list(self.details)}
        return {
            "guard": self.guard,
            "accepted": True,
            "identity": self.grant.identity,
            "roles": sorted(self.grant.roles),
            "attributes": dict(self.grant.attributes),
            "expires": _format_expiry(self.grant),
            "problems": list(self.grant.problems.values()),
        }

    def to_text(self) -> str:
        return "\n".join(escape_controls(line) for line in self._iter_lines())

    def _iter_lines(self) -> Iterator[str]:
        if self.grant is None:
            verdict = "refuses the token" if self.is_decided else "cannot decide"
            yield f"guard {self.guard} {verdict}: {self.reason}"
            yield from (f"  {line}" for line in self.details)
            return
        yield f"guard {self.guard} accepts the token"
        yield f"  identity  {self.grant.identity}"
        yield f"  roles     {', '.join(sorted(self.grant.roles)) or 'none'}"
        for name, value in self.grant.attributes.items():
            yield f"  {name}  {value}"
        for problem in self.grant.problems.values():
            yield f"  {problem}"
        yield f"  expires   {_format_expiry(self.grant) or 'never'}"


def _format_expiry(grant: Grant) -> str | None:
    if grant.expires is None:
        return None
    return format_time(grant.expires * 1000, "seconds")


def find_guard(file: Path, name: str | None) -> tuple[Settings, str, GuardSection]:
    from gateway.config import load
    from gateway.config.types.substitution import suggest

    settings = load(file)
    if name is None:
        if len(settings.guards) != 1:
            names = ", ".join(settings.guards) or "none"
            raise GatewayError(f"{file} has not one guard but: {names}; give --guard NAME")
        name = next(iter(settings.guards))
    if name not in settings.guards:
        hint = suggest(name, settings.guards, "add one to guards")
        raise GatewayError(f"{file} has no guard '{name}'; {hint}")
    return settings, name, settings.guards[name]


def find_jwt_guard(file: Path, name: str) -> Jwt:
    from gateway.config import Inline, Jwt

    _, _, section = find_guard(file, name)
    if isinstance(section, Jwt):
        return section
    hint = "send the `token` of one of its users" if isinstance(section, Inline) else "use another"
    raise GatewayError(f"guard '{name}' takes no JWT; {hint}")


def check_token(text: str, file: Path, name: str | None) -> Verdict:
    settings, name, section = find_guard(file, name)
    logging.getLogger("gateway.web.access").addHandler(logging.NullHandler())
    return asyncio.run(_ask_guard(text, settings, name, section))


async def _ask_guard(text: str, settings: Settings, name: str, section: GuardSection) -> Verdict:
    from starlette.requests import HTTPConnection

    from gateway.config import Route
    from gateway.web.access.admission import get_guard_class
    from gateway.web.access.external_http import ExternalHttp
    from gateway.web.access.guard import AccessRequest, GuardContext

    route = Route.model_validate({"path": "/", "topic": "none", "guarded": [name]})
    headers = [(b"authorization", b"Bearer " + text.encode("utf-8", "surrogateescape"))]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": headers, "query_string": b""}
    external_http = ExternalHttp()
    guard = get_guard_class(section).create(
        section, GuardContext(name, settings.name, external_http)
    )
    try:
        grant = await guard.grant(AccessRequest(route, {}, HTTPConnection(scope), text))
    except GuardUnavailable as exc:
        # A client is told to come back later, and not what only an operator can mend.
        return Verdict(name, reason=guard.find_problem() or str(exc), is_decided=False)
    except RequestError as exc:
        reason, _, _ = str(exc).partition("; ")  # without how to send one
        return Verdict(name, reason=reason, details=tuple(_compare(text, section)))
    finally:
        await external_http.close()
    return Verdict(name, grant)


def _compare(text: str, section: GuardSection) -> Iterator[str]:
    """Yield the claims of a JWT that differ from its guard's expectations."""
    from gateway.config import Jwt

    if not isinstance(section, Jwt):
        return
    decoded = None
    with contextlib.suppress(GatewayError):
        decoded = DecodedJwt.decode(text) if is_jwt(text) else None
    if decoded is None:
        yield "it is no JWT: three parts in base64url, separated by dots"
        return
    claims, header = decoded.claims, decoded.header
    if section.issuer and claims.get("iss") not in section.issuer:
        yield f"iss is {claims.get('iss')!r}, the guard expects {_list(section.issuer)}"
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if section.audience and not any(each in audiences for each in section.audience):
        yield f"aud is {audience!r}, the guard expects {_list(section.audience)}"
    yield f"alg is {header.get('alg')!r}, kid is {header.get('kid')!r}"
    if "exp" in claims:
        yield f"exp is {decoded.format_claim('exp')}"


def _list(texts: Iterable[str]) -> str:
    return " or ".join(map(repr, texts))
