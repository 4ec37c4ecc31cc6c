"""Whatever a WebSocket client sends: the right end, and a stream beside it unharmed.

Each way to break a frame or a handshake is in tests/web/websocket/test_protocol.py; one of each
kind comes to the gateway here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from support.bad_frames import (
    CLOSING_CASES,
    DECLINED_EXTENSIONS,
    INVALID_COMPRESSED,
    REFUSED_HANDSHAKES,
    TRUNCATED_FRAMES,
)
from support.brokers import embedded_kafka
from support.gateways import GatewayThread, build_config, running_gateway
from support.raw_http import build_request
from support.raw_websocket import (
    DEFLATE_HEADER,
    OPCODE_BINARY,
    OPCODE_CLOSE,
    OPCODE_PING,
    OPCODE_PONG,
    OPCODE_TEXT,
    UPGRADE_HEADERS,
    RawWebSocket,
    build_close,
    build_frame,
    build_handshake,
    deflate_payload,
)
from support.reference_stream import REFERENCE_TOPICS
from support.topic_gateway import run_gateway_sync

from gateway.kafka.embedded import EmbeddedKafka

TOPICS = {"orders": 2, **REFERENCE_TOPICS}
HELLO = b'{"type": "ping", "id": "hello"}'

pytestmark = pytest.mark.usefixtures("unharmed")
kafka = embedded_kafka(TOPICS)


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka) -> Iterator[GatewayThread]:
    listen = {"websocket": {"compression": True}}
    with run_gateway_sync(build_config(kafka.bootstrap, TOPICS, listen=listen)) as gateway:
        yield gateway


def answers(socket: RawWebSocket) -> bool:
    """The session is there."""
    socket.send_bytes(build_frame(OPCODE_TEXT, HELLO))
    return json.loads(socket.read_text()) == {"type": "pong", "id": "hello"}


@pytest.mark.parametrize(
    "case",
    ["reserved bits 001 in text", "unmasked text", "ping of 126 bytes", "continuation of nothing"],
)
def test_broken_frames_end_with_the_right_code(gateway: GatewayThread, case: str):
    code, sent = CLOSING_CASES[case]
    with RawWebSocket.open_socket(gateway.port) as socket:
        socket.send_bytes(sent)
        assert socket.read_close_code() == code


@pytest.mark.parametrize("case", ["not deflate", "a bomb of 64 MiB"])
def test_broken_compressed_frames_end_with_the_right_code(gateway: GatewayThread, case: str):
    code, sent = INVALID_COMPRESSED[case]
    with RawWebSocket.open_socket(gateway.port, "/ws", DEFLATE_HEADER) as socket:
        socket.send_bytes(sent)
        assert socket.read_close_code() == code


@pytest.mark.parametrize("case", ["nothing", "within the payload"])
def test_a_client_that_ends_within_a_frame_is_let_go(gateway: GatewayThread, case: str):
    with RawWebSocket.open_socket(gateway.port) as socket:
        socket.send_bytes(TRUNCATED_FRAMES[case])
        socket.socket.shutdown(1)
        socket.read_close()


@pytest.mark.parametrize("case", ["no key", "version 8", "POST", "two origins"])
def test_wrong_handshakes_are_refused_with_a_problem(gateway: GatewayThread, case: str):
    status, request = REFUSED_HANDSHAKES[case]
    with RawWebSocket(gateway.port) as socket:
        socket.send_bytes(request)
        assert socket.read_last_response().problem["status"] == status


def test_an_extension_that_does_not_fit_is_declined(gateway: GatewayThread):
    offer = b"Sec-WebSocket-Extensions: " + DECLINED_EXTENSIONS["unknown extension"]
    with RawWebSocket.open_socket(gateway.port, "/ws", offer) as socket:
        assert "sec-websocket-extensions" not in socket.response.headers
        assert answers(socket)


def test_a_route_that_is_none_is_refused_with_a_problem_and_a_clean_end(gateway: GatewayThread):
    with RawWebSocket(gateway.port) as socket:
        socket.send_bytes(build_handshake("/nowhere?token=hunter2"))
        assert socket.read_last_response().problem["status"] == 404


def test_pages_of_other_sites_are_refused(gateway: GatewayThread):
    with RawWebSocket(gateway.port) as socket:
        socket.send_bytes(
            build_handshake("/ws", b"Origin: https://evil.example", b"Cookie: session=1")
        )
        assert socket.read_last_response().problem["status"] == 403
    with RawWebSocket.open_socket(gateway.port, "/ws", b"Origin: http://localhost") as socket:
        assert answers(socket)


def test_other_upgrades_are_answered_as_http(gateway: GatewayThread):
    with RawWebSocket(gateway.port) as socket:
        socket.send_bytes(build_request("/health/live", b"Connection: Upgrade", b"Upgrade: h2c"))
        assert socket.read_response().status == 200
        socket.send_bytes(
            build_request("/health/live", *UPGRADE_HEADERS[:1], b"Upgrade: websocket, h2c")
        )
        assert socket.read_response().status == 200


def test_binary_messages_are_not_supported(gateway: GatewayThread):
    with RawWebSocket.open_socket(gateway.port) as socket:
        socket.send_bytes(build_frame(OPCODE_BINARY, HELLO))
        said = socket.read_frame()
        assert said.close_code == 1003
        socket.send_bytes(build_close(1003))
        socket.read_close()


def test_compressed_messages_are_heard_and_answered(gateway: GatewayThread):
    with RawWebSocket.open_socket(gateway.port, "/ws", DEFLATE_HEADER) as socket:
        socket.send_bytes(build_frame(OPCODE_TEXT, deflate_payload(HELLO), rsv=4))
        assert json.loads(socket.read_text())["type"] == "pong"
        assert answers(socket)


def test_a_ping_is_answered_between_the_fragments_of_a_message(gateway: GatewayThread):
    with RawWebSocket.open_socket(gateway.port) as socket:
        socket.send_bytes(
            build_frame(OPCODE_TEXT, HELLO[:9], fin=False) + build_frame(OPCODE_PING, b"x")
        )
        assert (said := socket.read_frame()).opcode == OPCODE_PONG and said.payload == b"x"
        socket.send_bytes(build_frame(0, HELLO[9:]))
        assert json.loads(socket.read_text())["type"] == "pong"


def test_a_handshake_may_have_a_resume_token_as_long_as_http_takes(gateway: GatewayThread):
    with RawWebSocket(gateway.port) as socket:
        socket.send_bytes(build_handshake("/events/orders?lastEventId=" + "a" * 40_000))
        assert socket.read_head().status == 101  # that the token is none is said by the stream


def test_no_token_of_a_query_is_logged(gateway: GatewayThread, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    for path in ("/ws?token=hunter2", "/events/orders?token=hunter2"):
        with RawWebSocket(gateway.port) as socket:
            socket.send_bytes(
                build_handshake(path, b"Authorization: Bearer hunter2") + build_frame(3)
            )
            assert socket.read_head().status == 101
            assert socket.read_close_code() == 1002
    assert "hunter2" not in caplog.text


async def test_a_gateway_that_ends_closes_every_socket_with_1012(kafka: EmbeddedKafka):
    async with running_gateway(build_config(kafka.bootstrap, TOPICS)) as gateway:
        with (
            RawWebSocket.open_socket(gateway.port) as idle,
            RawWebSocket.open_socket(gateway.port, "/events/orders") as own,
        ):
            assert answers(idle)
            assert json.loads(own.read_text())["type"] == "begin"
            draining = asyncio.create_task(gateway.drain())
            for socket in (idle, own):
                code = await asyncio.to_thread(goodbye, socket)
                assert code == 1012
            await draining


def goodbye(socket: RawWebSocket) -> int | None:
    while (said := socket.read_frame()).opcode != OPCODE_CLOSE:
        pass
    socket.send_bytes(build_frame(OPCODE_CLOSE, said.payload))
    socket.read_close()
    return said.close_code
