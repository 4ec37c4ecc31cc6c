"""Whatever a WebSocket client sends: the right end, and a stream beside it unharmed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from support.any_topic import serving
from support.bad_frames import BAD_EXTENSIONS, CLOSED, COMPRESSED, CUT, REFUSED, UNFIT_EXTENSIONS
from support.brokers import embedded_kafka
from support.gateways import Gateway, config_for, running_gateway
from support.neighbour import CALM
from support.raw_http import get
from support.raw_websocket import (
    BINARY,
    CLOSE,
    DEFLATE,
    PING,
    PONG,
    TEXT,
    UPGRADE,
    Socket,
    close,
    frame,
    handshake,
    squeezed,
)

from gateway.kafka.embedded import EmbeddedKafka

TOPICS = {"orders": 2, **CALM}
HELLO = b'{"type": "ping", "id": "hello"}'

pytestmark = pytest.mark.usefixtures("unharmed")
kafka = embedded_kafka(TOPICS)


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka) -> Iterator[Gateway]:
    listen = {"websocket": {"compression": True}}
    with serving(config_for(kafka.bootstrap, TOPICS, listen=listen)) as gateway:
        yield gateway


def answers(socket: Socket) -> bool:
    """The session is there."""
    socket.send(frame(TEXT, HELLO))
    return json.loads(socket.text()) == {"type": "pong", "id": "hello"}


@pytest.mark.parametrize("case", CLOSED)
def test_broken_frames_end_with_the_right_code(gateway: Gateway, case: str):
    code, sent = CLOSED[case]
    with Socket.open(gateway.port) as socket:
        socket.send(sent)
        assert socket.closed() == code


@pytest.mark.parametrize("case", COMPRESSED)
def test_broken_compressed_frames_end_with_the_right_code(gateway: Gateway, case: str):
    code, sent = COMPRESSED[case]
    with Socket.open(gateway.port, "/ws", DEFLATE) as socket:
        socket.send(sent)
        assert socket.closed() == code


@pytest.mark.parametrize("case", CUT)
def test_a_client_that_ends_within_a_frame_is_let_go(gateway: Gateway, case: str):
    with Socket.open(gateway.port) as socket:
        socket.send(CUT[case])
        socket.socket.shutdown(1)
        socket.closes()


@pytest.mark.parametrize("case", REFUSED | BAD_EXTENSIONS)
def test_wrong_handshakes_are_refused_with_a_problem(gateway: Gateway, case: str):
    status, request = (REFUSED | BAD_EXTENSIONS)[case]
    with Socket(gateway.port) as socket:
        socket.send(request)
        assert socket.last_answer().problem["status"] == status


@pytest.mark.parametrize("case", UNFIT_EXTENSIONS)
def test_extensions_that_do_not_fit_are_declined(gateway: Gateway, case: str):
    offer = b"Sec-WebSocket-Extensions: " + UNFIT_EXTENSIONS[case]
    with Socket.open(gateway.port, "/ws", offer) as socket:
        assert "sec-websocket-extensions" not in socket.answered.headers
        assert answers(socket)


def test_a_route_that_is_none_is_refused_with_a_problem_and_a_clean_end(gateway: Gateway):
    with Socket(gateway.port) as socket:
        socket.send(handshake("/nowhere?token=hunter2"))
        assert socket.last_answer().problem["status"] == 404


def test_pages_of_other_sites_are_refused(gateway: Gateway):
    with Socket(gateway.port) as socket:
        socket.send(handshake("/ws", b"Origin: https://evil.example", b"Cookie: session=1"))
        assert socket.last_answer().problem["status"] == 403
    with Socket.open(gateway.port, "/ws", b"Origin: http://localhost") as socket:
        assert answers(socket)


def test_other_upgrades_are_answered_as_http(gateway: Gateway):
    with Socket(gateway.port) as socket:
        socket.send(get("/health/live", b"Connection: Upgrade", b"Upgrade: h2c"))
        assert socket.answer().status == 200
        socket.send(get("/health/live", *UPGRADE[:1], b"Upgrade: websocket, h2c"))
        assert socket.answer().status == 200


def test_binary_messages_are_not_supported(gateway: Gateway):
    with Socket.open(gateway.port) as socket:
        socket.send(frame(BINARY, HELLO))
        said = socket.said()
        assert said.code == 1003
        socket.send(close(1003))
        socket.closes()


def test_compressed_messages_are_heard_and_answered(gateway: Gateway):
    with Socket.open(gateway.port, "/ws", DEFLATE) as socket:
        socket.send(frame(TEXT, squeezed(HELLO), rsv=4))
        assert json.loads(socket.text())["type"] == "pong"
        assert answers(socket)


def test_a_ping_is_answered_between_the_fragments_of_a_message(gateway: Gateway):
    with Socket.open(gateway.port) as socket:
        socket.send(frame(TEXT, HELLO[:9], fin=False) + frame(PING, b"x"))
        assert (said := socket.said()).opcode == PONG and said.payload == b"x"
        socket.send(frame(0, HELLO[9:]))
        assert json.loads(socket.text())["type"] == "pong"


def test_a_handshake_may_have_a_resume_token_as_long_as_http_takes(gateway: Gateway):
    with Socket(gateway.port) as socket:
        socket.send(handshake("/events/orders?lastEventId=" + "a" * 40_000))
        status = socket.answer_head().status
        assert status in (101, 400)  # not 414: that the token is none is said by the stream


def test_no_token_of_a_query_is_logged(gateway: Gateway):
    for path in ("/ws?token=hunter2", "/events/orders?token=hunter2"):
        with Socket(gateway.port) as socket:
            socket.send(handshake(path, b"Authorization: Bearer hunter2") + frame(3))
            assert socket.answer_head().status in (101, 400)
            assert socket.closed() == 1002
    assert "hunter2" not in gateway.log


async def test_a_gateway_that_ends_closes_every_socket_with_1012(kafka: EmbeddedKafka):
    async with running_gateway(config_for(kafka.bootstrap, TOPICS)) as gateway:
        with Socket.open(gateway.port) as idle, Socket.open(gateway.port, "/events/orders") as own:
            assert answers(idle)
            assert json.loads(own.text())["type"] == "begin"
            stopping = asyncio.create_task(gateway.stop())
            for socket in (idle, own):
                code = await asyncio.to_thread(goodbye, socket)
                assert code == 1012
            assert await stopping == 0


def goodbye(socket: Socket) -> int | None:
    while (said := socket.said()).opcode != CLOSE:
        pass
    socket.send(frame(CLOSE, said.payload))
    socket.closes()
    return said.code
