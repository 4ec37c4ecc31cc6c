"""Encode a view once: every event for all clients that see the same thing.

A channel turns the entries of one update into one chunk and keeps the latest chunks in a ring. A
client that is caught up is a cursor into that ring (see `gateway.core.client.subscription`).

Some clients follow the channel without a few partitions, because these are pending, behind or ahead
for them. They get the same event bytes, but with ids of their own, since their position differs.
All clients that stand at the same offsets in the same partitions form a cohort and share these
bytes.
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

CHUNK_OVERHEAD_BYTES = 256  # bytes that a chunk costs beside its data
MAX_FOLLOWERS_WITHOUT_RING = 4  # followers for whom nothing is held that they all have


class ChannelEvent(NamedTuple):
    """One event, not on a wire yet.

    Attributes:
        tp: The partition whose position it moves; None for what every client may get, wherever it
            stands in the partition.
        payload: What all clients of the view share of it: everything but the id.
        token_text: The token text of its id; None for an event without an id.
        timestamp: The timestamp of a record, in milliseconds since 1970; None for other events.
    """

    tp: TopicPartition | None
    payload: bytes
    token_text: bytes | None
    timestamp: int | None = None


class Encoder(Protocol):
    """What turns entries into bytes on one kind of wire."""

    def encode_entry(self, entry: StreamItem) -> bytes | None:
        """Return an event without its id; None for an entry that is not sent."""

    def encode_position(self) -> bytes:
        """Return the event that only carries an id; empty on wires without ids."""

    def encode_events(self, events: Iterable[ChannelEvent], view: bytes) -> bytes:
        """Return payloads and ids as they go on the wire, in order.

        Each id is `seal_token(event.token_text, view)`.
        """


CohortKey = tuple[object, ...]  # equal for the clients that get the same bytes of every chunk

_tuple_new = tuple.__new__  # not through the named tuple: records are encoded 1.13 times as fast


@dataclass(slots=True)
class Chunk:
    """One update as it goes on the wire.

    Attributes:
        update_seq: The number of the update.
        events: The events it was encoded from.
        data: The bytes for clients that follow in all partitions.
        ending_partitions: Partitions whose gap ends the clients that get the chunk.
        is_only_ready: It says nothing but that partitions became ready.
        total_before: The total of its channel before it; None on wires without sums.
        cohort_data: The bytes by cohort, encoded when the first client of a cohort needs them.
        gaps: The gaps that it reports.
        traced_records: Records whose way to the clients is traced.
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
        """Return about how many bytes it takes in memory, with the data of cohorts."""
        # Twice the data: the events hold their payloads once more.
        size = CHUNK_OVERHEAD_BYTES + 2 * len(self.data)
        return size if self.cohort_data is None else size + sum(map(len, self.cohort_data.values()))


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


