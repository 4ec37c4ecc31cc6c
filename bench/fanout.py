"""Measure how many records one core delivers from Kafka to sockets, to one client and to many.

CPU seconds are those of the gateway's process, so that producers, brokers and clients on the same
cores do not count. at once: everything is produced as fast as possible. paced: a constant rate, so
that few records share a turn of the loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from support.gateways import GatewayProcess

from .figure import Figure
from .gateways import measure_cost, running_bench_gateway
from .kafka import Kafka
from .producer import Producer
from .stream import open_streams


@dataclass(frozen=True)
class Size:
    """alone, shared: records produced at once, for one client and for `clients`."""

    clients: int = 50
    records_alone: int = 200_000
    records_shared: int = 20_000
    partitions: int = 12
    value_bytes: int = 200
    rate: float = 1000.0
    seconds: float = 8.0


async def measure(kafka: Kafka, size: Size = Size()) -> list[Figure]:
    topics = [kafka.create_topic(size.partitions) for _ in range(4)]
    figures: list[Figure] = []
    async with running_bench_gateway(kafka.bootstrap_servers, *topics) as gateway:
        for clients, records in ((1, size.records_alone), (size.clients, size.records_shared)):
            producer, topic = Producer(kafka.bootstrap_servers), topics.pop()
            figures += await _measure_burst(gateway, producer, topic, size, clients, records)
        for clients in (1, size.clients):
            producer, topic = Producer(kafka.bootstrap_servers), topics.pop()
            figures += await _measure_paced(gateway, producer, topic, size, clients)
    return figures


async def _measure_burst(
    gateway: GatewayProcess,
    producer: Producer,
    topic: str,
    size: Size,
    client_count: int,
    record_count: int,
) -> list[Figure]:
    async with open_streams(gateway, topic, client_count) as readers:
        with measure_cost(gateway) as cost:
            await producer.produce_burst(topic, size.partitions, record_count, size.value_bytes)
            for reader in readers:
                await reader.wait_for_records(record_count)
        seconds = max(r.last_record_at for r in readers) - min(r.first_record_at for r in readers)
    of, delivered = f"at once, {client_count} clients", record_count * client_count
    return [
        Figure(f"{of}: records", record_count / seconds, "1/s", record_count),
        Figure(f"{of}: deliveries", delivered / seconds, "1/s", delivered),
        Figure(f"{of}: deliveries of a CPU second", delivered / cost.cpu_s, "1/s", delivered),
    ]


async def _measure_paced(
    gateway: GatewayProcess, producer: Producer, topic: str, size: Size, client_count: int
) -> list[Figure]:
    async with open_streams(gateway, topic, client_count) as readers:
        with measure_cost(gateway) as cost:
            async with producer.produce_steadily(
                topic, size.partitions, size.rate, size.value_bytes
            ):
                await asyncio.sleep(size.seconds)
            for reader in readers:
                await reader.wait_for_records(producer.sent_count)
    of, delivered = (
        f"paced {size.rate:g}/s, {client_count} clients",
        producer.sent_count * client_count,
    )
    return [
        Figure(f"{of}: deliveries of a CPU second", delivered / cost.cpu_s, "1/s", delivered),
        Figure(f"{of}: gateway CPU", 100 * cost.cpu_s / cost.wall_s, "% of a core"),
    ]
