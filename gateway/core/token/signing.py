"""Sign resume tokens with a MAC, where gateways share a secret, so that they cannot be made up.

The MAC is keyed BLAKE2b (RFC 7693) of 96 bits. The key is a digest of the secret, so a secret may
have any length. The issuer of a token is its cluster, its route and its whole view. A token has 48
bits of a keyed digest of the issuer, for which nobody without the secret can search.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from hmac import compare_digest

from gateway.errors import TokenCorrupt

from .resume_token import ResumeToken, TokenSeal, compute_mac, encode_digits


class TokenSigner:
    """The secrets of a gateway, of which there is at least one: the first signs, all verify."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # `surrogatepass`: an environment variable that is not UTF-8 has lone surrogates (PEP 383).
        self._keys = [
            blake2b(secret.encode("utf-8", "surrogatepass"), person=b"resume token").digest()
            for secret in secrets
        ]

    def create_seal(self, view_digest: bytes, issuer: str) -> TokenSeal:
        key = self._keys[0]
        return TokenSeal(view_digest, _digest_issuer(key, issuer), key)

    def verify(self, token: ResumeToken, issuer: str) -> bool:
        """Return whether a token is of this issuer; TokenCorrupt if no secret here made its MAC."""
        for key in self._keys:
            if compare_digest(compute_mac(token.body, key), token.mac):
                return compare_digest(_digest_issuer(key, issuer), token.issuer)
        raise TokenCorrupt(
            "the resume token was not made by this gateway, or with a secret it no longer has; "
            "connect without Last-Event-ID or with ?from="
        )


def _digest_issuer(key: bytes, issuer: str) -> bytes:
    hasher = blake2b(
        issuer.encode("utf-8", "surrogatepass"), key=key, digest_size=6, person=b"issuer"
    )
    return encode_digits(int.from_bytes(hasher.digest()), 8)
