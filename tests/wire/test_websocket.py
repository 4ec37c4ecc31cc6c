from __future__ import annotations

import json
import zlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from gateway.wire.websocket import (
    MIN_COMPRESS_BYTES,
    WINDOW_BITS,
    encode_deflated_text,
    encode_open_deflated_text,
    encode_open_text,
    encode_text,
    insert_member,
    iter_texts,
)

# Lengths on both sides of where the header grows.
EDGES = [0, 1, 125, 126, 127, 65_535, 65_536, 70_000]

texts = st.text() | st.sampled_from(EDGES).map(lambda n: "a" * n)
repetitive = st.lists(st.sampled_from(["alice", "é", '{"id":', "}", "0" * 40]), max_size=400).map(
    "".join
)


def read(data: bytes, *, window: int | None = None, fresh: bool = False) -> list[Frame]:
    """What the library's client makes of it. window: bits of the permessage-deflate agreed on."""
    client = ClientProtocol(parse_uri("ws://test/"), state=State.OPEN, max_size=None)
    if window is not None:
        client.extensions = [PerMessageDeflate(fresh, False, window, 15, {})]
    client.receive_data(data)
    assert client.parser_exc is None, client.parser_exc
    return [event for event in client.events_received() if isinstance(event, Frame)]


def read_texts(data: bytes, *, window: int | None = None, fresh: bool = False) -> list[str]:
    frames = read(data, window=window, fresh=fresh)
    assert all(each.opcode is Opcode.TEXT and each.fin for each in frames)
    return [bytes(each.data).decode() for each in frames]


@given(st.lists(texts, max_size=5))
def test_the_library_reads_what_we_frame(sent: list[str]):
    assert read_texts(b"".join(encode_text(each.encode()) for each in sent)) == sent


@pytest.mark.parametrize("length", EDGES)
def test_a_header_is_as_short_as_it_can_be(length: int):
    ours = encode_text(b"a" * length)
    assert ours == Frame(Opcode.TEXT, b"a" * length).serialize(mask=False)


@given(st.lists(texts | repetitive, max_size=5), st.integers(WINDOW_BITS, 15), st.booleans())
def test_compressed_frames_are_read_by_every_client_with_the_window(sent, window, fresh):
    """Whether the client keeps its context between messages or not."""
    shared = b"".join(encode_deflated_text(each.encode()) for each in sent)
    assert read_texts(shared, window=window, fresh=fresh) == sent


def test_a_compressed_frame_holds_no_reference_beyond_its_window():
    """Far repetitions of what cannot be compressed by itself: a wider window would use them."""
    noise = "".join(f"{zlib.crc32(b'%d' % n):08x}" for n in range(1000))
    sent = json.dumps([noise, noise])
    assert read_texts(encode_deflated_text(sent.encode()), window=WINDOW_BITS) == [sent]
    assert len(encode_deflated_text(sent.encode())) > len(noise)


def test_compressed_and_plain_frames_take_turns():
    long, short = "b" * 5000, "a" * (MIN_COMPRESS_BYTES - 1)
    sent = (
        encode_deflated_text(long.encode())
        + encode_text(long.encode())
        + encode_deflated_text(short.encode())
    )
    assert read_texts(sent * 2, window=WINDOW_BITS) == [long, long, short] * 2


def test_short_messages_and_those_that_would_grow_go_as_they_are():
    short = b"a" * (MIN_COMPRESS_BYTES - 1)
    dense = Random(1).randbytes(2000)
    assert encode_deflated_text(short) == encode_text(short)
    assert encode_deflated_text(dense) == encode_text(dense)
    assert len(encode_deflated_text(b"a" * 10_000)) < 100


@given(st.lists(texts, max_size=5))
def test_messages_are_what_was_framed(sent: list[str]):
    assert list(iter_texts(b"".join(encode_text(each.encode()) for each in sent))) == sent


@given(texts, st.data())
def test_a_cut_frame_is_an_error_and_not_a_shorter_message(sent: str, data: st.DataObject):
    whole = encode_text(sent.encode())
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(ValueError, match="cut off"):
        list(iter_texts(whole[:cut]))


def test_only_plain_text_messages_are_read_back():
    for foreign in (encode_deflated_text(b"a" * 1000), b"\x82\x01a", b"\x01\x01a", b"a"):
        with pytest.raises(ValueError, match="no unmasked text"):
            list(iter_texts(foreign))


@given(
    st.lists(st.dictionaries(texts, texts | repetitive, min_size=1, max_size=3), max_size=4),
    st.text(max_size=64),
    st.integers(WINDOW_BITS, 15),
    st.booleans(),
)
def test_a_member_is_inserted_into_every_frame(sent, label, window, fresh):
    """Whether a frame is compressed or not, and whether the client keeps its context."""
    shared = b"".join(
        make(json.dumps(each).encode())
        for each in sent
        for make in (encode_open_text, encode_open_deflated_text)
    )
    member = b'"label":%b,' % json.dumps(label).encode()
    read = [
        json.loads(each)
        for each in read_texts(insert_member(shared, member), window=window, fresh=fresh)
    ]
    assert read == [{"label": label, **each} for each in sent for _ in range(2)]


def test_an_inserted_member_comes_first():
    framed = insert_member(encode_open_text(b'{"type":"records"}'), b'"id":"a",')
    assert list(iter_texts(framed)) == ['{"id":"a","type":"records"}']
