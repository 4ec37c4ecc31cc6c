"""Whatever a WebSocket client sends: the right end, and a stream beside it unharmed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from support.bad_frames import (
    CLOSING_CASES,
    DECLINED_EXTENSIONS,
    INVALID_COMPRESSED,
    INVALID_EXTENSIONS,
    REFUSED_HANDSHAKES,
    TRUNCATED_FRAMES,
)
from support.brokers import embedded_kafka
from support.gateways import GatewayProcess, build_config, running_gateway_process
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
def gateway(kafka: EmbeddedKafka) -> Iterator[GatewayProcess]:
    listen = {"websocket": {"compression": True}}
    with run_gateway_sync(build_config(kafka.bootstrap, TOPICS, listen=listen)) as gateway:
        yield gateway


def answers(socket: RawWebSocket) -> bool:
    """The session is there."""
    socket.send_bytes(build_frame(OPCODE_TEXT, HELLO))
    return json.loads(socket.read_text()) == {"type": "pong", "id": "hello"}


@pytest.mark.parametrize("case", CLOSING_CASES)
def test_broken_frames_end_with_the_right_code(gateway: GatewayProcess, case: str):
    code, sent = CLOSING_CASES[case]
    with RawWebSocket.open_socket(gateway.port) as socket:
        socket.send_bytes(sent)
        assert socket.read_close_code() == code


@pytest.mark.parametrize("case", INVALID_COMPRESSED)
def test_broken_compressed_frames_end_with_the_right_code(gateway: GatewayProcess, case: str):
    code, sent = INVALID_COMPRESSED[case]
    with RawWebSocket.open_socket(gateway.port, "/ws", DEFLATE_HEADER) as socket:
        socket.send_bytes(sent)
        assert socket.read_close_code() == code


@pytest.mark.parametrize("case", TRUNCATED_FRAMES)
def test_a_client_that_ends_within_a_frame_is_let_go(gateway: GatewayProcess, case: str):
    with RawWebSocket.open_socket(gateway.port) as socket:
        socket.send_bytes(TRUNCATED_FRAMES[case])
        socket.socket.shutdown(1)
        socket.read_close()


@pytest.mark.parametrize("case", REFUSED_HANDSHAKES | INVALID_EXTENSIONS)
def test_wrong_handshakes_are_refused_with_a_problem(gateway: GatewayProcess, case: str):
    status, request = (REFUSED_HANDSHAKES | INVALID_EXTENSIONS)[case]
    with RawWebSocket(gateway.port) as socket:
        socket.send_bytes(request)
        assert socket.read_last_response().problem["status"] == status


@pytest.mark.parametrize("case", DECLINED_EXTENSIONS)
def test_extensions_that_do_not_fit_are_declined(gateway: GatewayProcess, case: str):
    offer = b"Sec-WebSocket-Extensions: " + DECLINED_EXTENSIONS[case]
    with RawWebSocket.open_socket(gateway.port, "/ws", offer) as socket:
        assert "sec-websocket-extensions" not in socket.response.headers
        assert answers(socket)


def test_a_route_that_is_none_is_refused_with_a_problem_and_a_clean_end(gateway: GatewayProcess):
    with RawWebSocket(gateway.port) as socket:
        socket.send_bytes(build_handshake("/nowhere?token=hunter2"))
        assert socket.read_last_response().problem["status"] == 404


def test_pages_of_other_sites_are_refused(gateway: GatewayProcess):
    with RawWebSocket(gateway.port) as socket:
        socket.send_bytes(
            build_handshake("/ws", b"Origin: https://evil.example", b"Cookie: session=1")
        )
        assert socket.read_last_response().problem["status"] == 403
    with RawWebSocket.open_socket(gateway.port, "/ws", b"Origin: http://localhost") as socket:
        assert answers(socket)


def test_other_upgrades_are_answered_as_http(gateway: GatewayProcess):
    with RawWebSocket(gateway.port) as socket:
        socket.send_bytes(build_request("/health/live", b"Connection: Upgrade", b"Upgrade: h2c"))
        assert socket.read_response().status == 200
        socket.send_bytes(
            build_request("/health/live", *UPGRADE_HEADERS[:1], b"Upgrade: websocket, h2c")
        )
        assert socket.read_response().status == 200


def test_binary_messages_are_not_supported(gateway: GatewayProcess):
    with RawWebSocket.open_socket(gateway.port) as socket:
        socket.send_bytes(build_frame(OPCODE_BINARY, HELLO))
        said = socket.read_frame()
        assert said.close_code == 1003
        socket.send_bytes(build_close(1003))
        socket.read_close()


def test_compressed_messages_are_heard_and_answered(gateway: GatewayProcess):
    with RawWebSocket.open_socket(gateway.port, "/ws", DEFLATE_HEADER) as socket:
        socket.send_bytes(build_frame(OPCODE_TEXT, deflate_payload(HELLO), rsv=4))
        assert json.loads(socket.read_text())["type"] == "pong"
        assert answers(socket)


def test_a_ping_is_answered_between_the_fragments_of_a_message(gateway: GatewayProcess):
    with RawWebSocket.open_socket(gateway.port) as socket:
        socket.send_bytes(
            build_frame(OPCODE_TEXT, HELLO[:9], fin=False) + build_frame(OPCODE_PING, b"x")
        )
        assert (said := socket.read_frame()).opcode == OPCODE_PONG and said.payload == b"x"
        socket.send_bytes(build_frame(0, HELLO[9:]))
        assert json.loads(socket.read_text())["type"] == "pong"


def test_a_handshake_may_have_a_resume_token_as_long_as_http_takes(gateway: GatewayProcess):
    with RawWebSocket(gateway.port) as socket:
        socket.send_bytes(build_handshake("/events/orders?lastEventId=" + "a" * 40_000))
        status = socket.read_head().status
        assert status in (101, 400)  # not 414: that the token is none is said by the stream


def test_no_token_of_a_query_is_logged(gateway: GatewayProcess):
    for path in ("/ws?token=hunter2", "/events/orders?token=hunter2"):
        with RawWebSocket(gateway.port) as socket:
            socket.send_bytes(
                build_handshake(path, b"Authorization: Bearer hunter2") + build_frame(3)
            )
            assert socket.read_head().status in (101, 400)
            assert socket.read_close_code() == 1002
    assert "hunter2" not in gateway.log


async def test_a_gateway_that_ends_closes_every_socket_with_1012(kafka: EmbeddedKafka):
    async with running_gateway_process(build_config(kafka.bootstrap, TOPICS)) as gateway:
        with (
            RawWebSocket.open_socket(gateway.port) as idle,
            RawWebSocket.open_socket(gateway.port, "/events/orders") as own,
        ):
            assert answers(idle)
            assert json.loads(own.read_text())["type"] == "begin"
            stopping = asyncio.create_task(gateway.stop())
            for socket in (idle, own):
                code = await asyncio.to_thread(goodbye, socket)
                assert code == 1012
            assert await stopping == 0


def goodbye(socket: RawWebSocket) -> int | None:
    while (said := socket.read_frame()).opcode != OPCODE_CLOSE:
        pass
    socket.send_bytes(build_frame(OPCODE_CLOSE, said.payload))
    socket.read_close()
    return said.close_code
