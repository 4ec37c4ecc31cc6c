"""A stretch of one partition, read once from its leader: what was written there lately.

Read uncommitted: who looks for a record wants to find it while a transaction beside it is open.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from gateway.core.log.record import Record, TopicPartition
from gateway.errors import BrokerUnavailable, PartitionFailed
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.client.offsets import LEADER_NOT_AVAILABLE, READ_UNCOMMITTED, OffsetAndTimestamp

from .batches import gather_slices
from .decoding import RecordSetDecoder
from .fetch import FetchTarget, fetch

MAX_WAIT_S = 0.1  # seconds; what is asked for is there already
MAX_FETCH_BYTES = 1 << 20


class ScanRead(NamedTuple):
    """Some records, and the offset after them."""

    records: Sequence[Record]
    next_offset: int


async def fetch_offset(cluster: Cluster, tp: TopicPartition, spec: int) -> int:
    """LATEST, EARLIEST, or of the first record stamped at `spec` (milliseconds) or later, -1 if
    there is none. Raises PartitionFailed."""
    told = (await cluster.list_offsets({tp: spec}, READ_UNCOMMITTED))[tp]
    if not isinstance(told, OffsetAndTimestamp):
        raise _build_partition_failed(tp, told)
    return told.offset


async def iter_scan(
    cluster: Cluster, tp: TopicPartition, start: int, end: int
) -> AsyncIterator[ScanRead]:
    """The records from `start` to before `end`. Raises PartitionFailed, BrokerUnavailable."""
    while start < end:
        leader, known = cluster.leader_for_partition(tp), cluster.get_topic(tp.topic)
        if leader is None or known is None:
            raise _build_partition_failed(tp, LEADER_NOT_AVAILABLE)
        want = FetchTarget(start, leader[1], known.topic_id, max_bytes=MAX_FETCH_BYTES)
        answers = await fetch(  # no rack: a replica near by may be behind
            cluster.connections,
            leader[0],
            ConnectionRole.CATCHUP,
            {tp: want},
            max_wait=MAX_WAIT_S,
            isolation=READ_UNCOMMITTED,
        )
        got = answers[tp]
        if got.error_code:
            raise _build_partition_failed(tp, got.error_code)
        decoding = RecordSetDecoder(tp, got.records, start, high_watermark=got.high_watermark)
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
