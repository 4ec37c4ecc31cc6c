"""Read committed records of one partition once, from its leader.

For callers that read a partition at their own pace without being consumers, such as the sidecar's
dead letters and replays. Records of aborted transactions are left out, and a start that Kafka no
longer has is reported and not skipped silently.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.core.error_code import ErrorCode
from gateway.core.log.record import Gap, Record, TopicPartition
from gateway.errors import BrokerUnavailable, PartitionFailed
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.offsets import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    OffsetAndTimestamp,
)

from .batches import gather_slices
from .decoding import RecordSetDecoder
from .fetch import FetchTarget, fetch_on_connection

MAX_FETCH_BYTES = 1 << 20
MAX_WAIT_S = 0.1  # the wait applies only at the end of the log: existing records come at once
_LEADER_CHANGED_ERRORS = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
_LOOKUP_RETRIABLE_ERRORS = _LEADER_CHANGED_ERRORS | {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
}


class CommittedRead(NamedTuple):
    """What one read brought.

    Attributes:
        records: Committed records from the requested offset on, in offset order.
        next_offset: Where to go on reading.
        lost_until: The first offset that the log still has, if that is after the requested one;
            None otherwise.
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
    """Return the committed records from an offset on, as many as one fetch brings.

    The topic must be watched (`Cluster.metadata`), otherwise its leader is not known.

    Args:
        cluster: The cluster.
        tp: The partition.
        start: The offset of the first record.
        max_wait: For how many seconds the broker may wait for a record.
        max_bytes: The most bytes of the response, compressed; at least one batch comes.

    Returns:
        The records. If there are none and `next_offset` is `start`, the log has no more, or a
        transaction is still open there.

    Raises:
        PartitionFailed: The partition cannot be read, is damaged, or ends before `start`.
        BrokerUnavailable: The leader is unknown, away or has changed; try again.
    """
    leader, known = cluster.leader_for_partition(tp), cluster.get_topic(tp.topic)
    if leader is None or known is None:
        raise BrokerUnavailable(f"{tp} has no leader", retry_after=0.2)
    want = FetchTarget(start, leader[1], known.topic_id, max_bytes=max_bytes)
    async with cluster.connections.borrow_spare(leader[0]) as connection:
        responses = await fetch_on_connection(
            cluster.connections,
            connection,
            {tp: want},
            max_wait=max_wait,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation=READ_COMMITTED,
            rack="",  # no rack: a nearer replica may be behind
        )
    fetched = responses[tp]
    if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return await _handle_out_of_range(cluster, tp, start)
    if fetched.error_code:
        raise await _build_read_error(cluster, tp, fetched.error_code)
    decoding = RecordSetDecoder(
        tp,
        fetched.records,
        start,
        aborted=fetched.aborted_transactions,
        high_watermark=fetched.high_watermark,
    )
    decoded = await gather_slices(decoding, cluster.inflation)
    if decoded.next_offset == start and decoded.error:
        raise _build_partition_failed(tp, f"is damaged: {decoded.error}", ErrorCode.CORRUPT_MESSAGE)
    gaps = [entry for entry in decoded.entries if isinstance(entry, Gap)]
    if gaps:
        where = f"from {gaps[0].offset} to {gaps[0].next_offset}"
        raise _build_partition_failed(tp, f"is damaged {where}", ErrorCode.CORRUPT_MESSAGE)
    records = [entry for entry in decoded.entries if isinstance(entry, Record)]
    return CommittedRead(records, decoded.next_offset)


async def fetch_log_bounds(
    cluster: Cluster, tps: Sequence[TopicPartition]
) -> dict[TopicPartition, range]:
    """Return the first offset of each log and the offset after its last record.

    Records of open transactions count.

    Args:
        cluster: The cluster.
        tps: The partitions; their topics must be watched.

    Returns:
        A range for each partition: `start` is its log start offset, `stop` its high watermark.

    Raises:
        PartitionFailed: A partition cannot be read.
        BrokerUnavailable: A leader is unknown, away or has changed; try again.
    """
    bounds = {}
    starts = await cluster.list_offsets(dict.fromkeys(tps, EARLIEST), READ_UNCOMMITTED)
    ends = await cluster.list_offsets(dict.fromkeys(tps, LATEST), READ_UNCOMMITTED)
    for tp in tps:
        bounds[tp] = range(
            _require_offset(tp, starts[tp]).offset, _require_offset(tp, ends[tp]).offset
        )
    return bounds


async def fetch_offsets_for_time(
    cluster: Cluster, tps: Sequence[TopicPartition], timestamp: int
) -> dict[TopicPartition, int]:
    """Return the offset of the first record that is not older than a timestamp.

    Args:
        cluster: The cluster.
        tps: The partitions; their topics must be watched.
        timestamp: Milliseconds since 1970.

    Returns:
        An offset for each partition; -1 if it has no such record.

    Raises:
        PartitionFailed: A partition cannot be read.
        BrokerUnavailable: A leader is unknown, away or has changed; try again.
    """
    results = await cluster.list_offsets(dict.fromkeys(tps, timestamp), READ_UNCOMMITTED)
    return {tp: _require_offset(tp, result).offset for tp, result in results.items()}


async def _handle_out_of_range(cluster: Cluster, tp: TopicPartition, start: int) -> CommittedRead:
    """Find out why an offset is out of range: records were deleted, or the log is too short."""
    log = (await fetch_log_bounds(cluster, [tp]))[tp]
    if start < log.start:
        return CommittedRead([], log.start, lost_until=log.start)
    if start > log.stop:
        raise _build_partition_failed(
            tp,
            f"ends at {log.stop}, before {start}; was the topic created again?",
            ErrorCode.OFFSET_OUT_OF_RANGE,
        )
    # The offset is in the log after all: the broker that answered was behind. Try again there.
    return CommittedRead([], start)


async def _build_read_error(
    cluster: Cluster, tp: TopicPartition, code: int
) -> PartitionFailed | BrokerUnavailable:
    """Return the exception for an error code of Fetch, after asking for metadata.

    Metadata is refreshed before the caller learns of the error, so that its next attempt goes to
    the new leader.
    """
    await cluster.metadata.refresh(f"{tp}: code {code}")
    if code in _LEADER_CHANGED_ERRORS:
        return BrokerUnavailable(f"{tp} is led by another broker", retry_after=0.2)
    return _build_partition_failed(tp, f"cannot be read (code {code})", code)


def _require_offset(tp: TopicPartition, result: OffsetAndTimestamp | int) -> OffsetAndTimestamp:
    """Return the result of ListOffsets, or raise the exception for its error code."""
    if isinstance(result, OffsetAndTimestamp):
        return result
    if result in _LOOKUP_RETRIABLE_ERRORS:
        raise BrokerUnavailable(
            f"{tp} cannot be asked for offsets now (code {result})", retry_after=0.2
        )
    raise _build_partition_failed(tp, f"cannot be read (code {result})", result)


def _build_partition_failed(tp: TopicPartition, detail: str, code: int) -> PartitionFailed:
    return PartitionFailed(f"{tp} {detail}", topic=tp.topic, partition=tp.partition, code=code)
