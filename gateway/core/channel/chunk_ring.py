"""Keep the latest chunks of a channel for its followers, within bounds.

A chunk is one update of a channel as it goes on the wire. A follower that is caught up is a number
in the ring. Before a chunk is dropped, the followers that have not taken it leave the ring: they go
on by reading the log or Kafka, which is slower but loses nothing.

Each channel bounds its own ring, but how many channels there are is the choice of clients: each
filter is a view. So a `RingBudget` bounds the rings of all channels together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

from gateway.core.log.record import Gap, PartitionPosition, Position, TopicPartition
from gateway.core.small_set import SmallSet, add_member, discard_member

from .tail import Tail


class ByteSum(Protocol):
    """A sum over bytes that can be subtracted again: their number and a checksum, for example."""

    def __add__(self, other: Any, /) -> Self: ...

    def subtract(self, before: Any, /) -> Self:
        """Return the sum over the bytes that were added to `before` to get this one."""


class CountedBytes(bytes):
    """Bytes on a wire, with the sum over their content, such as before compression."""

    sum: Any

    @classmethod
    def create(cls, data: bytes, sum: ByteSum) -> CountedBytes:
        result = cls(data)
        result.sum = sum
        return result


class ByteCounts:
    """The sum over one client's bytes, for wires that end with a sum; owned by its subscription.

    A delivery costs nothing. Between `start_shared` and `stop_shared` the client gets all that its
    channel publishes. That part is added only when it ends (10 us), as the difference of two totals
    of the channel. A sum or total of None is that over nothing.
    """

    __slots__ = ("_shared_from", "is_shared", "sum")

    def __init__(self, sum: ByteSum | None = None) -> None:
        self.sum = sum
        self._shared_from: ByteSum | None = None
        self.is_shared = False

    def start_shared(self, total: ByteSum | None) -> None:
        self._shared_from, self.is_shared = total, True

    def stop_shared(self, total: ByteSum | None) -> None:
        if total is not None:
            self._add_sum(total if self._shared_from is None else total.subtract(self._shared_from))
        self.is_shared = False

    def add(self, pieces: Iterable[bytes]) -> None:
        """Add pieces that are not the channel's shared chunks. Those without a sum do not count."""
        for piece in pieces:
            if type(piece) is CountedBytes:
                self._add_sum(piece.sum)

    def _add_sum(self, sum: ByteSum) -> None:
        self.sum = sum if self.sum is None else self.sum + sum


CHUNK_OVERHEAD_BYTES = 256  # bytes that a chunk costs beside its data


class ChannelEvent(NamedTuple):
    """One event, not on a wire yet.

    Attributes:
        tp: The partition whose position it moves; None for an event that every client may get,
            wherever it stands in the partition.
        payload: The part that all clients of the view share: everything but the id.
        timestamp: The timestamp of a record, in milliseconds since 1970.
    """

    tp: TopicPartition | None
    payload: bytes
    token_text: bytes | None
    timestamp: int | None = None


CohortKey = tuple[object, ...]  # equal for the clients that get the same bytes of every chunk


@dataclass(slots=True)
class Chunk:
    """One update as it goes on the wire, and the events that it was encoded from.

    Attributes:
        ending_partitions: Partitions whose gap ends the clients that get the chunk.
        is_only_ready: It says nothing but that partitions became ready.
        total_before: The total of its channel before it; None on wires without sums.
        cohort_data: The bytes by cohort, encoded when the first client of a cohort needs them.
    """

    update_seq: int
    events: list[ChannelEvent]
    data: bytes
    ending_partitions: frozenset[TopicPartition] = frozenset()
    is_only_ready: bool = False
    total_before: ByteSum | None = None
    cohort_data: dict[CohortKey, bytes] | None = None
    gaps: Sequence[Gap] = ()
    traced_records: Sequence[Any] = ()

    @property
    def size(self) -> int:
        # Twice the data: the events hold their payloads once more.
        size = CHUNK_OVERHEAD_BYTES + 2 * len(self.data)
        return size if self.cohort_data is None else size + sum(map(len, self.cohort_data.values()))


DEFAULT_MAX_RING_BYTES = 1 << 20  # bytes of one channel's chunks


