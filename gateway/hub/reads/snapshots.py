"""Bring snapshots to clients: partition by partition, each as fast as it can be read.

All clients of a hub share the tables, and the question where partitions end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from gateway.background_tasks import BackgroundTasks
from gateway.config import Topic
from gateway.core.client.snapshot import Snapshot, SnapshotBlock, SnapshotBlocks, TableSnapshot
from gateway.core.client.subscription import Subscription
from gateway.core.log.record import Entry, PartitionPosition, TopicPartition
from gateway.errors import KafkaError
from gateway.kafka.client.cluster import Cluster, get_known_topic

from .backfill_reader import BackfillReader
from .shared_reads import SharedReads
from .slices import Slice
from .tables import Tables

if TYPE_CHECKING:
    from gateway.hub.reads.shared_tail import SharedTail

log = logging.getLogger(__name__)

MAX_BATCH_BYTES = 128 * 1024  # bytes of records that are brought at once
CHECK_INTERVAL_S = 1.0  # seconds from one look at unreadable partitions to the next


class Snapshots:
    """What the snapshots of one hub have in common. `Hub` creates and closes it."""

    def __init__(
        self,
        cluster: Cluster,
        shared_reads: SharedReads,
        backfill_reader: BackfillReader,
        get_settings: Callable[[str], Topic],
        get_memory_limit: Callable[[], int],
    ) -> None:
        self.tables = Tables(shared_reads, backfill_reader, get_settings, get_memory_limit)
        self.lookups = backfill_reader.lookups
        # The slices in which blocks are encoded, by the offsets of these.
        self.encoding: WeakValueDictionary[tuple[SnapshotBlocks, int], Slice[None]]
        self.encoding = WeakValueDictionary()
        self._cluster = cluster
        self._checked_topics: set[str] = set()
        self._check_tasks = BackgroundTasks(log)

    async def close(self) -> None:
        await self._check_tasks.close()

    def check_cleanup_policies(self, topics: Iterable[str]) -> None:
        """Warn once per topic that it is not compacted, so that snapshots lack deleted records."""
        for topic in set(topics) - self._checked_topics:
            if get_known_topic(self._cluster, topic) is None:
                continue
            self._checked_topics.add(topic)
            self._check_tasks.start(
                self._check_cleanup_policy(topic), f"the check of {topic}", context=Context()
            )

    async def _check_cleanup_policy(self, topic: str) -> None:
        try:
            policy = await self._cluster.fetch_cleanup_policy(topic)
        except KafkaError:
            return
        if policy is not None and "compact" not in policy:
            log.warning(
                "mode: snapshot is for compacted topics, and %s has cleanup.policy=%s: keys whose "
                "last record its retention has taken are in no snapshot; set it to compact, or "
                "use mode: live", topic, policy,
            )  # fmt: skip


class SnapshotRead:
    """Bring one client its snapshot, and wait `timeout_s` for partitions that cannot be read.

    `Backfill` creates and closes it.
    """

    __slots__ = (
        "_check_timer", "_on_found", "_shared_reads", "_shared_tail", "_snapshots", "_subscription",
    )  # fmt: skip

    def __init__(
        self,
        snapshots: Snapshots,
        shared_reads: SharedReads,
        shared_tail: SharedTail,
        subscription: Subscription,
        on_found: Callable[[], None],
        timeout_s: float,
    ) -> None:
        self._snapshots = snapshots
        self._shared_reads = shared_reads
        self._shared_tail = shared_tail
        self._subscription = subscription
        self._on_found = on_found
        self._check_timer = asyncio.get_running_loop().call_later(timeout_s, self._check_overdue)

    def close(self) -> None:
        self._check_timer.cancel()

    async def read_next(self, tp: TopicPartition, position: PartitionPosition) -> None:
        """Find out where a partition ends, or bring what comes next of its table."""
        subscription, snapshot = self._subscription, self._subscription.snapshot
        assert snapshot is not None and position.offset is not None
        if tp not in snapshot.tables:
            await self._open_table(snapshot, tp, position)
        if subscription.credit == 0 or tp not in snapshot.tables:
            return
        table_snapshot = snapshot.tables[tp]
        if table_snapshot is not None and not table_snapshot.is_released:
            await self._encode_block(table_snapshot, position.offset)
            if subscription.snapshot is snapshot and not table_snapshot.is_released:
                self._feed_table(tp, position, table_snapshot)
        elif snapshot.is_fresh(tp):  # its table is spilled, or was released
            end = snapshot.end_offsets[tp]
            pieces = await self._snapshots.tables.read_window(
                tp, position, end, snapshot.filters, subscription.client_key
            )
            if subscription.private_reader is not None:
                subscription.private_reader.feed_snapshot(tp, position, pieces)

    async def _open_table(
        self, snapshot: Snapshot, tp: TopicPartition, position: PartitionPosition
    ) -> None:
        """Find out where a partition ends, and take its table, unless the client has enough."""
        subscription, tables = self._subscription, self._snapshots.tables
        table_snapshot, end = None, snapshot.end_offsets.get(tp)
        if end is None:
            end = await self._snapshots.lookups.find_end(tp)
        # Without credit only the end is needed: an empty snapshot ends without any.
        needs_table = snapshot.is_fresh(tp) and subscription.credit != 0
        if needs_table:  # it may wait for Kafka, and must not keep other partitions waiting then
            await tables.read_to(tp, end, snapshot.filters)
        reader = subscription.private_reader
        if reader is None:
            return
        opens_table = needs_table and reader.may_open_table(snapshot)
        if opens_table:
            snapshot.opening.add(tp)
            try:
                table_snapshot = await tables.get_snapshot(
                    tp, end, snapshot.filters, subscription.client_key
                )
            finally:
                snapshot.opening.remove(tp)
        # It may have read all that it had to meanwhile, or the log went back.
        if subscription.private_reader is not reader or reader.positions.get(tp) != position:
            return
        if table_snapshot is None:
            end = snapshot.end_offsets.get(tp, end)
        else:
            assert table_snapshot.end_position.offset is not None
            end = table_snapshot.end_position.offset
        reader.set_snapshot_end(tp, end, table_snapshot)
        if opens_table and tp in snapshot.remaining:
            snapshot.tables.setdefault(tp, None)

    @property
    def _wants_blocks(self) -> bool:
        """Return whether it gets what all clients of the view share, and not only a part."""
        subscription, snapshot = self._subscription, self._subscription.snapshot
        keyed = snapshot is not None and snapshot.filters.keys is not None
        return not keyed and subscription.credit is None and subscription.remaining_records is None

    async def _encode_block(self, table_snapshot: TableSnapshot, offset: int) -> None:
        """See that the block that is to be fed is encoded: one client does it for all."""
        subscription, encoding = self._subscription, self._snapshots.encoding
        while self._wants_blocks and not table_snapshot.is_released:
            blocks = SnapshotBlocks.for_channel(table_snapshot, subscription.channel)
            if blocks.has_block(table_snapshot, offset):
                return
            slice = encoding.get((blocks, offset))
            if slice is None or not slice.is_needed:
                slice = Slice(partial(_encode, blocks, table_snapshot, offset))
                encoding[blocks, offset] = slice
            await self._snapshots.tables.slices.work(subscription.client_key, slice)

    def _feed_table(
        self, tp: TopicPartition, position: PartitionPosition, table_snapshot: TableSnapshot
    ) -> None:
        subscription, offset = self._subscription, position.offset
        assert offset is not None
        # With 48 partitions, a client that does not read would hold a block of each.
        if subscription.private_reader is None or subscription.private_reader.is_full:
            return
        pieces: Iterable[Entry | SnapshotBlock]
        if self._wants_blocks:
            blocks = SnapshotBlocks.for_channel(table_snapshot, subscription.channel)
            block = blocks.get_block(table_snapshot, offset)
            pieces = () if block is None else (block,)
        else:
            pieces = table_snapshot.read(offset, MAX_BATCH_BYTES)
        subscription.private_reader.feed_snapshot(tp, position, pieces)

    def _check_overdue(self) -> None:
        """Stop waiting for partitions that have no leader, or one that does not answer."""
        snapshot, tail = self._subscription.snapshot, self._shared_tail.tail
        if snapshot is None or snapshot.is_closed:
            return
        self._shared_reads.refresh_readiness(self._shared_tail)
        unread = {*tail.readiness.list_pending(), *(snapshot.remaining - tail.logs.keys())}
        if snapshot.remaining <= unread:  # nothing can be read for now of all that is missing
            snapshot.stop_waiting()
            self._on_found()
        else:
            self._check_timer = asyncio.get_running_loop().call_later(
                CHECK_INTERVAL_S, self._check_overdue
            )


def _encode(
    blocks: SnapshotBlocks, snapshot: TableSnapshot, offset: int, is_over: Callable[[], bool]
) -> None:
    if not snapshot.is_released:
        blocks.get_block(snapshot, offset, is_over)
