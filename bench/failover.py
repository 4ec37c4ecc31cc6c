"""Kill or freeze one of three brokers, and measure which partitions are silent for how long.

Node 1 leads a third of the partitions. It follows none: writes to the others would wait for it
until Kafka removes it from their in-sync replicas, and that pause is Kafka's, not the gateway's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from support.waiting import wait_until

from .figure import Figure
from .gateways import running_bench_gateway
from .kafka import Kafka
from .producer import Producer
from .stream import STREAM_TIMEOUT_S, Stream

FAILED_NODE = 1
LEADER_NODES = [1, 2, 3] * 4


@dataclass(frozen=True)
class Size:
    """rate: records a second in all. before: seconds of quiet life before the failure."""

    rate: float = 240.0
    quiet_s: float = 2.0


async def measure(kafka: Kafka, size: Size = Size()) -> list[Figure]:
    figures: list[Figure] = []
    for name, hurt in (("killed", kafka.kill_node), ("frozen", kafka.freeze_node)):
        try:
            figures += await _measure_failure(kafka, size, name, hurt)
        finally:
            await asyncio.to_thread(kafka.restore)
    return figures


async def _measure_failure(
    kafka: Kafka, size: Size, name: str, fail_node: Callable[[int], None]
) -> list[Figure]:
    topic = kafka.create_topic(leaders=LEADER_NODES)
    led = [p for p, node in enumerate(LEADER_NODES) if node == FAILED_NODE]
    # A producer that gives a silent broker up at once, so that the pause is not its own.
    patience = {"socket.timeout.ms": 1000, "reconnect.backoff.max.ms": 200}
    producer = Producer(kafka.bootstrap_servers, **patience)
    async with running_bench_gateway(kafka.bootstrap_servers, topic) as gateway:
        stream = await Stream.connect(gateway, topic, keeps_arrivals=True)
        async with producer.produce_steadily(topic, len(LEADER_NODES), size.rate):
            await wait_until(
                lambda: _find_heard_partitions(stream, 0.0) == set(range(len(LEADER_NODES))),
                timeout_s=STREAM_TIMEOUT_S,
            )
            await asyncio.sleep(size.quiet_s)
            began = time.monotonic()
            await asyncio.to_thread(fail_node, FAILED_NODE)
            async with asyncio.timeout(STREAM_TIMEOUT_S):
                await kafka.wait_for_election(topic, led, FAILED_NODE)
            elected = time.monotonic()
            await wait_until(
                lambda: _find_heard_partitions(stream, elected) >= set(led),
                timeout_s=STREAM_TIMEOUT_S,
            )
            await asyncio.sleep(0.5)
        stream.close()
    return _build_figures(name, stream, producer, led, began, elected)


def _find_heard_partitions(stream: Stream, since: float) -> set[int]:
    """Partitions of which records came that were produced since then."""
    return {h.partition for h in stream.arrivals if h.sent_at is not None and h.sent_at >= since}


def _build_figures(
    name: str,
    stream: Stream,
    producer: Producer,
    led_partitions: list[int],
    began_at: float,
    elected_at: float,
) -> list[Figure]:
    others = sorted(set(range(len(LEADER_NODES))) - set(led_partitions))
    back = max(_find_first_arrival(stream, p, elected_at) for p in led_partitions)
    written = max(
        min(b for p, _, b in producer.acknowledgements if p == of and b > elected_at)
        for of in led_partitions
    )
    silence, quiet = (
        _find_longest_silence(stream, led_partitions, began_at),
        _find_longest_silence(stream, others, began_at),
    )
    return [
        Figure(f"{name} leader: its partitions silent, longest", silence, "s", len(led_partitions)),
        Figure(f"{name} leader: the others silent, longest", 1000 * quiet, "ms", len(others)),
        Figure(f"{name} leader: the last new leader elected after", elected_at - began_at, "s"),
        Figure(f"{name} leader: the last to flow again, after that", back - elected_at, "s"),
        Figure(f"{name} leader: of which until a producer can write", written - elected_at, "s"),
    ]


def _find_first_arrival(stream: Stream, partition: int, since: float) -> float:
    return min(
        h.received_at for h in stream.arrivals if h.partition == partition and h.received_at > since
    )


def _find_longest_silence(stream: Stream, partitions: list[int], since: float) -> float:
    """The longest time that one of them was not heard of, in seconds."""
    longest = 0.0
    for p in partitions:
        times = [h.received_at for h in stream.arrivals if h.partition == p]
        pairs = pairwise(times)
        longest = max(longest, *(b - a for a, b in pairs if b >= since))
    return longest
