"""Read a range of one partition once, from its leader.

It reads uncommitted records, because its callers look for records that were written lately (such as
idempotency keys) and must find them while another transaction is still open. `committed_read` is
the same for committed records.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from gateway.core.error_code import ErrorCode
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import BrokerUnavailable, PartitionFailed
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.client.offsets import READ_UNCOMMITTED, OffsetAndTimestamp

from .batches import gather_slices
from .decoding import RecordSetDecoder
from .fetch import FetchTarget, fetch

MAX_WAIT_S = 0.1  # rarely used up: the range has been written already
MAX_FETCH_BYTES = 1 << 20


class ScanRead(NamedTuple):
    """Some records in offset order, and the offset to go on from."""

    records: Sequence[Record]
    next_offset: int


async def fetch_offset(cluster: Cluster, tp: TopicPartition, spec: int) -> int:
    """Return an offset of a partition's log.

    Args:
        cluster: The cluster.
        tp: The partition; its topic must be watched.
        spec: LATEST, EARLIEST, or milliseconds since 1970 for the first record that is not older.

    Returns:
        The offset; -1 if there is no such record.

    Raises:
        PartitionFailed: The leader answers with an error, or does not answer.
    """
    result = (await cluster.list_offsets({tp: spec}, READ_UNCOMMITTED))[tp]
    if not isinstance(result, OffsetAndTimestamp):
        raise _build_partition_failed(tp, result)
    return result.offset


async def iter_scan(
    cluster: Cluster, tp: TopicPartition, start: int, end: int
) -> AsyncIterator[ScanRead]:
    """Yield the records from `start` on, at least up to `end`.

    The last read may go beyond `end`, as batches come whole.

    Args:
        cluster: The cluster.
        tp: The partition; its topic must be watched.
        start: The first offset.
        end: Reading stops once all offsets before it were read.

    Raises:
        PartitionFailed: The partition has no leader, or the leader answers with an error.
        BrokerUnavailable: The leader is away, or a batch is damaged.
    """
    while start < end:
        leader, known = cluster.leader_for_partition(tp), cluster.get_topic(tp.topic)
        if leader is None or known is None:
            raise _build_partition_failed(tp, ErrorCode.LEADER_NOT_AVAILABLE)
        want = FetchTarget(start, leader[1], known.topic_id, max_bytes=MAX_FETCH_BYTES)
        responses = await fetch(  # no rack: a nearer replica may be behind
            cluster.connections,
            leader[0],
            ConnectionRole.CATCHUP,
            {tp: want},
            max_wait=MAX_WAIT_S,
            isolation=READ_UNCOMMITTED,
        )
        fetched = responses[tp]
        if fetched.error_code:
            raise _build_partition_failed(tp, fetched.error_code)
        decoding = RecordSetDecoder(
            tp, fetched.records, start, high_watermark=fetched.high_watermark
        )
        decoded = await gather_slices(decoding, cluster.inflation)
        if decoded.next_offset == start and decoded.error:
            raise BrokerUnavailable(f"{tp} cannot be read: {decoded.error}", retry_after=1.0)
        start = decoded.next_offset
        yield ScanRead([entry for entry in decoded.entries if isinstance(entry, Record)], start)


def _build_partition_failed(tp: TopicPartition, code: int) -> PartitionFailed:
    return PartitionFailed(
        f"{tp} cannot be read (code {code}); try again",
        topic=tp.topic,
        partition=tp.partition,
        code=code,
    )
