"""Who signs tokens for a test, and where its keys are to be had."""

from __future__ import annotations

import asyncio
import json
import time
from functools import lru_cache
from typing import Any, TypeAlias

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from starlette.requests import Request
from starlette.responses import Response

PrivateKey: TypeAlias = Any
ISSUER_NAME, AUDIENCE = "https://login.example", "gateway"
SHARED_SECRET = b"a secret of the issuer and of the gateway, of 64 bytes and more.."


def get_rsa_key(number: int = 0) -> rsa.RSAPrivateKey:
    """Another one for another number."""
    return _generate_rsa_key(number)


@lru_cache
def _generate_rsa_key(number: int) -> rsa.RSAPrivateKey:
    """Made once: 2048 bits take a tenth of a second."""
    return rsa.generate_private_key(65537, 2048)


def get_private_key(algorithm: str, number: int = 0) -> PrivateKey:
    """Another one for another number."""
    if algorithm.startswith(("RS", "PS")):
        return get_rsa_key(number)
    if algorithm.startswith("HS"):
        return SHARED_SECRET + str(number).encode()
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
    curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
    return ec.derive_private_key(number + 1, curves[algorithm])


def build_jwk(private_key: PrivateKey, kid: str | None = None, **members: Any) -> dict[str, Any]:
    """The public half of a key; a shared secret as it is."""
    algorithms = jwt.algorithms
    made: Any
    if isinstance(private_key, bytes):
        made = algorithms.HMACAlgorithm.to_jwk(private_key, as_dict=True)
    elif isinstance(private_key, rsa.RSAPrivateKey):
        made = algorithms.RSAAlgorithm.to_jwk(private_key.public_key(), as_dict=True)
    elif isinstance(private_key, ec.EllipticCurvePrivateKey):
        made = algorithms.ECAlgorithm.to_jwk(private_key.public_key(), as_dict=True)
    else:
        made = algorithms.OKPAlgorithm.to_jwk(private_key.public_key(), as_dict=True)
    own = {} if kid is None else {"kid": kid}
    return {**{name: value for name, value in made.items() if name != "key_ops"}, **own, **members}


class TokenIssuer:
    """signs with `kid`, one of its keys."""

    def __init__(self, algorithm: str = "RS256", kid: str = "k0") -> None:
        self.algorithm = algorithm
        self.keys: dict[str, PrivateKey] = {}
        self.rotate_key(kid)

    def rotate_key(self, kid: str, *, keep_old: bool = False) -> None:
        """Sign with a new key; the old ones go, unless they are kept."""
        self.keys = {
            **(self.keys if keep_old else {}),
            kid: get_private_key(self.algorithm, _get_key_number(kid)),
        }
        self.kid = kid

    @property
    def jwks(self) -> list[dict[str, Any]]:
        return [build_jwk(key, kid) for kid, key in self.keys.items()]

    def issue_token(
        self,
        *,
        key: PrivateKey = None,
        algorithm: str | None = None,
        headers: dict[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        """A good one, but for what is said otherwise; what is None is left out. key: to sign
        with, instead of its own."""
        good = {"iss": ISSUER_NAME, "aud": AUDIENCE, "sub": "ada", "exp": time.time() + 36_000}
        said = {name: claim for name, claim in {**good, **claims}.items() if claim is not None}
        head = {"kid": self.kid, **(headers or {})}
        return jwt.encode(
            said,
            self.keys[self.kid] if key is None else key,
            algorithm=algorithm or self.algorithm,
            headers={name: value for name, value in head.items() if value is not None},
        )


def _get_key_number(kid: str) -> int:
    return int("".join(each for each in kid if each.isdigit()) or 0) % 200


class JwksApp:
    """An ASGI application that gives an issuer's keys, or what else is told.

    asked: how often. body, status: instead of the keys. open: cleared while nobody is answered.
    """

    def __init__(self, issuer: TokenIssuer) -> None:
        self.issuer = issuer
        self.request_count = 0
        self.body: bytes | None = None
        self.status = 200
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        self.request_count += 1
        await self.is_open.wait()
        keys = json.dumps({"keys": self.issuer.jwks}).encode()
        answer = Response(keys if self.body is None else self.body, self.status)
        await answer(request.scope, receive, send)
