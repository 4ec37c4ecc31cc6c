"""Measure the time from a producer's send to the client's socket, at a low rate."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from .figure import Figure, summarize_times
from .gateways import measure_cost, running_bench_gateway
from .kafka import Kafka
from .producer import Producer
from .stream import compute_latencies, open_streams


@dataclass(frozen=True)
class Size:
    clients: int = 50
    partitions: int = 12
    rate: float = 100.0
    seconds: float = 15.0


async def measure(kafka: Kafka, size: Size = Size()) -> list[Figure]:
    topic, producer = kafka.create_topic(size.partitions), Producer(kafka.bootstrap_servers)
    async with (
        running_bench_gateway(kafka.bootstrap_servers, topic) as gateway,
        open_streams(gateway, topic, size.clients, keeps_arrivals=True) as clients,
    ):
        since = await producer.warm_up(topic, size.partitions)
        with measure_cost(gateway) as cost:
            async with producer.produce_steadily(topic, size.partitions, size.rate):
                await asyncio.sleep(size.seconds)
            for client in clients:
                await client.wait_for_records(producer.sent_count)
    acked = [after - before for _, before, after in producer.acknowledgements if before > since]
    received = compute_latencies(clients, since)
    delivered = len(received)  # without those of the warming, whose cost is not in `cost` either
    load = f"{size.clients} clients, {size.rate:g} msg/s"
    return [
        *summarize_times(f"produced to received, {load}", received),
        *summarize_times("produced to acknowledged by Kafka", acked),
        Figure(f"gateway CPU, {load}", 100 * cost.cpu_s / cost.wall_s, "% of a core"),
        Figure("CPU of one delivery at that pace", 1e6 * cost.cpu_s / delivered, "us", delivered),
    ]
