"""Who may say where a client stood: a MAC over resume tokens, where the gateways share a secret.

BLAKE2b, keyed (RFC 7693), 96 bits. The key is a digest of the secret, so a secret may be of any
length. The issuer of a token is its cluster, its route and its whole view; a token has 48 bits of
a keyed digest of it, which nobody who lacks the secret can search for.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from hmac import compare_digest

from gateway.errors import TokenCorrupt

from .resume_token import ResumeToken, TokenSeal, compute_mac, encode_digits


class TokenSigner:
    """The secrets of a gateway: the first signs, all of them verify. At least one."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._keys = [
            blake2b(secret.encode("utf-8", "surrogatepass"), person=b"resume token").digest()
            for secret in secrets
        ]

    def create_seal(self, view: bytes, issuer: str) -> TokenSeal:
        """What signs the ids of a view, by its digest, that this issuer sends."""
        key = self._keys[0]
        return TokenSeal(view, _digest_issuer(key, issuer), key)

    def verify(self, token: ResumeToken, issuer: str) -> bool:
        """Return whether a token of these gateways was sent by this very issuer.

        Raises:
            TokenCorrupt: It has no MAC, or none that one of the secrets made.
        """
        for key in self._keys:
            if compare_digest(compute_mac(token.body, key), token.mac):
                return compare_digest(_digest_issuer(key, issuer), token.issuer)
        raise TokenCorrupt(
            "the resume token was not made by this gateway, or with a secret it no longer has; "
            "connect without Last-Event-ID or with ?from="
        )


def _digest_issuer(key: bytes, issuer: str) -> bytes:
    told = blake2b(
        issuer.encode("utf-8", "surrogatepass"), key=key, digest_size=6, person=b"issuer"
    )
    return encode_digits(int.from_bytes(told.digest()), 8)
