from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import bad_frames
from support.raw_websocket import CLOSE, CONT, PING, PONG, TEXT, close, frame, squeezed
from websockets.datastructures import Headers
from websockets.frames import Frame
from websockets.http11 import Request

from gateway.web.peer import Peer

LINES = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}
MESSAGES = [
    frame(TEXT, b'{"type": "ping"}'),
    frame(TEXT, "é€😀".encode(), fin=False),
    frame(CONT, b"\xff"),
    frame(CONT, b"a" * 300),
    frame(PING, b"x"),
    frame(TEXT, squeezed(b"a" * 500), rsv=4),
    frame(3),
    close(1000),
]


def connected(extensions: str = "", **options: object) -> Peer:
    settings: dict = {"max_size": 1024, "compression": True, "logger": logging.getLogger("test")}
    peer = Peer(**(settings | options))
    lines = LINES | ({"Sec-WebSocket-Extensions": extensions} if extensions else {})
    peer.send_response(peer.accept(Request("/", Headers(lines))))
    peer.data_to_send()
    return peer


def heard(peer: Peer, pieces: list[bytes]) -> tuple[list[tuple], bytes]:
    """The frames it made of them, and what it said."""
    frames = []
    for piece in pieces:
        if not peer.failed:
            peer.receive_data(piece)
            events = [each for each in peer.events_received() if isinstance(each, Frame)]
            frames += [(each.opcode, bytes(each.data), each.fin) for each in events]
    return frames, b"".join(peer.data_to_send())


@given(st.lists(st.sampled_from(MESSAGES) | st.binary(max_size=20), max_size=8), st.data())
def test_any_bytes_mean_the_same_however_they_are_cut(pieces: list[bytes], data: st.DataObject):
    sent = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    cut = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    assert heard(connected("permessage-deflate"), cut) == heard(
        connected("permessage-deflate"), [sent]
    )


@given(st.text(max_size=20), st.data())
def test_a_letter_may_be_cut_by_fragments(text: str, data: st.DataObject):
    payload = text.encode()
    cut = data.draw(st.integers(0, len(payload)))
    peer = connected()
    heard(peer, [frame(TEXT, payload[:cut], fin=False), frame(CONT, payload[cut:])])
    assert not peer.failed


def test_the_allowance_of_idle_frames_is_earned_back_by_time():
    peer = connected()
    peer.at(200.0)
    heard(peer, [frame(PONG) * Peer.IDLE_FRAMES])
    peer.at(201.0)
    heard(peer, [frame(PING) * Peer.IDLE_FRAMES_PER_SECOND])
    assert not peer.failed
    heard(peer, [frame(PING)])
    assert peer.failed and peer.close_sent is not None and peer.close_sent.code == 1008


def test_messages_and_large_fragments_cost_no_allowance():
    peer = connected(max_size=2**20)
    large = frame(CONT, b"a" * Peer.SMALL, fin=False)
    heard(peer, [frame(TEXT, b"{}") * 5000 + frame(TEXT, fin=False) + large * 5000])
    assert not peer.failed


def test_a_close_is_heard_when_the_allowance_is_spent():
    peer = connected()
    frames, _ = heard(peer, [frame(PING) * Peer.IDLE_FRAMES + close(1000)])
    assert frames[-1][0] == CLOSE and not peer.failed


@pytest.mark.parametrize(
    ("offer", "takes"),
    [
        ("permessage-deflate", True),
        ("permessage-deflate; server_max_window_bits=12", True),
        ("permessage-deflate; server_max_window_bits=11", False),
        ("x-other", False),
        ("", False),
    ],
)
def test_it_takes_shared_compressed_frames_if_its_window_is_large_enough(offer: str, takes: bool):
    assert connected(offer).takes_deflated is takes
    assert not connected(offer, compression=False).takes_deflated


@pytest.mark.parametrize("name", bad_frames.UNFIT_EXTENSIONS)
def test_it_takes_none_by_an_offer_that_was_declined(name: str):
    assert not connected(bad_frames.UNFIT_EXTENSIONS[name].decode()).takes_deflated
