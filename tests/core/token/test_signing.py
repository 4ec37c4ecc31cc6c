"""Who made a token, where gateways share a secret."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.token.resume_token import (
    ALPHABET,
    TokenWriter,
    TopicPositions,
    digest_text,
    encode_digits,
    parse_token,
    seal_token,
)
from gateway.core.token.signing import TokenSigner
from gateway.core.token.token_parser import CRC_WIDTH
from gateway.errors import TokenCorrupt

SECRET, OTHER = "a" * 32, "b" * 32
VIEW = digest_text("view")
TEXT = TokenWriter("cluster", [TopicPositions("orders", "id", [5, 6], [1, 1])]).to_text()


def sign_token(signer: TokenSigner, issuer: str = "route") -> str:
    return seal_token(TEXT, signer.create_seal(VIEW, issuer)).decode()


def test_a_token_with_a_mac_says_what_one_without_says():
    token, plain = (
        parse_token(sign_token(TokenSigner([SECRET]))),
        parse_token(seal_token(TEXT, VIEW).decode()),
    )
    assert (token.view_digest, token.issued, token.cluster) == (
        plain.view_digest,
        plain.issued,
        plain.cluster,
    )
    assert token.topics == plain.topics


def test_it_tells_which_route_sent_it():
    signer = TokenSigner([SECRET])
    assert signer.verify(parse_token(sign_token(signer, "mine")), "mine")
    assert not signer.verify(parse_token(sign_token(signer, "mine")), "another")


def test_a_seal_is_the_digest_of_its_view():
    """Clients are told that their view has changed where it is another."""
    assert TokenSigner([SECRET]).create_seal(VIEW, "route") == VIEW


def test_the_first_secret_signs_and_all_of_them_verify():
    old, both, new = TokenSigner([SECRET]), TokenSigner([OTHER, SECRET]), TokenSigner([OTHER])
    assert both.verify(parse_token(sign_token(old)), "route")
    assert both.verify(parse_token(sign_token(new)), "route")
    assert new.verify(parse_token(sign_token(both)), "route")
    with pytest.raises(TokenCorrupt, match="a secret it no longer has"):
        new.verify(parse_token(sign_token(old)), "route")


def test_a_token_without_a_mac_is_not_believed():
    with pytest.raises(TokenCorrupt, match="was not made by this gateway"):
        TokenSigner([SECRET]).verify(parse_token(seal_token(TEXT, VIEW).decode()), "route")


@given(st.data())
def test_one_that_was_changed_anywhere_is_not_believed(data: st.DataObject):
    """Whoever changes it can write the checksum that goes with it, and not the MAC."""
    signer = TokenSigner([SECRET])
    token = bytearray(sign_token(signer).encode()[:-6])
    at = data.draw(st.integers(1, len(token) - 1))
    token[at] = data.draw(st.sampled_from([c for c in ALPHABET if c != token[at]]))
    with pytest.raises(TokenCorrupt):
        signer.verify(parse_token(append_checksum(bytes(token))), "route")


def test_nor_is_one_whose_version_was():
    token = sign_token(TokenSigner([SECRET])).encode()[:-6]
    with pytest.raises(TokenCorrupt):
        TokenSigner([SECRET]).verify(parse_token(append_checksum(b"1" + token[1:])), "route")


def append_checksum(body: bytes) -> str:

    return (body + encode_digits(crc32(body), CRC_WIDTH)).decode()
