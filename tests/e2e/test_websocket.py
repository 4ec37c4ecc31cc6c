"""Sessions on a WebSocket: who may open one, what is said wrongly, how small it comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.bad_messages import BadMessage, iter_bad_messages
from support.brokers import embedded_kafka
from support.gateways import (
    GatewayThread,
    build_config,
    build_route,
    find_failures,
    running_gateway,
)
from support.grouped import ERROR_NAMES
from support.multiplex import MultiplexClient
from support.oracle import StreamOracle
from support.raw_websocket import (
    DEFLATE_HEADER,
    OPCODE_TEXT,
    RawWebSocket,
    ServerFrame,
    build_handshake,
)
from support.tcp_proxy import TcpProxy
from support.topic_gateway import run_gateway_sync
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from gateway.kafka.embedded import EmbeddedKafka

TOPICS = {"orders": 2, "calm": 1}

kafka = embedded_kafka(TOPICS)


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka) -> Iterator[GatewayThread]:
    """`missing` is configured, and no topic of Kafka."""
    listen = {"websocket": {"compression": True}}
    with run_gateway_sync(
        build_config(kafka.bootstrap, [*TOPICS, "missing"], listen=listen)
    ) as gateway:
        yield gateway


async def test_what_is_said_wrongly_is_an_error_that_names_it_and_all_streams_go_on(
    gateway: GatewayThread, oracle: StreamOracle, caplog: pytest.LogCaptureFixture
):
    bad = list(iter_bad_messages())
    assert len(bad) > 100
    async with (
        MultiplexClient(gateway.base_url) as socket,
        MultiplexClient(gateway.base_url) as other,
    ):
        for each in (socket, other):
            await each.subscribe("live", "/records/orders")
        for n, case in enumerate(bad):
            await wrong(socket, case)
            if n % 20 == 0:
                await oracle.produce_records("orders", 3)
        await oracle.produce_records("orders", 3)
        count = len(oracle.list_acked())
        for each in (socket, other):
            await each.wait_until(lambda each=each: each.record_counts["live"] == count)
            oracle.check_events(
                [event for event in each.get_events("live") if event["event"] not in ERROR_NAMES]
            )
            assert each.close_code is None
        assert {message["type"] for message in other.messages} <= {"begin", "records"}
    assert not find_failures(caplog)


async def wrong(socket: MultiplexClient, case: BadMessage) -> None:
    """It is answered by one error; a good message behind it forgives it."""
    known = len(errors(socket))
    await socket.send(case.text)
    await socket.wait_until(lambda: len(errors(socket)) > known)
    await socket.wait_for_pong()
    (error,) = errors(socket)[known:]
    assert (error["code"], error.get("id")) == (case.code, case.id), (case.text[:200], error)
    assert 10 < len(error["message"]) < 500, error


def errors(socket: MultiplexClient) -> list[dict[str, Any]]:
    return [message for message in socket.messages if message["type"] == "error"]


@pytest.mark.parametrize(
    ("messages", "code"), [([b"{}"], 1003), (["{}"] * 16, 1008), (["[" * (1 << 20) + "]"], 1009)]
)
async def test_who_abuses_the_protocol_is_closed_and_its_neighbours_are_not(
    gateway: GatewayThread, oracle: StreamOracle, messages: list[Any], code: int
):
    async with (
        MultiplexClient(gateway.base_url) as socket,
        MultiplexClient(gateway.base_url) as other,
    ):
        for each in (socket, other):
            await each.subscribe("live", "/records/orders")
        for message in ["{}"] * 15:
            await socket.send(message)
        for n in range(30):  # fifteen are forgiven, and what is only not to be done does not count
            await socket.send_message("credit", id=f"{n}", n=1)
        for message in messages:
            await socket.send(message)
        assert await socket.wait_closed() == code
        await oracle.produce_records("orders", 3)
        await other.wait_until(lambda: other.record_counts["live"] == 3)


async def test_a_socket_has_so_many_streams_and_no_more(
    gateway: GatewayThread, oracle: StreamOracle
):
    async with MultiplexClient(gateway.base_url) as socket:
        for n in range(100):
            await socket.send_message("subscribe", id=f"{n}", path="/records/orders")
        await socket.send_message("subscribe", id="more", path="/records/orders")
        error = await socket.wait_for_message("more", "error")
        assert error["code"] == "too-many-subscriptions"
        await socket.wait_until(
            lambda: all(socket.get_messages(f"{n}", "begin") for n in range(100))
        )
        await oracle.produce_records("orders", 5)
        await socket.wait_until(
            lambda: all(socket.record_counts.get(f"{n}") == 5 for n in range(100))
        )
        await socket.unsubscribe("7")
        await socket.subscribe("more", "/records/orders")


ORIGINS: list[tuple[str, str | None, int]] = [
    ("/ws", "https://evil.example", 403),
    ("/records/orders", "https://evil.example", 403),
    ("/ws", "null", 403),
    ("/ws", "http://{host}", 101),
    ("/records/orders", "https://{host}", 101),  # a proxy ends TLS
    ("/records/orders", "http://{host}", 101),
    ("/ws", None, 101),
    ("/nowhere", None, 404),
    ("/nowhere", "http://{host}", 404),
]


@pytest.mark.parametrize(("path", "origin", "status"), ORIGINS)
async def test_pages_of_other_sites_and_paths_of_no_route_are_refused_with_a_problem(
    gateway: GatewayThread, path: str, origin: str | None, status: int
):
    host = gateway.base_url.removeprefix("http://")
    told: Any = origin and origin.format(host=host)
    try:
        async with connect(f"ws://{host}{path}", origin=told, proxy=None):
            answered = 101
    except InvalidStatus as refused:
        response = refused.response
        answered = response.status_code
        assert response.headers["Content-Type"] == "application/problem+json"
        assert json.loads(response.body or b"")["status"] == answered
    assert answered == status


def test_a_handshake_may_have_a_resume_token_as_long_as_http_takes(gateway: GatewayThread):
    with RawWebSocket(gateway.port) as socket:
        socket.send_bytes(build_handshake("/records/orders?lastEventId=" + "a" * 40_000))
        assert socket.read_head().status == 101  # that the token is none is said by the stream


async def test_compressed_messages_are_the_same_smaller_and_shared(
    gateway: GatewayThread, oracle: StreamOracle
):
    host, port = "127.0.0.1", gateway.port
    async with TcpProxy(host, port) as plain, TcpProxy(host, port) as small:
        urls = [f"http://{proxy.address}" for proxy in (plain, small)]
        async with (
            MultiplexClient(urls[0]) as first,
            MultiplexClient(urls[1], compression="deflate") as second,
        ):
            with (
                RawWebSocket.open_socket(port, "/records/orders", DEFLATE_HEADER) as one,
                RawWebSocket.open_socket(port, "/records/orders", DEFLATE_HEADER) as two,
            ):
                for each in (one, two):
                    await asyncio.to_thread(each.read_text)  # begin
                for each in (first, second):
                    await each.subscribe("a", "/records/orders")
                for _ in range(10):
                    await oracle.produce_records("orders", 50, fields={"pad": "word " * 30})
                for each in (first, second):
                    await each.wait_until(lambda each=each: each.record_counts["a"] == 500)
                assert first.get_records("a") == second.get_records("a")
                oracle.check_events(second.get_events("a"))
                print(f"{plain.bytes_to_client} bytes, compressed {small.bytes_to_client}")
                assert small.bytes_to_client < plain.bytes_to_client / 3
                heard = [await asyncio.to_thread(frames, each, 500) for each in (one, two)]
                assert heard[0] == heard[1]
                assert any(said.is_compressed for said in heard[0])


def frames(socket: RawWebSocket, count: int) -> list[ServerFrame]:
    """As they came, until so many records are there; positions are told while nothing comes."""
    found: list[ServerFrame] = []
    while count > 0:
        said = socket.read_frame()
        if said.opcode == OPCODE_TEXT and '"type":"position"' not in said.message_text:
            found.append(said)
            count -= said.message_text.count('"offset":')
    return found


async def test_without_kafka_a_route_closes_its_socket_and_a_session_goes_on():
    topic = {"name": "orders", "partitionReadyTimeout": "500ms"}
    async with running_gateway(build_config("127.0.0.1:1", [topic]), ready=False) as gateway:
        async with MultiplexClient(gateway.base_url, "/records/orders") as own:
            assert await own.wait_closed() == 1013
            assert [each["type"] for each in own.messages] == ["error"]
            assert own.messages[0]["code"] == "kafka-unavailable"
        async with MultiplexClient(gateway.base_url) as socket:
            for n in range(2):
                await socket.send_message("subscribe", id="a", path="/records/orders")
                error = await socket.wait_for_message("a", "error", n)
                assert error["code"] == "kafka-unavailable"
            await socket.wait_for_pong()


async def test_a_stream_that_ends_closes_the_socket_of_its_own_path_only(
    kafka: EmbeddedKafka, oracle: StreamOracle
):
    await oracle.produce_records("orders", 1)
    brief = build_route("orders", "envelope", maxLifetime="1s")
    async with running_gateway(build_config(kafka.bootstrap, ["orders"], [brief])) as gateway:
        path = "/records/orders"
        async with (
            MultiplexClient(gateway.base_url, path) as own,
            MultiplexClient(gateway.base_url) as socket,
        ):
            await socket.subscribe("a", path)
            assert (await socket.wait_for_message("a", "end"))["reason"] == "lifetime"
            assert (await own.wait_for_message(None, "end"))["position"]
            assert await own.wait_closed() == 1000
            await socket.subscribe("a", path, until=1, **{"from": "earliest"})
            assert (await socket.wait_for_message("a", "end", 1))["reason"] == "until"
