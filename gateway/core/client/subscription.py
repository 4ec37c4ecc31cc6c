"""Represent a client: a cursor into its channel's ring, and what it reads privately.

A client gets shared chunks of every partition in which its position is the channel's. What it reads
privately is in `private_reader`, which most clients never have: they cost this object.

Sans-I/O: `take` returns the bytes that can be sent now. What must come from Kafka first is named by
`list_unverified` and `list_backfills`, and handed in by `on_verified` and `feed`.
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
    """One client of a channel; see `SharedCursor` for its terms.

    The hub's client creates and owns it. It registers itself as a follower of the channel, and as a
    reader of the tail while it has a private reader. Invariants between calls:

    - The client gets shared bytes of a partition only if its position there equals the channel's.
      `private_positions` has every other partition.
    - No component of the ids that it is sent ever goes back.
    - With a snapshot or an end of its own, it has a private reader until these are over.

    Attributes:
        wake: Called by the channel or the tail when there may be something to take. It must not
            take at once.
        private_reader: What reads privately; None if all partitions follow the channel.
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
        """Follow a channel from its head on, or from positions.

        Args:
            channel: The channel.
            positions: Where the client stands in partitions in which that may differ from the
                channel. They may include partitions that only the client's token knows: metadata
                here may be behind. With a snapshot, all partitions.
            slow_policy: What happens when the client falls behind.
            end_offsets: Offsets at which partitions end; None for no end.
            max_records: How many records to send before the stream ends; None for no end.
            credit: How many records the client may be sent; None for any number.
            resolve_since: As of when pending partitions are resolved, in seconds since 1970.
            snapshot: The snapshot to begin with.
            traffic: Counts what clients are sent.
            reads_partition: Whether a partition may hold what the view lets through; None if every
                one may. What a token says about the others is neither verified nor read.
            delivered_sum: The sum over what the client was sent before; None on wires without sums.
            wake: Called when there may be something to take.
        """
        super().__init__(
            channel, slow_policy, end_offsets, max_records, credit, resolve_since, snapshot, traffic
        )
        self.wake = wake
        # None as long as nothing that the client got has a sum.
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
            self.private_reader.fast_forward_unread(reads_partition)
        channel.followers.add(self)
        channel.followers_to_wake.add(self)

    def close(self) -> None:
        """Stop following the channel and the tail."""
        self.channel.followers.discard(self)
        self.channel.followers_to_wake.discard(self)
        self.channel.tail.readers.discard(self)

    @property
    def private_positions(self) -> Position:
        """Return where the client stands in the partitions that it reads privately."""
        return self.private_reader.positions if self.private_reader is not None else {}

    @property
    def is_fully_shared(self) -> bool:
        """Return whether the client is sent exactly what its channel publishes."""
        return self.private_reader is None and self.credit is None and self.end_reason is None

    def read_privately(self, positions: Mapping[TopicPartition, PartitionPosition]) -> None:
        """Read partitions privately from these positions on."""
        private_positions = self.ensure_private_reader().positions
        for tp, position in positions.items():
            private_positions.put(tp, position)

    def ensure_private_reader(self) -> PrivateReader:
        """Return the private reader, after creating it if there is none."""
        if self.private_reader is None:
            self._stop_counting_shared()
            self.private_reader = PrivateReader(self)
            self.channel.tail.readers.add(self)
        return self.private_reader

    # What the client is sent.

    def begin(self) -> tuple[list[TopicPartition], bytes]:
        """Return the partitions that cannot be read yet, and the id of the first block.

        Chunks that only say that partitions are ready are skipped: `begin` says so itself.
        """
        channel, tail = self.channel, self.channel.tail
        while self.next_seq < channel.next_seq and channel.get_chunk(self.next_seq).is_only_ready:
            self.next_seq += 1
        return list(tail.readiness.list_pending()), self.token

    @property
    def token(self) -> bytes:
        """Return the id of where the client stands, once it has all that was taken."""
        if self.private_reader is None and self.next_seq == self.channel.next_seq:
            return self.channel.build_token(self.channel.tail.token_text)
        return self.channel.build_token(self.create_token_writer(self.private_positions).to_text())

    def take(self, max_bytes: int) -> bytes:
        """Return bytes that can be sent now; empty if there are none.

        `has_more` says afterwards whether another call would go on at once. That can be so although
        nothing was returned: a filter may let nothing through for a while, and the event loop must
        have its turn.

        Args:
            max_bytes: How many bytes to return, about.
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

    # What the client got, on wires that count.

    @property
    def delivered_sum(self) -> ByteSum | None:
        """Return the sum over all that the client got; None on wires that count nothing."""
        if self._byte_counts is None:
            return None
        self._stop_counting_shared()
        self._resume_counting_shared()
        return self._byte_counts.sum

    def count_private(self, *pieces: bytes) -> None:
        """Count pieces that the client gets besides what all get.

        If the first pieces have sums, everything is counted from then on.
        """
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

    # While a shared catch-up reads for it.

    def get_position(self) -> Position:
        """Return where the client stands in all partitions."""
        return self.merge_positions(self.private_positions)

    def detach(self) -> None:
        """Stop following the channel, until `reattach`."""
        self._stop_counting_shared()
        self.close()

    def reattach(self, positions: Position, next_seq: int | None = None) -> None:
        """Follow the channel again.

        Args:
            positions: Where the client stands.
            next_seq: The chunk whose position before it equals `positions`; None if there is none.
                Only used if the ring still has it.
        """
        channel, tail = self.channel, self.channel.tail
        self.private_reader = None
        channel.followers.add(self)
        channel.followers_to_wake.add(self)
        if next_seq is not None and next_seq >= channel.first_seq:
            self.next_seq = next_seq
            self._resume_counting_shared()
            return
        self.next_seq = channel.next_seq
        added = {tp: PartitionPosition(0, NO_EPOCH, log.lineage) for tp, log in tail.logs.items()}
        # Partitions that were added in the meantime are read from their first record.
        for tp, position in {**added, **positions}.items():
            if position != tail.position.get(tp):
                self.ensure_private_reader().positions.detach(tp, position)
        self._resume_counting_shared()

    # What must be found out first.

    def list_unverified(self) -> list[tuple[TopicPartition, PartitionPosition]]:
        """Return the positions that came with a token and were not compared with the log yet."""
        return self.private_reader.list_unverified() if self.private_reader is not None else []

    def on_verified(
        self, tp: TopicPartition, position: PartitionPosition, gap: Gap | None = None
    ) -> None:
        """Take the result of comparing a position with the log.

        Args:
            tp: The partition.
            position: Where to go on.
            gap: What became of the client's position; None if the log has it.
        """
        self.ensure_private_reader().on_verified(tp, position, gap)

    def mark_retired(self, tp: TopicPartition) -> None:
        """Record that a position turned out to be of an earlier topic of the same name."""
        self.ensure_private_reader().mark_retired(tp)

    @property
    def buffered_bytes(self) -> int:
        """Return how many bytes of records were read for the client and not sent yet."""
        return self.private_reader.buffered_bytes if self.private_reader is not None else 0

    def discard_backfill(self) -> None:
        """Forget records from Kafka that were not sent yet; they are read again when needed."""
        if self.private_reader is not None:
            self.private_reader.discard_backfill()

    def list_backfills(self) -> list[tuple[TopicPartition, PartitionPosition]]:
        """Return what has to come from Kafka because no log holds it any more."""
        return self.private_reader.list_backfills() if self.private_reader is not None else []

    def feed(
        self, tp: TopicPartition, position: PartitionPosition, entries: Iterable[Entry]
    ) -> None:
        """Take entries from Kafka from a position on; nothing if the client has moved on."""
        if self.private_reader is not None:
            self.private_reader.feed(tp, position, entries)

    def feed_snapshot(
        self,
        tp: TopicPartition,
        position: PartitionPosition,
        pieces: Iterable[Entry | SnapshotBlock],
    ) -> None:
        """Take what the snapshot has of a partition from a position on."""
        if self.private_reader is not None:
            self.private_reader.feed_snapshot(tp, position, pieces)

    def set_snapshot_end(self, tp: TopicPartition, offset: int) -> None:
        """Set where the snapshot of a partition ends, once that was found."""
        if self.snapshot is None or tp not in self.snapshot.remaining:
            return
        if self.end_offsets is not None:
            offset = min(offset, self.end_offsets.get(tp, 0))
        self.snapshot.end_offsets[tp] = offset
        self.snapshot.on_moved(tp, self.private_positions[tp])

    def fall_behind(
        self, position: Position, notices: Sequence[bytes] = (), *, is_slow: bool = True
    ) -> None:
        """Go on by private reading, as the ring drops what was not taken; see `Follower`."""
        if is_slow and self.slow_policy is SlowClientPolicy.DISCONNECT:
            self.end_reason = "slow"
        # Even then the positions are kept: the first id of the client may be still to be built.
        self.ensure_private_reader().fall_behind(position, notices, is_slow=is_slow)
