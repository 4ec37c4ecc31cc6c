"""Keep a client's place in its channel, and in the partitions that it reads privately.

A client that follows the channel is sent its chunks as they were encoded for all, from its
`SharedCursor`. `PrivatePositions` are its places in partitions where it stands elsewhere, or may.
The cursor does not know them: callers pass them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from gateway.core.channel.channel import Channel
from gateway.core.channel.chunk_ring import Chunk, CohortKey
from gateway.core.channel.tail import Tail
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import (
    NO_EPOCH,
    RETIRED_EPOCH,
    UNVERIFIED_LINEAGE,
    PartitionPosition,
    Position,
    TopicPartition,
)
from gateway.core.token.resume_token import TokenWriter
from gateway.telemetry.traffic import StreamCounts

from .terms import DEFAULT_TERMS, EndReason, PartitionPredicate, SlowClientPolicy, SubscriptionTerms

# Shared by all cursors whose traffic no metric reports; nobody reads it.
UNREPORTED_TRAFFIC = StreamCounts()


class SharedCursor:
    """A client's place in the chunks of its channel.

    The base of `Subscription`; the parts of a private reader share it, and so do the hub's client
    and its backfill. Only its own methods assign its attributes, with one exception: a round of the
    broadcaster sets `next_seq` to the end of the ring, since a call for each client would make
    rounds a quarter slower. Times are in seconds since 1970. Invariants between calls:

    - `channel.first_seq <= next_seq <= channel.next_seq` while the client follows the channel,
      because the channel calls `fall_behind` before it drops a chunk that the client has not taken.
    - Once `end_reason` is set it stays, and nothing more is sent.

    Attributes:
        end_offsets: As in `SubscriptionTerms`, like the attributes that are not listed here, but
            each table that is sent extends its partition's to its own end, and they move when a log
            goes back (`rebase_end`).
        remaining_records: How many more records until the stream ends; None for no end.
        credit: How many more records the client may be sent; None for any number.
        resolve_since: The time as of which the ends of the client's pending partitions are to be
            found. It is in the client's ids while there are any.
        has_more: Taking again would go on at once.
    """

    __slots__ = (
        "channel", "client_key", "credit", "end_lineages", "end_offsets", "end_reason", "has_more",
        "next_seq", "remaining_records", "resolve_since", "slow_policy", "snapshot", "traffic",
    )  # fmt: skip

    def __init__(
        self,
        channel: Channel,
        terms: SubscriptionTerms = DEFAULT_TERMS,
        traffic: StreamCounts = UNREPORTED_TRAFFIC,
    ) -> None:
        self.channel = channel
        self.slow_policy = terms.slow_policy
        self.end_offsets = None if terms.end_offsets is None else dict(terms.end_offsets)
        # Of the offsets; None without an end, as a dictionary takes 64 bytes of each client.
        self.end_lineages = (
            None if terms.end_offsets is None else dict(terms.end_lineages or channel.tail.lineages)
        )
        self.remaining_records = terms.max_records
        self.credit = terms.credit
        self.resolve_since = terms.resolve_since
        self.snapshot = terms.snapshot
        self.client_key = terms.client_key
        self.traffic = traffic
        self.next_seq = channel.next_seq
        self.end_reason: EndReason | None = None
        self.has_more = False

    # what happens to the stream

    def end(self, reason: EndReason) -> None:
        if self.end_reason is None:
            self.end_reason = reason

    def grant_credit(self, records: int) -> None:
        if self.credit is not None:
            self.credit += records

    def limit_credit(self, records: int) -> None:
        self.credit = records

    def set_slow_policy(self, policy: SlowClientPolicy) -> None:
        self.slow_policy = policy

    def extend_end(self, tp: TopicPartition, offset: int) -> None:
        if self.end_offsets is not None:
            self.end_offsets[tp] = max(offset, self.end_offsets.get(tp, 0))

    def rebase_end(self, log: PartitionLog) -> int | None:
        """Return where a partition ends, if its log went back since the end was found; else None.

        Records of a topic that was created again, or from where a log was truncated, are later than
        the end: the partition ends before them.
        """
        if self.end_offsets is None or self.end_lineages is None:
            return None
        tp, lineage = log.tp, self.end_lineages.get(log.tp, log.lineage)
        if lineage == log.lineage:
            return None
        end = PartitionPosition(self.end_offsets.get(tp, 0), NO_EPOCH, lineage)
        self.end_lineages[tp] = log.lineage
        self.end_offsets[tp] = log.rebase(end)[1].offset or 0
        return self.end_offsets[tp]

    def end_snapshot(self) -> None:
        self.snapshot = None

    def advance_to_head(self) -> None:
        """Move to the end of the ring: skipped chunks are read privately, or not at all."""
        self.next_seq = self.channel.next_seq

    def pass_chunk(self, chunk: Chunk, private_positions: Position, now: float) -> None:
        self.next_seq += 1
        self.count_sent(chunk, now, private_positions)

    def count_private_record(self) -> None:
        self.traffic.untimed += 1
        if self.snapshot is not None and not self.snapshot.is_closed:
            self.snapshot.count_records(1)
        if self.credit is not None:
            self.credit -= 1
        if self.remaining_records is not None:
            self.remaining_records -= 1
            if self.remaining_records <= 0:
                self.end(EndReason.UNTIL)

    # what is sent

    @property
    def is_bounded(self) -> bool:
        return self.end_offsets is not None or self.remaining_records is not None

    def read_chunks(self, max_bytes: int, now: float) -> bytes:
        """Return the chunks that come next, as they are; the last one may exceed `max_bytes`.

        If nothing is returned although `has_more` is set, the credit is enough for a part of the
        next chunk only, which has to be sent record by record.
        """
        channel, pieces, is_credit_short = self.channel, list[bytes](), False
        while self.next_seq < channel.next_seq and max_bytes > 0 and not self.end_reason:
            chunk = channel.get_chunk(self.next_seq)
            if self.credit is not None and not self.spend_credit(chunk, {}):
                # Without any credit there is nothing to send until more is granted.
                is_credit_short = self.credit > 0
                break
            self.next_seq += 1
            self.count_sent(chunk, now)
            pieces.append(chunk.data)
            max_bytes -= len(chunk.data)
            if chunk.ending_partitions:
                self.end(EndReason.OFFSET_OUT_OF_RANGE)
        self.has_more = (is_credit_short or max_bytes <= 0) and not self.end_reason
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def spend_credit(self, chunk: Chunk, private_positions: Position) -> bool:
        """Spend the credit for a chunk without private events; return False if it is too little."""
        assert self.credit is not None
        # Only the event of a record has a timestamp; gaps and readiness cost no credit.
        cost = sum(
            event.timestamp is not None and event.tp not in private_positions
            for event in chunk.events
        )
        if cost > self.credit:
            return False
        self.credit -= cost
        return True

    def count_sent(
        self, chunk: Chunk, now: float, private_positions: Container[TopicPartition] = ()
    ) -> None:
        events = (
            [event for event in chunk.events if event.tp not in private_positions]
            if private_positions
            else chunk.events
        )
        self.traffic.count_sent(events, now)
        if chunk.gaps:
            self.traffic.count_gaps(
                gap.reason for gap in chunk.gaps if gap.tp not in private_positions
            )

    def merge_positions(self, private_positions: Position) -> Position:
        channel, tail = self.channel, self.channel.tail
        if self.next_seq == channel.next_seq:
            return {**tail.position, **private_positions}
        return {
            **tail.position_before(channel.get_chunk(self.next_seq).update_seq),
            **private_positions,
        }

    def build_token_text(self, private_positions: Position) -> bytes:
        return self.channel.tail.build_token_text(
            self._list_moved(private_positions), self._get_issued(private_positions)
        )

    def create_token_writer(self, private_positions: Position) -> TokenWriter:
        writer = self.channel.tail.create_token_writer(self._list_moved(private_positions))
        issued = self._get_issued(private_positions)
        if issued is not None:
            writer.set_issued(issued)
        return writer

    def _list_moved(self, private_positions: Position) -> Position:
        # At the head the tail's own text has the other partitions: only these are rewritten.
        is_at_head = self.next_seq == self.channel.next_seq
        return private_positions if is_at_head else self.merge_positions(private_positions)

    def _get_issued(self, private_positions: Position) -> int | None:
        is_pending = any(position.is_pending for position in private_positions.values())
        return self.resolve_since if is_pending else None


class PrivatePositions(dict[TopicPartition, PartitionPosition]):
    """The positions of one client in the partitions that it reads privately.

    They differ from the tail's, or may. A position that came with a token has the lineage
    UNVERIFIED_LINEAGE until it was compared with the log. One of a partition that metadata does not
    know yet is kept as it came.

    Owned by its `PrivateReader`. Only `put`, `detach` and `attach` may change it, because they keep
    the cohort of the client and the state of its snapshot up to date.
    """

    __slots__ = ("_cohort_key", "_cursor", "_issued_at")

    def __init__(self, cursor: SharedCursor) -> None:
        self._cursor = cursor
        self._cohort_key: CohortKey | None = None  # None after a change, until it is needed
        self._issued_at: int | None = None  # of the cohort's ids; None for that of the tail

    def put(self, tp: TopicPartition, position: PartitionPosition) -> None:
        if self._cursor.snapshot is not None:
            self._cursor.snapshot.on_moved(tp, position)
        self[tp] = position
        self._cohort_key = None

    def detach(self, tp: TopicPartition, position: PartitionPosition) -> None:
        """Read a partition privately from where the shared cursor was.

        If that was pending, the position is where the shared read has begun since. A pending
        position that came with a token stays pending: it is of an earlier time than the shared read
        here may be, and is resolved as of that time.
        """
        log = self._cursor.channel.tail.logs.get(tp)
        is_shared = position.lineage != UNVERIFIED_LINEAGE
        if position.is_pending and is_shared and log is not None:
            position = log.initial_position or position
        self.put(tp, position)

    def attach(self, tp: TopicPartition) -> None:
        del self[tp]
        self._cohort_key = None

    def detach_at(self, position: Position) -> set[TopicPartition]:
        """Move the shared cursor to the head; return the partitions that stood elsewhere."""
        tail = self._cursor.channel.tail
        self._cursor.advance_to_head()
        detached: set[TopicPartition] = set()
        for tp, partition_position in position.items():
            # What stood at the head already needs no private reading: it goes on there.
            if tp not in self and partition_position != tail.position[tp]:
                self.detach(tp, partition_position)
                detached.add(tp)
        return detached

    def get_cohort_data(self, chunk: Chunk) -> bytes:
        if self._cohort_key is None:
            # While something is pending, the time of issue has to stay the client's own: it says
            # as of when the partition is to be resolved. So it is a part of what a cohort shares.
            has_pending = any(position.is_pending for position in self.values())
            self._issued_at = self._cursor.resolve_since if has_pending else None
            # Sorted: clients that detached partitions in different orders are still one cohort.
            self._cohort_key = (self._issued_at, *sorted(self.items(), key=lambda item: item[0]))
        return self._cursor.channel.get_cohort_data(chunk, self, self._cohort_key, self._issued_at)

    def has_reached_end(self, tp: TopicPartition) -> bool:
        """Return whether the client is at the end of its stream. An unverified position is not."""
        end_offsets, position = self._cursor.end_offsets, self[tp]
        if end_offsets is None or position.offset is None or position.lineage == UNVERIFIED_LINEAGE:
            return False
        # A partition without an end was added later, and is no part of the stream.
        return position.offset >= end_offsets.get(tp, 0)


class FastForwardPartitions:
    """Partitions of a token that hold nothing for its client.

    They are not read from where the token left them: the client is moved to where the tail stands,
    as soon as that is known. Created by `PrivateReader.apply_terms`. The answer of
    `reads_partition` may change from no to yes when the topic gets more partitions.
    """

    __slots__ = ("_reads_partition", "remaining")

    def __init__(self, reads_partition: PartitionPredicate, positions: PrivatePositions) -> None:
        unread = (
            tp for tp, position in positions.items() if position.lineage == UNVERIFIED_LINEAGE
        )
        self._reads_partition, self.remaining = (
            reads_partition,
            {tp for tp in unread if not reads_partition(tp)},
        )

    def iter_ready(
        self, positions: PrivatePositions, tail: Tail
    ) -> Iterator[tuple[TopicPartition, PartitionPosition]]:
        for tp in list(self.remaining):
            tail_position = tail.position.get(tp)
            if tail_position is not None and tail_position.is_pending:
                continue
            self.remaining.discard(tp)
            if tail_position is not None and self._can_fast_forward(
                tp, positions.get(tp, tail_position), tail_position, tail
            ):
                yield tp, tail_position

    def _can_fast_forward(
        self,
        tp: TopicPartition,
        position: PartitionPosition,
        tail_position: PartitionPosition,
        tail: Tail,
    ) -> bool:
        """Return whether the client may be moved: not back, nor past a topic's recreation."""
        if (
            position.epoch == RETIRED_EPOCH
            or position.lineage != UNVERIFIED_LINEAGE
            or self._reads_partition(tp)
        ):
            return False
        is_ahead = (position.offset or 0) > (tail_position.offset or 0)
        return not is_ahead and not tail.is_retiring(tp)
