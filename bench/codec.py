"""Measure both ends of a record's way in the process: batches to entries, and entries to chunks.

No sockets and no Kafka; CPU time of this process, the median of several repeats.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from gateway.core.channel.channel import Channel
from gateway.core.client.subscription import Subscription
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import Entry, Ready, Record, TopicPartition
from gateway.core.log.tail import Tail
from gateway.formats import create_format
from gateway.hub.wires.sse import SseEncoder
from gateway.kafka.fetch.batches import decode_record_set

from .figure import Figure, median
from .kafka import Kafka

CODECS = {"none": 0, "lz4": 3}


@dataclass(frozen=True)
class Size:
    record_count: int = 10_000
    repeats: int = 5
    partitions: int = 12
    value_bytes: int = 200
    batch_sizes: Sequence[int] = (1, 100, 1000)
    update_sizes: Sequence[int] = (1, 10, 100, 1000)
    clients: int = 50


async def measure(kafka: Kafka | None, size: Size = Size()) -> list[Figure]:
    figures = []
    for codec in CODECS:
        for batch in size.batch_sizes:
            rate = _measure_rate(partial(_prepare_decode, codec, batch, size), size)
            what = f"decode, batches of {batch}, compression {codec}"
            figures.append(Figure(what, rate, "records/s", size.record_count))
    for form in ("value", "envelope"):
        for turn in size.update_sizes:
            rate = _measure_rate(partial(_prepare_publish, form, turn, 0, size), size)
            figures.append(Figure(f"encode as {form}, turns of {turn}", rate, "records/s"))
    for turn in size.update_sizes:
        work = partial(_prepare_publish, "value", turn, size.clients, size)
        what = f"encode and {size.clients} cursors, turns of {turn}"
        figures.append(Figure(what, size.clients * _measure_rate(work, size), "deliveries/s"))
    return figures


def _measure_rate(prepare: Callable[[], Callable[[], int]], size: Size) -> float:
    """Records a CPU second; `prepare` gives the work, which says how many it has done."""
    rates = []
    for _ in range(size.repeats):
        work = prepare()
        began = time.process_time()
        done = work()
        rates.append(done / (time.process_time() - began))
    return median(rates)


def _prepare_decode(codec: str, batch_size: int, size: Size) -> Callable[[], int]:
    builder = DefaultRecordBatchBuilder(2, CODECS[codec], 0, -1, -1, -1, 1 << 30)
    for n in range(batch_size):
        builder.append(n, 1_700_000_000_000, b"key", _build_value(size), [])
    batch, tp = bytes(builder.build()), TopicPartition("bench", 0)

    def work() -> int:
        done = 0
        while done < size.record_count:
            done += len(decode_record_set(tp, batch, 0, high_watermark=batch_size).entries)
        return done

    return work


def _prepare_publish(
    format_name: str, update_size: int, clients: int, size: Size
) -> Callable[[], int]:
    partitions = [TopicPartition("bench", p) for p in range(size.partitions)]
    logs = {tp: PartitionLog(tp, 1 << 26, 600.0) for tp in partitions}
    tail = Tail("cluster", logs.values(), {"bench": "id"})
    for log in logs.values():
        log.open(0, 0)
    tail.apply_entries([Ready(tp, 0, 0, 0) for tp in partitions], 0)
    channel = Channel(tail, b"view0", SseEncoder(create_format(format_name)))
    readers = [Subscription(channel) for _ in range(clients)]
    entries: list[Entry] = [
        Record(
            partitions[n % size.partitions], n // size.partitions, 0, 0, b"k", _build_value(size)
        )
        for n in range(size.record_count)
    ]

    def work() -> int:
        for first in range(0, size.record_count, update_size):
            some = entries[first : first + update_size]
            for entry in some:
                logs[entry.tp].append(entry, 0.0)
            channel.publish(tail.apply_entries(some, 1))
            for reader in readers:
                while reader.take(1 << 16, time.time()):
                    pass
        return size.record_count

    return work


def _build_value(size: Size) -> bytes:
    return b"~".ljust(size.value_bytes, b"x")
