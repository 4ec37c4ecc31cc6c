"""Measure how long a client waits for its first block.

warm: the topic is being read. cold: no client of this gateway has asked for the topic before. cold
process: the gateway has just printed that it listens.
"""

from __future__ import annotations

from dataclasses import dataclass

from support.gateways import GatewayProcess

from .figure import Figure, summarize_times
from .gateways import running_bench_gateway
from .kafka import Kafka
from .producer import Producer
from .stream import Stream


@dataclass(frozen=True)
class Size:
    """warm, running: connects. cold, cold_wide: topics. processes: starts. wide: partitions."""

    warm_connects: int = 200
    cold_topics: int = 30
    wide_topics: int = 3
    process_starts: int = 4
    running_connects: int = 100
    partitions: int = 12
    wide_partitions: int = 500
    rate: float = 1000.0


async def measure(kafka: Kafka, size: Size = Size()) -> list[Figure]:
    narrow = [kafka.create_topic(size.partitions) for _ in range(size.cold_topics)]
    wide = [kafka.create_topic(size.wide_partitions) for _ in range(size.wide_topics)]
    figures: list[Figure] = []
    async with running_bench_gateway(kafka.bootstrap_servers, *narrow, *wide) as gateway:
        for partitions, topics in ((size.partitions, narrow), (size.wide_partitions, wide)):
            of = f"{partitions} partitions"
            figures += summarize_times(
                f"cold topic, {of}", [await _measure_begin(gateway, t) for t in topics]
            )
            warm = [await _measure_begin(gateway, topics[-1]) for _ in range(size.warm_connects)]
            figures += summarize_times(f"warm, {of}", warm)
        running = await _measure_first_records(gateway, kafka, narrow[0], size)
        figures += summarize_times(f"first record after BEGIN, {size.rate:g} msg/s", running)
    for partitions, topics in ((size.partitions, narrow), (size.wide_partitions, wide)):
        starts = [
            await _measure_process_start(kafka, topics[0]) for _ in range(size.process_starts)
        ]
        figures += summarize_times(f"cold process, {partitions} partitions", starts)
    return figures


async def _measure_begin(gateway: GatewayProcess, topic: str) -> float:
    stream = await Stream.connect(gateway, topic)
    stream.close()
    return stream.began_at - stream.requested_at


async def _measure_process_start(kafka: Kafka, topic: str) -> float:
    async with running_bench_gateway(
        kafka.bootstrap_servers, topic, wait_until_ready=False
    ) as gateway:
        return await _measure_begin(gateway, topic)


async def _measure_first_records(
    gateway: GatewayProcess, kafka: Kafka, topic: str, size: Size
) -> list[float]:
    found = []
    producer = Producer(kafka.bootstrap_servers)
    async with producer.produce_steadily(topic, size.partitions, size.rate):
        for _ in range(size.running_connects):
            stream = await Stream.connect(gateway, topic)
            await stream.wait_for_records(1)
            found.append(stream.first_record_at - stream.began_at)
            stream.close()
    return found
