"""How sockets end: with the gateway, by a drain that loses nothing, or with their client, in any
state and leaving nothing behind."""

from __future__ import annotations

import asyncio
import socket as sockets
from collections import Counter
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest
from support.brokers import embedded_kafka
from support.clients.websocket import WebSocketClient
from support.gateways import build_config, build_route, find_failures, running_gateway
from support.in_process_gateway import running_in_process_gateway
from support.leaks import ProcessResources, collect_resources
from support.multiplex import MESSAGE_TIMEOUT_S, MultiplexClient
from support.oracle import StreamOracle
from support.received import parse_events
from support.waiting import wait_until

from gateway.core.log.record import TopicPartition
from gateway.kafka.embedded import EmbeddedKafka

TOPICS = {"orders": 3, "large": 1, "stock": 1}
ZERO = {TopicPartition("orders", p): 0 for p in range(3)}
SOCKETS = 70  # ten in each state
BEFORE = 14  # of them, until all is there that stays

kafka = embedded_kafka(TOPICS, scope="function")


def config(kafka: EmbeddedKafka) -> dict[str, Any]:
    return build_config(
        kafka.bootstrap, TOPICS, [build_route(name, "envelope", produce=True) for name in TOPICS]
    )


def small_buffer(url: str) -> sockets.socket:
    """A connection of one that is felt soon when it does not read."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    made = sockets.socket()
    made.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 16_384)
    made.connect((host, int(port)))
    made.setblocking(False)
    return made


async def blocked(stack: AsyncExitStack, url: str, streams: int) -> MultiplexClient:
    """A client that asks for much and reads nothing."""
    never = MultiplexClient(url, sock=small_buffer(url), max_queue=1)
    never.is_reading.clear()
    await stack.enter_async_context(never)
    for n in range(streams):
        await never.send_message(
            "subscribe", id=f"{n}", path="/records/large", **{"from": "earliest"}
        )
    return never


async def test_a_drain_ends_every_stream_with_its_position_and_they_go_on_elsewhere(
    kafka: EmbeddedKafka, oracle: StreamOracle, caplog: pytest.LogCaptureFixture
):
    """Also those that are being changed at that moment, and beside one that never reads."""
    await oracle.produce_records("large", 300, fields={"pad": "x" * 10_000})
    async with (
        running_gateway(config(kafka)) as gateway,
        running_gateway(config(kafka)) as other,
        AsyncExitStack() as stack,
    ):
        await blocked(stack, gateway.base_url, 5)
        own = await stack.enter_async_context(
            WebSocketClient(f"{gateway.base_url}/records/orders", retry=0.2)
        )
        idle, many, opening = [
            await stack.enter_async_context(MultiplexClient(gateway.base_url)) for _ in range(3)
        ]
        for n in range(20):
            await many.subscribe(f"{n}", "/records/orders")
        await own.wait_for_events(1)
        over = asyncio.Event()

        async def write() -> None:
            while not over.is_set():
                await oracle.produce_records("orders", 10)
                await asyncio.sleep(0.01)

        writing = asyncio.create_task(write())
        await many.wait_until(
            lambda: min(many.record_counts.get(f"{n}", 0) for n in range(20)) > 50
        )
        own.set_server(other.base_url)
        draining = asyncio.create_task(gateway.drain())
        for n in range(90):
            await say(opening, "subscribe", id=f"{n}", path="/records/orders")
            await say(opening, "change", id=f"{n}", path="/records/stock")
        for each in (idle, many, opening):
            assert await each.wait_closed() == 1012
        for label in (f"{n}" for n in range(20)):
            (end,) = many.get_messages(label, "end")
            assert end["reason"] == "drain" and end["position"] == many.get_last_position(label)
            assert many.get_messages(label)[-1] == end
        begun = {message["id"] for message in opening.messages if message["type"] == "begin"}
        assert begun == {message["id"] for message in opening.messages if message["type"] == "end"}
        await draining
        assert not find_failures(caplog)

        again = await stack.enter_async_context(MultiplexClient(other.base_url))
        for n in range(20):
            position = many.get_last_position(f"{n}")
            await again.subscribe(f"{n}", "/records/orders", lastEventId=position)
        await again.wait_until(
            lambda: min(again.record_counts.get(f"{n}", 0) for n in range(20)) > 50
        )
        over.set()
        await writing
        count = sum(map(orders, oracle.list_acked()))
        for n in range(20):
            await again.wait_until(
                lambda n=n: many.record_counts[f"{n}"] + again.record_counts[f"{n}"] >= count
            )
            events = [*many.get_events(f"{n}"), *again.get_events(f"{n}")]
            oracle.check_events(events, start=ZERO, view=orders)
        await own.wait_for_events(
            lambda events: len(parse_events(events)) >= count, MESSAGE_TIMEOUT_S
        )
        oracle.check_events(own.events, start=ZERO, view=orders)
        assert own.close_codes == [1012] and own.open_count == 2


async def test_a_stream_that_is_being_opened_when_the_gateway_drains_is_told(kafka: EmbeddedKafka):
    """It was not among those that were told to end, and its client heard nothing."""
    async with (
        running_in_process_gateway(config(kafka)) as (url, app),
        MultiplexClient(url) as socket,
        MultiplexClient(url) as idle,
        MultiplexClient(url) as late,
    ):
        await idle.wait_for_pong()
        await late.subscribe("a", "/records/stock")
        for n in range(20):
            await socket.send_message("subscribe", id=f"{n}", path="/records/orders")
        await wait_until(lambda: app.gateway.hub.topics.held_topics, interval_s=0)
        await late.send_message("change", id="a", path="/records/large")
        app.state.hubs.drain()
        for each in (socket, idle, late):
            assert await each.wait_closed() == 1012
        begun = {message["id"] for message in socket.messages if message["type"] == "begin"}
        ends = {message["id"]: message for message in socket.messages if message["type"] == "end"}
        assert begun == ends.keys() and begun
        assert all(end["reason"] == "drain" and end["position"] for end in ends.values())
        assert late.get_messages("a")[-1]["reason"] == "drain"
        assert not app.gateway.hub.clients and not app.state.hubs.drain_callbacks


async def say(socket: MultiplexClient, kind: str, **members: Any) -> None:
    """To one that may be closed meanwhile."""
    try:
        await socket.send_message(kind, **members)
    except Exception:
        await socket.wait_closed()


def describe_follower(follower: Any) -> str:
    """What still follows a channel, for the message of a failure."""
    names = ("end_reason", "delivery", "private_reader", "last_joined_at")
    known = {name: getattr(follower, name) for name in names if hasattr(follower, name)}
    return f"{type(follower).__name__} {known}"


def orders(acked: Any) -> bool:
    return bool(acked.tp.topic == "orders")


def collect_left(before: ProcessResources) -> list[Counter[str]]:
    """What is there and was not before, but for connections to Kafka, which are kept."""
    tasks, threads, files = collect_resources() - before
    files["socket"] -= 2 * tasks.pop("AIOKafkaConnection._read", 0)  # Kafka is in this process
    return [each for each in (tasks, threads, +files) if each]


async def test_sockets_that_come_and_go_in_every_state_leave_nothing_behind(
    kafka: EmbeddedKafka, oracle: StreamOracle
):
    await oracle.produce_records("large", 300, fields={"pad": "x" * 10_000})
    async with running_in_process_gateway(config(kafka)) as (url, app):
        hub = app.gateway.hub
        async with AsyncExitStack() as stack:
            await blocked(stack, url, 3)
            for n in range(BEFORE):
                await come_and_go(url, oracle, n)
        leaving = app.state.hubs.drain_callbacks
        await wait_until(
            lambda: not hub.clients and not leaving, "the first ones' end", MESSAGE_TIMEOUT_S
        )
        await wait_until(
            lambda: not any("run_asgi" in name for name in collect_resources().tasks),
            "their requests",
        )
        before = collect_resources()
        async with AsyncExitStack() as stack:
            for n in range(SOCKETS):
                if n % 20 == 0:
                    await blocked(stack, url, 3)
                else:
                    await come_and_go(url, oracle, n)
            await wait_until(lambda: len(hub.clients) >= SOCKETS // 20 * 3, "those that stay")
        await wait_until(
            lambda: not hub.clients and not leaving, lambda: f"{hub.clients}", MESSAGE_TIMEOUT_S
        )
        await wait_until(lambda: not collect_left(before), lambda: f"left: {collect_left(before)}")
        channels = [c for shared in hub.iter_tails() for c in shared.channels.values()]
        await wait_until(
            lambda: not any(c.followers for c in channels),
            lambda: f"left: {[describe_follower(f) for c in channels for f in c.followers]}",
            MESSAGE_TIMEOUT_S,
        )


async def test_a_socket_that_is_idle_has_no_task_and_no_handshake(kafka: EmbeddedKafka):
    async with running_in_process_gateway(config(kafka)) as (url, app), AsyncExitStack() as stack:
        quiet = {"ping_interval": None}  # or each client would have a task for it
        first = await stack.enter_async_context(MultiplexClient(url, "/records/orders", **quiet))
        await first.wait_for_message(None, "begin")
        await wait_until(lambda: not serving(), "the end of its handshake")
        before = collect_resources().tasks
        sockets = [
            await stack.enter_async_context(MultiplexClient(url, path, **quiet))
            for path in ("/records/orders", "/ws") * 20
        ]
        for n, each in enumerate(sockets):
            if n % 2:
                await each.subscribe("a", "/records/stock")
            else:
                await each.wait_for_message(None, "begin")
        await wait_until(lambda: not serving(), "the end of their handshakes")
        more = (
            collect_resources().tasks - before
        )  # some of Kafka's; of each client the one that reads it
        assert [name for name, count in more.items() if count >= 10] == [
            "MultiplexClient._read_messages"
        ]
        assert len(app.gateway.hub.clients) == 41


def serving() -> bool:
    return any("WebSocketProtocol" in name for name in collect_resources().tasks)


async def test_no_client_gets_a_byte_that_is_for_another_when_numbers_of_connections_are_reused(
    kafka: EmbeddedKafka, oracle: StreamOracle
):
    """Frames go past the transport to a descriptor; its number is another client's at once."""
    random, topics = Random(5), ("orders", "stock")
    async with running_in_process_gateway(config(kafka)) as (url, app):
        over = asyncio.Event()

        async def write() -> None:
            while not over.is_set():
                for topic in topics:
                    await oracle.produce_records(topic, 5)
                await asyncio.sleep(0)

        writing = asyncio.create_task(write())
        present: list[tuple[str, MultiplexClient]] = []
        seen = 0
        for n in range(150):
            topic = topics[n % 2]
            socket = await MultiplexClient(url, f"/records/{topic}").__aenter__()
            present.append((topic, socket))
            if len(present) > 12:
                topic, socket = present.pop(random.randrange(len(present)))
                seen += only(topic, socket)
                socket.socket.transport.abort()
                await socket.__aexit__()
        for topic, socket in present:
            await socket.wait_until(lambda socket=socket: socket.record_counts.get(None, 0) > 10)
            seen += only(topic, socket)
            await socket.__aexit__()
        over.set()
        await writing
        assert seen > 500
        await wait_until(
            lambda: not app.gateway.hub.clients, "the end of the subscriptions", MESSAGE_TIMEOUT_S
        )


