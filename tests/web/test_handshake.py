from __future__ import annotations

import inspect

import pytest
from support import bad_frames
from websockets.datastructures import Headers
from websockets.http11 import Request
from websockets.server import ServerProtocol

from gateway.web.handshake import HANDSHAKES, Agreed

LINES = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}


def answer(offer: str = "", *, compression: bool = True, **lines: str) -> Agreed:
    named = {name.replace("_", "-"): text for name, text in lines.items()}
    extensions = {"Sec-WebSocket-Extensions": offer} if offer else {}
    request = Request("/", Headers(LINES | named | extensions))
    return HANDSHAKES[compression].answer(request)


def test_the_key_is_answered_as_the_rfc_has_it():
    """RFC 6455 1.3."""
    response = answer().response
    assert response.status_code == 101
    assert response.headers["Sec-WebSocket-Accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


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
    assert answer(offer)[1:] == (deflate, window)
    assert answer(offer, compression=False)[1:] == (False, 0)


@pytest.mark.parametrize("name", bad_frames.UNFIT_EXTENSIONS)
def test_nothing_is_compressed_by_an_offer_that_was_declined(name: str):
    assert answer(bad_frames.UNFIT_EXTENSIONS[name].decode())[1:] == (False, 0)


def test_nothing_of_one_handshake_is_in_the_next():
    """They share an object."""
    assert answer("permessage-deflate").window == 15
    refused = answer("permessage-deflate", Sec_WebSocket_Key="a")
    assert refused.response.status_code == 400 and refused[1:] == (False, 0)
    assert answer("permessage-deflate").window == 15
    assert answer()[1:] == (False, 0)
    assert "Sec-WebSocket-Extensions" not in answer().response.headers


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
