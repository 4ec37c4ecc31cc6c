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

Private: TypeAlias = Any
NAME, AUDIENCE = "https://login.example", "gateway"
SECRET = b"a secret of the issuer and of the gateway, of 64 bytes and more.."


def rsa_key(number: int = 0) -> rsa.RSAPrivateKey:
    """Another one for another number."""
    return _rsa_key(number)


@lru_cache
def _rsa_key(number: int) -> rsa.RSAPrivateKey:
    """Made once: 2048 bits take a tenth of a second."""
    return rsa.generate_private_key(65537, 2048)


def private_key(algorithm: str, number: int = 0) -> Private:
    """Another one for another number."""
    if algorithm.startswith(("RS", "PS")):
        return rsa_key(number)
    if algorithm.startswith("HS"):
        return SECRET + str(number).encode()
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
    curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
    return ec.derive_private_key(number + 1, curves[algorithm])


def jwk(key: Private, kid: str | None = None, **members: Any) -> dict[str, Any]:
    """The public half of a key; a shared secret as it is."""
    algorithms = jwt.algorithms
    made: Any
    if isinstance(key, bytes):
        made = algorithms.HMACAlgorithm.to_jwk(key, as_dict=True)
    elif isinstance(key, rsa.RSAPrivateKey):
        made = algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        made = algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        made = algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    own = {} if kid is None else {"kid": kid}
    return {**{name: value for name, value in made.items() if name != "key_ops"}, **own, **members}


class Issuer:
    """signs with `kid`, one of its keys."""

    def __init__(self, algorithm: str = "RS256", kid: str = "k0") -> None:
        self.algorithm = algorithm
        self.keys: dict[str, Private] = {}
        self.rotate(kid)

    def rotate(self, kid: str, *, keep: bool = False) -> None:
        """Sign with a new key; the old ones go, unless they are kept."""
        self.keys = {**(self.keys if keep else {}), kid: private_key(self.algorithm, _number(kid))}
        self.kid = kid

    @property
    def jwks(self) -> list[dict[str, Any]]:
        return [jwk(key, kid) for kid, key in self.keys.items()]

    def token(
        self,
        *,
        key: Private = None,
        algorithm: str | None = None,
        headers: dict[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        """A good one, but for what is said otherwise; what is None is left out. key: to sign
        with, instead of its own."""
        good = {"iss": NAME, "aud": AUDIENCE, "sub": "ada", "exp": time.time() + 36_000}
        said = {name: claim for name, claim in {**good, **claims}.items() if claim is not None}
        head = {"kid": self.kid, **(headers or {})}
        return jwt.encode(
            said,
            self.keys[self.kid] if key is None else key,
            algorithm=algorithm or self.algorithm,
            headers={name: value for name, value in head.items() if value is not None},
        )


def _number(kid: str) -> int:
    return int("".join(each for each in kid if each.isdigit()) or 0) % 200


class JwksSite:
    """An ASGI application that gives an issuer's keys, or what else is told.

    asked: how often. body, status: instead of the keys. open: cleared while nobody is answered.
    """

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.asked = 0
        self.body: bytes | None = None
        self.status = 200
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        self.asked += 1
        await self.open.wait()
        keys = json.dumps({"keys": self.issuer.jwks}).encode()
        answer = Response(keys if self.body is None else self.body, self.status)
        await answer(request.scope, receive, send)