def only(topic: str, socket: MultiplexClient) -> int:
    """Its records, all of them of this topic; it was not closed, as for a broken frame."""
    assert socket.close_code is None
    assert {record["topic"] for record in socket.get_records(None)} <= {topic}
    assert {begin["topics"][0] for begin in socket.get_messages(None, "begin")} <= {topic}
    return len(socket.get_records(None))


async def come_and_go(url: str, oracle: StreamOracle, n: int) -> None:
    """In one of the states that a session can be in, cut off."""
    state, path = n % 7, "/records/orders"
    if state == 0:
        async with MultiplexClient(url, path) as own:
            await own.wait_for_message(None, "begin")
        return
    async with MultiplexClient(url) as socket:
        if state == 1:
            return
        for label in "abc":
            if state == 2:
                await socket.send_message("subscribe", id=label, path=path)
            else:
                await socket.subscribe(label, path, **({"credit": 1} if state == 3 else {}))
        if state == 4:
            for topic in ("stock", "orders", "stock"):
                await socket.send_message("change", id="a", path=f"/records/{topic}")
        elif state == 5:
            for number in range(5):
                await socket.send_message(
                    "produce", id=f"{number}", path="/records/stock", value=number
                )
        elif state == 6:
            await socket.send_message("unsubscribe", id="a")
            await socket.socket.close()
        elif state == 3:
            await oracle.produce_records("orders", 5)
            await socket.wait_until(lambda: socket.record_counts.get("c") == 1)
