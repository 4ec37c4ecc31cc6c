"""A client: a cursor into its channel's ring, and the partitions it reads alone.

A client rides shared chunks with every partition whose place is the channel's; what it
reads by itself is in `alone`, which most clients never have: they cost this object.

Sans-I/O: `take` gives the bytes that can be sent now. What must come from Kafka first is
named by `lacks` and `unverified`, and handed in by `feed` and `verified`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from gateway.core.channel.byte_counts import Counted, Ledger, Sum
from gateway.core.channel.channel import Channel
from gateway.core.log.position import NO_EPOCH, Place, Position
from gateway.core.log.record import Entry, Gap, TopicPartition
from gateway.telemetry.traffic import Traffic

from .private_positions import Reads
from .private_reader import Alone
from .shared_cursor import NOBODYS, Ride
from .slow_client import SlowClient
from .snapshot import Snapshot
from .snapshot_blocks import Block


class Subscription(Ride):
    """See the module, and `Ride` for the terms.

    own:   places that differ from the channel's, or may; also of partitions that only its
           token knows of yet: metadata here may be behind. With a snapshot, of all partitions.
    reads: whether a partition may hold what the view lets through; None if each may. What
           a token says of another one is not held against the log, nor read from there on.
    got:   the sum of what its client got before.
    """

    __slots__ = ("_ledger", "alone", "wake")

    def __init__(
        self,
        channel: Channel,
        own: Mapping[TopicPartition, Place] | None = None,
        *,
        slow: SlowClient = SlowClient.CATCH_UP,
        until: Mapping[TopicPartition, int] | None = None,
        count: int | None = None,
        credit: int | None = None,
        since: int | None = None,
        snapshot: Snapshot | None = None,
        traffic: Traffic = NOBODYS,
        reads: Reads | None = None,
        got: Sum | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(channel, slow, until, count, credit, since, snapshot, traffic)
        self.wake = wake
        # if what it gets is counted
        self._ledger: Ledger | None = None if got is None else Ledger(got)
        self.alone: Alone | None = None
        if self.bounded:
            self.part({**channel.tail.position, **(own or {})})
        elif own:
            self.part(own)
        if snapshot is not None:
            self.reader().conflate(snapshot.left - snapshot.fresh)
            for tp, offset in (until or {}).items():
                self.ends(tp, offset)
        if reads is not None and self.alone is not None:
            self.alone.spare(reads)
        channel.followers.add(self)
        channel.sleepers.add(self)

    def close(self) -> None:
        self.channel.followers.discard(self)
        self.channel.sleepers.discard(self)
        self.channel.tail.readers.discard(self)

    @property
    def own(self) -> Position:
        """The places of what it reads alone."""
        return self.alone.own if self.alone is not None else {}

    @property
    def rides(self) -> bool:
        """Is whatever its channel publishes all that it is to be sent?"""
        return self.alone is None and self.credit is None and self.ended is None

    def part(self, places: Mapping[TopicPartition, Place]) -> None:
        """Read these partitions alone from these places on."""
        own = self.reader().own
        for tp, place in places.items():
            own.put(tp, place)

    def reader(self) -> Alone:
        if self.alone is None:
            self._stop()
            self.alone = Alone(self)
            self.channel.tail.readers.add(self)
        return self.alone

    # what its client gets

    def begin(self) -> tuple[list[TopicPartition], bytes]:
        """The partitions that cannot be read yet, and the id of the first block."""
        channel, tail = self.channel, self.channel.tail
        while self.cursor < channel.head and channel.chunk(self.cursor).only_ready:
            self.cursor += 1
        return list(tail.readiness.pending()), self.position

    @property
    def position(self) -> bytes:
        """The id of where its client stands, once it has all that was taken."""
        if self.alone is None and self.cursor == self.channel.head:
            return self.channel.token(self.channel.tail.text)
        return self.channel.token(self.writer(self.own).text())

    def take(self, budget: int) -> bytes:
        """About `budget` bytes that can be sent now; empty while there are none.

        `more` tells whether another call would go on at once (a filter may let nothing
        through for a while; the loop must have its turn).
        """
        self.more = False
        if self.ended:
            return b""
        if self.alone is None:
            data = self.along(budget)
            if data or not self.more:
                return data
        reader = self.reader()
        pieces = reader.take(budget)
        self.add(*pieces)
        if reader.over:
            self.alone = None
            self.channel.tail.readers.discard(self)
            self._ride_on()
        return b"".join(pieces)

    # what it got, where its wire counts that

    @property
    def got(self) -> Sum | None:
        """The sum of all of it; None on wires that count nothing."""
        if self._ledger is None:
            return None
        self._stop()
        self._ride_on()
        return self._ledger.sum

    def add(self, *pieces: bytes) -> None:
        """Its client gets these besides what all have. Where the first are counted, all is."""
        if self._ledger is None:
            if not (pieces and type(pieces[0]) is Counted):
                return
            self._ledger = Ledger()
        self._stop()
        self._ledger.add(pieces)
        self._ride_on()

    def _stop(self) -> None:
        if self._ledger is not None and self._ledger.rides:
            self._ledger.stop(self.channel.total_before(self.cursor))

    def _ride_on(self) -> None:
        if self._ledger is not None and self.alone is None:
            self._ledger.ride(self.channel.total_before(self.cursor))

    # stepping aside while somebody else sees to what it is sent

    def places(self) -> Position:
        """Where it stands, partition by partition."""
        return self.places_with(self.own)

    def step_aside(self) -> None:
        """Hear no more of the channel."""
        self._stop()
        self.close()

    def go_on(self, places: Position, cursor: int | None = None) -> None:
        """Follow the channel again: from these places, which are those before this chunk."""
        channel, tail = self.channel, self.channel.tail
        self.alone = None
        channel.followers.add(self)
        channel.sleepers.add(self)
        if cursor is not None and cursor >= channel.first:
            self.cursor = cursor
            self._ride_on()
            return
        self.cursor = channel.head
        since = {tp: Place(0, NO_EPOCH, log.lineage) for tp, log in tail.logs.items()}
        for tp, place in {**since, **places}.items():  # those that came since, from their first
            if place != tail.position.get(tp):
                self.reader().own.leave(tp, place)
        self._ride_on()

    # what must be found out first

    def unverified(self) -> list[tuple[TopicPartition, Place]]:
        """Places that came with a token and were not held against the log yet."""
        return self.alone.unverified() if self.alone is not None else []

    def verified(self, tp: TopicPartition, place: Place, gap: Gap | None = None) -> None:
        """The log has the place, or `gap` says what became of it; `place` is where to go on."""
        self.reader().verified(tp, place, gap)

    def retire(self, tp: TopicPartition) -> None:
        """The place turned out to be of an earlier topic of this name."""
        self.reader().retire(tp)

    @property
    def backlog(self) -> int:
        """Bytes of records from Kafka that wait to be taken."""
        return self.alone.backlog if self.alone is not None else 0

    def shed(self) -> None:
        """Forget records from Kafka that wait to be taken; they are read again in their turn."""
        if self.alone is not None:
            self.alone.shed()

    def lacks(self) -> list[tuple[TopicPartition, Place]]:
        """What has to come from Kafka, because no log holds it any more."""
        return self.alone.lacks() if self.alone is not None else []

    def feed(self, tp: TopicPartition, place: Place, entries: Iterable[Entry]) -> None:
        """Entries from Kafka from `place` on; nothing if the client has moved on meanwhile."""
        if self.alone is not None:
            self.alone.feed(tp, place, entries)

    def bring(self, tp: TopicPartition, place: Place, pieces: Iterable[Entry | Block]) -> None:
        """What its snapshot has of a partition from `place` on."""
        if self.alone is not None:
            self.alone.bring(tp, place, pieces)

    def ends(self, tp: TopicPartition, offset: int) -> None:
        """Where its snapshot of a partition ends, found out."""
        if self.snapshot is None or tp not in self.snapshot.left:
            return
        if self.until is not None:
            offset = min(offset, self.until.get(tp, 0))
        self.snapshot.ends[tp] = offset
        self.snapshot.moved(tp, self.own[tp])

    def fall(
        self, position: Position, notices: Sequence[bytes] = (), *, is_slow: bool = True
    ) -> None:
        """Fell out of the ring, where its position was this one. See `channel.Follower`."""
        if is_slow and self.slow is SlowClient.DISCONNECT:
            self.ended = "slow"  # its first id may be yet to come: the places are kept
        self.reader().fall(position, notices, is_slow=is_slow)
