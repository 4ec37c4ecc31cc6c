"""A stream that is compressed against a dictionary, event by event."""

from __future__ import annotations

from support.zstd import FrameDecoder

from gateway.core.channel.chunk_ring import ChannelEvent
from gateway.core.client.terms import EndReason
from gateway.formats import create_format
from gateway.hub.wires.sse import SseWire
from gateway.hub.wires.wire import Beginning
from gateway.hub.wires.wrapping import ChunkedWire, DictionaryWire, GzipWire
from gateway.wire.zstd import CompressionDictionary

DICTIONARY = CompressionDictionary(b'data: {"order":1,"status":"paid"}\nid: 1abc\n\n' * 3)
WIRE = DictionaryWire(SseWire(), DICTIONARY)


def test_a_stream_names_the_dictionary_once_and_each_piece_is_decoded_at_once():
    decoder = FrameDecoder(DICTIONARY.content)
    first = WIRE.encode_begin(Beginning({"topics": []}, b"1abc"))
    assert first.startswith(DICTIONARY.header)
    assert b"event: begin" in decoder.feed(first)
    encoder = WIRE.create_encoder(create_format("value"))
    for n in range(3):
        payload = b'data: {"order":%d,"status":"paid"}\n' % n
        chunk = encoder.encode_events([ChannelEvent(None, payload, None)], b"view0")
        assert decoder.feed(chunk) == payload + b"\n"
    assert decoder.feed(WIRE.encode_heartbeat()) == SseWire().encode_heartbeat()
    again = WIRE.encode_begin(Beginning({"topics": []}, b"1abc", True, True))
    assert DICTIONARY.header not in again and b"event: gap" in decoder.feed(again)
    assert b'"reason":"drain"' in decoder.feed(WIRE.encode_end(EndReason.DRAIN, b"1abc"))


def test_no_events_are_no_bytes():
    assert WIRE.create_encoder(create_format("value")).encode_events([], b"view0") == b""


def test_wires_of_one_dictionary_share_a_channel_and_others_do_not():
    other = CompressionDictionary(b"other bytes")
    equal = {WIRE, DictionaryWire(SseWire(), DICTIONARY)}
    distinct = {
        WIRE,
        DictionaryWire(SseWire(), other),
        GzipWire(SseWire()),
        ChunkedWire(WIRE),
        ChunkedWire(DictionaryWire(SseWire(), other)),
    }
    assert len(equal) == 1 and len(distinct) == 5
