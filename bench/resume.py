"""Many clients come back at once, each a thousand records behind.

from memory: the gateway ran on and holds the records. after a restart: they are Kafka's alone.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from support.gateways import Gateway
from support.proxy import Api, KafkaProxy

from .figure import Figure, times
from .gateways import gateway_of, spent
from .kafka import Kafka
from .producer import Producer
from .stream import Stream


@dataclass(frozen=True)
class Size:
    clients: int = 100
    missed: int = 1000
    partitions: int = 12
    bytes: int = 200


async def measure(kafka: Kafka, size: Size = Size()) -> list[Figure]:
    topic, producer = kafka.topic(size.partitions), Producer(kafka.servers)
    async with (
        KafkaProxy.around(kafka.servers) as proxy,
        gateway_of(proxy.bootstrap, topic) as gateway,
    ):
        first = await Stream.connect(gateway, topic)  # one stays: the gateway reads on
        await producer.burst(topic, size.partitions, size.partitions, size.bytes)
        await first.until(size.partitions)
        token = await _token(gateway, topic)
        await producer.burst(topic, size.partitions, size.missed, size.bytes)
        await first.until(size.missed)
        figures = await _resume(gateway, proxy, topic, token, size, "from memory")
        first.close()
        await gateway.restart()
        figures += await _resume(gateway, proxy, topic, token, size, "after a restart")
    return figures


async def _token(gateway: Gateway, topic: str) -> bytes:
    stream = await Stream.connect(gateway, topic)
    stream.close()
    return stream.token


async def _resume(
    gateway: Gateway, proxy: KafkaProxy, topic: str, token: bytes, size: Size, how: str
) -> list[Figure]:
    since = time.monotonic()
    with spent(gateway) as cost:
        opening = [Stream.connect(gateway, topic, token=token) for _ in range(size.clients)]
        clients = await asyncio.gather(*opening)
        for client in clients:
            await client.until(size.missed)
    fetches = proxy.count(Api.FETCH, since=since)
    asked = min(client.asked_at for client in clients)
    last = max(client.last_at for client in clients) - asked
    got = sum(client.records for client in clients)
    for client in clients:
        client.close()
    of = f"{how}, {size.clients} x {size.missed} records"
    return [
        Figure(f"{of}: all have all after", last, "s", got),
        *times(f"{of}: each after its connect", [c.last_at - c.asked_at for c in clients]),
        Figure(f"{of}: gateway CPU", cost.cpu, "s"),
        Figure(f"{of}: fetches from Kafka", fetches, "requests"),
    ]
