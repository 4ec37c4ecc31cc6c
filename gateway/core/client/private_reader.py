"""Read for one client the partitions in which it stands elsewhere than its channel.

Each of them is read privately, from the logs or from Kafka, up to exactly where the tail stands,
and attached to the shared cursor at that moment (see `catch_up`). So no record is sent twice, none
is left out, and no component of the client's ids ever goes back. The other partitions go on
meanwhile: the client gets the channel's chunks without the events of its private partitions.

A client that follows its channel in all partitions has no private reader: it costs a cursor (see
`subscription`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import assert_never

from gateway.core.log.record import (
    NO_EPOCH,
    RETIRED_EPOCH,
    UNVERIFIED_LINEAGE,
    Entry,
    Gap,
    GapReason,
    PartitionPosition,
    Position,
    TopicPartition,
)

from .catch_up import CatchUp, WriteBatch, build_truncation_gap
from .read_buffer import EntryRun, ReadBuffer
from .shared_cursor import FastForwardPartitions, PrivatePositions, SharedCursor
from .snapshot import Snapshot, SnapshotBlock, TableSnapshot
from .terms import EndReason, SlowClientPolicy, SubscriptionTerms

MAX_OPEN_TABLES = 16  # of one client at a time


class PrivateReader:
    """The private reading of one client.

    Its subscription creates it with the first partition that stands elsewhere, or because the
    stream has an end of its own, and drops it when `is_done`. Invariants between calls:

    - Of a partition in `positions` the client gets no shared events. It gets those of all others.
    - A client whose stream has an end (`is_bounded`) reads all of its partitions privately.
    - No id is sent that covers a gap in `_pending_gaps` before the gap itself is sent.

    `positions` may include partitions that only the client's token knows: metadata may be behind.
    """

    __slots__ = (
        "_buffer", "_catch_up", "_credit_limited", "_cursor", "_fast_forward_partitions",
        "_first_seq_seen", "_partitions_to_skip", "_pending_gaps", "_pending_notices", "positions",
    )  # fmt: skip

    # `_pending_gaps`: what verifying a position revealed, to be sent: partition, position after
    #     it, gap.
    # `_pending_notices`: events of chunks that the client missed, and that no log holds.
    # `_partitions_to_skip`: those in which a slow client is moved to the tail when it reads again.
    # `_credit_limited`: those that are read privately only because the credit was too small for a
    #     whole chunk; `_first_seq_seen` is the first chunk of the ring when that was last checked.

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
        return self._buffer.bytes

    @property
    def own_bytes(self) -> int:
        return self._buffer.own_bytes

    @property
    def shared_sizes(self) -> Iterator[tuple[int, int]]:
        return self._buffer.shared_sizes

    @property
    def is_full(self) -> bool:
        return self._buffer.is_full

    @property
    def is_done(self) -> bool:
        """Return whether the client follows its channel in everything again, with nothing left."""
        has_work = (
            self.positions
            or self._pending_gaps
            or self._pending_notices
            or self._partitions_to_skip
            or self._credit_limited
        )
        return not (has_work or self._cursor.is_bounded or self._cursor.snapshot)

    @property
    def is_selective(self) -> bool:
        return self._fast_forward_partitions is not None

    def take(self, max_bytes: int, now: float) -> tuple[list[bytes], bool]:
        """Return the pieces that can be sent now, and whether they are `max_bytes` or so.

        The order matters. Gaps and notices come first, then shared chunks, and private reading
        comes last and only once the cursor is at the head: positions are joined with the tail's, so
        shared events that are still to be sent would be older than the id of a joined partition.
        """
        cursor, batch = self._cursor, WriteBatch(self._cursor, self.positions, max_bytes)
        if self._credit_limited:
            self._apply_credit_policy()
        if self._partitions_to_skip:
            self._skip_behind()
        if self._pending_gaps:
            self._send_pending_gaps(batch)
        if self._pending_notices and not cursor.end_reason:
            batch.add_notices(self._pending_notices)
            self._pending_notices = []
        self._read_chunks(batch, now)
        self._fast_forward()
        if self.positions and cursor.next_seq == cursor.channel.next_seq and not cursor.end_reason:
            # Once more: with the cursor at the head, `recreated` gaps are due as well.
            self._send_pending_gaps(batch)
            self._catch_up.read_into(batch)
            batch.flush_events()
            if cursor.credit == 0:
                self._conflate_without_credit()
        return batch.pieces, batch.remaining_bytes <= 0

    # What must be found out first.

    def list_unverified(self) -> list[tuple[TopicPartition, PartitionPosition]]:
        """Return the positions that came with a token and were not compared with the log yet."""
        self._fast_forward()
        candidates = self._cursor.channel.tail.logs.keys() - {tp for tp, _, _ in self._pending_gaps}
        if self._fast_forward_partitions is not None:
            candidates -= self._fast_forward_partitions.remaining
        return [
            (tp, position)
            for tp, position in self.positions.items()
            if position.lineage == UNVERIFIED_LINEAGE and tp in candidates
        ]

    def on_verified(
        self, tp: TopicPartition, position: PartitionPosition, gap: Gap | None = None
    ) -> None:
        """Take the verified position of a client, and the gap if the log lacks its former one."""
        log, claimed = self._cursor.channel.tail.logs[tp], self.positions.get(tp, position)
        # Kafka has the offset, but entries of the log may show that it was truncated below it.
        if gap is None and position.lineage == log.lineage and claimed.offset == position.offset:
            divergence, _ = log.find_divergence(claimed)
            if divergence is not None:
                gap, position = build_truncation_gap(tp, claimed, divergence), divergence
        if gap is None:
            self.positions.put(tp, position)
        else:  # the position moves only when the gap is sent: no id may cover it earlier
            self._pending_gaps.append((tp, position, gap))

    def read(self, positions: Mapping[TopicPartition, PartitionPosition]) -> None:
        for tp, position in positions.items():
            self.positions.put(tp, position)

    def mark_retired(self, tp: TopicPartition) -> None:
        self.positions.put(tp, self.positions[tp]._replace(epoch=RETIRED_EPOCH))

    def list_backfills(self) -> list[tuple[TopicPartition, PartitionPosition]]:
        if self._buffer.is_full:
            return []
        waiting = {tp for tp, _, _ in self._pending_gaps}
        snapshot, needs_backfill = self._cursor.snapshot, self._catch_up.needs_backfill
        if snapshot is not None and not self.may_open_table(snapshot):
            waiting.update(filter(snapshot.waits_for_table, self.positions))
        return [
            (tp, position)
            for tp, position in self.positions.items()
            if tp not in waiting and needs_backfill(tp, position)
        ]

    def may_open_table(self, snapshot: Snapshot) -> bool:
        """Return whether there are few enough tables: a client that does not read keeps them."""
        count = len(snapshot.opening)
        for tp, table in snapshot.tables.items():
            if table is not None and not table.is_released and tp in self.positions:
                count += self._catch_up.is_in_log(tp, self.positions[tp])
        return count < MAX_OPEN_TABLES

    def feed(self, tp: TopicPartition, position: PartitionPosition, run: EntryRun) -> None:
        if self.positions.get(tp) == position:
            self._buffer.feed(tp, run)

    def feed_snapshot(
        self,
        tp: TopicPartition,
        position: PartitionPosition,
        pieces: Iterable[Entry | SnapshotBlock],
    ) -> None:
        if self.positions.get(tp) == position:
            self._buffer.feed_snapshot(tp, pieces)

    def set_snapshot_end(
        self, tp: TopicPartition, offset: int, table: TableSnapshot | None = None
    ) -> None:
        snapshot, end_offsets = self._cursor.snapshot, self._cursor.end_offsets
        if snapshot is None or tp not in snapshot.remaining:
            return
        if table is not None:
            # Of a key that was written since the end was asked for, the table has only that record.
            self._cursor.extend_end(tp, offset)
        elif end_offsets is not None:
            offset = min(offset, end_offsets.get(tp, 0))
        snapshot.set_end(tp, offset, self.positions[tp], table)

    # What need not be sent.

    def apply_terms(self, terms: SubscriptionTerms) -> None:
        """Begin the client's snapshot and leave out partitions, once it has its first positions."""
        if terms.snapshot is not None:
            self._catch_up.conflate(terms.snapshot.remaining - terms.snapshot.fresh)
            for tp, offset in (terms.end_offsets or {}).items():
                self.set_snapshot_end(tp, offset)
        if terms.reads_partition is not None:
            self._fast_forward_partitions = FastForwardPartitions(
                terms.reads_partition, self.positions
            )
            self._fast_forward()

    def _fast_forward(self) -> None:
        """Move partitions that need not be read to the tail, once all shared chunks are sent."""
        cursor = self._cursor
        if self._fast_forward_partitions is None or cursor.next_seq != cursor.channel.next_seq:
            return
        for tp, tail_position in self._fast_forward_partitions.iter_ready(
            self.positions, cursor.channel.tail
        ):
            self.positions.put(tp, tail_position)
            self._catch_up.try_join(tp)

    def fall_behind(self, position: Position, notices: Iterable[bytes], *, is_slow: bool) -> None:
        detached = self.positions.detach_at(position)
        self._pending_notices += notices
        # A client that has not come back since the last time is not counted once more.
        if detached and is_slow:
            self._cursor.traffic.falls[self._cursor.slow_policy] += 1
        if is_slow:
            self._apply_slow_policy(detached)

    def discard_buffer(self) -> None:
        """Forget unsent entries; `list_backfills` has them again, once they can be sent."""
        self._buffer.drop_all()

    def _apply_slow_policy(self, tps: set[TopicPartition]) -> None:
        match self._cursor.slow_policy:
            case SlowClientPolicy.SKIP:
                self._partitions_to_skip |= tps
            case SlowClientPolicy.CONFLATE:
                self._catch_up.conflate(tps)
            case SlowClientPolicy.DISCONNECT:
                self._cursor.end(EndReason.SLOW)
            case SlowClientPolicy.CATCH_UP:
                pass
            case policy:
                assert_never(policy)

    def _skip_behind(self) -> None:
        """Move a slow client to the tail.

        This happens when it reads again: otherwise it would only fall behind once more.
        """
        skipped, self._partitions_to_skip = self._partitions_to_skip, set()
        for tp in sorted(skipped & self.positions.keys()):
            position, tail_position = self.positions[tp], self._cursor.channel.tail.position[tp]
            # If the log itself went back, the gap of that is sent instead.
            if position.is_behind(tail_position):
                gap = Gap(
                    tp,
                    position.offset or 0,
                    tail_position.offset or 0,
                    tail_position.epoch,
                    GapReason.SKIPPED,
                )
                self._pending_gaps.append((tp, tail_position, gap))

    # Following the channel in all other partitions.

    def _read_chunks(self, batch: WriteBatch, now: float) -> None:
        cursor, channel = self._cursor, self._cursor.channel
        if cursor.is_bounded:
            self._detach_all()
        while (
            cursor.next_seq < channel.next_seq
            and batch.remaining_bytes > 0
            and not cursor.end_reason
        ):
            chunk = channel.get_chunk(cursor.next_seq)
            if cursor.credit is not None and not cursor.spend_credit(chunk, self.positions):
                if cursor.credit:  # too little for the whole chunk: send record by record
                    self._credit_limited |= self.positions.detach_at(
                        channel.tail.position_before(chunk.update_seq)
                    )
                break
            # Before `get_cohort_data`, which grows the ring and may so make this very client fall
            # behind and change `positions`.
            ends_stream = (
                bool(chunk.ending_partitions)
                and not chunk.ending_partitions <= self.positions.keys()
            )
            cursor.pass_chunk(chunk, self.positions, now)
            data = self.positions.get_cohort_data(chunk) if self.positions else chunk.data
            if data:
                batch.add_chunk(data)
            if ends_stream:
                cursor.end(EndReason.OFFSET_OUT_OF_RANGE)

    def _detach_all(self) -> None:
        """Read all partitions privately, as the stream has an end of its own.

        Later partitions are read from their start, unless the end is given by offsets.
        """
        cursor = self._cursor
        cursor.advance_to_head()
        for tp, tail_position in cursor.channel.tail.position.items():
            if tp not in self.positions and cursor.end_offsets is None:
                self.positions.put(tp, PartitionPosition(0, NO_EPOCH, tail_position.lineage))

    def _apply_credit_policy(self) -> None:
        """Treat a client without credit as slow, once the ring has dropped its next chunks."""
        cursor, channel = self._cursor, self._cursor.channel
        self._credit_limited &= self.positions.keys()
        if (
            not self._credit_limited
            or cursor.slow_policy is SlowClientPolicy.CATCH_UP
            or self._first_seq_seen == channel.first_seq
        ):
            return
        self._first_seq_seen = channel.first_seq
        oldest_position = channel.oldest_position
        if not any(
            self.positions[tp].is_behind(oldest_position[tp]) for tp in self._credit_limited
        ):
            return
        self._apply_slow_policy(self._credit_limited)
        self._credit_limited = set()

    def _conflate_without_credit(self) -> None:
        """Conflate the private reading of a client without credit.

        Not being in the ring, it cannot fall out of it, and would lag further and further.
        """
        if self._cursor.slow_policy is SlowClientPolicy.CONFLATE and not self._cursor.is_bounded:
            self._catch_up.conflate(self.positions.keys() - self._credit_limited)

    # Gaps that verifying a position revealed.

    def _send_pending_gaps(self, batch: WriteBatch) -> None:
        due, later = self._pending_gaps, []
        # While shared chunks are still to be sent, their ids are still of the earlier topic.
        if self._cursor.next_seq < self._cursor.channel.next_seq:
            later = [item for item in due if item[2].reason is GapReason.RECREATED]
            due = [item for item in due if item[2].reason is not GapReason.RECREATED]
        self._pending_gaps = later
        if not due:
            return
        for tp, position, _ in due:
            self._buffer.drop(tp)  # what lies before the gap's end is not sent any more
            self.positions.put(tp, position)
        batch.add_gaps([gap for _, _, gap in due])
