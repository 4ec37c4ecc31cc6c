"""A client: a cursor into its channel's ring, and the partitions it reads alone.

A client rides shared chunks with every partition whose place is the channel's; what it
reads by itself is in `alone`, which most clients never have: they cost this object.

Sans-I/O: `take` gives the bytes that can be sent now. What must come from Kafka first is
named by `lacks` and `unverified`, and handed in by `feed` and `verified`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from gateway.core.channel.byte_counts import ByteCounts, ByteSum, CountedBytes
from gateway.core.channel.channel import Channel
from gateway.core.log.position import NO_EPOCH, PartitionPosition, Position
from gateway.core.log.record import Entry, Gap, TopicPartition
from gateway.telemetry.traffic import StreamCounts

from .private_positions import PartitionPredicate
from .private_reader import PrivateReader
from .shared_cursor import UNREPORTED_TRAFFIC, SharedCursor
from .slow_client import SlowClientPolicy
from .snapshot import Snapshot
from .snapshot_blocks import SnapshotBlock


class Subscription(SharedCursor):
    """See the module, and `Ride` for the terms.

    own:   places that differ from the channel's, or may; also of partitions that only its
           token knows of yet: metadata here may be behind. With a snapshot, of all partitions.
    reads: whether a partition may hold what the view lets through; None if each may. What
           a token says of another one is not held against the log, nor read from there on.
    got:   the sum of what its client got before.
    """

    __slots__ = ("_byte_counts", "private_reader", "wake")

    def __init__(
        self,
        channel: Channel,
        positions: Mapping[TopicPartition, PartitionPosition] | None = None,
        *,
        slow_policy: SlowClientPolicy = SlowClientPolicy.CATCH_UP,
        end_offsets: Mapping[TopicPartition, int] | None = None,
        max_records: int | None = None,
        credit: int | None = None,
        resolve_since: int | None = None,
        snapshot: Snapshot | None = None,
        traffic: StreamCounts = UNREPORTED_TRAFFIC,
        reads_partition: PartitionPredicate | None = None,
        delivered_sum: ByteSum | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(
            channel, slow_policy, end_offsets, max_records, credit, resolve_since, snapshot, traffic
        )
        self.wake = wake
        # if what it gets is counted
        self._byte_counts: ByteCounts | None = (
            None if delivered_sum is None else ByteCounts(delivered_sum)
        )
        self.private_reader: PrivateReader | None = None
        if self.is_bounded:
            self.read_privately({**channel.tail.position, **(positions or {})})
        elif positions:
            self.read_privately(positions)
        if snapshot is not None:
            self.ensure_private_reader().conflate(snapshot.remaining - snapshot.fresh)
            for tp, offset in (end_offsets or {}).items():
                self.set_snapshot_end(tp, offset)
        if reads_partition is not None and self.private_reader is not None:
            self.private_reader.spare(reads_partition)
        channel.followers.add(self)
        channel.followers_to_wake.add(self)

    def close(self) -> None:
        self.channel.followers.discard(self)
        self.channel.followers_to_wake.discard(self)
        self.channel.tail.readers.discard(self)

    @property
    def private_positions(self) -> Position:
        """The places of what it reads alone."""
        return self.private_reader.positions if self.private_reader is not None else {}

    @property
    def is_fully_shared(self) -> bool:
        """Is whatever its channel publishes all that it is to be sent?"""
        return self.private_reader is None and self.credit is None and self.end_reason is None

    def read_privately(self, places: Mapping[TopicPartition, PartitionPosition]) -> None:
        """Read these partitions alone from these places on."""
        own = self.ensure_private_reader().positions
        for tp, place in places.items():
            own.put(tp, place)

    def ensure_private_reader(self) -> PrivateReader:
        if self.private_reader is None:
            self._stop_counting_shared()
            self.private_reader = PrivateReader(self)
            self.channel.tail.readers.add(self)
        return self.private_reader

    # what its client gets

    def begin(self) -> tuple[list[TopicPartition], bytes]:
        """The partitions that cannot be read yet, and the id of the first block."""
        channel, tail = self.channel, self.channel.tail
        while self.next_seq < channel.next_seq and channel.get_chunk(self.next_seq).is_only_ready:
            self.next_seq += 1
        return list(tail.readiness.list_pending()), self.token

    @property
    def token(self) -> bytes:
        """The id of where its client stands, once it has all that was taken."""
        if self.private_reader is None and self.next_seq == self.channel.next_seq:
            return self.channel.build_token(self.channel.tail.token_text)
        return self.channel.build_token(self.create_token_writer(self.private_positions).to_text())

    def take(self, max_bytes: int) -> bytes:
        """About `budget` bytes that can be sent now; empty while there are none.

        `more` tells whether another call would go on at once (a filter may let nothing
        through for a while; the loop must have its turn).
        """
        self.has_more = False
        if self.end_reason:
            return b""
        if self.private_reader is None:
            data = self.read_chunks(max_bytes)
            if data or not self.has_more:
                return data
        reader = self.ensure_private_reader()
        pieces = reader.take(max_bytes)
        self.count_private(*pieces)
        if reader.is_done:
            self.private_reader = None
            self.channel.tail.readers.discard(self)
            self._resume_counting_shared()
        return b"".join(pieces)

    # what it got, where its wire counts that

    @property
    def delivered_sum(self) -> ByteSum | None:
        """The sum of all of it; None on wires that count nothing."""
        if self._byte_counts is None:
            return None
        self._stop_counting_shared()
        self._resume_counting_shared()
        return self._byte_counts.sum

    def count_private(self, *pieces: bytes) -> None:
        """Its client gets these besides what all have. Where the first are counted, all is."""
        if self._byte_counts is None:
            if not (pieces and type(pieces[0]) is CountedBytes):
                return
            self._byte_counts = ByteCounts()
        self._stop_counting_shared()
        self._byte_counts.add(pieces)
        self._resume_counting_shared()

    def _stop_counting_shared(self) -> None:
        if self._byte_counts is not None and self._byte_counts.is_shared:
            self._byte_counts.stop_shared(self.channel.total_before(self.next_seq))

    def _resume_counting_shared(self) -> None:
        if self._byte_counts is not None and self.private_reader is None:
            self._byte_counts.start_shared(self.channel.total_before(self.next_seq))

    # stepping aside while somebody else sees to what it is sent

    def get_position(self) -> Position:
        """Where it stands, partition by partition."""
        return self.merge_positions(self.private_positions)

    def detach(self) -> None:
        """Hear no more of the channel."""
        self._stop_counting_shared()
        self.close()

    def reattach(self, places: Position, next_seq: int | None = None) -> None:
        """Follow the channel again: from these places, which are those before this chunk."""
        channel, tail = self.channel, self.channel.tail
        self.private_reader = None
        channel.followers.add(self)
        channel.followers_to_wake.add(self)
        if next_seq is not None and next_seq >= channel.first_seq:
            self.next_seq = next_seq
            self._resume_counting_shared()
            return
        self.next_seq = channel.next_seq
        since = {tp: PartitionPosition(0, NO_EPOCH, log.lineage) for tp, log in tail.logs.items()}
        for tp, place in {**since, **places}.items():  # those that came since, from their first
            if place != tail.position.get(tp):
                self.ensure_private_reader().positions.detach(tp, place)
        self._resume_counting_shared()

    # what must be found out first

    def list_unverified(self) -> list[tuple[TopicPartition, PartitionPosition]]:
        """Places that came with a token and were not held against the log yet."""
        return self.private_reader.list_unverified() if self.private_reader is not None else []

    def on_verified(
        self, tp: TopicPartition, place: PartitionPosition, gap: Gap | None = None
    ) -> None:
        """The log has the place, or `gap` says what became of it; `place` is where to go on."""
        self.ensure_private_reader().on_verified(tp, place, gap)

    def mark_retired(self, tp: TopicPartition) -> None:
        """The place turned out to be of an earlier topic of this name."""
        self.ensure_private_reader().mark_retired(tp)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records from Kafka that wait to be taken."""
        return self.private_reader.buffered_bytes if self.private_reader is not None else 0

    def discard_backfill(self) -> None:
        """Forget records from Kafka that wait to be taken; they are read again in their turn."""
        if self.private_reader is not None:
            self.private_reader.discard_backfill()

    def list_backfills(self) -> list[tuple[TopicPartition, PartitionPosition]]:
        """What has to come from Kafka, because no log holds it any more."""
        return self.private_reader.list_backfills() if self.private_reader is not None else []

    def feed(self, tp: TopicPartition, place: PartitionPosition, entries: Iterable[Entry]) -> None:
        """Entries from Kafka from `place` on; nothing if the client has moved on meanwhile."""
        if self.private_reader is not None:
            self.private_reader.feed(tp, place, entries)

    def feed_snapshot(
        self, tp: TopicPartition, place: PartitionPosition, pieces: Iterable[Entry | SnapshotBlock]
    ) -> None:
        """What its snapshot has of a partition from `place` on."""
        if self.private_reader is not None:
            self.private_reader.feed_snapshot(tp, place, pieces)

    def set_snapshot_end(self, tp: TopicPartition, offset: int) -> None:
        """Where its snapshot of a partition ends, found out."""
        if self.snapshot is None or tp not in self.snapshot.remaining:
            return
        if self.end_offsets is not None:
            offset = min(offset, self.end_offsets.get(tp, 0))
        self.snapshot.end_offsets[tp] = offset
        self.snapshot.on_moved(tp, self.private_positions[tp])

    def fall_behind(
        self, position: Position, notices: Sequence[bytes] = (), *, is_slow: bool = True
    ) -> None:
        """Fell out of the ring, where its position was this one. See `channel.Follower`."""
        if is_slow and self.slow_policy is SlowClientPolicy.DISCONNECT:
            self.end_reason = "slow"  # its first id may be yet to come: the places are kept
        self.ensure_private_reader().fall_behind(position, notices, is_slow=is_slow)
