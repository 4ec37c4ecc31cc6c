"""Measure how long a client waits for its first block.

warm: the topic is being read. cold: no client of this gateway has asked for the topic before. cold
process: the gateway has just printed that it listens.

Without a leader of one partition a stream begins with the others. Beside it stands how long a gate
on all partitions would wait: what a topic takes whose only partition has no leader.
"""

from __future__ import annotations

from dataclasses import dataclass

from support.gateways import GatewayProcess

from .figure import Figure, summarize_times
from .gateways import running_bench_gateway
from .kafka import Kafka
from .producer import Producer
from .stream import Stream

LOST_NODE = 1


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


@dataclass(frozen=True)
class LeaderlessSize:
    """warm: connects. cold, gated: topics. partitions: of a topic, one of them without a leader."""

    warm_connects: int = 200
    cold_topics: int = 10
    gated_topics: int = 3
    partitions: int = 500


async def measure_leaderless(kafka: Kafka, size: LeaderlessSize = LeaderlessSize()) -> list[Figure]:
    leaders = [2 + n % 2 for n in range(size.partitions - 1)] + [LOST_NODE]
    cold = [
        kafka.create_topic(leaders=leaders, has_followers=False) for _ in range(size.cold_topics)
    ]
    gated = [
        kafka.create_topic(leaders=[LOST_NODE], has_followers=False)
        for _ in range(size.gated_topics)
    ]
    try:
        async with running_bench_gateway(kafka.bootstrap_servers, *cold, *gated) as gateway:
            kafka.kill_node(LOST_NODE)
            for topic in cold:
                await kafka.wait_until_leaderless(topic, size.partitions - 1, LOST_NODE)
            cold_s = [await _measure_begin(gateway, topic) for topic in cold]
            warm_s = [await _measure_begin(gateway, cold[-1]) for _ in range(size.warm_connects)]
            gated_s = [await _measure_begin(gateway, topic) for topic in gated]
    finally:
        kafka.restore()
    of = f"{size.partitions} partitions, one without a leader"
    return [
        *summarize_times(f"cold topic, {of}", cold_s),
        *summarize_times(f"warm, {of}", warm_s),
        *summarize_times("a gate on all of them", gated_s),
    ]


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
