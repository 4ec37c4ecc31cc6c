"""A piece of a partition, of what is committed, from its leader.

For those who read a partition at their own pace and are no consumers: what has been aborted is not
in it, and what Kafka has deleted is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.core.log.record import Gap, Record, TopicPartition
from gateway.errors import BrokerUnavailable, PartitionFailed
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.offsets import (
    EARLIEST,
    LATEST,
    LEADER_NOT_AVAILABLE,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    OffsetAndTimestamp,
)

from .batches import gather_slices
from .decoding import RecordSetDecoder
from .fetch import FetchTarget, fetch_on_connection

OUT_OF_RANGE = 1
DAMAGED = 2
MAX_FETCH_BYTES = 1 << 20
MAX_WAIT_S = 0.1  # seconds; what is there comes at once


class CommittedRead(NamedTuple):
    """records: from the offset that was asked for, in order. next: where to go on.

    lost: up to where nothing is left of what was asked for, where that is so; None otherwise.
    """

    records: Sequence[Record]
    next_offset: int
    lost_until: int | None = None


async def read_committed(
    cluster: Cluster,
    tp: TopicPartition,
    start: int,
    *,
    max_wait: float = MAX_WAIT_S,
    max_bytes: int = MAX_FETCH_BYTES,
) -> CommittedRead:
    """What there is from `start` on, after at most `max_wait` seconds without any.

    Empty, with `next` at `start`: there is nothing more, or an open transaction stands before it.
    The topic must be watched. Raises PartitionFailed, BrokerUnavailable.
    """
    leader, known = cluster.leader_for_partition(tp), cluster.get_topic(tp.topic)
    if leader is None or known is None:
        raise BrokerUnavailable(f"{tp} has no leader", retry_after=0.2)
    want = FetchTarget(start, leader[1], known.topic_id, max_bytes=max_bytes)
    async with cluster.connections.borrow_spare(leader[0]) as link:
        answers = await fetch_on_connection(
            cluster.connections,
            link,
            {tp: want},
            max_wait=max_wait,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation=READ_COMMITTED,
            rack="",  # a replica near by may be behind
        )
    got = answers[tp]
    if got.error_code == OUT_OF_RANGE:
        return await _handle_out_of_range(cluster, tp, start)
    if got.error_code:
        raise await _build_read_error(cluster, tp, got.error_code)
    decoding = RecordSetDecoder(
        tp, got.records, start, aborted=got.aborted_transactions, high_watermark=got.high_watermark
    )
    decoded = await gather_slices(decoding, cluster.inflation)
    if decoded.next_offset == start and decoded.error:
        raise _build_partition_failed(tp, f"is damaged: {decoded.error}", DAMAGED)
    damaged = [each for each in decoded.entries if isinstance(each, Gap)]
    if damaged:
        where = f"from {damaged[0].offset} to {damaged[0].next_offset}"
        raise _build_partition_failed(tp, f"is damaged {where}", DAMAGED)
    records = [each for each in decoded.entries if isinstance(each, Record)]
    return CommittedRead(records, decoded.next_offset)


async def fetch_log_bounds(
    cluster: Cluster, tps: Sequence[TopicPartition]
) -> dict[TopicPartition, range]:
    """Where logs begin and end (that is: behind all that is written by now). Raises as `piece`."""
    found = {}
    starts = await cluster.list_offsets(dict.fromkeys(tps, EARLIEST), READ_UNCOMMITTED)
    ends = await cluster.list_offsets(dict.fromkeys(tps, LATEST), READ_UNCOMMITTED)
    for tp in tps:
        found[tp] = range(
            _require_offset(tp, starts[tp]).offset, _require_offset(tp, ends[tp]).offset
        )
    return found


async def fetch_offsets_for_time(
    cluster: Cluster, tps: Sequence[TopicPartition], timestamp: int
) -> dict[TopicPartition, int]:
    """The first record at least as late (milliseconds), -1 where there is none."""
    found = await cluster.list_offsets(dict.fromkeys(tps, timestamp), READ_UNCOMMITTED)
    return {tp: _require_offset(tp, each).offset for tp, each in found.items()}


async def _handle_out_of_range(cluster: Cluster, tp: TopicPartition, start: int) -> CommittedRead:
    log = (await fetch_log_bounds(cluster, [tp]))[tp]
    if start < log.start:
        return CommittedRead([], log.start, lost_until=log.start)
    if start > log.stop:
        raise _build_partition_failed(
            tp, f"ends at {log.stop}, before {start}; was it made anew?", OUT_OF_RANGE
        )
    return CommittedRead([], start)


async def _build_read_error(
    cluster: Cluster, tp: TopicPartition, code: int
) -> PartitionFailed | BrokerUnavailable:
    await cluster.metadata.refresh(f"{tp}: code {code}")
    if code in (LEADER_NOT_AVAILABLE, 6, 74, 75, 78):
        return BrokerUnavailable(f"{tp} is led by another broker", retry_after=0.2)
    return _build_partition_failed(tp, f"cannot be read (code {code})", code)


def _require_offset(tp: TopicPartition, result: OffsetAndTimestamp | int) -> OffsetAndTimestamp:
    if isinstance(result, OffsetAndTimestamp):
        return result
    if result in (LEADER_NOT_AVAILABLE, 6, 7, 13, 74, 75, 78):
        raise BrokerUnavailable(f"{tp} cannot be asked now (code {result})", retry_after=0.2)
    raise _build_partition_failed(tp, f"cannot be read (code {result})", result)


def _build_partition_failed(tp: TopicPartition, detail: str, code: int) -> PartitionFailed:
    return PartitionFailed(f"{tp} {detail}", topic=tp.topic, partition=tp.partition, code=code)
