"""Frames against a dictionary: each can be decoded alone, by whoever has the dictionary."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.zstd import FrameDecoder, zstd

from gateway.wire.zstd import WINDOW_LOG, CompressionDictionary

ORDERS = b"".join(b'data: {"order":%d,"status":"paid"}\nid: 1abc%d\n\n' % (n, n) for n in range(50))


@given(st.lists(st.one_of(st.binary(max_size=300), st.sampled_from([ORDERS, ORDERS * 200]))))
def test_frames_are_decoded_in_whatever_order_they_were_made(pieces: list[bytes]):
    dictionary = CompressionDictionary(ORDERS)
    frames = [dictionary.compress(piece) for piece in pieces]
    assert [frame == b"" for frame in frames] == [piece == b"" for piece in pieces]
    for chosen in (frames, frames[::-1]):
        decoder = FrameDecoder(dictionary.content)
        expected = pieces if chosen is frames else pieces[::-1]
        assert decoder.feed(dictionary.header + b"".join(chosen)) == b"".join(expected)


def test_a_frame_needs_its_dictionary():
    frame = CompressionDictionary(ORDERS).compress(ORDERS[:500])
    with pytest.raises(zstd.ZstdError):
        zstd.decompress(frame)


def test_an_event_alone_becomes_a_third():
    event = b'data: {"order":73,"status":"paid"}\nid: 1abc73\n\n'
    assert len(CompressionDictionary(ORDERS).compress(event)) < len(event) / 2


def test_the_header_is_that_of_the_rfc():
    """A skippable frame of 32 bytes, which are the digest (RFC 9842 5)."""
    dictionary = CompressionDictionary(b"any bytes")
    assert dictionary.header[:8] == bytes.fromhex("5e2a4d1820000000")
    assert dictionary.header[8:] == dictionary.digest == hashlib.sha256(b"any bytes").digest()


def test_what_is_needed_to_decode_is_within_what_decoders_must_have():
    """8 MB or more (RFC 9842 5)."""
    frame = CompressionDictionary(ORDERS).compress(bytes(1 << 20))
    assert WINDOW_LOG <= 23 and zstd.get_frame_info(frame).decompressed_size == 1 << 20
