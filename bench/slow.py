"""Measure what the other clients and the memory notice when one of many clients stops reading."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from support.gateways import GatewayProcess

from .figure import Figure, summarize_times
from .gateways import running_bench_gateway
from .kafka import Kafka
from .producer import Producer
from .stream import Stream, compute_latencies, open_streams

BYTES_PER_MB = 1e6


@dataclass(frozen=True)
class Size:
    """bytes: of a value; large enough that 30 s of it are more than any socket's buffers."""

    clients: int = 50
    partitions: int = 12
    rate: float = 100.0
    value_bytes: int = 4000
    quiet_s: float = 10.0
    stall_s: float = 30.0


async def measure(kafka: Kafka, size: Size = Size()) -> list[Figure]:
    topic, producer = kafka.create_topic(size.partitions), Producer(kafka.bootstrap_servers)
    async with (
        running_bench_gateway(kafka.bootstrap_servers, topic) as gateway,
        open_streams(gateway, topic, size.clients - 1, keeps_arrivals=True) as others,
    ):
        slow = await Stream.connect(gateway, topic, receive_buffer=8192)
        since = await producer.warm_up(topic, size.partitions)
        async with producer.produce_steadily(topic, size.partitions, size.rate, size.value_bytes):
            await asyncio.sleep(size.quiet_s)
            memory, sent, stalled_at = gateway.memory_bytes, producer.sent_count, time.monotonic()
            slow.transport.pause_reading()
            most = await _measure_peak_memory(gateway, size.stall_s)
            missed, resumed_at = producer.sent_count - slow.record_count, time.monotonic()
            grown = (producer.sent_count - sent) * size.value_bytes
            slow.transport.resume_reading()
            await slow.wait_for_records(producer.sent_count)
            caught_up = time.monotonic() - resumed_at
            after = gateway.memory_bytes
        await slow.wait_for_records(producer.sent_count)
        for other in others:
            await other.wait_for_records(producer.sent_count)
        got = slow.record_count
        slow.close()
    of = f"{size.clients} clients"
    return [
        *summarize_times(
            f"others' latency, all of {of} reading", compute_latencies(others, since, stalled_at)
        ),
        *summarize_times(
            f"others' latency, one of {of} stalled for {size.stall_s:g} s",
            compute_latencies(others, stalled_at, resumed_at),
        ),
        Figure("gateway memory before the stall", memory / BYTES_PER_MB, "MB"),
        Figure("gateway memory at most during it", most / BYTES_PER_MB, "MB"),
        Figure("gateway memory after catching up", after / BYTES_PER_MB, "MB"),
        Figure("records written meanwhile (the cache holds them)", grown / BYTES_PER_MB, "MB"),
        Figure("records the stalled client had not read", missed, "records"),
        Figure("time in which it got them", caught_up, "s"),
        Figure("records it got of all, each once", 100 * got / producer.sent_count, "%", got),
    ]


async def _measure_peak_memory(gateway: GatewayProcess, seconds: float) -> int:
    """The largest of samples taken meanwhile, in bytes."""
    ends, most = time.monotonic() + seconds, 0
    while time.monotonic() < ends:
        most = max(most, gateway.memory_bytes)
        await asyncio.sleep(min(0.2, seconds / 10))
    return most
