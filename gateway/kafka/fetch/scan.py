"""A stretch of one partition, read once from its leader: what was written there lately.

Read uncommitted: who looks for a record wants to find it while a transaction beside it is open.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from gateway.core.log.record import Record, TopicPartition
from gateway.errors import BrokerUnavailable, PartitionFailed
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import Role
from gateway.kafka.client.offsets import LEADER_NOT_AVAILABLE, READ_UNCOMMITTED, Offset

from .batches import gather
from .decoding import Decoding
from .fetch import Want, fetch

MAX_WAIT = 0.1  # seconds; what is asked for is there already
MAX_BYTES = 1 << 20


class Piece(NamedTuple):
    """Some records, and the offset after them."""

    records: Sequence[Record]
    next: int


async def offset(cluster: Cluster, tp: TopicPartition, spec: int) -> int:
    """LATEST, EARLIEST, or of the first record stamped at `spec` (milliseconds) or later, -1 if
    there is none. Raises PartitionFailed."""
    told = (await cluster.list_offsets({tp: spec}, READ_UNCOMMITTED))[tp]
    if not isinstance(told, Offset):
        raise _failed(tp, told)
    return told.offset


async def scan(cluster: Cluster, tp: TopicPartition, start: int, end: int) -> AsyncIterator[Piece]:
    """The records from `start` to before `end`. Raises PartitionFailed, BrokerUnavailable."""
    while start < end:
        leader, known = cluster.leader(tp), cluster.topic(tp.topic)
        if leader is None or known is None:
            raise _failed(tp, LEADER_NOT_AVAILABLE)
        want = Want(start, leader[1], known.topic_id, max_bytes=MAX_BYTES)
        answers = await fetch(  # no rack: a replica near by may be behind
            cluster.connections,
            leader[0],
            Role.CATCHUP,
            {tp: want},
            max_wait=MAX_WAIT,
            isolation=READ_UNCOMMITTED,
        )
        got = answers[tp]
        if got.error_code:
            raise _failed(tp, got.error_code)
        decoding = Decoding(tp, got.records, start, end=got.high_watermark)
        decoded = await gather(decoding, cluster.inflation)
        if decoded.next_offset == start and decoded.error:
            raise BrokerUnavailable(f"{tp} cannot be read: {decoded.error}", retry_after=1.0)
        start = decoded.next_offset
        yield Piece([entry for entry in decoded.entries if isinstance(entry, Record)], start)


def _failed(tp: TopicPartition, code: int) -> PartitionFailed:
    return PartitionFailed(
        f"{tp} cannot be read (code {code}); try again",
        topic=tp.topic,
        partition=tp.partition,
        code=code,
    )
