"""Encode a view once: every event for all clients that see the same thing.

A channel turns the entries of one update into one chunk and keeps the latest chunks in a ring
(`chunk_ring`). A client that is caught up is a cursor into that ring (see
`gateway.core.client.subscription`).

Some clients follow the channel without a few partitions, because these are pending, behind or ahead
for them. They get the same event bytes, but with ids of their own, since their position differs.
All clients that stand at the same offsets in the same partitions form a cohort and share these
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Protocol
from weakref import WeakValueDictionary

from gateway.core.log.record import (
    Entry,
    Gap,
    GapReason,
    Position,
    Ready,
    Record,
    StreamItem,
    TopicPartition,
)
from gateway.core.token.resume_token import seal_token

from .chunk_ring import ByteSum, ChannelEvent, Chunk, ChunkRing, CohortKey, CountedBytes, RingBudget
from .conflation import LatestOffsets, conflate
from .tail import Tail, TailEntry, TailUpdate

# Shared by all channels: even an empty set takes 216 bytes.
_NO_TOPICS: frozenset[str] = frozenset()


class Encoder(Protocol):
    """The encoding of entries on one kind of wire. An entry that is not sent is None."""

    def encode_entry(self, entry: StreamItem) -> bytes | None: ...

    def encode_position(self) -> bytes:
        """Return the event that only carries an id; empty on wires without ids."""

    def encode_events(self, events: Sequence[ChannelEvent], view_digest: bytes) -> bytes:
        """Return payloads and ids, by `seal_token(event.token_text, view_digest)`, in order."""


_tuple_new = tuple.__new__  # not through the named tuple: records are encoded 1.13 times as fast


class Channel(ChunkRing):
    """One view of a tail, and the ring of its published chunks.

    The hub creates one per view and wire when the first client needs it, and a `ChannelDispatcher`
    passes updates to it as long as it has followers. Invariant between calls: the id sent last is
    never older than one sent before it.

    Attributes:
        view_digest: The digest of the view (topics, filter, format); part of every id.
        topics_ending_on_loss: Topics whose clients end where the log lost records
            (`offsetOutOfRange: fail`).
        parses_values: The view has fields, or filters that look into values.
        latest_by_partition: The latest offsets of keys, for clients that are conflated.
        total: The sum over all chunks ever published; None on wires that count nothing.
        has_sent_id: An id was published since `announce_position` last ran or the owner reset it.
        announce_at: When it is to run next, by the clock of the owner, who sets it.
    """

    MAX_BYTES_WITHOUT_ID = 64 * 1024  # where ids come in batches: at most this much without one

    __slots__ = (
        "_bytes_without_id", "_last_token_text", "accepts", "announce_at", "encoder", "has_sent_id",
        "key", "latest_by_partition", "parses_values", "topics_ending_on_loss", "total",
        "view_digest",
    )  # fmt: skip

    def __init__(
        self,
        tail: Tail,
        view_digest: bytes,
        encoder: Encoder,
        accepts: Callable[[Record], bool] | None = None,
        *,
        parses_values: bool = False,
        topics_ending_on_loss: Iterable[str] = (),
        ring_budget: RingBudget | None = None,
    ) -> None:
        super().__init__(tail, encoder.encode_position(), ring_budget)
        self.view_digest = view_digest
        self.encoder = encoder
        self.accepts = accepts
        self.parses_values = parses_values
        self.topics_ending_on_loss = frozenset(topics_ending_on_loss) or _NO_TOPICS
        self.latest_by_partition: WeakValueDictionary[TopicPartition, LatestOffsets] | None = None
        self.total: ByteSum | None = None  # of all chunks ever; None on wires that count nothing
        self.has_sent_id = False
        self.announce_at = 0.0
        self.key: Hashable = None
        self._last_token_text = tail.token_text  # of the last id that was published
        self._bytes_without_id = 0  # published since then, where ids come in batches

    def total_before(self, seq: int) -> ByteSum | None:
        return self.total if seq == self.next_seq else self.get_chunk(seq).total_before

    def publish(self, update: TailUpdate) -> Chunk | None:
        events: list[ChannelEvent] = []
        controls: list[Entry] = []
        # Where tokens are long, the tail writes one now and then: most texts are None (see `Tail`).
        accepts, is_batched = self.accepts, not self.tail.has_exact_tokens
        tail_entries = self._conflate(update) if self.tail.is_conflated else update.entries
        for entry, text in tail_entries:
            event = None
            # A filter is about records only: gaps, faults and readiness concern every client.
            if accepts is None or type(entry) is not Record or accepts(entry):
                event = build_event(self.encoder, entry, text)
            if event is not None:
                events.append(event)
                if type(entry) is not Record:
                    controls.append(entry)
            elif is_batched and text is not None and events:
                # The id of the event before also covers this entry, which is not shown here.
                events[-1] = events[-1]._replace(token_text=text)
        return self.publish_events(update, events, controls) if events else None

    def _conflate(self, update: TailUpdate) -> Sequence[TailEntry]:
        entries = [entry for entry, _ in update.entries]
        return [TailEntry(entry, None) for entry in conflate(entries, self.accepts)]

    def publish_events(
        self, update: TailUpdate, events: list[ChannelEvent], controls: Sequence[Entry] = ()
    ) -> Chunk:
        """Encode the events of an update, at least one, as a chunk, and return it.

        `publish` selects the events itself; for filtered channels the dispatcher does. If the tail
        is conflated, only the last event gets an id: records before it were left out for later
        ones, so the position after it is the first that is true. The list of events is changed.
        """
        if self.tail.is_conflated:
            events[-1] = events[-1]._replace(token_text=update.token_text)
        if not self.tail.has_exact_tokens:
            self._thin_ids(events, update.token_text)
        chunk = self._encode_chunk(update.seq, events)
        if controls:
            chunk.gaps = [entry for entry in controls if type(entry) is Gap]
            if self.topics_ending_on_loss:
                chunk.ending_partitions = frozenset(
                    entry.tp for entry in chunk.gaps if self.should_end_at(entry)
                )
            # No event has a timestamp: there is no record in it.
            chunk.is_only_ready = all(type(entry) is Ready for entry in controls) and all(
                event.timestamp is None for event in events
            )
        return chunk

    def announce_position(self) -> Chunk | None:
        """Publish the position for idle clients, if it moved since the last id."""
        text, payload = self.tail.token_text, self._position_event
        if text == self._last_token_text or not payload:
            return None
        self._bytes_without_id = 0
        chunk = self._encode_chunk(self.tail.seq, [ChannelEvent(None, payload, text)])
        # `_encode_chunk` has just set it. Only ids that follow put the next announcement off.
        self.has_sent_id = False
        return chunk

    @property
    def has_unsent_id(self) -> bool:
        return self._bytes_without_id > 0

    def encode_entry(self, entry: Entry) -> bytes | None:
        if type(entry) is Record and self.accepts is not None and not self.accepts(entry):
            return None
        return self.encoder.encode_entry(entry)

    def should_end_at(self, entry: Entry) -> bool:
        """Return whether an entry is a loss by retention that ends the clients of its topic."""
        return (
            type(entry) is Gap
            and entry.tp.topic in self.topics_ending_on_loss
            and entry.reason is GapReason.RETENTION
        )

    def build_token(self, text: bytes) -> bytes:
        return seal_token(text, self.view_digest)

    def get_cohort_data(
        self, chunk: Chunk, positions: Position, key: CohortKey, issued: int | None
    ) -> bytes:
        """Return the bytes of a chunk for a cohort, which gets no events of its own partitions."""
        if chunk.cohort_data is None:
            chunk.cohort_data = {}
        data = chunk.cohort_data.get(key)
        if data is None:
            data = chunk.cohort_data[key] = self._encode_without(chunk, positions, issued)
            # `Chunk.size` counts it from now on, so that dropping the chunk subtracts it again.
            self._grow(len(data))
        return data

    def get_latest_offsets(self, tp: TopicPartition) -> LatestOffsets:
        if self.latest_by_partition is None:
            self.latest_by_partition = WeakValueDictionary()
        latest = self.latest_by_partition.get(tp)
        if latest is None:
            latest = self.latest_by_partition[tp] = LatestOffsets(self.ring_budget, self.accepts)
        return latest

    def _encode_chunk(self, update_seq: int, events: list[ChannelEvent]) -> Chunk:
        if events[-1].token_text is not None:
            self._last_token_text, self.has_sent_id = events[-1].token_text, True
        chunk = Chunk(update_seq, events, self.encode_events(events), total_before=self.total)
        if type(chunk.data) is CountedBytes:
            self.total = chunk.data.sum if self.total is None else self.total + chunk.data.sum
        self._ring.append(chunk)
        self._grow(chunk.size)
        return chunk

    def _thin_ids(self, events: list[ChannelEvent], text: bytes) -> None:
        """Keep only the token texts that become ids, far enough apart."""
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

    def encode_events(self, events: Sequence[ChannelEvent]) -> bytes:
        return self.encoder.encode_events(events, self.view_digest)

    def _encode_without(self, chunk: Chunk, positions: Position, issued: int | None) -> bytes:
        kept: list[ChannelEvent] = []
        # With exact tokens every event has an id: one that is left out takes only its own along.
        position_event = b"" if self.tail.has_exact_tokens else self._position_event
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
            [
                event
                if event.token_text is None
                else event._replace(token_text=overlay(event.token_text, positions, issued))
                for event in kept
            ]
        )


def build_event(encoder: Encoder, entry: Entry, text: bytes | None) -> ChannelEvent | None:
    payload = encoder.encode_entry(entry)
    if payload is None:
        return None
    kind = type(entry)
    # Readiness and faults move no position, so cohorts that read the partition privately get them,
    # too.
    tp = entry.tp if kind is Record or kind is Gap else None
    return _tuple_new(
        ChannelEvent, (tp, payload, text, entry.timestamp if type(entry) is Record else None)
    )
