"""A view being encoded: every event once, for all who look at the same thing.

A channel turns the entries of one turn into one chunk and keeps the last chunks in a ring.
A client rides along as a cursor into that ring (see `subscription`). Some clients ride
without a few partitions (theirs are pending, behind or ahead): for them the same event
bytes go out with ids of their own; all who miss the same form a cohort and share these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

from gateway.core.log.position import PartitionPosition, Position
from gateway.core.log.record import Entry, Gap, GapReason, Ready, Record, StreamItem, TopicPartition
from gateway.core.log.tail import Tail, TailEntry, TailUpdate
from gateway.core.token.resume_token import seal_token

from .byte_counts import ByteSum, CountedBytes
from .conflation import LatestOffsets, conflate
from .ring_budget import RingBudget

MAX_BYTES_WITHOUT_ID = 64 * 1024  # where ids come in batches: at most this much without one
CHUNK_OVERHEAD_BYTES = 256  # bytes that a chunk costs beside its data
MAX_FOLLOWERS_WITHOUT_RING = 4  # followers for whom nothing is held that they all have


class ChannelEvent(NamedTuple):
    """One event, not on a wire yet.

    tp:    the partition it moves on; None for what all may hear, wherever they are in it.
    head:  what all clients of the view share of it.
    text:  of its id; None for an event without.
    stamp: of a record its timestamp, in milliseconds; None for what is none.
    """

    tp: TopicPartition | None
    payload: bytes
    token_text: bytes | None
    timestamp: int | None = None


class Encoder(Protocol):
    """How entries become bytes on one kind of wire."""

    def encode_entry(self, entry: StreamItem) -> bytes | None:
        """An event without its id; None for what is not told."""

    def encode_position(self) -> bytes:
        """The event that only carries an id; empty where clients are sent no ids."""

    def encode_events(self, events: Iterable[ChannelEvent], view: bytes) -> bytes:
        """Heads and ids on the wire, in order; each id is `seal(text, view)`."""


CohortKey = tuple[object, ...]

_tuple_new = tuple.__new__  # not through the named tuple: records are encoded 1.13 times as fast


@dataclass(slots=True)
class Chunk:
    """What one turn is on the wire.

    ends: partitions whose loss ends those who got it. only_ready: it tells of nothing else.
    before: the total of its channel before it.
    gaps: that it tells of. followed: records whose way to clients is traced.
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
        size = CHUNK_OVERHEAD_BYTES + 2 * len(self.data)
        return size if self.cohort_data is None else size + sum(map(len, self.cohort_data.values()))


class Follower(Protocol):
    """A subscription, as far as its channel knows it."""

    next_seq: int

    def wake(self) -> None:
        """There is something to take."""

    def fall_behind(
        self, position: Position, notices: Sequence[bytes] = (), *, is_slow: bool = True
    ) -> None:
        """Go on alone from this position: the chunks that come next are dropped.

        Args:
            position: Where the follower stood.
            notices: Events of these chunks that no log has, such as that a partition is ready.
            is_slow: The follower is to blame, so that what its route does with slow clients holds.
        """


