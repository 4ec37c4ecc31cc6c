"""Bursts of records, and clients who fall behind in them, through a whole hub."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaProducer
from support.gateways import config_for
from support.isolation import Ask
from support.lines import LineParser
from support.reading import cluster
from support.until import until

from gateway.config import Settings
from gateway.core.client.slow_client import SlowClient
from gateway.core.token.resume_token import decode
from gateway.hub.fanout.client import Client
from gateway.hub.fanout.hub import Hub
from gateway.hub.reads.resume import Start
from gateway.hub.wires.lines import Ndjson
from gateway.hub.wires.sse import Sse
from gateway.hub.wires.wire import Wire
from gateway.kafka.embedded import EmbeddedKafka

VIEW = Ask(topics=("orders",), identity="ada").view


class Outlet:
    """Takes `writes` times what it is given, and is full then."""

    transport = None

    def __init__(self, writes: float = float("inf")) -> None:
        self.got = b""
        self.last = b""
        self._writes = writes

    @property
    def full(self) -> bool:
        return self._writes <= 0

    @property
    def records(self) -> int:
        return self.got.count(b'"pad"')

    def write(self, data: bytes) -> None:
        self.got += data
        self._writes -= 1

    def finish(self, data: bytes) -> None:
        self.last = data

    def hand_over(self) -> None: ...


class Orders:
    """A hub that shows the topic `orders`, and who writes to it."""

    def __init__(self, hub: Hub, producer: AIOKafkaProducer) -> None:
        self.hub = hub
        self._producer = producer

    async def follow(
        self,
        outlet: Outlet,
        wire: Wire,
        after: str = "",
        slow: SlowClient = SlowClient.CATCH_UP,
        heartbeat: float = 60.0,
    ) -> Client:
        start = Start(decode(after) if after else None, "live")
        client = await self.hub.subscribe(VIEW, start, wire, heartbeat=heartbeat, slow=slow)
        await client.ready()
        client.attach(outlet)
        return client

    async def write(self, count: int, size: int) -> None:
        pad = b"x" * size
        sent = [
            await self._producer.send("orders", b'{"n":%d,"pad":"%b"}' % (n, pad))
            for n in range(count)
        ]
        for each in sent:
            await each


@asynccontextmanager
async def orders(kafka: EmbeddedKafka) -> AsyncIterator[Orders]:
    kafka.create_topic("orders", 1)
    settings = Settings.model_validate(config_for(kafka.bootstrap, ["orders"]))
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, max_batch_size=1 << 20)
    async with producer, cluster(kafka.bootstrap) as kafkas:
        hub = Hub(kafkas, settings)
        await hub.start()
        try:
            yield Orders(hub, producer)
        finally:
            await hub.close()


async def herd_of_three(
    shown: Orders, wire: Wire, writes: int
) -> tuple[list[Client], list[Outlet]]:
    """Clients who missed 400 KB alike, and take so many writes of it."""
    first = Outlet()
    await shown.follow(first, Ndjson(True))
    parser = LineParser()
    parser.feed(first.got)
    for _ in range(200):
        await shown.write(1, 2000)
    outlets = [Outlet(writes) for _ in range(3)]
    clients = [await shown.follow(each, wire, parser.last_event_id) for each in outlets]
    await until(lambda: all(outlet.full for outlet in outlets))
    await until(lambda: sum(client.herd is not None for client in clients) >= 2)
    return clients, outlets


@pytest.mark.parametrize("slow", [SlowClient.DISCONNECT, SlowClient.SKIP])
async def test_who_takes_everything_at_once_is_not_slow_in_a_burst(
    embedded: EmbeddedKafka, slow: SlowClient
):
    """A burst was published slice by slice before the first one was written to anybody."""
    async with orders(embedded) as shown:
        outlets = [Outlet() for _ in range(10)]
        for outlet in outlets:
            await shown.follow(outlet, Sse(), slow=slow)
        await shown.write(1, 200)  # the time that it takes tells how large the next slice is
        for burst in range(2):
            await shown.write(4000, 500)
            told = 1 + 4000 * (burst + 1)
            await until(lambda told=told: {each.records for each in outlets} == {told})
        assert not any(outlet.last or b"event: gap" in outlet.got for outlet in outlets)


async def test_heartbeats_go_on_while_members_of_a_herd_take_nothing(embedded: EmbeddedKafka):
    """The chunk at which a member had left its channel was looked for when it was there no more,
    and no stream of the process had a heartbeat from then on."""
    async with orders(embedded) as shown:
        await herd_of_three(shown, Sse(), 1)
        await shown.write(800, 2000)
        outlet = Outlet()
        await shown.follow(outlet, Sse(), heartbeat=0.1)
        await until(lambda: outlet.got.count(b"\n:\n") + outlet.got.startswith(b":\n") > 2)


@pytest.mark.parametrize("more", [0, 800])
async def test_a_member_of_a_herd_whose_token_expires_is_told_where_it_stands(
    embedded: EmbeddedKafka, more: int
):
    """`end` named the place before the herd, from which everything came again; or it never came."""
    async with orders(embedded) as shown:
        clients, outlets = await herd_of_three(shown, Ndjson(True), 3)
        await shown.write(more, 2000)
        for client, outlet in zip(clients, outlets, strict=True):
            client.end("token-expired")
            await until(lambda outlet=outlet: outlet.last)
            (end,) = json.loads(outlet.last).values()
            (topic,) = decode(end["position"]).topics
            assert topic.offsets == [outlet.records]
