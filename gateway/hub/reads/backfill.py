"""What one client's own partitions lack, sought in the background: partition by partition, so
that a frozen one delays nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gateway.core.client.subscription import Subscription
from gateway.core.log.partition_reader import EARLIEST, LATEST, LiveStart, Start, TimestampStart
from gateway.core.log.position import NO_EPOCH, RETIRED_EPOCH, UNVERIFIED_LINEAGE, PartitionPosition
from gateway.core.log.record import Gap, GapReason, TopicPartition
from gateway.core.token.resume_token import ResumeToken
from gateway.errors import KafkaError
from gateway.kafka.client import offsets

from .snapshots import SnapshotRead

if TYPE_CHECKING:
    from gateway.hub.fanout.hub import Hub
    from gateway.hub.fanout.shared_tail import SharedTail

log = logging.getLogger(__name__)

VERIFY_INTERVAL_S = 0.05  # seconds


class Backfill:
    """See the module.

    token: what the client resumes from.
    since: where it begins in the partitions that are pending in no token.
    found: called when there may be something to take.
    """

    __slots__ = (
        "_hub",
        "_known_partitions",
        "_on_found",
        "_read_partitions",
        "_shared_tail",
        "_snapshot_read",
        "_subscription",
        "_tasks",
        "_unknown_topics",
        "since",
        "token",
        "topic_ids",
    )  # fmt: skip

    def __init__(
        self,
        hub: Hub,
        shared_tail: SharedTail,
        subscription: Subscription,
        on_found: Callable[[], None],
        *,
        token: ResumeToken | None = None,
        since: TimestampStart | None = None,
    ) -> None:
        self._hub = hub
        self._shared_tail = shared_tail
        self._subscription = subscription
        self._on_found = on_found
        self.token = token
        self.since = since
        self.topic_ids: Mapping[str, str] = dict(shared_tail.tail.topic_ids)
        self._snapshot_read: SnapshotRead | None = None
        self._known_partitions = len(shared_tail.tail.logs)
        told = {} if token is None else token.match_topics(shared_tail.tail.topic_ids)
        self._unknown_topics = told.keys() - {tp.topic for tp in shared_tail.tail.logs}
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self._read_partitions: set[TopicPartition] = set()

    def close(self) -> None:
        if self._snapshot_read is not None:
            self._snapshot_read.close()
        for task in self._tasks.values():
            task.cancel()

    def start_missing(self) -> None:
        """See to what is lacking now."""
        subscription = self._subscription
        if not subscription.private_positions or subscription.end_reason:
            return
        self.retire_recreated()
        for tp, place in subscription.list_unverified():
            self._start_task(tp, self._verify_position(tp, place))
        lacks = dict(subscription.list_backfills())
        for tp, place in lacks.items():
            self._start_task(tp, self._read_partition(tp, place))
            self._read_partitions.add(tp)
        if not subscription.buffered_bytes:
            self._cancel_reads(self._read_partitions - lacks.keys())

    def _cancel_reads(self, tps: Iterable[TopicPartition]) -> None:
        """Reads whose place is in a log by now, or of one that is no more: what they wait for
        may never come."""
        for tp in tps:
            self._tasks[tp].cancel()

    def retire_recreated(self) -> None:
        """A topic was created anew while places of it had not been held against the log yet; or it
        is known only now."""
        if self._unknown_topics and len(self._shared_tail.tail.logs) != self._known_partitions:
            self._add_new_partitions()
        ids = self._shared_tail.tail.topic_ids
        if self.topic_ids == ids:
            return
        for tp, place in list(self._subscription.private_positions.items()):
            known = self.topic_ids[tp.topic]
            if place.lineage == UNVERIFIED_LINEAGE and known not in ("", ids[tp.topic]):
                self._subscription.mark_retired(tp)
        self.topic_ids = dict(ids)

    def _add_new_partitions(self) -> None:
        """Partitions that the token does not speak of came into being after it. Where all of the
        topic was unknown the shared read begins at their ends, and the client before that."""
        tail, subscription = self._shared_tail.tail, self._subscription
        self._known_partitions = len(tail.logs)
        told = {} if self.token is None else self.token.match_topics(tail.topic_ids)
        for tp in [tp for tp in tail.logs if tp.topic in self._unknown_topics]:
            if tp not in subscription.private_positions:
                subscription.read_privately(
                    {tp: PartitionPosition(0, NO_EPOCH, UNVERIFIED_LINEAGE)}
                )
            if not told[tp.topic].matches_id(tail.topic_ids[tp.topic]):
                subscription.mark_retired(tp)
        self._unknown_topics = self._unknown_topics - {tp.topic for tp in tail.logs}

    def _start_task(self, tp: TopicPartition, work: Coroutine[Any, Any, None]) -> None:
        if tp in self._tasks:
            work.close()
            return
        task = self._tasks[tp] = asyncio.create_task(work)
        task.add_done_callback(lambda done: self._on_task_done(tp, done))

    def _on_task_done(self, tp: TopicPartition, done: asyncio.Task[None]) -> None:
        self._tasks.pop(tp, None)
        self._read_partitions.discard(tp)
        if not done.cancelled() and done.exception() is not None:
            log.error("catching up on %s failed", tp, exc_info=done.exception())
            self._subscription.end_reason = "error"
        self._on_found()

    async def _read_partition(self, tp: TopicPartition, place: PartitionPosition) -> None:
        snapshot = self._subscription.snapshot
        if snapshot is not None and snapshot.needs_data(tp):
            await self._read_snapshot(tp, place)
            return
        self._subscription.feed(tp, place, await self._hub.backfill_reader.read(tp, place))

    async def _read_snapshot(self, tp: TopicPartition, place: PartitionPosition) -> None:
        """What it lacks for its snapshot."""
        if self._snapshot_read is None:
            topics = (
                self._hub.topics.get_settings(name) for name in self._shared_tail.tail.topic_ids
            )
            self._snapshot_read = SnapshotRead(
                self._hub,
                self._shared_tail,
                self._subscription,
                self._on_found,
                max(topic.partition_ready_timeout for topic in topics),
            )
        await self._snapshot_read.read_next(tp, place)

    async def _verify_position(self, tp: TopicPartition, place: PartitionPosition) -> None:
        """Hold a token's place against the log: resolve it, or see whether it was cut off.

        Not before the shared read stands on the log of the present leader: metadata here may
        be of a log that is no more, and epochs are asked for by the topic's name.
        """
        reading, ids = self._hub.shared_reads.by_partition[tp].reader, self.topic_ids
        if place.offset is None and place.epoch != RETIRED_EPOCH:
            await self._resolve_start(tp, place, reading.lineage)
            return
        while not reading.can_validate(NO_EPOCH if place.epoch == RETIRED_EPOCH else place.epoch):
            await asyncio.sleep(VERIFY_INTERVAL_S)
            if self._shared_tail.tail.topic_ids != ids:
                return
        lineage, epoch, offset = reading.lineage, reading.leader_epoch, place.offset or 0
        if place.epoch == RETIRED_EPOCH:
            first = await self._limit_start(tp, 0)
            pending = place.offset is None
            gap = None if pending else Gap(tp, offset, first, NO_EPOCH, GapReason.RECREATED)
            self._subscription.on_verified(tp, PartitionPosition(first, NO_EPOCH, lineage), gap)
            return
        end = await self._find_log_end(tp, place, offset)
        shown = await self._limit_start(tp, min(end, offset))
        if self._shared_tail.tail.topic_ids != ids:
            return  # of which topic was that the end?
        if shown == offset:
            # of the present epoch from now on: what was held against it need not be again
            present = PartitionPosition(offset, epoch, lineage)
            self._subscription.on_verified(tp, present, self._build_compacted_gap(tp, place))
        else:
            reason = GapReason.TRUNCATED if end < offset else GapReason.POSITION_REFUSED
            gap = Gap(tp, offset, shown, NO_EPOCH, reason)
            self._subscription.on_verified(tp, PartitionPosition(shown, NO_EPOCH, lineage), gap)

    async def _limit_start(self, tp: TopicPartition, start: int) -> int:
        """A place that goes back, or could not be looked at before, goes back no further than the
        client's route."""
        return await self._hub.token_verifier.limit_start(
            self.token, self._shared_tail.tail, tp, start
        )

    async def _resolve_start(
        self, tp: TopicPartition, place: PartitionPosition, lineage: int
    ) -> None:
        snapshot = self._subscription.snapshot
        start: Start = self.since or self._build_live_start(tp, place.epoch)
        if snapshot is not None and tp in snapshot.fresh:
            start = TimestampStart(EARLIEST)
        found = await self._hub.backfill_reader.resolve_start(tp, start)
        first = await self._limit_start(tp, found.offset or 0)
        if first != found.offset:
            found = PartitionPosition(first)
        self._subscription.on_verified(tp, found._replace(lineage=lineage))

    def _build_live_start(self, tp: TopicPartition, epoch: int) -> LiveStart:
        """The connect that a token of old tells of."""
        since = self._subscription.resolve_since
        return LiveStart(
            connected_at_ms=(int(time.time()) if since is None else since) * 1000,
            connected_at=0.0,  # long ago: an end asked for now is not the end then
            epoch=epoch,
            was_leaderless=epoch != NO_EPOCH,
            clock_skew_ms=int(self._hub.topics.get_settings(tp.topic).clock_skew * 1000),
        )

    def _build_compacted_gap(self, tp: TopicPartition, place: PartitionPosition) -> Gap | None:
        """Away for longer than tombstones are kept: what was deleted meanwhile is not told."""
        kept, token = self._hub.topics.tombstone_retention.get(tp.topic), self.token
        end = self._shared_tail.tail.logs[tp].next_offset
        if kept is None or token is None or place.offset is None or end is None:
            return None
        if not token.issued or time.time() - token.issued <= kept or place.offset >= end:
            return None
        return Gap(tp, place.offset, end, place.epoch, GapReason.COMPACTED)

    async def _find_log_end(self, tp: TopicPartition, place: PartitionPosition, offset: int) -> int:
        """Where the log ends, or ended at the place's epoch; no less than `offset` if known so."""
        held, cluster = self._shared_tail.tail.logs[tp], self._hub.cluster
        while True:
            leader = cluster.leader_for_partition(tp)
            current = leader is not None and place.epoch in (NO_EPOCH, leader[1])
            if current and held.next_offset is not None and offset <= held.next_offset:
                return offset
            answer = await self._fetch_log_end(tp, place)
            if answer is not None:
                return answer
            await asyncio.sleep(VERIFY_INTERVAL_S)

    async def _fetch_log_end(self, tp: TopicPartition, place: PartitionPosition) -> int | None:
        cluster = self._hub.cluster
        try:
            if place.epoch != NO_EPOCH:
                ended = await self._hub.epoch_ends.find_end(tp, place.epoch)
                if isinstance(ended, offsets.EpochEnd) and ended.end_offset >= 0:
                    return ended.end_offset
                if isinstance(ended, int):
                    return None
            listed = (await cluster.list_offsets({tp: LATEST}, offsets.READ_UNCOMMITTED))[tp]
        except KafkaError:
            return None
        return listed.offset if isinstance(listed, offsets.OffsetAndTimestamp) else None
