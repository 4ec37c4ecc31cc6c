"""Keep the latest chunks of a channel for its followers, within bounds.

A follower that is caught up is a number in this ring. Before a chunk is dropped, the followers that
have not taken it leave the ring: they go on by reading the log or Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from gateway.core.log.position import PartitionPosition, Position
from gateway.core.log.record import TopicPartition
from gateway.core.log.tail import Tail
from gateway.core.small_set import SmallSet, add_member, discard_member

from .chunk import Chunk
from .ring_budget import RingBudget

# A channel with at most so many followers drops chunks as soon as all of them have taken them.
MAX_FOLLOWERS_WITHOUT_RING = 4


class Follower(Protocol):
    """A subscription, as far as its channel knows it.

    Attributes:
        next_seq: The number of the chunk that it takes next.
    """

    next_seq: int

    def wake(self) -> None:
        """Take note that a new chunk was published, or that chunks were dropped."""

    def fall_behind(
        self, position: Position, notices: Sequence[bytes] = (), *, is_slow: bool = True
    ) -> None:
        """Go on by private reading from this position: the chunks that come next are dropped.

        Args:
            position: Where the follower stood.
            notices: Events of these chunks that no log has, such as that a partition is ready.
            is_slow: The follower is to blame, so that its route's `slowClient` applies.
        """


class PublishListener(Protocol):
    """What writes to the followers that are not woken."""

    def on_published(self) -> None:
        """Take note that a new chunk was published."""


class ChunkRing:
    """The latest chunks of a channel, and those who follow it.

    The base of `Channel`, which appends the chunks. Invariants between calls:

    - The ring holds the chunks `first_seq` to `next_seq - 1`, ordered by update. An update of which
      the channel shows nothing has no chunk.
    - `first_seq <= follower.next_seq <= next_seq` for every follower: `_drop_to` makes those that
      need a chunk fall behind before it is dropped.
    - `bytes` is the size of the ring and is included in `ring_budget.bytes`.

    Attributes:
        tail: The tail whose updates are shown.
        ring_budget: What the rings of all channels hold, this one included.
        first_seq: The number of the oldest chunk in the ring.
        bytes: The size of the ring.
        followers: All clients that follow the channel.
        listener: Has the broadcaster write to the followers that are not woken; None while there
            is none. An object, because a bound method would take 64 bytes of each channel.
    """

    # Each client with a filter of its own has a channel to itself: slots and small sets matter.
    __slots__ = (
        "__weakref__",
        "_followers_to_wake",
        "_position_event",
        "_ring",
        "bytes",
        "first_seq",
        "followers",
        "listener",
        "ring_budget",
        "tail",
    )  # fmt: skip

    def __init__(
        self, tail: Tail, position_event: bytes, ring_budget: RingBudget | None = None
    ) -> None:
        """Start with no chunks and no followers.

        Args:
            tail: The tail whose updates are shown.
            position_event: The event that only carries an id, of which no follower is told later.
            ring_budget: What the rings of all channels hold; None for a budget of its own.
        """
        self.tail = tail
        self.ring_budget = RingBudget() if ring_budget is None else ring_budget
        self.first_seq = 0
        self.bytes = 0
        self.followers: SmallSet[Follower] = ()
        # Those that are woken for each chunk; the broadcaster writes to the others.
        self._followers_to_wake: SmallSet[Follower] = ()
        self.listener: PublishListener | None = None
        # A list and no deque: it is read by index and in slices.
        self._ring: list[Chunk] = []
        self._position_event = position_event

    @property
    def next_seq(self) -> int:
        """Return the number of the next chunk."""
        return self.first_seq + len(self._ring)

    @property
    def oldest_position(self) -> Mapping[TopicPartition, PartitionPosition]:
        """Return the position before the first chunk of the ring."""
        tail = self.tail
        return (
            tail.position_before(self.get_chunk(self.first_seq).update_seq)
            if self._ring
            else tail.position
        )

    @property
    def newest_size(self) -> int:
        """Return the size of the newest chunk in bytes; 0 if none is held."""
        return self._ring[-1].size if self._ring else 0

    def holds_update(self, update_seq: int) -> bool:
        """Return whether the ring holds a chunk of this update or of an earlier one."""
        return bool(self._ring) and self._ring[0].update_seq <= update_seq

    def get_chunk(self, seq: int) -> Chunk:
        """Return a chunk of the ring by its number."""
        return self._ring[seq - self.first_seq]

    def get_chunks(self, first_seq: int) -> Sequence[Chunk]:
        """Return all chunks from one on."""
        return self._ring[first_seq - self.first_seq :]

    def join_chunks(self, first_seq: int) -> bytes:
        """Return the bytes of all chunks from one on, of which there must be one at least."""
        if first_seq == self.next_seq - 1:
            return self._ring[-1].data
        return b"".join([chunk.data for chunk in self.get_chunks(first_seq)])

    def add_follower(self, follower: Follower) -> None:
        """Keep the chunks from now on until a follower has taken them or is told."""
        self.followers = add_member(self.followers, follower)

    def remove_follower(self, follower: Follower) -> None:
        """Forget a follower, if it is one, and wake it no longer."""
        self.followers = discard_member(self.followers, follower)
        self.stop_waking(follower)

    def start_waking(self, follower: Follower) -> None:
        """Wake a follower for each chunk from now on."""
        self._followers_to_wake = add_member(self._followers_to_wake, follower)

    def stop_waking(self, follower: Follower) -> None:
        """Wake a follower no longer: the broadcaster writes to it, or it follows no more."""
        self._followers_to_wake = discard_member(self._followers_to_wake, follower)

    def notify_followers(self) -> None:
        """Wake the followers, or have the broadcaster write to them, as there is a new chunk."""
        for follower in self._followers_to_wake:
            follower.wake()
        if self.listener is not None:
            self.listener.on_published()

    def evict_before(self, update_seq: int) -> None:
        """Drop the chunks of updates before this one; followers that need them fall behind."""
        first_kept = self.first_seq
        for chunk in self._ring:
            if chunk.update_seq >= update_seq:
                break
            first_kept += 1
        self._drop_to(first_kept)

    def drop_if_caught_up(self) -> None:
        """Drop the ring if it has few followers and all of them have taken all of it.

        A client that comes back is served as well from the log. Without this, 2,000 clients on keys
        of their own kept 1.2 KB per record and spent a fifth of the CPU time, most of it on memory
        that was never used before.
        """
        if len(self.followers) > MAX_FOLLOWERS_WITHOUT_RING or any(
            follower.next_seq != self.next_seq for follower in self.followers
        ):
            return
        # A client that reads privately for want of credit counts as slow once the ring has dropped
        # what it has not read. Dropping the ring early would make it slow too soon.
        if self.tail.readers.isdisjoint(self.followers):
            self.ring_budget.bytes -= self.bytes
            self.first_seq, self.bytes = self.next_seq, 0
            self._ring.clear()

    def drop_consumed(self) -> None:
        """Drop the chunks that every follower has taken."""
        self._drop_to(min([self.next_seq, *(follower.next_seq for follower in self.followers)]))

    def drop_all(self) -> None:
        """Drop all chunks to free memory; followers that have not taken them fall behind.

        Followers that the broadcaster writes to do not count as slow for that, nor do those that
        had only the newest chunk still to take.
        """
        self._drop_to(self.next_seq, to_free_memory=True)

    def _grow(self, size: int) -> None:
        """Count `size` more bytes, and drop chunks if the ring or all rings exceed their bound."""
        self.bytes += size
        # Its own bound first, or a ring that is too large would make those of other channels go.
        if self.bytes > self.ring_budget.max_ring_bytes and len(self._ring) > 1:
            self._shrink()
        self.ring_budget.grow(size)

    def _collect_notices(self, first_seq: int) -> list[bytes]:
        """Return the events that no log holds, readiness and faults, of all chunks from one on."""
        events = (event for chunk in self.get_chunks(first_seq) for event in chunk.events)
        return [
            event.payload
            for event in events
            if event.tp is None and event.payload != self._position_event
        ]

    def _shrink(self) -> None:
        """Drop the older half of the ring, but never the newest chunk.

        Half at a time, so that looking for followers which fall behind costs little per chunk.
        """
        first_kept, remaining = self.first_seq, self.bytes
        for chunk in self._ring:
            if remaining <= self.ring_budget.max_ring_bytes // 2 or first_kept == self.next_seq - 1:
                break
            remaining -= chunk.size
            first_kept += 1
        self._drop_to(first_kept)

    def _drop_to(self, first_kept: int, *, to_free_memory: bool = False) -> None:
        """Drop the chunks before one, after the followers that need them have left the ring."""
        if first_kept == self.first_seq:
            return
        # Followers that stand at the same chunk fall behind with the same position and notices.
        by_seq: dict[int, tuple[Position, Sequence[bytes]]] = {}
        for follower in list(self.followers):  # a copy: they may stop following in here
            seq = follower.next_seq
            if seq < first_kept:
                if seq not in by_seq:
                    position = self.tail.position_before(self.get_chunk(seq).update_seq)
                    # It goes on from the head, so the chunks that are kept are none of its own.
                    by_seq[seq] = position, self._collect_notices(seq)
                lags = follower in self._followers_to_wake and seq < self.next_seq - 1
                follower.fall_behind(*by_seq[seq], is_slow=lags or not to_free_memory)
        count = first_kept - self.first_seq
        size = sum(chunk.size for chunk in self._ring[:count])
        self.bytes -= size
        self.ring_budget.bytes -= size
        del self._ring[:count]
        self.first_seq = first_kept
