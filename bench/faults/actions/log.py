"""Faults of the logs: records deleted, compacted and held back, and topics that begin anew."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from confluent_kafka import KafkaError, Message, Producer
from support.oracle import read_records

from gateway.core.log.record import TopicPartition

from ..schedule import PlannedFault
from ..startup import create_topic
from ..truth import LogStart
from ..views import LEDGER, PRICES, TOPICS, TRIMMED, VOLATILE
from ..world import World
from ..writers import choose_key
from .effects import FaultAction, ask_kafka, clients_away, poll_effect, wait_for_effect

KEPT_RECORDS = 3  # of each partition, when the others are deleted
AWAY_RECORDS = 10  # that are written while clients are away
HANGING_RECORDS = 3
SEGMENT_COUNT = 6


async def _write_while_away(world: World, topic: str) -> None:
    """Wait until so much was written that those who are away will miss some of it."""
    before = len(world.log.entries)
    await wait_for_effect(
        lambda: (
            sum(
                each.tp.topic == topic and each.outcome == "acknowledged"
                for each in world.log.entries[before:]
            )
            >= AWAY_RECORDS
        ),
        f"nothing is acknowledged for {topic}",
    )


async def _get_offsets(
    world: World, topic: str, get_offset: Callable[[str, int], int]
) -> dict[int, int]:
    """Return an offset of each partition, by a method of the admin client."""
    return {
        tp.partition: await ask_kafka(get_offset, topic, tp.partition)
        for tp in world.partitions[topic]
    }


async def _get_log_starts(world: World, topic: str) -> dict[int, int]:
    starts = await _get_offsets(world, topic, world.cluster.admin.get_log_start_offset)
    now = time.monotonic()
    world.log_starts += [
        LogStart(now, TopicPartition(topic, number), offset) for number, offset in starts.items()
    ]
    return starts


async def _get_ends(world: World, topic: str) -> dict[int, int]:
    return await _get_offsets(world, topic, world.cluster.admin.get_high_watermark)


@asynccontextmanager
async def delete_records(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Delete all but the last records of each partition, while half of the clients are away."""
    writer, clients = world.writers[TRIMMED], world.list_clients(TRIMMED)[fault.choice % 2 :: 2]
    async with clients_away(clients):
        await _write_while_away(world, TRIMMED)
        await writer.stop()
        await world.read_topic(TRIMMED)
        ends, starts = await _get_ends(world, TRIMMED), await _get_log_starts(world, TRIMMED)
        befores = {number: max(starts[number], end - KEPT_RECORDS) for number, end in ends.items()}
        await ask_kafka(world.cluster.admin.delete_records, TRIMMED, befores)
        now = await _get_log_starts(world, TRIMMED)
        writer.start()
    assert now == befores, f"the log begins at {now}, not at {befores}"
    yield f"{TRIMMED} begins at {now}, before at {starts}; {len(clients)} clients were away"


