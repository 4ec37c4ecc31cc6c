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

from gateway.core.log.position import Place, Position
from gateway.core.log.record import Entry, Gap, News, Ready, Reason, Record, TopicPartition
from gateway.core.log.tail import Item, Tail, Turn
from gateway.core.token.resume_token import seal

from .byte_counts import Counted, Sum
from .conflation import LatestOffsets, latest
from .rings import Rings

ID_BYTES = 64 * 1024  # where ids come in batches: at most this much without one
OVERHEAD = 256  # bytes that a chunk costs beside its data
FEW = 4  # followers for whom nothing is held that they all have


class Event(NamedTuple):
    """One event, not on a wire yet.

    tp:    the partition it moves on; None for what all may hear, wherever they are in it.
    head:  what all clients of the view share of it.
    text:  of its id; None for an event without.
    stamp: of a record its timestamp, in milliseconds; None for what is none.
    """

    tp: TopicPartition | None
    head: bytes
    text: bytes | None
    stamp: int | None = None


class Encoder(Protocol):
    """How entries become bytes on one kind of wire."""

    def head(self, entry: News) -> bytes | None:
        """An event without its id; None for what is not told."""

    def position(self) -> bytes:
        """The event that only carries an id; empty where clients are sent no ids."""

    def render(self, events: Iterable[Event], view: bytes) -> bytes:
        """Heads and ids on the wire, in order; each id is `seal(text, view)`."""


CohortKey = tuple[object, ...]

_new = tuple.__new__  # not through the named tuple: records are encoded 1.13 times as fast


@dataclass(slots=True)
class Chunk:
    """What one turn is on the wire.

    ends: partitions whose loss ends those who got it. only_ready: it tells of nothing else.
    before: the total of its channel before it.
    gaps: that it tells of. followed: records whose way to clients is traced.
    """

    turn: int
    events: list[Event]
    data: bytes
    ends: frozenset[TopicPartition] = frozenset()
    only_ready: bool = False
    before: Sum | None = None
    cohorts: dict[CohortKey, bytes] | None = None
    gaps: Sequence[Gap] = ()
    followed: Sequence[Any] = ()

    @property
    def size(self) -> int:
        size = OVERHEAD + 2 * len(self.data)
        return size if self.cohorts is None else size + sum(map(len, self.cohorts.values()))


