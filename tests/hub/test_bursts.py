"""Bursts of records, and clients who fall behind in them, through a whole hub."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaProducer
from support.gateways import build_config
from support.isolation import ViewRequest
from support.ndjson_parser import NdjsonParser
from support.topic_reads import open_cluster
from support.waiting import wait_until

from gateway.config import Settings
from gateway.core.client.terms import EndReason, SlowClientPolicy
from gateway.core.token.resume_token import parse_token
from gateway.hub.fanout.client import Client, ClientOptions
from gateway.hub.fanout.hub import Hub
from gateway.hub.reads.position_resolver import StreamStart
from gateway.hub.wires.ndjson import NdjsonWire
from gateway.hub.wires.sse import SseWire
from gateway.hub.wires.wire import Wire
from gateway.kafka.embedded import EmbeddedKafka

VIEW = ViewRequest(topics=("orders",), identity="ada").view


class BoundedOutlet:
    """Takes `writes` times what it is given, and is full then."""

    transport = None

    def __init__(self, writes: float = float("inf")) -> None:
        self.received = b""
        self.end_data = b""
        self._writes_left = writes

    @property
    def full(self) -> bool:
        return self._writes_left <= 0

    @property
    def record_count(self) -> int:
        return self.received.count(b'"pad"')

    def write(self, data: bytes) -> None:
        self.received += data
        self._writes_left -= 1

    def finish(self, data: bytes) -> None:
        self.end_data = data

    def hand_over(self) -> None: ...


class OrdersHub:
    """A hub that shows the topic `orders`, and who writes to it."""

    def __init__(self, hub: Hub, producer: AIOKafkaProducer) -> None:
        self.hub = hub
        self._producer = producer

    async def follow_orders(
        self,
        outlet: BoundedOutlet,
        wire: Wire,
        last_event_id: str = "",
        slow_policy: SlowClientPolicy = SlowClientPolicy.CATCH_UP,
        heartbeat: float = 60.0,
    ) -> Client:
        start = StreamStart(parse_token(last_event_id) if last_event_id else None, "live")
        client = await self.hub.subscribe(VIEW, start, wire, ClientOptions(heartbeat, slow_policy))
        await client.wait_until_ready()
        client.attach(outlet)
        return client

    async def write_orders(self, count: int, size: int) -> None:
        pad = b"x" * size
        sent = [
            await self._producer.send("orders", b'{"n":%d,"pad":"%b"}' % (n, pad))
            for n in range(count)
        ]
        for each in sent:
            await each


@asynccontextmanager
async def orders(kafka: EmbeddedKafka) -> AsyncIterator[OrdersHub]:
    kafka.create_topic("orders", 1)
    settings = Settings.model_validate(build_config(kafka.bootstrap, ["orders"]))
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, max_batch_size=1 << 20)
    async with producer, open_cluster(kafka.bootstrap) as kafkas:
        hub = Hub(kafkas, settings)
        await hub.start()
        try:
            yield OrdersHub(hub, producer)
        finally:
            await hub.close()


async def start_three_clients(
    orders_hub: OrdersHub, wire: Wire, writes: int
) -> tuple[list[Client], list[BoundedOutlet]]:
    """Clients who missed 400 KB alike, and take so many writes of it."""
    first = BoundedOutlet()
    await orders_hub.follow_orders(first, NdjsonWire(True))
    parser = NdjsonParser()
    parser.feed(first.received)
    for _ in range(200):
        await orders_hub.write_orders(1, 2000)
    outlets = [BoundedOutlet(writes) for _ in range(3)]
    clients = [await orders_hub.follow_orders(each, wire, parser.last_event_id) for each in outlets]
    await wait_until(lambda: all(outlet.full for outlet in outlets))
    await wait_until(lambda: sum(client.shared_catch_up is not None for client in clients) >= 2)
    return clients, outlets


@pytest.mark.parametrize("slow", [SlowClientPolicy.DISCONNECT, SlowClientPolicy.SKIP])
async def test_who_takes_everything_at_once_is_not_slow_in_a_burst(embedded, slow):
    """A burst was published slice by slice before the first one was written to anybody."""
    async with orders(embedded) as shown:
        outlets = [BoundedOutlet() for _ in range(10)]
        for outlet in outlets:
            await shown.follow_orders(outlet, SseWire(), slow_policy=slow)
        await shown.write_orders(1, 200)  # the time that it takes tells how large the next slice is
        for burst in range(2):
            await shown.write_orders(4000, 500)
            told = 1 + 4000 * (burst + 1)
            await wait_until(lambda told=told: {each.record_count for each in outlets} == {told})
        assert not any(outlet.end_data or b"event: gap" in outlet.received for outlet in outlets)


async def test_heartbeats_go_on_while_members_of_a_herd_take_nothing(embedded: EmbeddedKafka):
    """The chunk at which a member had left its channel was looked for when it was there no more,
    and no stream of the process had a heartbeat from then on."""
    async with orders(embedded) as shown:
        await start_three_clients(shown, SseWire(), 1)
        await shown.write_orders(800, 2000)
        outlet = BoundedOutlet()
        await shown.follow_orders(outlet, SseWire(), heartbeat=0.1)
        await wait_until(lambda: outlet.received.count(SseWire().encode_heartbeat()) > 2)


@pytest.mark.parametrize("more", [0, 800])
async def test_a_member_of_a_herd_whose_token_expires_is_told_where_it_stands(embedded, more):
    """`end` named the place before the herd, from which everything came again; or it never came."""
    async with orders(embedded) as shown:
        clients, outlets = await start_three_clients(shown, NdjsonWire(True), 3)
        await shown.write_orders(more, 2000)
        for client, outlet in zip(clients, outlets, strict=True):
            client.end(EndReason.TOKEN_EXPIRED)
            await wait_until(lambda outlet=outlet: outlet.end_data)
            (end,) = json.loads(outlet.end_data).values()
            (topic,) = parse_token(end["position"]).topics
            assert topic.offsets == [outlet.record_count]
