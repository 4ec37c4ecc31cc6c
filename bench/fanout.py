"""How much one core hands out: the whole way, Kafka to sockets, for one client and for many.

CPU seconds are the gateway's own, so that producers, brokers and the clients here, on the
same cores, do not count. at once: everything is produced as fast as it goes. paced: a
constant rate, so that few records share a turn of the loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from support.gateways import Gateway

from .figure import Figure
from .gateways import gateway_of, spent
from .kafka import Kafka
from .producer import Producer
from .stream import streams


@dataclass(frozen=True)
class Size:
    """alone, shared: records produced at once, for one client and for `clients`."""

    clients: int = 50
    alone: int = 200_000
    shared: int = 20_000
    partitions: int = 12
    bytes: int = 200
    rate: float = 1000.0
    seconds: float = 8.0


async def measure(kafka: Kafka, size: Size = Size()) -> list[Figure]:
    topics = [kafka.topic(size.partitions) for _ in range(4)]
    figures: list[Figure] = []
    async with gateway_of(kafka.servers, *topics) as gateway:
        for clients, records in ((1, size.alone), (size.clients, size.shared)):
            producer, topic = Producer(kafka.servers), topics.pop()
            figures += await _at_once(gateway, producer, topic, size, clients, records)
        for clients in (1, size.clients):
            producer, topic = Producer(kafka.servers), topics.pop()
            figures += await _paced(gateway, producer, topic, size, clients)
    return figures


async def _at_once(
    gateway: Gateway, producer: Producer, topic: str, size: Size, clients: int, records: int
) -> list[Figure]:
    async with streams(gateway, topic, clients) as readers:
        with spent(gateway) as cost:
            await producer.burst(topic, size.partitions, records, size.bytes)
            for reader in readers:
                await reader.until(records)
        seconds = max(r.last_at for r in readers) - min(r.first_at for r in readers)
    of, delivered = f"at once, {clients} clients", records * clients
    return [
        Figure(f"{of}: records", records / seconds, "1/s", records),
        Figure(f"{of}: deliveries", delivered / seconds, "1/s", delivered),
        Figure(f"{of}: deliveries of a CPU second", delivered / cost.cpu, "1/s", delivered),
    ]


async def _paced(
    gateway: Gateway, producer: Producer, topic: str, size: Size, clients: int
) -> list[Figure]:
    async with streams(gateway, topic, clients) as readers:
        with spent(gateway) as cost:
            async with producer.steadily(topic, size.partitions, size.rate, size.bytes):
                await asyncio.sleep(size.seconds)
            for reader in readers:
                await reader.until(producer.sent)
    of, delivered = f"paced {size.rate:g}/s, {clients} clients", producer.sent * clients
    return [
        Figure(f"{of}: deliveries of a CPU second", delivered / cost.cpu, "1/s", delivered),
        Figure(f"{of}: gateway CPU", 100 * cost.cpu / cost.wall, "% of a core"),
    ]
