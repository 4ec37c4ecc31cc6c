"""What one client reads by itself: the partitions whose places are not its channel's.

Each is read privately, from the logs or from Kafka, up to exactly where the tail stands, and
given back to the ride at that instant (see `catch_up`); so no record comes twice, none is left
out, and no component of its ids ever goes back. The others go on: it rides without its own.

A client that rides with everything has none of this: it costs a cursor (see `subscription`).
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.log.position import NO_EPOCH, RETIRED, UNVERIFIED, Place, Position
from gateway.core.log.record import Entry, Gap, Reason, TopicPartition

from .catch_up import CatchUp, truncated
from .private_positions import Own, Reads, Spared
from .read_buffer import Backlog
from .shared_cursor import Ride
from .slow_client import SlowClient
from .snapshot_blocks import Block
from .write_batch import Portion


class Alone:
    """See the module. Comes with the first partition that a client owns, or an end of its own, and
    goes when it is `over`.

    own: places that differ from the tail's, or may; also of partitions that only its
         token knows of yet: metadata here may be behind.
    """

    __slots__ = (
        "_backlog", "_catch_up", "_notices", "_ride", "_seen", "_short", "_skipped", "_spared",
        "_told", "own",
    )  # fmt: skip

    # `_told`:    what was found out about a place, and the client not told yet.
    # `_notices`: what it was not told of its channel's chunks, and no log has.
    # `_skipped`: what is left out, once it reads again.
    # `_short`:   what it reads alone for want of credit; the ring began with `_seen` then.

    def __init__(self, ride: Ride) -> None:
        self._ride = ride
        self.own = Own(ride)
        self._backlog = Backlog(ride)
        self._catch_up = CatchUp(ride, self.own, self._backlog)
        self._told: list[tuple[TopicPartition, Place, Gap]] = []
        self._notices: list[bytes] = []
        self._skipped: set[TopicPartition] = set()
        self._short: set[TopicPartition] = set()
        self._seen = ride.channel.first
        self._spared: Spared | None = None

    @property
    def backlog(self) -> int:
        """Bytes of records that wait to be taken."""
        return self._backlog.bytes

    @property
    def over(self) -> bool:
        """It rides with everything again, and was told all."""
        waits = self.own or self._told or self._notices or self._skipped or self._short
        return not (waits or self._ride.bounded or self._ride.snapshot)

    @property
    def is_picky(self) -> bool:
        """Does it read some partitions only?"""
        return self._spared is not None

    def take(self, budget: int) -> list[bytes]:
        """As `Subscription.take`, of which this is the longer way."""
        ride, portion = self._ride, Portion(self._ride, self.own, budget)
        if self._short:
            self._run_short()
        if self._skipped:
            self._skip()
        if self._told:
            self._tell(portion)
        if self._notices and not ride.ended:
            portion.notify(self._notices)
            self._notices = []
        self._ride_along(portion)
        self._pass_by()
        if self.own and ride.cursor == ride.channel.head and not ride.ended:
            self._tell(portion)
            self._catch_up.read(portion)
            portion.render()
            if ride.credit == 0:
                self._run_out()
        ride.more = portion.left <= 0 and not ride.ended
        return portion.pieces

    # what must be found out first

    def unverified(self) -> list[tuple[TopicPartition, Place]]:
        """Places that came with a token and were not held against the log yet."""
        self._pass_by()
        known = self._ride.channel.tail.logs.keys() - {tp for tp, _, _ in self._told}
        if self._spared is not None:
            known -= self._spared.left
        return [(tp, p) for tp, p in self.own.items() if p.lineage == UNVERIFIED and tp in known]

    def verified(self, tp: TopicPartition, place: Place, gap: Gap | None = None) -> None:
        """The log has the place, or `gap` says what became of it; `place` is where to go on."""
        log, came = self._ride.channel.tail.logs[tp], self.own.get(tp, place)
        if gap is None and place.lineage == log.lineage and came.offset == place.offset:
            parted, _ = log.parted(came)
            if parted is not None:
                gap, place = truncated(tp, came, parted), parted
        if gap is None:
            self.own.put(tp, place)
        else:  # no id may hold what was not told
            self._told.append((tp, place, gap))

    def retire(self, tp: TopicPartition) -> None:
        """The place turned out to be of an earlier topic of this name."""
        self.own.put(tp, self.own[tp]._replace(epoch=RETIRED))

    def lacks(self) -> list[tuple[TopicPartition, Place]]:
        """What has to come from Kafka, because no log holds it any more."""
        if self._backlog.full:
            return []
        told, lacks = {tp for tp, _, _ in self._told}, self._catch_up.lacks
        return [(tp, p) for tp, p in self.own.items() if tp not in told and lacks(tp, p)]

    def feed(self, tp: TopicPartition, place: Place, entries: Iterable[Entry]) -> None:
        if self.own.get(tp) == place:
            self._backlog.feed(tp, entries)

    def bring(self, tp: TopicPartition, place: Place, pieces: Iterable[Entry | Block]) -> None:
        if self.own.get(tp) == place:
            self._backlog.bring(tp, pieces)

    # what it need not be sent

    def conflate(self, tps: Iterable[TopicPartition]) -> None:
        """Until it rides with these, it is sent the latest of each key."""
        self._catch_up.conflate(tps)

    def spare(self, reads: Reads) -> None:
        """Read no partition, from where a token left it, that `reads` says no to."""
        self._spared = Spared(reads, self.own)
        self._pass_by()

    def _pass_by(self) -> None:
        """Not while it has yet to ride: ids on the way are of an earlier place of the tail."""
        ride = self._ride
        if self._spared is None or ride.cursor != ride.channel.head:
            return
        for tp, now in self._spared.passed(self.own, ride.channel.tail):
            self.own.put(tp, now)
            self._catch_up.join(tp)

    def fall(self, position: Position, notices: Iterable[bytes], *, is_slow: bool) -> None:
        """Go on from here, and leave out what the client's policy says if it is slow."""
        parted = self.own.part(position)
        self._notices += notices
        if parted and is_slow:  # not once more by one that has not come back yet
            self._ride.traffic.falls[self._ride.slow] += 1
        if is_slow:
            self._leave_out(parted)

    def shed(self) -> None:
        """Forget what came from Kafka and was not taken: it is lacked again."""
        self._backlog.shed()

    def _leave_out(self, tps: set[TopicPartition]) -> None:
        if self._ride.slow is SlowClient.SKIP:
            self._skipped |= tps
        elif self._ride.slow is SlowClient.CONFLATE:
            self.conflate(tps)

    def _skip(self) -> None:
        """It reads again: what it fell behind with is left out up to here, not to where it
        fell, or it would only fall again."""
        skipped, self._skipped = self._skipped, set()
        for tp in sorted(skipped & self.own.keys()):
            place, now = self.own[tp], self._ride.channel.tail.position[tp]
            if place.is_behind(now):  # where the log itself went back, that is what is told
                gap = Gap(tp, place.offset or 0, now.offset or 0, now.epoch, Reason.SKIPPED)
                self._told.append((tp, now, gap))

    # riding with the others

    def _ride_along(self, portion: Portion) -> None:
        ride, channel = self._ride, self._ride.channel
        if ride.bounded:
            self._own_all()
        while ride.cursor < channel.head and portion.left > 0 and not ride.ended:
            chunk = channel.chunk(ride.cursor)
            if ride.credit is not None and not ride.pays(chunk, self.own):
                if ride.credit:  # record by record, then
                    self._short |= self.own.part(channel.tail.position_before(chunk.turn))
                break
            ride.cursor += 1
            # Before `without`, which may make room in this very ring, so that more is read alone.
            ends = bool(chunk.ends) and not chunk.ends <= self.own.keys()
            ride.note(chunk, self.own)
            data = self.own.without(chunk) if self.own else chunk.data
            if data:
                portion.add(data)
            if ends:
                ride.ended = "offset-out-of-range"

    def _own_all(self) -> None:
        ride = self._ride
        ride.cursor = ride.channel.head
        for tp, place in ride.channel.tail.position.items():
            if tp not in self.own and ride.until is None:
                self.own.put(tp, Place(0, NO_EPOCH, place.lineage))

    def _run_short(self) -> None:
        """What it reads alone for want of credit it is slow with, once the ring is past it."""
        ride, channel = self._ride, self._ride.channel
        self._short &= self.own.keys()
        if not self._short or ride.slow is SlowClient.CATCH_UP or self._seen == channel.first:
            return
        self._seen = channel.first
        oldest = channel.oldest
        if not any(self.own[tp].is_behind(oldest[tp]) for tp in self._short):
            return
        if ride.slow is SlowClient.DISCONNECT:
            ride.ended = "slow"
        else:
            self._leave_out(self._short)
            self._short = set()

    def _run_out(self) -> None:
        """Conflate what a client without credit still has to read.

        Who catches up has not been in the ring, and so cannot fall out of it: with less credit
        than records come, it would lag further and further.
        """
        if self._ride.slow is SlowClient.CONFLATE and not self._ride.bounded:
            self.conflate(self.own.keys() - self._short)

    # gaps found out about a place

    def _tell(self, portion: Portion) -> None:
        told, later = self._told, []
        if self._ride.cursor < self._ride.channel.head:  # ids still to come are of the old topic
            later = [each for each in told if each[2].reason is Reason.RECREATED]
            told = [each for each in told if each[2].reason is not Reason.RECREATED]
        self._told = later
        if not told:
            return
        for tp, place, _ in told:
            self._backlog.drop(tp)  # what lies before the gap's end is not sent any more
            self.own.put(tp, place)
        portion.tell([gap for _, _, gap in told])