class Channel:
    """One view of a tail.

    view:    digest of what is seen (topics, filter, format); part of every id.
    accepts: the filter; None lets every record through.
    fails:   topics whose clients end where the log lost records (`offsetOutOfRange: fail`).
    rings:   what the rings of all channels hold, this one's included.
    latest:  by partition, for clients that are conflated; None before there was one.
    """

    # A client with a filter of its own has this to itself: 0.2 KB, and no more while idle.
    __slots__ = (
        "__weakref__",
        "_bytes_without_id",
        "_last_token_text",
        "_ring",
        "accepts",
        "bytes",
        "encoder",
        "failing_topics",
        "first_seq",
        "followers",
        "followers_to_wake",
        "has_sent_id",
        "latest_by_partition",
        "max_bytes",
        "on_publish",
        "ring_budget",
        "tail",
        "total",
        "view",
    )  # fmt: skip

    def __init__(
        self,
        tail: Tail,
        view: bytes,
        encoder: Encoder,
        accepts: Callable[[Record], bool] | None = None,
        *,
        max_bytes: int = 1 << 20,
        failing_topics: Iterable[str] = (),
        ring_budget: RingBudget | None = None,
    ) -> None:
        self.tail = tail
        self.view = view
        self.encoder = encoder
        self.accepts = accepts
        self.max_bytes = max_bytes
        self.failing_topics = frozenset(failing_topics)
        self.ring_budget = RingBudget() if ring_budget is None else ring_budget
        self.first_seq = 0
        self.bytes = 0
        self.latest_by_partition: WeakValueDictionary[TopicPartition, LatestOffsets] | None = None
        self.total: ByteSum | None = None  # of all chunks ever; None on wires that count nothing
        self.followers: set[Follower] = set()
        self.followers_to_wake: set[Follower] = (
            set()
        )  # to be woken; the others are written to in rounds
        self.on_publish: Callable[[], None] | None = None  # calls one
        self.has_sent_id = False  # an id was sent since the last time somebody looked
        self._ring: list[Chunk] = []
        self._last_token_text = tail.token_text  # of the last id that was sent
        self._bytes_without_id = 0

    @property
    def next_seq(self) -> int:
        """The number of the next chunk."""
        return self.first_seq + len(self._ring)

    @property
    def oldest_position(self) -> Mapping[TopicPartition, PartitionPosition]:
        """The position before the first chunk of the ring."""
        tail = self.tail
        return (
            tail.position_before(self.get_chunk(self.first_seq).update_seq)
            if self._ring
            else tail.position
        )

    @property
    def newest_size(self) -> int:
        """The bytes of the newest chunk; 0 where none is held."""
        return self._ring[-1].size if self._ring else 0

    def get_chunk(self, seq: int) -> Chunk:
        return self._ring[seq - self.first_seq]

    def total_before(self, seq: int) -> ByteSum | None:
        return self.total if seq == self.next_seq else self.get_chunk(seq).total_before

    def get_chunks(self, first_seq: int) -> Sequence[Chunk]:
        """All from one on."""
        return self._ring[first_seq - self.first_seq :]

    def join_chunks(self, first_seq: int) -> bytes:
        """The bytes of these."""
        if first_seq == self.next_seq - 1:
            return self._ring[-1].data
        return b"".join([chunk.data for chunk in self.get_chunks(first_seq)])

    def notify_followers(self) -> None:
        """There is something new: whoever follows is to take it."""
        for follower in self.followers_to_wake:
            follower.wake()
        if self.on_publish is not None:
            self.on_publish()

    def publish(self, turn: TailUpdate) -> Chunk | None:
        """Encode a turn; None when nothing of it is seen here."""
        events: list[ChannelEvent] = []
        gaps: list[Gap] = []
        ends: set[TopicPartition] = set()
        only_ready, batched = True, not self.tail.has_exact_tokens
        accepts = self.accepts
        items = self._conflate(turn) if self.tail.is_conflated else turn.entries
        for entry, text in items:
            kind, event = type(entry), None
            if accepts is None or type(entry) is not Record or accepts(entry):
                event = build_event(self.encoder, entry, text)
            if event is not None:
                events.append(event)
                only_ready = only_ready and kind is Ready
                if type(entry) is Gap:
                    gaps.append(entry)
                    if self.should_end_at(entry):
                        ends.add(entry.tp)
            elif batched and text is not None and events:
                events[-1] = events[-1]._replace(token_text=text)  # past what is not seen here
        if not events:
            return None
        chunk = self.publish_events(turn, events)
        chunk.ending_partitions, chunk.is_only_ready, chunk.gaps = frozenset(ends), only_ready, gaps
        return chunk

    def _conflate(self, turn: TailUpdate) -> Sequence[TailEntry]:
        return [
            TailEntry(entry, None) for entry in conflate([e for e, _ in turn.entries], self.accepts)
        ]

    def publish_events(self, turn: TailUpdate, events: list[ChannelEvent]) -> Chunk:
        """What is seen here of a turn, by whoever sees to which events these are. Of one that is
        conflated only the last has an id."""
        if self.tail.is_conflated:
            events[-1] = events[-1]._replace(token_text=turn.token_text)
        if not self.tail.has_exact_tokens:
            self._thin_ids(events, turn.token_text)
        return self._encode_chunk(turn.seq, events)

    def announce_position(self) -> Chunk | None:
        """Tell idle clients the position, if it moved since the last id."""
        text, head = self.tail.token_text, self.encoder.encode_position()
        if text == self._last_token_text or not head:
            return None
        self._bytes_without_id = 0
        chunk = self._encode_chunk(self.tail.seq, [ChannelEvent(None, head, text)])
        self.has_sent_id = False
        return chunk

    @property
    def has_unsent_id(self) -> bool:
        """Were events sent after the last id?"""
        return self._bytes_without_id > 0

    def encode_entry(self, entry: Entry) -> bytes | None:
        """One entry as this view shows it, without id; None if it does not."""
        if type(entry) is Record and self.accepts is not None and not self.accepts(entry):
            return None
        return self.encoder.encode_entry(entry)

    def should_end_at(self, entry: Entry) -> bool:
        """Is it what `fails` is about? What a slow client is made to skip is not."""
        return (
            type(entry) is Gap
            and entry.tp.topic in self.failing_topics
            and entry.reason is GapReason.RETENTION
        )

    def build_token(self, text: bytes) -> bytes:
        return seal_token(text, self.view)

    def get_cohort_data(
        self, chunk: Chunk, own: Position, key: CohortKey, issued: int | None
    ) -> bytes:
        """A chunk without some partitions, for those whose places there are `own`."""
        if chunk.cohort_data is None:
            chunk.cohort_data = {}
        data = chunk.cohort_data.get(key)
        if data is None:
            data = chunk.cohort_data[key] = self._encode_without(chunk, own, issued)
            self._grow(len(data))
        return data

    def evict_before(self, before: int) -> None:
        """Drop the chunks of turns before this one, and let go of those who need them."""
        first = self.first_seq
        for chunk in self._ring:
            if chunk.update_seq >= before:
                break
            first += 1
        self._drop_to(first)

    def get_latest_offsets(self, tp: TopicPartition) -> LatestOffsets:
        """Return those of a partition, the same for all who ask while one of them keeps it."""
        if self.latest_by_partition is None:
            self.latest_by_partition = WeakValueDictionary()
        found = self.latest_by_partition.get(tp)
        if found is None:
            found = self.latest_by_partition[tp] = LatestOffsets(self.ring_budget, self.accepts)
        return found

    @property
    def latest_bytes(self) -> int:
        """What is kept of the latest records of keys."""
        return (
            sum(each.bytes for each in self.latest_by_partition.values())
            if self.latest_by_partition
            else 0
        )

    def drop_if_caught_up(self) -> None:
        """Hold nothing that everybody has, where that is a few: one who comes back is as well
        served from the log (2,000 clients on keys of their own: 1.2 KB a record, a fifth of the
        CPU time, most of it for memory that was never used before)."""
        if len(self.followers) > MAX_FOLLOWERS_WITHOUT_RING or any(
            f.next_seq != self.next_seq for f in self.followers
        ):
            return
        if self.tail.readers.isdisjoint(self.followers):  # by the ring one is slow, or is not yet
            self.ring_budget.bytes -= self.bytes
            self.first_seq, self.bytes = self.next_seq, 0
            self._ring.clear()

    def drop_consumed(self) -> None:
        """Drop the chunks that every follower has."""
        self._drop_to(min([self.next_seq, *(follower.next_seq for follower in self.followers)]))

    def drop_all(self) -> None:
        """Drop all chunks to make room; followers who lack any of them go on by themselves.

        Those who are written to in rounds keep up, and the others do if they lack no more than the
        newest chunk: what their routes do with slow clients is not for them.
        """
        self._drop_to(self.next_seq, for_room=True)

    def _encode_chunk(self, turn: int, events: list[ChannelEvent]) -> Chunk:
        if events[-1].token_text is not None:
            self._last_token_text, self.has_sent_id = events[-1].token_text, True
        chunk = Chunk(turn, events, self.encode_events(events), total_before=self.total)
        if type(chunk.data) is CountedBytes:
            self.total = chunk.data.sum if self.total is None else self.total + chunk.data.sum
        self._ring.append(chunk)
        self._grow(chunk.size)
        return chunk

    def _grow(self, size: int) -> None:
        self.bytes += size
        if self.bytes > self.max_bytes and len(self._ring) > 1:
            self._shrink()
        self.ring_budget.grow(size)

    def _thin_ids(self, events: list[ChannelEvent], text: bytes) -> None:
        """Of the marks of a turn and its end, those become ids that lie far enough apart;
        `announce` sees to the rest."""
        for n, event in enumerate(events):
            self._bytes_without_id += len(event.payload)
            mark = text if n == len(events) - 1 else event.token_text
            if mark is not None and self._bytes_without_id >= MAX_BYTES_WITHOUT_ID // 2:
                self._last_token_text, self._bytes_without_id = mark, 0
            else:
                mark = None
            events[n] = event._replace(token_text=mark)

    def encode_events(self, events: Iterable[ChannelEvent]) -> bytes:
        return self.encoder.encode_events(events, self.view)

    def _encode_without(self, chunk: Chunk, own: Position, issued: int | None) -> bytes:
        kept: list[ChannelEvent] = []
        position = b"" if self.tail.has_exact_tokens else self.encoder.encode_position()
        for event in chunk.events:
            if event.tp not in own:
                kept.append(event)
            elif event.token_text is not None and kept and kept[-1].token_text is None:
                kept[-1] = kept[-1]._replace(token_text=event.token_text)
            elif event.token_text is not None and not kept and position:
                # The events of earlier chunks since the last id must not stay without one.
                kept.append(ChannelEvent(None, position, event.token_text))
        own, overlay = self.tail.mark_retired(own), self.tail.overlay_token
        if not kept:
            return b""
        return self.encode_events(
            event
            if event.token_text is None
            else event._replace(token_text=overlay(event.token_text, own, issued))
            for event in kept
        )

    def _collect_notices(self, start: int, stop: int) -> list[bytes]:
        """Events of some chunks that are of no log: readiness and faults of partitions."""
        ring, position = self._ring[start - self.first_seq :], self.encoder.encode_position()
        events = (event for chunk in ring[: stop - start] for event in chunk.events)
        return [each.payload for each in events if each.tp is None and each.payload != position]

    def _shrink(self) -> None:
        """Half at a time, so that looking for those who fall costs little per chunk."""
        first, left = self.first_seq, self.bytes
        for chunk in self._ring:
            if left <= self.max_bytes // 2 or first == self.next_seq - 1:
                break
            left -= chunk.size
            first += 1
        self._drop_to(first)

    def _drop_to(self, first: int, *, for_room: bool = False) -> None:
        if first == self.first_seq:
            return
        left: dict[int, tuple[Position, Sequence[bytes]]] = {}
        for follower in list(self.followers):
            at = follower.next_seq
            if at < first:
                if at not in left:
                    position = self.tail.position_before(self.get_chunk(at).update_seq)
                    left[at] = position, self._collect_notices(at, first)
                lags = follower in self.followers_to_wake and at < self.next_seq - 1
                follower.fall_behind(*left[at], is_slow=lags or not for_room)
        count = first - self.first_seq
        size = sum(chunk.size for chunk in self._ring[:count])
        self.bytes -= size
        self.ring_budget.bytes -= size
        del self._ring[:count]
        self.first_seq = first


def build_event(encoder: Encoder, entry: Entry, text: bytes | None) -> ChannelEvent | None:
    """One entry as all see it who have this encoder; None if they are not told of it."""
    head = encoder.encode_entry(entry)
    if head is None:
        return None
    kind = type(entry)
    tp = entry.tp if kind is Record or kind is Gap else None
    return _tuple_new(
        ChannelEvent, (tp, head, text, entry.timestamp if type(entry) is Record else None)
    )