@asynccontextmanager
async def expire_records(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Have retention delete what there is, while half of the clients are away."""
    writer, clients = world.writers[TRIMMED], world.list_clients(TRIMMED)[fault.choice % 2 :: 2]
    admin = world.cluster.admin
    async with clients_away(clients):
        await _write_while_away(world, TRIMMED)
        await writer.stop()
        await world.read_topic(TRIMMED)
        starts, ends = await _get_log_starts(world, TRIMMED), await _get_ends(world, TRIMMED)
        now: dict[int, int] = {}

        def has_expired() -> bool:
            nonlocal now
            now = {number: admin.get_log_start_offset(TRIMMED, number) for number in ends}
            return now == ends

        await ask_kafka(admin.alter_configs, TRIMMED, {"retention.ms": "500", "segment.ms": "200"})
        try:
            await poll_effect(has_expired, f"the log start of {TRIMMED}")
        finally:
            configs = {"retention.ms": "-1", "segment.ms": "604800000"}
            await ask_kafka(admin.alter_configs, TRIMMED, configs)
        await _get_log_starts(world, TRIMMED)
        writer.start()
    yield f"{TRIMMED} begins at {now}, before at {starts}; {len(clients)} clients were away"


def _count_segments(world: World, topic: str) -> int:
    return sum(1 for node in world.kafka.nodes for _ in node.directory.glob(f"{topic}-*/*.log"))


@asynccontextmanager
async def shorten_segments(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Have segments of a fifth of a second."""
    admin, before = world.cluster.admin, _count_segments(world, TRIMMED)
    await ask_kafka(admin.alter_configs, TRIMMED, {"segment.ms": "200"})
    try:
        await poll_effect(
            lambda: _count_segments(world, TRIMMED) >= before + SEGMENT_COUNT, "new segments"
        )
        yield f"{TRIMMED} has {_count_segments(world, TRIMMED)} segments, before {before}"
    finally:
        await ask_kafka(admin.alter_configs, TRIMMED, {"segment.ms": "604800000"})


@asynccontextmanager
async def compact(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Compact a topic all the time, while half of its clients come back to it."""
    clients = world.list_clients(PRICES)[fault.choice % 2 :: 2]
    admin, segments = world.cluster.admin, _count_segments(world, PRICES)
    configs = {
        "segment.ms": "300",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "500",
    }
    await ask_kafka(admin.alter_configs, PRICES, configs)
    try:
        async with clients_away(clients):
            await poll_effect(
                lambda: _count_segments(world, PRICES) >= segments + SEGMENT_COUNT, "new segments"
            )
            here, written = 0, 0
            deadline = asyncio.get_running_loop().time() + 60
            while not here or here >= written:
                assert asyncio.get_running_loop().time() < deadline, f"{here} of {written} are left"
                written = sum(
                    each.tp.topic == PRICES and each.offset is not None
                    for each in world.log.entries
                )
                here = len(await read_records(world.servers, PRICES, timeout_s=60))
        yield f"{PRICES} has {here} records left of {written}; {len(clients)} clients were away"
    finally:
        configs = {"segment.ms": "604800000", "min.cleanable.dirty.ratio": "0.5"}
        configs["max.compaction.lag.ms"] = str((1 << 63) - 1)
        await ask_kafka(admin.alter_configs, PRICES, configs)


@asynccontextmanager
async def recreate_topic(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Delete a topic and create it again, while half of its clients are away."""
    writer, clients = world.writers[VOLATILE], world.list_clients(VOLATILE)[fault.choice % 2 :: 2]
    admin = world.cluster.admin
    (topic,) = (each for each in TOPICS if each.name == VOLATILE)
    async with clients_away(clients):
        await writer.stop()
        await world.read_topic(VOLATILE)
        old_id = await ask_kafka(admin.get_topic_id, VOLATILE)
        await ask_kafka(admin.delete_topic, VOLATILE)
        await asyncio.sleep(fault.duration_s / 2)  # how long the topic is gone
        await create_topic(world.cluster, topic)
        new_id = await ask_kafka(admin.get_topic_id, VOLATILE)
        world.oracle.mark_recreated(VOLATILE)
        writer.start()
    assert new_id != old_id
    yield f"{VOLATILE} has the id {new_id}, before {old_id}; {len(clients)} clients were away"


@asynccontextmanager
async def hang_transaction(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Leave a transaction open, as a producer does that was killed, until Kafka aborts it."""
    tps = world.partitions[LEDGER]
    tp = tps[fault.choice % len(tps)]
    timeout_ms = int(1000 * (fault.duration_s + 2))
    producer = Producer(
        {
            "bootstrap.servers": world.servers,
            "transactional.id": f"hanging-{uuid.uuid4().hex[:8]}",
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms,
            "log_level": 0,
        }
    )
    await asyncio.to_thread(producer.init_transactions, 30)
    producer.begin_transaction()
    offsets: list[int] = []

    def note_offset(error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        if error is None and offset is not None:
            offsets.append(offset)

    keys = choose_key(world.random)
    for _ in range(HANGING_RECORDS):
        record = world.log.build_record(tp, keys)
        world.oracle.add_aborted([record.value or b""])
        world.log.add_aborted(record, None, "hanging")
        producer.produce(tp.topic, record.value, record.key, tp.partition, on_delivery=note_offset)
    await asyncio.to_thread(producer.flush, 30)
    assert offsets, "the records of the transaction are not written"
    admin = world.cluster.admin
    stable = await ask_kafka(admin.get_last_stable_offset, LEDGER, tp.partition)
    assert stable <= min(offsets), f"the stable offset is {stable}, the transaction at {offsets}"
    try:
        yield f"{LEDGER}-{tp.partition} is held back at {stable} by a transaction"
    finally:
        await poll_effect(
            lambda: admin.get_last_stable_offset(LEDGER, tp.partition) > max(offsets),
            "Kafka did not abort the transaction",
        )


LOG_FAULTS: Mapping[str, FaultAction] = {
    "records-deleted": delete_records,
    "retention": expire_records,
    "tiny-segments": shorten_segments,
    "compaction": compact,
    "topic-recreated": recreate_topic,
    "hanging-transaction": hang_transaction,
}
