from __future__ import annotations

import inspect
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import bad_frames
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from gateway.web.websocket.handshake import HANDSHAKES, AcceptedHandshake, UpgradeRequest

LINES = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}


def build_request(offer: str = "", **lines: str) -> UpgradeRequest:
    named = {name.replace("_", "-"): text for name, text in lines.items()}
    extensions = {"Sec-WebSocket-Extensions": offer} if offer else {}
    return build_raw_request((LINES | named | extensions).items())


def build_raw_request(
    lines: Iterable[tuple[str, str]], method: str = "GET", version: str = "1.1"
) -> UpgradeRequest:
    named = [(name.lower().encode(), text.encode()) for name, text in lines]
    return UpgradeRequest(method, "/", version, named)


def accept_handshake(
    offer: str = "", *, compression: bool = True, **lines: str
) -> AcceptedHandshake:
    agreed = HANDSHAKES[compression].negotiate(build_request(offer, **lines))
    assert isinstance(agreed, AcceptedHandshake), agreed
    return agreed


def test_the_key_is_answered_as_the_rfc_has_it():
    """RFC 6455 1.3."""
    assert accept_handshake().head.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert b"\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in accept_handshake().head


VALUES = {
    "Connection": ["Upgrade", "upgrade", "keep-alive, Upgrade", "keep-alive,Upgrade", "close", ""],
    "Upgrade": ["websocket", "WebSocket", "websocket, h2c", "h2c", ""],
    "Sec-WebSocket-Key": ["dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25jZR==", "YQ==", "a!", ""],
    "Sec-WebSocket-Version": ["13", "8", "013", "13, 8", ""],
    "Sec-WebSocket-Protocol": ["gateway.v1", "a, b", "a b", ""],
    "Sec-WebSocket-Extensions": ["permessage-deflate", "x-other", ";"],
    "Origin": ["http://test", "null", ""],
}


@given(st.data(), st.booleans())
def test_what_is_answered_at_once_is_answered_as_the_library_would(data, compression):
    """One header at most is not as a browser's."""
    odd = data.draw(st.sampled_from(sorted(VALUES)))
    values = data.draw(st.lists(st.sampled_from(VALUES[odd]), max_size=2))
    method = data.draw(st.sampled_from(["GET", "POST"]))
    version = data.draw(st.sampled_from(["1.1", "1.0"]))
    usual = [(name, text) for name, text in LINES.items() if name != odd]
    told = build_raw_request([*usual, *((odd, text) for text in values)], method, version)
    library = HANDSHAKES[compression].accept(told.to_library_request())
    agreed = HANDSHAKES[compression].negotiate(told)
    if isinstance(agreed, AcceptedHandshake):
        del library.headers["Date"]
        lines = library.serialize().removesuffix(b"\r\n").split(b"\r\n")
        assert sorted(agreed.head.split(b"\r\n")) == sorted(lines)
    else:
        assert agreed.status_code == library.status_code != 101


def test_what_a_browser_sends_is_answered_at_once(monkeypatch: pytest.MonkeyPatch):
    def fail_if_asked(_: Request) -> Response:
        raise AssertionError("the library was asked")

    monkeypatch.setattr(HANDSHAKES[False], "accept", fail_if_asked)
    for connection in ("Upgrade", "keep-alive, Upgrade"):
        accept_handshake(
            "permessage-deflate", compression=False, Connection=connection, Origin="http://a"
        )


@pytest.mark.parametrize(
    ("offer", "deflate", "window"),
    [
        ("permessage-deflate", True, 15),
        ("permessage-deflate; client_max_window_bits", True, 12),
        ("permessage-deflate; server_max_window_bits=12", True, 15),
        ("permessage-deflate; server_max_window_bits=11", False, 15),
        ("x-other", False, 0),
        ("", False, 0),
    ],
)
def test_it_says_which_compressed_frames_are_read(offer: str, deflate: bool, window: int):
    assert accept_handshake(offer)[1:] == (deflate, window)
    assert accept_handshake(offer, compression=False)[1:] == (False, 0)


@pytest.mark.parametrize("name", bad_frames.DECLINED_EXTENSIONS)
def test_nothing_is_compressed_by_an_offer_that_was_declined(name: str):
    assert accept_handshake(bad_frames.DECLINED_EXTENSIONS[name].decode())[1:] == (False, 0)


def test_nothing_of_one_handshake_is_in_the_next():
    """They share an object."""
    assert accept_handshake("permessage-deflate").window_bits == 15
    refused = HANDSHAKES[True].negotiate(build_request("permessage-deflate", Sec_WebSocket_Key="a"))
    assert isinstance(refused, Response) and refused.status_code == 400
    assert accept_handshake("permessage-deflate").window_bits == 15
    assert accept_handshake()[1:] == (False, 0)
    assert b"Extensions" not in accept_handshake().head


@pytest.mark.parametrize(
    ("name", "parameters"),
    {"accept": ["request"], "reject": ["status", "text"], "process_request": ["request"]}.items(),
)
def test_the_library_still_has_the_method_of_a_handshake(name: str, parameters: list[str]):
    method = getattr(ServerProtocol, name)
    assert list(inspect.signature(method).parameters) == ["self", *parameters]


@pytest.mark.parametrize("name", ["accept", "reject"])
def test_a_handshake_of_the_library_sends_nothing_and_changes_no_state(name: str):
    """Or one object for all connections would not do."""
    source = inspect.getsource(getattr(ServerProtocol, name))
    assert "send_" not in source.replace("send_response`", "") and "self.state" not in source
