"""One of many clients stops reading: what the others and the memory notice of it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from support.gateways import Gateway

from .figure import Figure, times
from .gateways import gateway_of
from .kafka import Kafka
from .producer import Producer
from .stream import Stream, latencies, streams

MB = 1e6


@dataclass(frozen=True)
class Size:
    """bytes: of a value; large enough that 30 s of it are more than any socket's buffers."""

    clients: int = 50
    partitions: int = 12
    rate: float = 100.0
    bytes: int = 4000
    before: float = 10.0
    seconds: float = 30.0


async def measure(kafka: Kafka, size: Size = Size()) -> list[Figure]:
    topic, producer = kafka.topic(size.partitions), Producer(kafka.servers)
    async with (
        gateway_of(kafka.servers, topic) as gateway,
        streams(gateway, topic, size.clients - 1, listens=True) as others,
    ):
        slow = await Stream.connect(gateway, topic, receive_buffer=8192)
        since = await producer.warm(topic, size.partitions)
        async with producer.steadily(topic, size.partitions, size.rate, size.bytes):
            await asyncio.sleep(size.before)
            memory, sent, stalled_at = gateway.memory, producer.sent, time.monotonic()
            slow.transport.pause_reading()
            most = await _most_memory(gateway, size.seconds)
            missed, resumed_at = producer.sent - slow.records, time.monotonic()
            grown = (producer.sent - sent) * size.bytes
            slow.transport.resume_reading()
            await slow.until(producer.sent)
            caught_up = time.monotonic() - resumed_at
            after = gateway.memory
        await slow.until(producer.sent)
        for other in others:
            await other.until(producer.sent)
        got = slow.records
        slow.close()
    of = f"{size.clients} clients"
    return [
        *times(f"others' latency, all of {of} reading", latencies(others, since, stalled_at)),
        *times(
            f"others' latency, one of {of} stalled for {size.seconds:g} s",
            latencies(others, stalled_at, resumed_at),
        ),
        Figure("gateway memory before the stall", memory / MB, "MB"),
        Figure("gateway memory at most during it", most / MB, "MB"),
        Figure("gateway memory after catching up", after / MB, "MB"),
        Figure("records written meanwhile (the cache holds them)", grown / MB, "MB"),
        Figure("records the stalled client had not read", missed, "records"),
        Figure("time in which it got them", caught_up, "s"),
        Figure("records it got of all, each once", 100 * got / producer.sent, "%", got),
    ]


async def _most_memory(gateway: Gateway, seconds: float) -> int:
    """The largest of samples taken meanwhile, in bytes."""
    ends, most = time.monotonic() + seconds, 0
    while time.monotonic() < ends:
        most = max(most, gateway.memory)
        await asyncio.sleep(min(0.2, seconds / 10))
    return most
