"""Read a bounded range of one partition, from its leader.

This is for callers that read at their own pace without being consumers: `read_committed` serves the
sidecar's dead letters and replays, `iter_records_at` reads single records, and `iter_uncommitted`
finds records that were written lately (such as idempotency keys) while another transaction is still
open. Topics must be watched. All functions raise PartitionFailed if a partition cannot be read, and
BrokerUnavailable if its leader is unknown, away or has changed, for another attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from gateway.core.error_code import ErrorCode
from gateway.core.log.record import Gap, Record, TopicPartition
from gateway.errors import BrokerUnavailable, PartitionFailed, PartitionUnreadable
from gateway.kafka.client.cluster import Cluster, FetchLimits, fetch
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.client.offsets import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    OffsetAndTimestamp,
)
from gateway.kafka.protocol.fetch_messages import FetchedPartition, FetchTarget

from .decoding import (
    BULK_SLICE_RECORDS,
    DecodedSlice,
    RecordSetDecoder,
    describe_unreadable,
    gather_slices,
    iter_slices,
)

MAX_FETCH_BYTES = 1 << 20
# Small compressed records with headers take ten times the 170 bytes that they have decompressed:
# 100,000 of them were 180 MiB of each read, and 0.4 s of the loop in one piece.
MAX_READ_RECORDS = 10_000
MAX_READ_HEADERS = 10 * MAX_READ_RECORDS
MAX_WAIT_S = 0.1  # the wait applies only at the end of the log: existing records come at once
# Of a leader that has changed, or whose disk or network fails: another one leads before long.
_PASSING_ERRORS = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


class PartitionRead(NamedTuple):
    """The records from the requested offset on.

    `lost_until` is the first offset that the log still has, if that is after the requested one.
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
) -> PartitionRead:
    """Return the committed records from an offset on, as many as one fetch brings.

    Args:
        max_wait: For how many seconds the broker may wait for a record.
        max_bytes: The most bytes of the response, compressed; at least one batch comes.

    Returns:
        The records. If there are none and `next_offset` is `start`, the log has no more, or a
        transaction is still open there.

    Raises:
        PartitionUnreadable: A record or batch is damaged or too large.
        PartitionFailed: The partition cannot be read, or ends before `start`.
        BrokerUnavailable: The leader is unknown, away or has changed; try again.
    """
    fetched = await _fetch(cluster, tp, start, FetchLimits(max_wait, max_bytes=max_bytes))
    if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return await _handle_out_of_range(cluster, tp, start)
    decoded = await _decode(cluster, tp, start, fetched)
    if (gap := decoded.find_gap()) is not None:
        raise build_partition_failed(tp, describe_unreadable(gap), ErrorCode.CORRUPT_MESSAGE)
    return _build_read(decoded)


async def iter_records_at(
    cluster: Cluster, tp: TopicPartition, offsets: Iterable[int], reads: asyncio.Semaphore
) -> AsyncGenerator[Record, None]:
    """Yield the committed records at some offsets, where there are any, in the order of the log.

    A batch is fetched and decompressed once, whatever it has of them, while holding one of `reads`.
    The caller must close the iterator, and not wait between its records. Raises as
    `read_committed`.
    """
    wanted = sorted(set(offsets))
    while wanted:
        async with reads:
            start = wanted[0]
            # At least one batch is returned, however few bytes are requested.
            fetched = await _fetch(cluster, tp, start, FetchLimits(max_wait=0.0, max_bytes=1))
            if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                log = (await fetch_log_bounds(cluster, [tp]))[tp]
                wanted = [offset for offset in wanted[1:] if offset in log]
                continue
            decoding = await _create_decoder(cluster, tp, start, fetched)
            end = start
            async with aclosing(
                iter_slices(decoding, cluster.decompression_slot, BULK_SLICE_RECORDS)
            ) as slices:
                async for decoded in slices:
                    _refuse_damaged(tp, start, decoded)
                    end = max(end, decoded.next_offset)
                    places = {offset for offset in wanted if offset < end}
                    for entry in decoded.entries:
                        if isinstance(entry, Record):
                            if entry.offset in places:
                                yield entry
                        elif isinstance(entry, Gap) and not places.isdisjoint(
                            range(entry.offset, entry.next_offset)
                        ):
                            detail = describe_unreadable(entry)
                            raise build_partition_failed(tp, detail, ErrorCode.CORRUPT_MESSAGE)
                    wanted = [offset for offset in wanted if offset >= end]
                    if not wanted:
                        break
                    await asyncio.sleep(0)
            wanted = [offset for offset in wanted if offset >= max(end, start + 1)]


async def iter_uncommitted(
    cluster: Cluster, tp: TopicPartition, start: int, end: int, *, max_bytes: int = MAX_FETCH_BYTES
) -> AsyncIterator[PartitionRead]:
    """Yield the records from `start` on, at least up to `end`, also those of open transactions.

    Each read is a fetch of at most `max_bytes`, as by `read_committed`. The last one may go beyond
    `end`, as batches come whole. Records that are damaged are left out.
    """
    limits = FetchLimits(MAX_WAIT_S, max_bytes=max_bytes, isolation_level=READ_UNCOMMITTED)
    while start < end:
        fetched = await _fetch(cluster, tp, start, limits)
        read = _build_read(await _decode(cluster, tp, start, fetched))
        start = read.next_offset
        yield read


