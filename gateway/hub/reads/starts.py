"""Where starts and ends by time are, asked of Kafka before a client begins."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from gateway.core.client.private_positions import PartitionPredicate
from gateway.core.log.partition_reader import LATEST, TimestampStart
from gateway.core.log.position import NO_EPOCH, UNVERIFIED_LINEAGE, PartitionPosition, Position
from gateway.core.log.record import TopicPartition
from gateway.core.log.tail import Tail
from gateway.errors import KafkaError
from gateway.kafka.client import offsets
from gateway.kafka.client.cluster import Cluster

from .backfill_reader import BackfillReader

OTHERS_TIMEOUT_S = (
    0.25  # seconds for which a start by time waits for more partitions than the first
)


async def resolve_starts(
    backfill_reader: BackfillReader,
    tail: Tail,
    since: TimestampStart,
    deadline: float,
    partition_predicate: PartitionPredicate | None = None,
) -> Position:
    """Where a start by time is, for the partitions that answer soon after the first one.
    The others stay pending: the client looks for them when it has begun. Those that hold
    nothing for it are left out: it starts live there."""
    wanted = [tp for tp in tail.logs if partition_predicate is None or partition_predicate(tp)]
    lineages = {tp: log.lineage for tp, log in tail.logs.items()}

    async def one(tp: TopicPartition) -> PartitionPosition:
        return await backfill_reader.resolve_start(tp, since)

    there = await _gather_until(((tp, one(tp)) for tp in wanted), deadline)
    own: Position = dict.fromkeys(wanted, PartitionPosition(None, NO_EPOCH, UNVERIFIED_LINEAGE))
    return own | {tp: at._replace(lineage=lineages[tp]) for tp, at in there.items()}


async def fetch_ends(cluster: Cluster, tail: Tail, until: object) -> dict[TopicPartition, int]:
    """The offsets at which partitions end. Raises KafkaError if one does not say."""
    timestamp = until if isinstance(until, int) else LATEST
    specs = dict.fromkeys(tail.logs, timestamp)
    told = await cluster.list_offsets(specs)
    late = {
        tp
        for tp, end in told.items()
        if isinstance(end, offsets.OffsetAndTimestamp) and end.offset < 0
    }
    if late:
        told.update(await cluster.list_offsets(dict.fromkeys(late, LATEST)))
    failed = [tp for tp, end in told.items() if isinstance(end, int)]
    if failed:
        raise KafkaError(f"{failed[0]} does not say where it ends; try again", retry_after=1.0)
    return {
        tp: end.offset for tp, end in told.items() if isinstance(end, offsets.OffsetAndTimestamp)
    }


async def _gather_until(
    work: Iterable[tuple[TopicPartition, Coroutine[Any, Any, PartitionPosition]]], deadline: float
) -> Mapping[TopicPartition, PartitionPosition]:
    """Results of those that are done by the deadline, and a moment after the first one."""
    tasks = {asyncio.create_task(one): tp for tp, one in work}
    left = deadline - asyncio.get_running_loop().time()
    for how, wait in (
        (asyncio.FIRST_COMPLETED, left),
        (asyncio.ALL_COMPLETED, min(left, OTHERS_TIMEOUT_S)),
    ):
        if tasks:
            await asyncio.wait(tasks, timeout=max(0.0, wait), return_when=how)
    late = [task for task in tasks if not task.done()]
    for task in late:
        task.cancel()
    return {tp: task.result() for task, tp in tasks.items() if task.done()}
