"""The log start moves past a reader: how soon the stream goes on, and at what cost.

Each time: the gateway is cut off, more is written than it has asked for, all of that is
deleted, one record is written, and the way is open again.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from support.gateways import Gateway
from support.proxy import Api, BrokerProxy, KafkaProxy
from support.until import until

from .figure import Figure, times
from .gateways import gateway_of
from .kafka import Kafka
from .producer import Producer
from .stream import PATIENCE, Stream


@dataclass(frozen=True)
class Size:
    advances: int = 100
    lost: int = 5


async def measure(kafka: Kafka, size: Size = Size()) -> list[Figure]:
    topic, producer = kafka.topic(1), Producer(kafka.servers)
    gaps: list[float] = []
    records: list[float] = []
    async with (
        KafkaProxy.around(kafka.servers) as proxy,
        gateway_of(proxy.bootstrap, topic) as gateway,
    ):
        stream = await Stream.connect(gateway, topic, hears=True)
        producer.send(topic, 0)
        await stream.until(1)
        since, before = time.monotonic(), _held(gateway)
        for _ in range(size.advances):
            gap, record = await _advance(kafka, proxy, topic, producer, stream, size)
            gaps.append(gap)
            records.append(record)
        after, listed = _held(gateway), proxy.count(Api.LIST_OFFSETS, since=since)
        told = sum(heard.sent is None for heard in stream.heard)
        stream.close()
    row = f"{size.advances} in a row"
    return [
        *times("way open to gap told", gaps),
        *times("way open to next record", records),
        Figure("ListOffsets of an advance", listed / size.advances, "requests", listed),
        Figure(f"gaps told of an advance, {row}", told / size.advances, "gaps", told),
        Figure(f"gateway memory grown by {row}", (after[0] - before[0]) / 1e6, "MB"),
        Figure(f"open files grown by {row}", after[1] - before[1], "files"),
    ]


def _held(gateway: Gateway) -> tuple[int, int]:
    return gateway.memory, gateway.open_files


async def _advance(
    kafka: Kafka, proxy: KafkaProxy, topic: str, producer: Producer, stream: Stream, size: Size
) -> tuple[float, float]:
    brokers: list[BrokerProxy] = list(proxy.brokers)
    for broker in brokers:
        await broker.hide()
    producer.send(topic, 0)  # the fetch that is under way is answered with this one
    await producer.flush()
    for _ in range(size.lost):
        producer.send(topic, 0)
    await producer.flush()
    await asyncio.to_thread(kafka.delete_records, topic, {0: producer.sent})
    producer.send(topic, 0)
    await producer.flush()
    count, opened = len(stream.heard), time.monotonic()
    for broker in brokers:
        await broker.unhide()
    await until(lambda: any(h.sent is None for h in stream.heard[count:]), "a gap", PATIENCE, 0.002)
    await until(lambda: stream.heard[-1].sent is not None, "a record", PATIENCE, 0.002)
    gap = next(h for h in stream.heard[count:] if h.sent is None)
    return gap.at - opened, stream.heard[-1].at - opened
