"""How long a client waits for its first block.

warm: the topic is being read. cold: nobody asked this gateway for the topic before. cold
process: the gateway has only just said that it listens.
"""

from __future__ import annotations

from dataclasses import dataclass

from support.gateways import Gateway

from .figure import Figure, times
from .gateways import gateway_of
from .kafka import Kafka
from .producer import Producer
from .stream import Stream


@dataclass(frozen=True)
class Size:
    """warm, running: connects. cold, cold_wide: topics. processes: starts. wide: partitions."""

    warm: int = 200
    cold: int = 30
    cold_wide: int = 3
    processes: int = 4
    running: int = 100
    partitions: int = 12
    wide: int = 500
    rate: float = 1000.0


async def measure(kafka: Kafka, size: Size = Size()) -> list[Figure]:
    narrow = [kafka.topic(size.partitions) for _ in range(size.cold)]
    wide = [kafka.topic(size.wide) for _ in range(size.cold_wide)]
    figures: list[Figure] = []
    async with gateway_of(kafka.servers, *narrow, *wide) as gateway:
        for partitions, topics in ((size.partitions, narrow), (size.wide, wide)):
            of = f"{partitions} partitions"
            figures += times(f"cold topic, {of}", [await _begin(gateway, t) for t in topics])
            warm = [await _begin(gateway, topics[-1]) for _ in range(size.warm)]
            figures += times(f"warm, {of}", warm)
        running = await _first_records(gateway, kafka, narrow[0], size)
        figures += times(f"first record after BEGIN, {size.rate:g} msg/s", running)
    for partitions, topics in ((size.partitions, narrow), (size.wide, wide)):
        starts = [await _of_new_process(kafka, topics[0]) for _ in range(size.processes)]
        figures += times(f"cold process, {partitions} partitions", starts)
    return figures


async def _begin(gateway: Gateway, topic: str) -> float:
    stream = await Stream.connect(gateway, topic)
    stream.close()
    return stream.began_at - stream.asked_at


async def _of_new_process(kafka: Kafka, topic: str) -> float:
    async with gateway_of(kafka.servers, topic, ready=False) as gateway:
        return await _begin(gateway, topic)


async def _first_records(gateway: Gateway, kafka: Kafka, topic: str, size: Size) -> list[float]:
    found = []
    producer = Producer(kafka.servers)
    async with producer.steadily(topic, size.partitions, size.rate):
        for _ in range(size.running):
            stream = await Stream.connect(gateway, topic)
            await stream.until(1)
            found.append(stream.first_at - stream.began_at)
            stream.close()
    return found
