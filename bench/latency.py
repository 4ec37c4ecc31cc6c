"""From a producer's send to the client's socket, at a pace that strains nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from .figure import Figure, times
from .gateways import gateway_of, spent
from .kafka import Kafka
from .producer import Producer
from .stream import latencies, streams


@dataclass(frozen=True)
class Size:
    clients: int = 50
    partitions: int = 12
    rate: float = 100.0
    seconds: float = 15.0


async def measure(kafka: Kafka, size: Size = Size()) -> list[Figure]:
    topic, producer = kafka.topic(size.partitions), Producer(kafka.servers)
    async with (
        gateway_of(kafka.servers, topic) as gateway,
        streams(gateway, topic, size.clients, listens=True) as clients,
    ):
        since = await producer.warm(topic, size.partitions)
        with spent(gateway) as cost:
            async with producer.steadily(topic, size.partitions, size.rate):
                await asyncio.sleep(size.seconds)
            for client in clients:
                await client.until(producer.sent)
    acked = [after - before for _, before, after in producer.acked if before > since]
    received = latencies(clients, since)
    delivered = len(received)  # without those of the warming, whose cost is not in `cost` either
    load = f"{size.clients} clients, {size.rate:g} msg/s"
    return [
        *times(f"produced to received, {load}", received),
        *times("produced to acknowledged by Kafka", acked),
        Figure(f"gateway CPU, {load}", 100 * cost.cpu / cost.wall, "% of a core"),
        Figure("CPU of one delivery at that pace", 1e6 * cost.cpu / delivered, "us", delivered),
    ]
