"""Sessions on a WebSocket: who may open one, what is said wrongly, how small it comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.any_topic import serving
from support.bad_messages import Bad, every
from support.brokers import embedded_kafka
from support.gateways import Gateway, config_for, route, running_gateway
from support.multiplex import Multiplex
from support.oracle import Oracle
from support.raw_websocket import DEFLATE, TEXT, Said, Socket
from support.tcp_proxy import TcpProxy
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from gateway.kafka.embedded import EmbeddedKafka

TOPICS = {"orders": 2, "calm": 1}

kafka = embedded_kafka(TOPICS)


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka) -> Iterator[Gateway]:
    """`missing` is configured, and no topic of Kafka."""
    listen = {"websocket": {"compression": True}}
    with serving(config_for(kafka.bootstrap, [*TOPICS, "missing"], listen=listen)) as gateway:
        yield gateway


async def test_what_is_said_wrongly_is_an_error_that_names_it_and_all_streams_go_on(
    gateway: Gateway, oracle: Oracle
):
    bad = list(every())
    assert len(bad) > 100
    async with Multiplex(gateway.base_url) as socket, Multiplex(gateway.base_url) as other:
        for each in (socket, other):
            await each.subscribe("live", "/records/orders")
        for n, case in enumerate(bad):
            await wrong(socket, case)
            if n % 20 == 0:
                await oracle.produce("orders", 3)
        await oracle.produce("orders", 3)
        count = len(oracle.acknowledged())
        for each in (socket, other):
            await each.wait(lambda each=each: each.tally["live"] == count)
            oracle.check_events(
                [event for event in each.events("live") if event["event"] != "error"]
            )
            assert each.code is None
        assert {message["type"] for message in other.said} <= {"begin", "records"}
    assert "Traceback" not in gateway.log and "ERROR" not in gateway.log, gateway.tail()
    print(f"{len(bad)} bad messages")


async def wrong(socket: Multiplex, case: Bad) -> None:
    """It is answered by one error; a good message behind it forgives it."""
    known = len(errors(socket))
    await socket.send(case.text)
    await socket.wait(lambda: len(errors(socket)) > known)
    await socket.answers()
    (error,) = errors(socket)[known:]
    assert (error["code"], error.get("id")) == (case.code, case.id), (case.text[:200], error)
    assert 10 < len(error["message"]) < 500, error


def errors(socket: Multiplex) -> list[dict[str, Any]]:
    return [message for message in socket.said if message["type"] == "error"]


@pytest.mark.parametrize(
    ("messages", "code"), [([b"{}"], 1003), (["{}"] * 16, 1008), (["[" * (1 << 20) + "]"], 1009)]
)
async def test_who_abuses_the_protocol_is_closed_and_its_neighbours_are_not(
    gateway: Gateway, oracle: Oracle, messages: list[Any], code: int
):
    async with Multiplex(gateway.base_url) as socket, Multiplex(gateway.base_url) as other:
        for each in (socket, other):
            await each.subscribe("live", "/records/orders")
        for message in ["{}"] * 15:
            await socket.send(message)
        for n in range(30):  # fifteen are forgiven, and what is only not to be done does not count
            await socket.say("credit", id=f"{n}", n=1)
        for message in messages:
            await socket.send(message)
        assert await socket.closed() == code
        await oracle.produce("orders", 3)
        await other.wait(lambda: other.tally["live"] == 3)


async def test_a_socket_has_so_many_streams_and_no_more(gateway: Gateway, oracle: Oracle):
    async with Multiplex(gateway.base_url) as socket:
        for n in range(100):
            await socket.say("subscribe", id=f"{n}", path="/records/orders")
        await socket.say("subscribe", id="more", path="/records/orders")
        error = await socket.next("more", "error")
        assert error["code"] == "too-many-subscriptions"
        await socket.wait(lambda: all(socket.of(f"{n}", "begin") for n in range(100)))
        await oracle.produce("orders", 5)
        await socket.wait(lambda: all(socket.tally.get(f"{n}") == 5 for n in range(100)))
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
    gateway: Gateway, path: str, origin: str | None, status: int
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


async def test_compressed_messages_are_the_same_smaller_and_shared(
    gateway: Gateway, oracle: Oracle
):
    host, port = gateway.host.removeprefix("http://"), gateway.port
    async with TcpProxy(host, port) as plain, TcpProxy(host, port) as small:
        urls = [f"http://{proxy.address}" for proxy in (plain, small)]
        async with (
            Multiplex(urls[0]) as first,
            Multiplex(urls[1], compression="deflate") as second,
        ):
            with (
                Socket.open(port, "/records/orders", DEFLATE) as one,
                Socket.open(port, "/records/orders", DEFLATE) as two,
            ):
                for each in (one, two):
                    await asyncio.to_thread(each.text)  # begin
                for each in (first, second):
                    await each.subscribe("a", "/records/orders")
                for _ in range(10):
                    await oracle.produce("orders", 50, fields={"pad": "word " * 30})
                for each in (first, second):
                    await each.wait(lambda each=each: each.tally["a"] == 500)
                assert first.records("a") == second.records("a")
                oracle.check_events(second.events("a"))
                print(f"{plain.to_client} bytes, compressed {small.to_client}")
                assert small.to_client < plain.to_client / 3
                heard = [await asyncio.to_thread(frames, each, 500) for each in (one, two)]
                assert heard[0] == heard[1]
                assert any(said.compressed for said in heard[0])


def frames(socket: Socket, count: int) -> list[Said]:
    """As they came, until so many records are there; positions are told while nothing comes."""
    found: list[Said] = []
    while count > 0:
        said = socket.said()
        if said.opcode == TEXT and '"type":"position"' not in said.text:
            found.append(said)
            count -= said.text.count('"offset":')
    return found


async def test_without_kafka_a_route_closes_its_socket_and_a_session_goes_on():
    topic = {"name": "orders", "partitionReadyTimeout": "500ms"}
    async with running_gateway(config_for("127.0.0.1:1", [topic]), ready=False) as gateway:
        async with Multiplex(gateway.base_url, "/records/orders") as own:
            assert await own.closed() == 1013
            assert [each["type"] for each in own.said] == ["error"]
            assert own.said[0]["code"] == "kafka-unavailable"
        async with Multiplex(gateway.base_url) as socket:
            for n in range(2):
                await socket.say("subscribe", id="a", path="/records/orders")
                error = await socket.next("a", "error", n)
                assert error["code"] == "kafka-unavailable"
            await socket.answers()


async def test_a_stream_that_ends_closes_the_socket_of_its_own_path_only(
    kafka: EmbeddedKafka, oracle: Oracle
):
    await oracle.produce("orders", 1)
    brief = route("orders", "envelope", maxLifetime="1s")
    async with running_gateway(config_for(kafka.bootstrap, ["orders"], [brief])) as gateway:
        path = "/records/orders"
        async with Multiplex(gateway.base_url, path) as own, Multiplex(gateway.base_url) as socket:
            await socket.subscribe("a", path)
            assert (await socket.next("a", "end"))["reason"] == "lifetime"
            assert (await own.next(None, "end"))["position"]
            assert await own.closed() == 1000
            await socket.subscribe("a", path, until=1, **{"from": "earliest"})
            assert (await socket.next("a", "end", 1))["reason"] == "until"