class Follower(Protocol):
    """A subscription, as far as its channel knows it."""

    cursor: int

    def wake(self) -> None:
        """There is something to take."""

    def fall(
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
        "__weakref__", "_ring", "_text", "_without_id", "accepts", "bytes", "encoder", "fails",
        "first", "followers", "latest", "max_bytes", "rings", "round", "sleepers", "spoke", "tail",
        "total", "view",
    )  # fmt: skip

    def __init__(
        self,
        tail: Tail,
        view: bytes,
        encoder: Encoder,
        accepts: Callable[[Record], bool] | None = None,
        *,
        max_bytes: int = 1 << 20,
        fails: Iterable[str] = (),
        rings: Rings | None = None,
    ) -> None:
        self.tail = tail
        self.view = view
        self.encoder = encoder
        self.accepts = accepts
        self.max_bytes = max_bytes
        self.fails = frozenset(fails)
        self.rings = Rings() if rings is None else rings
        self.first = 0
        self.bytes = 0
        self.latest: WeakValueDictionary[TopicPartition, LatestOffsets] | None = None
        self.total: Sum | None = None  # of all chunks ever; None on wires that count nothing
        self.followers: set[Follower] = set()
        self.sleepers: set[Follower] = set()  # to be woken; the others are written to in rounds
        self.round: Callable[[], None] | None = None  # calls one
        self.spoke = False  # an id was sent since the last time somebody looked
        self._ring: list[Chunk] = []
        self._text = tail.text  # of the last id that was sent
        self._without_id = 0

    @property
    def head(self) -> int:
        """The number of the next chunk."""
        return self.first + len(self._ring)

    @property
    def oldest(self) -> Mapping[TopicPartition, Place]:
        """The position before the first chunk of the ring."""
        tail = self.tail
        return tail.position_before(self.chunk(self.first).turn) if self._ring else tail.position

    @property
    def newest_size(self) -> int:
        """The bytes of the newest chunk; 0 where none is held."""
        return self._ring[-1].size if self._ring else 0

    def chunk(self, seq: int) -> Chunk:
        return self._ring[seq - self.first]

    def total_before(self, seq: int) -> Sum | None:
        return self.total if seq == self.head else self.chunk(seq).before

    def chunks(self, since: int) -> Sequence[Chunk]:
        """All from one on."""
        return self._ring[since - self.first :]

    def joined(self, since: int) -> bytes:
        """The bytes of these."""
        if since == self.head - 1:
            return self._ring[-1].data
        return b"".join([chunk.data for chunk in self.chunks(since)])

    def notify(self) -> None:
        """There is something new: whoever follows is to take it."""
        for follower in self.sleepers:
            follower.wake()
        if self.round is not None:
            self.round()

    def publish(self, turn: Turn) -> Chunk | None:
        """Encode a turn; None when nothing of it is seen here."""
        events: list[Event] = []
        gaps: list[Gap] = []
        ends: set[TopicPartition] = set()
        only_ready, batched = True, not self.tail.exact
        accepts = self.accepts
        items = self._latest(turn) if self.tail.conflates else turn.items
        for entry, text in items:
            kind, event = type(entry), None
            if accepts is None or type(entry) is not Record or accepts(entry):
                event = event_of(self.encoder, entry, text)
            if event is not None:
                events.append(event)
                only_ready = only_ready and kind is Ready
                if type(entry) is Gap:
                    gaps.append(entry)
                    if self.ends_at(entry):
                        ends.add(entry.tp)
            elif batched and text is not None and events:
                events[-1] = events[-1]._replace(text=text)  # past what is not seen here
        if not events:
            return None
        chunk = self.tell(turn, events)
        chunk.ends, chunk.only_ready, chunk.gaps = frozenset(ends), only_ready, gaps
        return chunk

    def _latest(self, turn: Turn) -> Sequence[Item]:
        return [Item(entry, None) for entry in latest([e for e, _ in turn.items], self.accepts)]

    def tell(self, turn: Turn, events: list[Event]) -> Chunk:
        """What is seen here of a turn, by whoever sees to which events these are. Of one that is
        conflated only the last has an id."""
        if self.tail.conflates:
            events[-1] = events[-1]._replace(text=turn.text)
        if not self.tail.exact:
            self._thin(events, turn.text)
        return self._encode(turn.seq, events)

    def announce(self) -> Chunk | None:
        """Tell idle clients the position, if it moved since the last id."""
        text, head = self.tail.text, self.encoder.position()
        if text == self._text or not head:
            return None
        self._without_id = 0
        chunk = self._encode(self.tail.seq, [Event(None, head, text)])
        self.spoke = False
        return chunk

    @property
    def owes(self) -> bool:
        """Were events sent after the last id?"""
        return self._without_id > 0

    def event_head(self, entry: Entry) -> bytes | None:
        """One entry as this view shows it, without id; None if it does not."""
        if type(entry) is Record and self.accepts is not None and not self.accepts(entry):
            return None
        return self.encoder.head(entry)

    def ends_at(self, entry: Entry) -> bool:
        """Is it what `fails` is about? What a slow client is made to skip is not."""
        return (
            type(entry) is Gap and entry.tp.topic in self.fails and entry.reason is Reason.RETENTION
        )

    def token(self, text: bytes) -> bytes:
        return seal(text, self.view)

    def cohort(self, chunk: Chunk, own: Position, key: CohortKey, issued: int | None) -> bytes:
        """A chunk without some partitions, for those whose places there are `own`."""
        if chunk.cohorts is None:
            chunk.cohorts = {}
        data = chunk.cohorts.get(key)
        if data is None:
            data = chunk.cohorts[key] = self._render_without(chunk, own, issued)
            self._grow(len(data))
        return data

    def evict(self, before: int) -> None:
        """Drop the chunks of turns before this one, and let go of those who need them."""
        first = self.first
        for chunk in self._ring:
            if chunk.turn >= before:
                break
            first += 1
        self._drop_to(first)

    def latest_offsets(self, tp: TopicPartition) -> LatestOffsets:
        """Return those of a partition, the same for all who ask while one of them keeps it."""
        if self.latest is None:
            self.latest = WeakValueDictionary()
        found = self.latest.get(tp)
        if found is None:
            found = self.latest[tp] = LatestOffsets(self.rings, self.accepts)
        return found

    @property
    def latest_bytes(self) -> int:
        """What is kept of the latest records of keys."""
        return sum(each.bytes for each in self.latest.values()) if self.latest else 0

    def let_go(self) -> None:
        """Hold nothing that everybody has, where that is a few: one who comes back is as well
        served from the log (2,000 clients on keys of their own: 1.2 KB a record, a fifth of the
        CPU time, most of it for memory that was never used before)."""
        if len(self.followers) > FEW or any(f.cursor != self.head for f in self.followers):
            return
        if self.tail.readers.isdisjoint(self.followers):  # by the ring one is slow, or is not yet
            self.rings.bytes -= self.bytes
            self.first, self.bytes = self.head, 0
            self._ring.clear()

    def drop_taken(self) -> None:
        """Drop the chunks that every follower has."""
        self._drop_to(min([self.head, *(follower.cursor for follower in self.followers)]))

    def drop_all(self) -> None:
        """Drop all chunks to make room; followers who lack any of them go on by themselves.

        Those who are written to in rounds keep up, and the others do if they lack no more than the
        newest chunk: what their routes do with slow clients is not for them.
        """
        self._drop_to(self.head, for_room=True)

    def _encode(self, turn: int, events: list[Event]) -> Chunk:
        if events[-1].text is not None:
            self._text, self.spoke = events[-1].text, True
        chunk = Chunk(turn, events, self.render(events), before=self.total)
        if type(chunk.data) is Counted:
            self.total = chunk.data.sum if self.total is None else self.total + chunk.data.sum
        self._ring.append(chunk)
        self._grow(chunk.size)
        return chunk

    def _grow(self, size: int) -> None:
        self.bytes += size
        if self.bytes > self.max_bytes and len(self._ring) > 1:
            self._shrink()
        self.rings.grow(size)

    def _thin(self, events: list[Event], text: bytes) -> None:
        """Of the marks of a turn and its end, those become ids that lie far enough apart;
        `announce` sees to the rest."""
        for n, event in enumerate(events):
            self._without_id += len(event.head)
            mark = text if n == len(events) - 1 else event.text
            if mark is not None and self._without_id >= ID_BYTES // 2:
                self._text, self._without_id = mark, 0
            else:
                mark = None
            events[n] = event._replace(text=mark)

    def render(self, events: Iterable[Event]) -> bytes:
        return self.encoder.render(events, self.view)

    def _render_without(self, chunk: Chunk, own: Position, issued: int | None) -> bytes:
        kept: list[Event] = []
        position = b"" if self.tail.exact else self.encoder.position()
        for event in chunk.events:
            if event.tp not in own:
                kept.append(event)
            elif event.text is not None and kept and kept[-1].text is None:
                kept[-1] = kept[-1]._replace(text=event.text)
            elif event.text is not None and not kept and position:
                # The events of earlier chunks since the last id must not stay without one.
                kept.append(Event(None, position, event.text))
        own, overlay = self.tail.marked(own), self.tail.overlay
        if not kept:
            return b""
        return self.render(
            event if event.text is None else event._replace(text=overlay(event.text, own, issued))
            for event in kept
        )

    def _notices(self, start: int, stop: int) -> list[bytes]:
        """Events of some chunks that are of no log: readiness and faults of partitions."""
        ring, position = self._ring[start - self.first :], self.encoder.position()
        events = (event for chunk in ring[: stop - start] for event in chunk.events)
        return [each.head for each in events if each.tp is None and each.head != position]

    def _shrink(self) -> None:
        """Half at a time, so that looking for those who fall costs little per chunk."""
        first, left = self.first, self.bytes
        for chunk in self._ring:
            if left <= self.max_bytes // 2 or first == self.head - 1:
                break
            left -= chunk.size
            first += 1
        self._drop_to(first)

    def _drop_to(self, first: int, *, for_room: bool = False) -> None:
        if first == self.first:
            return
        left: dict[int, tuple[Position, Sequence[bytes]]] = {}
        for follower in list(self.followers):
            at = follower.cursor
            if at < first:
                if at not in left:
                    position = self.tail.position_before(self.chunk(at).turn)
                    left[at] = position, self._notices(at, first)
                lags = follower in self.sleepers and at < self.head - 1
                follower.fall(*left[at], is_slow=lags or not for_room)
        count = first - self.first
        size = sum(chunk.size for chunk in self._ring[:count])
        self.bytes -= size
        self.rings.bytes -= size
        del self._ring[:count]
        self.first = first


def event_of(encoder: Encoder, entry: Entry, text: bytes | None) -> Event | None:
    """One entry as all see it who have this encoder; None if they are not told of it."""
    head = encoder.head(entry)
    if head is None:
        return None
    kind = type(entry)
    tp = entry.tp if kind is Record or kind is Gap else None
    return _new(Event, (tp, head, text, entry.timestamp if type(entry) is Record else None))
