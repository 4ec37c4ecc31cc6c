"""One of three brokers is killed, or frozen: who is silent, and for how long.

Node 1 leads a third of the partitions. It follows none: writes to the others' would wait for
it until Kafka puts it out of their replica sets, which is Kafka's pause and not ours.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from support.until import until

from .figure import Figure
from .gateways import gateway_of
from .kafka import Kafka
from .producer import Producer
from .stream import PATIENCE, Stream

VICTIM = 1
LEADERS = [1, 2, 3] * 4


@dataclass(frozen=True)
class Size:
    """rate: records a second in all. before: seconds of quiet life before the failure."""

    rate: float = 240.0
    before: float = 2.0


async def measure(kafka: Kafka, size: Size = Size()) -> list[Figure]:
    figures: list[Figure] = []
    for name, hurt in (("killed", kafka.kill), ("frozen", kafka.freeze)):
        try:
            figures += await _fail(kafka, size, name, hurt)
        finally:
            await asyncio.to_thread(kafka.heal)
    return figures


async def _fail(kafka: Kafka, size: Size, name: str, hurt: Callable[[int], None]) -> list[Figure]:
    topic = kafka.topic(leaders=LEADERS)
    led = [p for p, node in enumerate(LEADERS) if node == VICTIM]
    # A producer that gives a silent broker up at once, so that the pause is not its own.
    patience = {"socket.timeout.ms": 1000, "reconnect.backoff.max.ms": 200}
    producer = Producer(kafka.servers, **patience)
    async with gateway_of(kafka.servers, topic) as gateway:
        stream = await Stream.connect(gateway, topic, listens=True)
        async with producer.steadily(topic, len(LEADERS), size.rate):
            await until(lambda: _heard(stream, 0.0) == set(range(len(LEADERS))), within=PATIENCE)
            await asyncio.sleep(size.before)
            began = time.monotonic()
            await asyncio.to_thread(hurt, VICTIM)
            async with asyncio.timeout(PATIENCE):
                await kafka.elected(topic, led, VICTIM)
            elected = time.monotonic()
            await until(lambda: _heard(stream, elected) >= set(led), within=PATIENCE)
            await asyncio.sleep(0.5)
        stream.close()
    return _figures(name, stream, producer, led, began, elected)


def _heard(stream: Stream, since: float) -> set[int]:
    """Partitions of which records came that were produced since then."""
    return {h.partition for h in stream.heard if h.sent is not None and h.sent >= since}


def _figures(
    name: str, stream: Stream, producer: Producer, led: list[int], began: float, elected: float
) -> list[Figure]:
    others = sorted(set(range(len(LEADERS))) - set(led))
    back = max(_first(stream, p, elected) for p in led)
    written = max(min(b for p, _, b in producer.acked if p == of and b > elected) for of in led)
    silence, quiet = _silence(stream, led, began), _silence(stream, others, began)
    return [
        Figure(f"{name} leader: its partitions silent, longest", silence, "s", len(led)),
        Figure(f"{name} leader: the others silent, longest", 1000 * quiet, "ms", len(others)),
        Figure(f"{name} leader: the last new leader elected after", elected - began, "s"),
        Figure(f"{name} leader: the last to flow again, after that", back - elected, "s"),
        Figure(f"{name} leader: of which until a producer can write", written - elected, "s"),
    ]


def _first(stream: Stream, partition: int, since: float) -> float:
    return min(h.at for h in stream.heard if h.partition == partition and h.at > since)


def _silence(stream: Stream, partitions: list[int], since: float) -> float:
    """The longest time that one of them was not heard of, in seconds."""
    longest = 0.0
    for p in partitions:
        times = [h.at for h in stream.heard if h.partition == p]
        pairs = pairwise(times)
        longest = max(longest, *(b - a for a, b in pairs if b >= since))
    return longest