async def fetch_offset(cluster: Cluster, tp: TopicPartition, spec: int) -> int:
    """Return an offset by LATEST, EARLIEST or time (ms); -1 if no record is as late."""
    return (await fetch_offsets(cluster, [tp], spec))[tp]


async def fetch_log_bounds(
    cluster: Cluster, tps: Sequence[TopicPartition], isolation: int = READ_UNCOMMITTED
) -> dict[TopicPartition, range]:
    # Starts first: records that are deleted in between must not make a start exceed its end.
    starts = await fetch_offsets(cluster, tps, EARLIEST)
    ends = await fetch_offsets(cluster, tps, LATEST, isolation)
    return {tp: range(starts[tp], ends[tp]) for tp in tps}


async def fetch_offsets(
    cluster: Cluster, tps: Sequence[TopicPartition], spec: int, isolation: int = READ_UNCOMMITTED
) -> dict[TopicPartition, int]:
    """Return offsets by LATEST, EARLIEST or time (ms); -1 where no record is as late."""
    offsets: dict[TopicPartition, int] = {}
    results = await cluster.list_offsets(dict.fromkeys(tps, spec), isolation)
    for tp, result in results.items():
        if isinstance(result, OffsetAndTimestamp):
            offsets[tp] = result.offset
        elif result in _PASSING_ERRORS:
            raise BrokerUnavailable(
                f"{tp} cannot be asked for offsets now (code {result})", retry_after=0.2
            )
        else:
            raise build_partition_failed(tp, f"cannot be read (code {result})", result)
    return offsets


async def _fetch(
    cluster: Cluster, tp: TopicPartition, start: int, limits: FetchLimits
) -> FetchedPartition:
    leader, known = cluster.leader_for_partition(tp), cluster.get_topic(tp.topic)
    if leader is None or known is None:
        raise BrokerUnavailable(f"{tp} has no leader", retry_after=0.2)
    node, epoch = leader
    targets = {tp: FetchTarget(start, epoch, known.topic_id, max_bytes=limits.max_bytes)}
    connections = cluster.connections
    # Without a rack: a nearer replica may be behind.
    if limits.isolation_level == READ_COMMITTED:
        async with connections.borrow_spare(node) as connection:
            return (await fetch(connections, connection, targets, limits))[tp]
    # No connection of its own: the range has been written, so the broker rarely waits.
    connection = await connections.connect(node, ConnectionRole.CATCHUP)
    return (await fetch(connections, connection, targets, limits))[tp]


async def _create_decoder(
    cluster: Cluster, tp: TopicPartition, start: int, fetched: FetchedPartition
) -> RecordSetDecoder:
    if fetched.error_code:
        raise await _build_read_error(cluster, tp, fetched.error_code)
    return RecordSetDecoder(
        tp,
        fetched.records,
        start,
        aborted=fetched.aborted_transactions,  # with READ_UNCOMMITTED brokers name none
        high_watermark=fetched.high_watermark,
    )


async def _decode(
    cluster: Cluster, tp: TopicPartition, start: int, fetched: FetchedPartition
) -> DecodedSlice:
    decoding = await _create_decoder(cluster, tp, start, fetched)
    slot = cluster.decompression_slot
    decoded = await gather_slices(
        decoding, slot, max_records=MAX_READ_RECORDS, max_headers=MAX_READ_HEADERS
    )
    _refuse_damaged(tp, start, decoded)
    return decoded


def _refuse_damaged(tp: TopicPartition, start: int, decoded: DecodedSlice) -> None:
    if decoded.next_offset == start and decoded.error:
        raise build_partition_failed(tp, f"is damaged: {decoded.error}", ErrorCode.CORRUPT_MESSAGE)


def _build_read(decoded: DecodedSlice) -> PartitionRead:
    records = [entry for entry in decoded.entries if isinstance(entry, Record)]
    return PartitionRead(records, decoded.next_offset)


async def _handle_out_of_range(cluster: Cluster, tp: TopicPartition, start: int) -> PartitionRead:
    """Find out why an offset is out of range: records were deleted, or the log is too short."""
    log = (await fetch_log_bounds(cluster, [tp]))[tp]
    if start < log.start:
        return PartitionRead([], log.start, lost_until=log.start)
    if start > log.stop:
        raise build_partition_failed(
            tp,
            f"ends at {log.stop}, before {start}; was the topic created again?",
            ErrorCode.OFFSET_OUT_OF_RANGE,
        )
    # The offset is in the log after all: the broker that answered was behind. Try again there.
    return PartitionRead([], start)


async def _build_read_error(
    cluster: Cluster, tp: TopicPartition, code: int
) -> PartitionFailed | BrokerUnavailable:
    """Refresh metadata, so that the next attempt goes to the new leader; return the exception."""
    await cluster.metadata.refresh(f"{tp}: code {code}")
    if code in _PASSING_ERRORS:
        return BrokerUnavailable(f"{tp} cannot be read now (code {code})", retry_after=0.2)
    return build_partition_failed(tp, f"cannot be read (code {code})", code)


def build_partition_failed(tp: TopicPartition, detail: str, code: int) -> PartitionFailed:
    kind = PartitionUnreadable if code == ErrorCode.CORRUPT_MESSAGE else PartitionFailed
    return kind(f"{tp} {detail}", topic=tp.topic, partition=tp.partition, code=code)
