"""What one client reads by itself: the partitions whose places are not its channel's.

Each is read privately, from the logs or from Kafka, up to exactly where the tail stands, and
given back to the ride at that instant (see `catch_up`); so no record comes twice, none is left
out, and no component of its ids ever goes back. The others go on: it rides without its own.

A client that rides with everything has none of this: it costs a cursor (see `subscription`).
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.log.position import (
    NO_EPOCH,
    RETIRED_EPOCH,
    UNVERIFIED_LINEAGE,
    PartitionPosition,
    Position,
)
from gateway.core.log.record import Entry, Gap, GapReason, TopicPartition

from .catch_up import CatchUp, build_truncation_gap
from .private_positions import FastForwardPartitions, PartitionPredicate, PrivatePositions
from .read_buffer import ReadBuffer
from .shared_cursor import SharedCursor
from .slow_client import SlowClientPolicy
from .snapshot_blocks import SnapshotBlock
from .write_batch import WriteBatch


class PrivateReader:
    """See the module. Comes with the first partition that a client owns, or an end of its own, and
    goes when it is `over`.

    own: places that differ from the tail's, or may; also of partitions that only its
         token knows of yet: metadata here may be behind.
    """

    __slots__ = (
        "_buffer",
        "_catch_up",
        "_credit_limited",
        "_cursor",
        "_fast_forward_partitions",
        "_first_seq_seen",
        "_partitions_to_skip",
        "_pending_gaps",
        "_pending_notices",
        "positions",
    )  # fmt: skip

    # `_told`:    what was found out about a place, and the client not told yet.
    # `_notices`: what it was not told of its channel's chunks, and no log has.
    # `_skipped`: what is left out, once it reads again.
    # `_short`:   what it reads alone for want of credit; the ring began with `_seen` then.

    def __init__(self, cursor: SharedCursor) -> None:
        self._cursor = cursor
        self.positions = PrivatePositions(cursor)
        self._buffer = ReadBuffer(cursor)
        self._catch_up = CatchUp(cursor, self.positions, self._buffer)
        self._pending_gaps: list[tuple[TopicPartition, PartitionPosition, Gap]] = []
        self._pending_notices: list[bytes] = []
        self._partitions_to_skip: set[TopicPartition] = set()
        self._credit_limited: set[TopicPartition] = set()
        self._first_seq_seen = cursor.channel.first_seq
        self._fast_forward_partitions: FastForwardPartitions | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that wait to be taken."""
        return self._buffer.bytes

    @property
    def is_done(self) -> bool:
        """It rides with everything again, and was told all."""
        waits = (
            self.positions
            or self._pending_gaps
            or self._pending_notices
            or self._partitions_to_skip
            or self._credit_limited
        )
        return not (waits or self._cursor.is_bounded or self._cursor.snapshot)

    @property
    def is_selective(self) -> bool:
        """Does it read some partitions only?"""
        return self._fast_forward_partitions is not None

    def take(self, max_bytes: int) -> list[bytes]:
        """As `Subscription.take`, of which this is the longer way."""
        ride, portion = self._cursor, WriteBatch(self._cursor, self.positions, max_bytes)
        if self._credit_limited:
            self._apply_credit_policy()
        if self._partitions_to_skip:
            self._skip_behind()
        if self._pending_gaps:
            self._send_pending_gaps(portion)
        if self._pending_notices and not ride.end_reason:
            portion.add_notices(self._pending_notices)
            self._pending_notices = []
        self._read_chunks(portion)
        self._fast_forward()
        if self.positions and ride.next_seq == ride.channel.next_seq and not ride.end_reason:
            self._send_pending_gaps(portion)
            self._catch_up.read_into(portion)
            portion.flush_events()
            if ride.credit == 0:
                self._conflate_without_credit()
        ride.has_more = portion.remaining_bytes <= 0 and not ride.end_reason
        return portion.pieces

    # what must be found out first

    def list_unverified(self) -> list[tuple[TopicPartition, PartitionPosition]]:
        """Places that came with a token and were not held against the log yet."""
        self._fast_forward()
        known = self._cursor.channel.tail.logs.keys() - {tp for tp, _, _ in self._pending_gaps}
        if self._fast_forward_partitions is not None:
            known -= self._fast_forward_partitions.remaining
        return [
            (tp, p)
            for tp, p in self.positions.items()
            if p.lineage == UNVERIFIED_LINEAGE and tp in known
        ]

    def on_verified(
        self, tp: TopicPartition, place: PartitionPosition, gap: Gap | None = None
    ) -> None:
        """The log has the place, or `gap` says what became of it; `place` is where to go on."""
        log, came = self._cursor.channel.tail.logs[tp], self.positions.get(tp, place)
        if gap is None and place.lineage == log.lineage and came.offset == place.offset:
            parted, _ = log.find_divergence(came)
            if parted is not None:
                gap, place = build_truncation_gap(tp, came, parted), parted
        if gap is None:
            self.positions.put(tp, place)
        else:  # no id may hold what was not told
            self._pending_gaps.append((tp, place, gap))

    def mark_retired(self, tp: TopicPartition) -> None:
        """The place turned out to be of an earlier topic of this name."""
        self.positions.put(tp, self.positions[tp]._replace(epoch=RETIRED_EPOCH))

    def list_backfills(self) -> list[tuple[TopicPartition, PartitionPosition]]:
        """What has to come from Kafka, because no log holds it any more."""
        if self._buffer.is_full:
            return []
        told, lacks = {tp for tp, _, _ in self._pending_gaps}, self._catch_up.needs_backfill
        return [(tp, p) for tp, p in self.positions.items() if tp not in told and lacks(tp, p)]

    def feed(self, tp: TopicPartition, place: PartitionPosition, entries: Iterable[Entry]) -> None:
        if self.positions.get(tp) == place:
            self._buffer.feed(tp, entries)

    def feed_snapshot(
        self, tp: TopicPartition, place: PartitionPosition, pieces: Iterable[Entry | SnapshotBlock]
    ) -> None:
        if self.positions.get(tp) == place:
            self._buffer.feed_snapshot(tp, pieces)

    # what it need not be sent

    def conflate(self, tps: Iterable[TopicPartition]) -> None:
        """Until it rides with these, it is sent the latest of each key."""
        self._catch_up.conflate(tps)

    def fast_forward_unread(self, reads_partition: PartitionPredicate) -> None:
        """Read no partition, from where a token left it, that `reads` says no to."""
        self._fast_forward_partitions = FastForwardPartitions(reads_partition, self.positions)
        self._fast_forward()

    def _fast_forward(self) -> None:
        """Not while it has yet to ride: ids on the way are of an earlier place of the tail."""
        ride = self._cursor
        if self._fast_forward_partitions is None or ride.next_seq != ride.channel.next_seq:
            return
        for tp, now in self._fast_forward_partitions.iter_ready(self.positions, ride.channel.tail):
            self.positions.put(tp, now)
            self._catch_up.try_join(tp)

    def fall_behind(self, position: Position, notices: Iterable[bytes], *, is_slow: bool) -> None:
        """Go on from here, and leave out what the client's policy says if it is slow."""
        parted = self.positions.detach_at(position)
        self._pending_notices += notices
        if parted and is_slow:  # not once more by one that has not come back yet
            self._cursor.traffic.falls[self._cursor.slow_policy] += 1
        if is_slow:
            self._apply_slow_policy(parted)

    def discard_backfill(self) -> None:
        """Forget what came from Kafka and was not taken: it is lacked again."""
        self._buffer.drop_all_backfilled()

    def _apply_slow_policy(self, tps: set[TopicPartition]) -> None:
        if self._cursor.slow_policy is SlowClientPolicy.SKIP:
            self._partitions_to_skip |= tps
        elif self._cursor.slow_policy is SlowClientPolicy.CONFLATE:
            self.conflate(tps)

    def _skip_behind(self) -> None:
        """It reads again: what it fell behind with is left out up to here, not to where it
        fell, or it would only fall again."""
        skipped, self._partitions_to_skip = self._partitions_to_skip, set()
        for tp in sorted(skipped & self.positions.keys()):
            place, now = self.positions[tp], self._cursor.channel.tail.position[tp]
            if place.is_behind(now):  # where the log itself went back, that is what is told
                gap = Gap(tp, place.offset or 0, now.offset or 0, now.epoch, GapReason.SKIPPED)
                self._pending_gaps.append((tp, now, gap))

    # riding with the others

    def _read_chunks(self, portion: WriteBatch) -> None:
        ride, channel = self._cursor, self._cursor.channel
        if ride.is_bounded:
            self._detach_all()
        while (
            ride.next_seq < channel.next_seq and portion.remaining_bytes > 0 and not ride.end_reason
        ):
            chunk = channel.get_chunk(ride.next_seq)
            if ride.credit is not None and not ride.spend_credit(chunk, self.positions):
                if ride.credit:  # record by record, then
                    self._credit_limited |= self.positions.detach_at(
                        channel.tail.position_before(chunk.update_seq)
                    )
                break
            ride.next_seq += 1
            # Before `without`, which may make room in this very ring, so that more is read alone.
            ends = (
                bool(chunk.ending_partitions)
                and not chunk.ending_partitions <= self.positions.keys()
            )
            ride.count_sent(chunk, self.positions)
            data = self.positions.get_cohort_data(chunk) if self.positions else chunk.data
            if data:
                portion.add_chunk(data)
            if ends:
                ride.end_reason = "offset-out-of-range"

    def _detach_all(self) -> None:
        ride = self._cursor
        ride.next_seq = ride.channel.next_seq
        for tp, place in ride.channel.tail.position.items():
            if tp not in self.positions and ride.end_offsets is None:
                self.positions.put(tp, PartitionPosition(0, NO_EPOCH, place.lineage))

    def _apply_credit_policy(self) -> None:
        """What it reads alone for want of credit it is slow with, once the ring is past it."""
        ride, channel = self._cursor, self._cursor.channel
        self._credit_limited &= self.positions.keys()
        if (
            not self._credit_limited
            or ride.slow_policy is SlowClientPolicy.CATCH_UP
            or self._first_seq_seen == channel.first_seq
        ):
            return
        self._first_seq_seen = channel.first_seq
        oldest = channel.oldest_position
        if not any(self.positions[tp].is_behind(oldest[tp]) for tp in self._credit_limited):
            return
        if ride.slow_policy is SlowClientPolicy.DISCONNECT:
            ride.end_reason = "slow"
        else:
            self._apply_slow_policy(self._credit_limited)
            self._credit_limited = set()

    def _conflate_without_credit(self) -> None:
        """Conflate what a client without credit still has to read.

        Who catches up has not been in the ring, and so cannot fall out of it: with less credit
        than records come, it would lag further and further.
        """
        if self._cursor.slow_policy is SlowClientPolicy.CONFLATE and not self._cursor.is_bounded:
            self.conflate(self.positions.keys() - self._credit_limited)

    # gaps found out about a place

    def _send_pending_gaps(self, portion: WriteBatch) -> None:
        told, later = self._pending_gaps, []
        if (
            self._cursor.next_seq < self._cursor.channel.next_seq
        ):  # ids still to come are of the old topic
            later = [each for each in told if each[2].reason is GapReason.RECREATED]
            told = [each for each in told if each[2].reason is not GapReason.RECREATED]
        self._pending_gaps = later
        if not told:
            return
        for tp, place, _ in told:
            self._buffer.drop(tp)  # what lies before the gap's end is not sent any more
            self.positions.put(tp, place)
        portion.add_gaps([gap for _, _, gap in told])
