"""Who made a token, where gateways share a secret."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.token.digits import CRC
from gateway.core.token.resume_token import (
    ALPHABET,
    TokenWriter,
    TopicPlaces,
    decode,
    digest,
    digits,
    seal,
)
from gateway.core.token.signing import Signer
from gateway.errors import TokenCorrupt

SECRET, OTHER = "a" * 32, "b" * 32
VIEW = digest("view")
TEXT = TokenWriter("cluster", [TopicPlaces("orders", "id", [5, 6], [1, 1])]).text()


def signed(signer: Signer, issuer: str = "route") -> str:
    return seal(TEXT, signer.seal(VIEW, issuer)).decode()


def test_a_token_with_a_mac_says_what_one_without_says():
    token, plain = decode(signed(Signer([SECRET]))), decode(seal(TEXT, VIEW).decode())
    assert (token.view, token.issued, token.cluster) == (plain.view, plain.issued, plain.cluster)
    assert token.topics == plain.topics


def test_it_tells_which_route_sent_it():
    signer = Signer([SECRET])
    assert signer.verify(decode(signed(signer, "mine")), "mine")
    assert not signer.verify(decode(signed(signer, "mine")), "another")


def test_a_seal_is_the_digest_of_its_view():
    """Clients are told that their view has changed where it is another."""
    assert Signer([SECRET]).seal(VIEW, "route") == VIEW


def test_the_first_secret_signs_and_all_of_them_verify():
    old, both, new = Signer([SECRET]), Signer([OTHER, SECRET]), Signer([OTHER])
    assert both.verify(decode(signed(old)), "route")
    assert both.verify(decode(signed(new)), "route")
    assert new.verify(decode(signed(both)), "route")
    with pytest.raises(TokenCorrupt, match="a secret it no longer has"):
        new.verify(decode(signed(old)), "route")


def test_a_token_without_a_mac_is_not_believed():
    with pytest.raises(TokenCorrupt, match="was not made by this gateway"):
        Signer([SECRET]).verify(decode(seal(TEXT, VIEW).decode()), "route")


@given(st.data())
def test_one_that_was_changed_anywhere_is_not_believed(data: st.DataObject):
    """Whoever changes it can write the checksum that goes with it, and not the MAC."""
    signer = Signer([SECRET])
    token = bytearray(signed(signer).encode()[:-6])
    at = data.draw(st.integers(1, len(token) - 1))
    token[at] = data.draw(st.sampled_from([c for c in ALPHABET if c != token[at]]))
    with pytest.raises(TokenCorrupt):
        signer.verify(decode(checked(bytes(token))), "route")


def test_nor_is_one_whose_version_was():
    token = signed(Signer([SECRET])).encode()[:-6]
    with pytest.raises(TokenCorrupt):
        Signer([SECRET]).verify(decode(checked(b"1" + token[1:])), "route")


def checked(body: bytes) -> str:

    return (body + digits(crc32(body), CRC)).decode()
