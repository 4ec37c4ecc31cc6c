"""Represent a client: a cursor into its channel's ring, and its private reading.

A client gets shared chunks of every partition in which its position is the channel's. The others
are read by a `private_reader`, which most clients never have: they cost this object.

Sans-I/O: `take` returns the bytes that can be sent now. `PrivateReader.list_unverified` and
`list_backfills` name the data that must come from Kafka first, and `on_verified` and `feed` take
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from gateway.core.channel.channel import Channel
from gateway.core.channel.chunk_ring import ByteCounts, ByteSum, CountedBytes
from gateway.core.log.record import NO_EPOCH, PartitionPosition, Position, TopicPartition
from gateway.telemetry.traffic import StreamCounts

from .private_reader import PrivateReader
from .shared_cursor import UNREPORTED_TRAFFIC, SharedCursor
from .terms import DEFAULT_TERMS, SubscriptionTerms


class Delivery(Protocol):
    def wake(self) -> None:
        """Take from the subscription soon: there may be something. It must not take at once."""


class Subscription(SharedCursor):
    """One client of a channel; see `SharedCursor` for the state that its parts share.

    The hub's client creates and owns it. It registers itself as a follower of the channel, and as a
    reader of the tail while it has a private reader. Invariants between calls:

    - The client gets shared bytes of a partition only if its position there equals the channel's.
      `private_positions` has every other partition.
    - No component of the ids that it is sent ever goes back.
    - With a snapshot or an end of its own, it has a private reader until these are over.

    Attributes:
        delivery: Woken by the channel or the tail; the owner sets it. An object, because a bound
            method would take 64 bytes of each client.
        private_reader: None if all partitions follow the channel.
    """

    __slots__ = ("_byte_counts", "delivery", "private_reader")

    def __init__(
        self,
        channel: Channel,
        positions: Mapping[TopicPartition, PartitionPosition] | None = None,
        terms: SubscriptionTerms = DEFAULT_TERMS,
        traffic: StreamCounts = UNREPORTED_TRAFFIC,
    ) -> None:
        """Follow a channel from its head on, or from positions.

        Args:
            positions: Positions that may differ from the channel's. They may include partitions
                that only the client's token knows: metadata here may be behind. With a snapshot,
                all partitions.
        """
        super().__init__(channel, terms, traffic)
        self.delivery: Delivery | None = None
        # None as long as nothing that the client got has a sum.
        self._byte_counts: ByteCounts | None = (
            None if terms.delivered_sum is None else ByteCounts(terms.delivered_sum)
        )
        self.private_reader: PrivateReader | None = None
        if self.is_bounded:
            self.ensure_private_reader().read({**channel.tail.position, **(positions or {})})
        elif positions:
            self.ensure_private_reader().read(positions)
        if terms.snapshot is not None:
            self.ensure_private_reader()
        if self.private_reader is not None:
            self.private_reader.apply_terms(terms)
        self._follow()

    def wake(self) -> None:
        if self.delivery is not None:
            self.delivery.wake()

    def close(self, *, keep_position: bool = False) -> None:
        """Stop following the channel and the tail. A last id or a handover needs the position."""
        self._unfollow()
        self.delivery = None
        if not keep_position:
            self.private_reader = None

    def _follow(self) -> None:
        self.channel.add_follower(self)
        self.channel.start_waking(self)

    def _unfollow(self) -> None:
        self.channel.remove_follower(self)
        self.channel.tail.readers.discard(self)

    @property
    def private_positions(self) -> Position:
        return self.private_reader.positions if self.private_reader is not None else {}

    @property
    def is_fully_shared(self) -> bool:
        return self.private_reader is None and self.credit is None and self.end_reason is None

    def ensure_private_reader(self) -> PrivateReader:
        if self.private_reader is None:
            self._stop_counting_shared()
            self.private_reader = PrivateReader(self)
            self.channel.tail.readers.add(self)
        return self.private_reader

    # What the client is sent.

    def begin(self) -> tuple[list[TopicPartition], bytes]:
        """Return the partitions that cannot be read yet, and the id of the first block.

        Chunks that only say that partitions are ready are skipped.
        """
        channel, tail = self.channel, self.channel.tail
        while self.next_seq < channel.next_seq and channel.get_chunk(self.next_seq).is_only_ready:
            self.next_seq += 1
        return list(tail.readiness.list_pending()), self.token

    @property
    def token(self) -> bytes:
        if self.private_reader is None and self.next_seq == self.channel.next_seq:
            return self.channel.build_token(self.channel.tail.token_text)
        return self.channel.build_token(self.build_token_text(self.private_positions))

    def take(self, max_bytes: int, now: float) -> bytes:
        """Return bytes that can be sent now, about `max_bytes`; empty if there are none.

        `has_more` says afterwards whether another call would go on at once. That can be so although
        nothing was returned: a filter may let nothing through for a while, and the event loop must
        have its turn. `now` is in seconds since 1970.
        """
        self.has_more = False
        if self.end_reason:
            return b""
        if self.private_reader is None:
            data = self.read_chunks(max_bytes, now)
            # Otherwise the credit is enough for a part of the next chunk only, and a private reader
            # sends that record by record.
            if data or not self.has_more:
                return data
        reader = self.ensure_private_reader()
        pieces, is_full = reader.take(max_bytes, now)
        self.has_more = is_full and not self.end_reason
        self.count_private(*pieces)
        if reader.is_done:
            self.private_reader = None
            self.channel.tail.readers.discard(self)
            self._resume_counting_shared()
        return b"".join(pieces)

    # What the client got, on wires that count.

    @property
    def delivered_sum(self) -> ByteSum | None:
        if self._byte_counts is None:
            return None
        # The present shared part is added only when it ends, so it is ended and begun again.
        self._stop_counting_shared()
        self._resume_counting_shared()
        return self._byte_counts.sum

    def count_private(self, *pieces: bytes) -> None:
        """Count pieces of the client alone; sums of the first ones begin the counting."""
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
        return self.merge_positions(self.private_positions)

    def detach(self) -> None:
        self._stop_counting_shared()
        self._unfollow()

    def reattach(self, positions: Position, next_seq: int | None = None) -> None:
        """Follow the channel again, at the chunk `next_seq` if the ring still has it."""
        channel, tail = self.channel, self.channel.tail
        self.private_reader = None
        self._follow()
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

    @property
    def buffered_bytes(self) -> int:
        return self.private_reader.buffered_bytes if self.private_reader is not None else 0

    @property
    def own_bytes(self) -> int:
        return self.private_reader.own_bytes if self.private_reader is not None else 0

    @property
    def shared_sizes(self) -> Iterable[tuple[int, int]]:
        return self.private_reader.shared_sizes if self.private_reader is not None else ()

    def fall_behind(
        self, position: Position, notices: Sequence[bytes] = (), *, is_slow: bool = True
    ) -> None:
        self.ensure_private_reader().fall_behind(position, notices, is_slow=is_slow)