class Channel:
    """One view of a tail.

    The hub creates one per view and wire when the first client needs it, and a `ChannelDispatcher`
    passes updates to it as long as it has followers. Invariants between calls:

    - The ring holds the chunks `first_seq` to `next_seq - 1`, ordered by update. An update of which
      the view shows nothing has no chunk.
    - `first_seq <= follower.next_seq <= next_seq` for every follower: `_drop_to` makes those that
      need a chunk fall behind before it is dropped.
    - `bytes` is the size of the ring and is included in `ring_budget.bytes`.
    - The id sent last is never older than one sent before it.

    Attributes:
        tail: The tail whose updates are shown.
        view: The digest of what is seen (topics, filter, format); part of every id.
        encoder: What turns entries into events.
        accepts: The filter; None lets every record through.
        max_bytes: The bound of the ring, in bytes; the newest chunk stays even if it is larger.
        failing_topics: Topics whose clients end where the log lost records (`offsetOutOfRange:
            fail`).
        ring_budget: What the rings of all channels hold, this one included.
        first_seq: The number of the oldest chunk in the ring.
        bytes: The size of the ring.
        latest_by_partition: The latest offsets of keys, for clients that are conflated; None before
            there was one.
        total: The sum over all chunks ever published; None on wires that count nothing.
        followers: All clients that follow the channel.
        followers_to_wake: The followers that are woken for each chunk; the broadcaster writes to
            the others.
        on_publish: Asks the broadcaster to write to those others; None while there is none.
        has_sent_id: An id was published since `announce_position` last ran or the owner reset it.
    """

    MAX_BYTES_WITHOUT_ID = 64 * 1024  # where ids come in batches: at most this much without one

    # Each client with a filter of its own has a channel to itself: with slots an idle one takes
    # 0.2 KB.
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
        self.followers_to_wake: set[Follower] = set()
        self.on_publish: Callable[[], None] | None = None
        self.has_sent_id = False
        self._ring: list[Chunk] = []
        self._last_token_text = tail.token_text  # of the last id that was published
        self._bytes_without_id = 0  # published since then, where ids come in batches

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

    def get_chunk(self, seq: int) -> Chunk:
        """Return a chunk of the ring by its number."""
        return self._ring[seq - self.first_seq]

    def total_before(self, seq: int) -> ByteSum | None:
        """Return the sum over all chunks before this one, which may be the next to come."""
        return self.total if seq == self.next_seq else self.get_chunk(seq).total_before

    def get_chunks(self, first_seq: int) -> Sequence[Chunk]:
        """Return all chunks from one on."""
        return self._ring[first_seq - self.first_seq :]

    def join_chunks(self, first_seq: int) -> bytes:
        """Return the bytes of all chunks from one on, of which there must be one at least."""
        if first_seq == self.next_seq - 1:
            return self._ring[-1].data
        return b"".join([chunk.data for chunk in self.get_chunks(first_seq)])

    def notify_followers(self) -> None:
        """Wake the followers, or have the broadcaster write to them, as there is a new chunk."""
        for follower in self.followers_to_wake:
            follower.wake()
        if self.on_publish is not None:
            self.on_publish()

    def publish(self, update: TailUpdate) -> Chunk | None:
        """Encode an update as a chunk; return None if the view shows nothing of it."""
        events: list[ChannelEvent] = []
        gaps: list[Gap] = []
        ending: set[TopicPartition] = set()
        is_only_ready, is_batched = True, not self.tail.has_exact_tokens
        accepts = self.accepts
        tail_entries = self._conflate(update) if self.tail.is_conflated else update.entries
        for entry, text in tail_entries:
            kind, event = type(entry), None
            if accepts is None or type(entry) is not Record or accepts(entry):
                event = build_event(self.encoder, entry, text)
            if event is not None:
                events.append(event)
                is_only_ready = is_only_ready and kind is Ready
                if type(entry) is Gap:
                    gaps.append(entry)
                    if self.should_end_at(entry):
                        ending.add(entry.tp)
            elif is_batched and text is not None and events:
                # The id of the event before also covers this entry, which is not shown here.
                events[-1] = events[-1]._replace(token_text=text)
        if not events:
            return None
        chunk = self.publish_events(update, events)
        chunk.ending_partitions, chunk.is_only_ready, chunk.gaps = (
            frozenset(ending),
            is_only_ready,
            gaps,
        )
        return chunk

    def _conflate(self, update: TailUpdate) -> Sequence[TailEntry]:
        entries = [entry for entry, _ in update.entries]
        return [TailEntry(entry, None) for entry in conflate(entries, self.accepts)]

    def publish_events(self, update: TailUpdate, events: list[ChannelEvent]) -> Chunk:
        """Encode the events of an update as a chunk, and return it.

        `publish` selects the events itself; for filtered channels the dispatcher does. If the tail
        is conflated, only the last event gets an id: records before it were left out for later
        ones, so the position after it is the first that is true.

        Args:
            update: The update that the events are of.
            events: At least one event; the list is changed.
        """
        if self.tail.is_conflated:
            events[-1] = events[-1]._replace(token_text=update.token_text)
        if not self.tail.has_exact_tokens:
            self._thin_ids(events, update.token_text)
        return self._encode_chunk(update.seq, events)

    def announce_position(self) -> Chunk | None:
        """Publish the position for idle clients, if it moved since the last id.

        The chunk is None if it did not move or the wire has no ids.
        """
        text, payload = self.tail.token_text, self.encoder.encode_position()
        if text == self._last_token_text or not payload:
            return None
        self._bytes_without_id = 0
        chunk = self._encode_chunk(self.tail.seq, [ChannelEvent(None, payload, text)])
        self.has_sent_id = False
        return chunk

    @property
    def has_unsent_id(self) -> bool:
        """Return whether events were published after the last id."""
        return self._bytes_without_id > 0

    def encode_entry(self, entry: Entry) -> bytes | None:
        """Return an entry as this view shows it, without id; None if it does not show it."""
        if type(entry) is Record and self.accepts is not None and not self.accepts(entry):
            return None
        return self.encoder.encode_entry(entry)

    def should_end_at(self, entry: Entry) -> bool:
        """Return whether an entry ends the clients of its topic (`offsetOutOfRange: fail`).

        Only what retention took does so, not what a slow client is made to skip.
        """
        return (
            type(entry) is Gap
            and entry.tp.topic in self.failing_topics
            and entry.reason is GapReason.RETENTION
        )

    def build_token(self, text: bytes) -> bytes:
        """Return the whole token of a token text, for this view."""
        return seal_token(text, self.view)

    def get_cohort_data(
        self, chunk: Chunk, positions: Position, key: CohortKey, issued: int | None
    ) -> bytes:
        """Return the bytes of a chunk for a cohort, which has other positions in some partitions.

        Args:
            chunk: A chunk of the ring.
            positions: Where the cohort stands in these partitions, of which it gets no events.
            key: What identifies the cohort.
            issued: The time of issue of its tokens, in seconds since 1970; None to keep the tail's.
        """
        if chunk.cohort_data is None:
            chunk.cohort_data = {}
        data = chunk.cohort_data.get(key)
        if data is None:
            data = chunk.cohort_data[key] = self._encode_without(chunk, positions, issued)
            self._grow(len(data))
        return data

    def evict_before(self, update_seq: int) -> None:
        """Drop the chunks of updates before this one; followers that need them fall behind."""
        first_kept = self.first_seq
        for chunk in self._ring:
            if chunk.update_seq >= update_seq:
                break
            first_kept += 1
        self._drop_to(first_kept)

    def get_latest_offsets(self, tp: TopicPartition) -> LatestOffsets:
        """Return the latest offsets of a partition's keys, shared by all who hold on to them."""
        if self.latest_by_partition is None:
            self.latest_by_partition = WeakValueDictionary()
        latest = self.latest_by_partition.get(tp)
        if latest is None:
            latest = self.latest_by_partition[tp] = LatestOffsets(self.ring_budget, self.accepts)
        return latest

    @property
    def latest_bytes(self) -> int:
        """Return how many bytes are kept of the latest offsets of keys."""
        return (
            sum(latest.bytes for latest in self.latest_by_partition.values())
            if self.latest_by_partition
            else 0
        )

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

    def _encode_chunk(self, update_seq: int, events: list[ChannelEvent]) -> Chunk:
        if events[-1].token_text is not None:
            self._last_token_text, self.has_sent_id = events[-1].token_text, True
        chunk = Chunk(update_seq, events, self.encode_events(events), total_before=self.total)
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
        """Keep of the token texts of an update only those that become ids, far enough apart.

        Events without an id at the end are covered by `announce_position`.

        Args:
            events: The events of the update; changed in place.
            text: The token text at the end of the update.
        """
        for n, event in enumerate(events):
            self._bytes_without_id += len(event.payload)
            # The text at the end of the update covers all that the view does not show as well.
            token_text = text if n == len(events) - 1 else event.token_text
            # Half of the bound, since the next text may still be `Tail.TOKEN_INTERVAL_BYTES` away.
            if token_text is not None and self._bytes_without_id >= self.MAX_BYTES_WITHOUT_ID // 2:
                self._last_token_text, self._bytes_without_id = token_text, 0
            else:
                token_text = None
            events[n] = event._replace(token_text=token_text)

    def encode_events(self, events: Iterable[ChannelEvent]) -> bytes:
        """Return events with their ids as they go on this channel's wire."""
        return self.encoder.encode_events(events, self.view)

    def _encode_without(self, chunk: Chunk, positions: Position, issued: int | None) -> bytes:
        """Return a chunk without the events of some partitions, with ids of these positions."""
        kept: list[ChannelEvent] = []
        position_event = b"" if self.tail.has_exact_tokens else self.encoder.encode_position()
        for event in chunk.events:
            if event.tp not in positions:
                kept.append(event)
            elif event.token_text is not None and kept and kept[-1].token_text is None:
                # The id of an event that is left out moves to the event before it.
                kept[-1] = kept[-1]._replace(token_text=event.token_text)
            elif event.token_text is not None and not kept and position_event:
                # The events of earlier chunks since the last id must not stay without one.
                kept.append(ChannelEvent(None, position_event, event.token_text))
        positions, overlay = self.tail.mark_retired(positions), self.tail.overlay_token
        if not kept:
            return b""
        return self.encode_events(
            event
            if event.token_text is None
            else event._replace(token_text=overlay(event.token_text, positions, issued))
            for event in kept
        )

    def _collect_notices(self, start: int, stop: int) -> list[bytes]:
        """Return the events of some chunks that no log holds: readiness and faults."""
        ring, position_event = self._ring[start - self.first_seq :], self.encoder.encode_position()
        events = (event for chunk in ring[: stop - start] for event in chunk.events)
        return [
            event.payload
            for event in events
            if event.tp is None and event.payload != position_event
        ]

    def _shrink(self) -> None:
        """Drop the older half of the ring, but never the newest chunk.

        Half at a time, so that looking for followers which fall behind costs little per chunk.
        """
        first_kept, remaining = self.first_seq, self.bytes
        for chunk in self._ring:
            if remaining <= self.max_bytes // 2 or first_kept == self.next_seq - 1:
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
                    by_seq[seq] = position, self._collect_notices(seq, first_kept)
                lags = follower in self.followers_to_wake and seq < self.next_seq - 1
                follower.fall_behind(*by_seq[seq], is_slow=lags or not to_free_memory)
        count = first_kept - self.first_seq
        size = sum(chunk.size for chunk in self._ring[:count])
        self.bytes -= size
        self.ring_budget.bytes -= size
        del self._ring[:count]
        self.first_seq = first_kept


def build_event(encoder: Encoder, entry: Entry, text: bytes | None) -> ChannelEvent | None:
    """Return an entry as an event of this encoder, for all clients; None if it is not sent.

    Args:
        encoder: What encodes it.
        entry: The entry.
        text: The token text of the position after it, if known.
    """
    payload = encoder.encode_entry(entry)
    if payload is None:
        return None
    kind = type(entry)
    tp = entry.tp if kind is Record or kind is Gap else None
    return _tuple_new(
        ChannelEvent, (tp, payload, text, entry.timestamp if type(entry) is Record else None)
    )
