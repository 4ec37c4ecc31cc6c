"""Move the log start past a reader, and measure how soon the stream goes on, and at what cost.

Each time: the gateway is cut off, more is written than it has asked for, all of that is
deleted, one record is written, and the connection is restored. Every client must be told of it
once, whatever their number, and offsets are looked up for the gateway and not for each client.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from support.gateways import GatewayProcess
from support.kafka_proxy import ApiKey, BrokerProxy, KafkaProxy

from .figure import Figure, summarize_times
from .gateways import running_bench_gateway
from .kafka import Kafka
from .producer import Producer
from .stream import Stream, open_streams


@dataclass(frozen=True)
class Size:
    """advances: at least so many. seconds: it goes on for at least so long."""

    advances: int = 100
    lost_records: int = 5
    clients: int = 1
    seconds: float = 0.0


STORM = Size(clients=1000, seconds=600.0)


async def measure(kafka: Kafka, size: Size = Size()) -> list[Figure]:
    topic, producer = kafka.create_topic(1), Producer(kafka.bootstrap_servers)
    gaps: list[float] = []
    records: list[float] = []
    async with (
        KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as proxy,
        running_bench_gateway(proxy.bootstrap, topic) as gateway,
        open_streams(gateway, topic, size.clients, keeps_arrivals=True) as streams,
    ):
        producer.send(topic, 0)
        for stream in streams:
            await stream.wait_for_records(1)
        since, before = time.monotonic(), _get_resources(gateway)
        while len(gaps) < size.advances or time.monotonic() - since < size.seconds:
            advance = await _measure_advance(kafka, proxy, topic, producer, streams, size)
            if advance is not None:
                gaps.append(advance[0])
                records.append(advance[1])
        after, listed = (
            _get_resources(gateway),
            proxy.count_requests(ApiKey.LIST_OFFSETS, since=since),
        )
    advances = len(gaps)
    row = f"{advances} in a row"
    told = [sum(heard.sent_at is None for heard in stream.arrivals) for stream in streams]
    return [
        *summarize_times("way open to gap told", gaps),
        *summarize_times("way open to next record", records),
        Figure("ListOffsets of an advance", listed / advances, "requests", listed),
        Figure(f"gaps told of an advance, fewest, {row}", min(told) / advances, "gaps", min(told)),
        Figure(f"gaps told of an advance, most, {row}", max(told) / advances, "gaps", max(told)),
        Figure(f"gateway memory grown by {row}", (after[0] - before[0]) / 1e6, "MB"),
        Figure(f"open files grown by {row}", after[1] - before[1], "files"),
    ]


def _get_resources(gateway: GatewayProcess) -> tuple[int, int]:
    return gateway.memory_bytes, gateway.open_file_count


async def _measure_advance(
    kafka: Kafka,
    proxy: KafkaProxy,
    topic: str,
    producer: Producer,
    streams: list[Stream],
    size: Size,
) -> tuple[float, float] | None:
    """Return the seconds until the last client has the gap, and until it has the next record.

    None if the fetch that was under way brought all that was to be lost (a busy broker answers it
    late), so that nothing was missed.
    """
    brokers: list[BrokerProxy] = list(proxy.brokers)
    for broker in brokers:
        await broker.hide()
    producer.send(topic, 0)  # the fetch that is under way is answered with this one
    await producer.flush()
    for _ in range(size.lost_records):
        producer.send(topic, 0)
    await producer.flush()
    await asyncio.to_thread(kafka.delete_records, topic, {0: producer.sent_count})
    counts, last = [len(stream.arrivals) for stream in streams], time.monotonic() - 1e-5
    producer.send(topic, 0)
    await producer.flush()
    opened = time.monotonic()
    for broker in brokers:
        await broker.unhide()
    for stream in streams:
        await stream.wait_for(
            lambda it=stream: (it.arrivals[-1].sent_at or 0) >= last, "the last record"
        )
    gaps = [
        heard.received_at
        for stream, count in zip(streams, counts, strict=True)
        for heard in stream.arrivals[count:]
        if heard.sent_at is None
    ]
    came = max(stream.arrivals[-1].received_at for stream in streams)
    return (max(gaps) - opened, came - opened) if gaps else None