@dataclass(eq=False, slots=True)
class RingBudget:
    """The bytes that the rings of some channels hold, within a limit.

    One instance per hub, shared by its channels. A channel calls `grow` for added bytes, which
    drops chunks as soon as `bytes` exceeds `limit`, and subtracts its dropped bytes from `bytes`.
    `LatestOffsets` of conflated keys count as well, until they are freed. `max_ring_bytes` bounds
    one ring; its newest chunk stays even if it is larger.

    Counting costs one addition per chunk. Dropping looks at all channels, once for every quarter of
    the limit that is published.
    """

    limit: int | None = None
    list_rings: Callable[[], Iterable[ChunkRing]] = lambda: ()
    max_ring_bytes: int = DEFAULT_MAX_RING_BYTES
    bytes: int = 0

    def has_capacity(self, size: int) -> bool:
        return self.limit is None or self.bytes + size <= self.limit

    def grow(self, size: int) -> None:
        self.bytes += size
        if self.limit is not None and self.bytes > self.limit:
            self._shrink_to(self.limit * 3 // 4)

    def _shrink_to(self, max_bytes: int) -> None:
        """Drop chunks until at most `max_bytes` bytes are held.

        Chunks that all followers have taken go first. Then the largest rings go: they are large
        because some follower lags, so channels whose followers keep up are spared as long as
        possible.
        """
        rings = [ring for ring in self.list_rings() if ring.bytes]
        for ring in rings:
            ring.drop_consumed()
        rings.sort(key=lambda ring: ring.bytes, reverse=True)
        for ring in rings:
            # If all rings are dropped and more is still held, that is `LatestOffsets`, which stop
            # growing at the limit.
            if self.bytes <= max_bytes:
                return
            ring.drop_all()
            ring.notify_followers()


# A channel with at most so many followers drops chunks as soon as all of them have taken them.
MAX_FOLLOWERS_WITHOUT_RING = 4


class Follower(Protocol):
    next_seq: int

    def wake(self) -> None: ...

    def fall_behind(
        self, position: Position, notices: Sequence[bytes] = (), *, is_slow: bool = True
    ) -> None:
        """Go on by private reading from this position: the chunks that come next are dropped.

        Args:
            notices: Events of these chunks that no log has, such as that a partition is ready.
            is_slow: The follower is to blame, so that its route's `slowClient` applies.
        """


class PublishListener(Protocol):
    def on_published(self) -> None: ...


class ChunkRing:
    """The latest chunks of a channel, and its followers.

    The base of `Channel`, which appends the chunks. Invariants between calls:

    - The ring holds the chunks `first_seq` to `next_seq - 1`, ordered by update. An update of which
      the channel shows nothing has no chunk.
    - `first_seq <= follower.next_seq <= next_seq` for every follower: `_drop_to` makes those that
      need a chunk fall behind before it is dropped.
    - `bytes` is the size of the ring and is included in `ring_budget.bytes`.

    Attributes:
        ring_budget: The budget of the rings of all channels, this one included.
        listener: Has the broadcaster write to the followers that are not woken. An object, because
            a bound method would take 64 bytes of each channel.
    """

    # Each client with a filter of its own has a channel to itself: slots and small sets matter.
    __slots__ = (
        "__weakref__", "_followers_to_wake", "_position_event", "_ring", "bytes", "first_seq",
        "followers", "listener", "ring_budget", "tail",
    )  # fmt: skip

    def __init__(
        self, tail: Tail, position_event: bytes, ring_budget: RingBudget | None = None
    ) -> None:
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
        return self.first_seq + len(self._ring)

    @property
    def oldest_position(self) -> Mapping[TopicPartition, PartitionPosition]:
        tail = self.tail
        return (
            tail.position_before(self.get_chunk(self.first_seq).update_seq)
            if self._ring
            else tail.position
        )

    @property
    def newest_size(self) -> int:
        return self._ring[-1].size if self._ring else 0

    def holds_update(self, update_seq: int) -> bool:
        return bool(self._ring) and self._ring[0].update_seq <= update_seq

    def get_chunk(self, seq: int) -> Chunk:
        return self._ring[seq - self.first_seq]

    def get_chunks(self, first_seq: int) -> Sequence[Chunk]:
        return self._ring[first_seq - self.first_seq :]

    def join_chunks(self, first_seq: int) -> bytes:
        if first_seq == self.next_seq - 1:
            return self._ring[-1].data
        return b"".join([chunk.data for chunk in self.get_chunks(first_seq)])

    def add_follower(self, follower: Follower) -> None:
        self.followers = add_member(self.followers, follower)

    def remove_follower(self, follower: Follower) -> None:
        self.followers = discard_member(self.followers, follower)
        self.stop_waking(follower)

    def start_waking(self, follower: Follower) -> None:
        self._followers_to_wake = add_member(self._followers_to_wake, follower)

    def stop_waking(self, follower: Follower) -> None:
        self._followers_to_wake = discard_member(self._followers_to_wake, follower)

    def notify_followers(self) -> None:
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
        self._drop_to(min([self.next_seq, *(follower.next_seq for follower in self.followers)]))

    def drop_all(self) -> None:
        """Drop all chunks to free memory; followers that have not taken them fall behind.

        They do not count as slow if the broadcaster writes to them, or if only the newest was left.
        """
        self._drop_to(self.next_seq, to_free_memory=True)

    def _grow(self, size: int) -> None:
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
        """Drop the older half of the ring, as each search for followers costs time."""
        first_kept, remaining = self.first_seq, self.bytes
        for chunk in self._ring:
            if remaining <= self.ring_budget.max_ring_bytes // 2 or first_kept == self.next_seq - 1:
                break
            remaining -= chunk.size
            first_kept += 1
        self._drop_to(first_kept)

    def _drop_to(self, first_kept: int, *, to_free_memory: bool = False) -> None:
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
