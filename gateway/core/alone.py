"""What one client reads by itself: the partitions whose places are not its channel's.

Each is read privately, from the logs or from Kafka, up to exactly where the tail stands, and
given back to the ride at that instant; so no record comes twice, none is left out, and no
component of its ids ever goes back. One that resumes ahead of this gateway owns a partition
too, and waits until the tail has come to it.

A client that rides with everything has none of this: it costs a cursor (see `subscription`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from typing import TYPE_CHECKING

from .blocks import Block
from .channel import Chunk, CohortKey, Event
from .conflation import Stretch, weight
from .log import Log
from .position import NO_EPOCH, RETIRED, UNVERIFIED, Place, Position
from .record import Entry, Gap, Reason, Record, TopicPartition
from .slow import SlowClient
from .snapshot import Snapshot
from .token import TokenWriter

if TYPE_CHECKING:
    from .subscription import Subscription

STRETCH = 1 << 20  # bytes of records that are gathered at most before they are sent
QUANTUM = 16 * 1024  # bytes of one partition before another has its turn
ENTRY_COST = 16  # of the budget, for an entry that may be filtered out
BACKLOG = 1 << 18  # bytes of records from Kafka that wait for a client to take them


class Alone:
    """See the module. Comes with the first partition that a client owns, or a limit of its own, and
    goes when it is `over`.

    own: places that differ from the tail's, or may; also of partitions that only its
         token knows of yet: metadata here may be behind.
    """

    __slots__ = (
        "_backlog", "_brought", "_conflated", "_events", "_fed", "_flush", "_key", "_left", "_out",
        "_reads", "_seen", "_short", "_skipped", "_spared", "_stretches", "_sub", "_told", "_turns",
        "_writer", "own",
    )  # fmt: skip

    def __init__(self, subscription: Subscription) -> None:
        self.own: Position = {}
        self._fed = 0  # bytes of `_backlog` and `_brought`
        self._sub = subscription
        self._backlog: dict[TopicPartition, deque[Entry]] = {}
        self._brought: dict[TopicPartition, deque[Entry | Block]] = {}  # of tables
        self._told: list[tuple[TopicPartition, Place, Gap]] = []
        self._skipped: set[TopicPartition] = set()
        self._short: set[TopicPartition] = set()
        self._conflated: set[TopicPartition] = set()  # of these the latest of each key is sent
        self._stretches: dict[TopicPartition, Stretch] = {}
        self._reads: Callable[[TopicPartition], bool] | None = None
        self._spared: set[TopicPartition] = set()
        self._seen = subscription.channel.first
        self._key: CohortKey | None = None
        self._turns: deque[TopicPartition] = deque()
        self._out: list[bytes] = []
        self._events: list[Event] = []
        self._left = 0
        self._flush = False
        self._writer: TokenWriter | None = None

    @property
    def backlog(self) -> int:
        """Bytes of records that wait to be taken."""
        return self._fed + sum(stretch.bytes for stretch in self._stretches.values())

    @property
    def over(self) -> bool:
        """It rides with everything again, and was told all."""
        waits = self.own or self._told or self._skipped or self._short
        return not (waits or self._sub.bounded or self._sub.snapshot)

    @property
    def is_picky(self) -> bool:
        """Does it read some partitions only?"""
        return self._reads is not None

    def take(self, budget: int) -> bytes:
        """As `Subscription.take`, of which this is the longer way."""
        sub = self._sub
        self._out, self._events, self._left, self._writer = [], [], budget, None
        if self._short:
            self._run_short()
        if self._skipped:
            self._skip()
        if self._told:
            self._tell()
        self._ride()
        if self._spared:
            self._pass_by()
        if self.own and sub.cursor == sub.channel.head and not sub.ended:
            self._tell()
            self._read_alone()
            self._render()
        sub.more = self._left <= 0 and not sub.ended
        sub.add(*self._out)
        return b"".join(self._out)

    # what must be found out first

    def unverified(self) -> list[tuple[TopicPartition, Place]]:
        """Places that came with a token and were not held against the log yet."""
        if self._spared:
            self._pass_by()
        known = self._sub.channel.tail.logs.keys() - {tp for tp, _, _ in self._told} - self._spared
        return [(tp, p) for tp, p in self.own.items() if p.lineage == UNVERIFIED and tp in known]

    def verified(self, tp: TopicPartition, place: Place, gap: Gap | None = None) -> None:
        """The log has the place, or `gap` says what became of it; `place` is where to go on."""
        log, came = self._sub.channel.tail.logs[tp], self.own.get(tp, place)
        if gap is None and place.lineage == log.lineage and came.offset == place.offset:
            parted, _ = log.parted(came)
            if parted is not None:
                gap, place = _truncated(tp, came, parted), parted
        if gap is None:
            self.put(tp, place)
        else:  # no id may hold what was not told
            self._told.append((tp, place, gap))

    def retire(self, tp: TopicPartition) -> None:
        """The place turned out to be of an earlier topic of this name."""
        self.put(tp, self.own[tp]._replace(epoch=RETIRED))

    def lacks(self) -> list[tuple[TopicPartition, Place]]:
        """What has to come from Kafka, because no log holds it any more."""
        if self.backlog >= BACKLOG:
            return []
        told = {tp for tp, _, _ in self._told}
        own = self.own.items()
        return [(tp, place) for tp, place in own if tp not in told and self._lacks(tp, place)]

    def feed(self, tp: TopicPartition, place: Place, entries: Iterable[Entry]) -> None:
        """A private read may see that the log went back before the shared read does. It is no
        authority: what is not of the lineage is left out, and read again in the next one.
        """
        if self.own.get(tp) != place or self._backlog.get(tp):
            return
        log = self._sub.channel.tail.logs[tp]
        self._backlog[tp] = deque(takewhile(log.admits, entries))
        self._fed += sum(map(weight, self._backlog[tp]))

    def bring(self, tp: TopicPartition, place: Place, pieces: Iterable[Entry | Block]) -> None:
        if self.own.get(tp) == place and not self._brought.get(tp):
            self._brought[tp] = deque(pieces)
            self._fed += sum(map(weight, self._brought[tp]))

    def fall(self, position: Position) -> None:
        """Go on from here, and leave out what the client's policy says."""
        self._leave_out(self._part(position))

    def _leave_out(self, tps: set[TopicPartition]) -> None:
        if self._sub.slow is SlowClient.SKIP:
            self._skipped |= tps
        elif self._sub.slow is SlowClient.CONFLATE:
            self._conflated |= tps

    def conflate(self, tps: Iterable[TopicPartition]) -> None:
        """Until it rides with these, it is sent the latest of each key."""
        self._conflated.update(tps)

    # what holds nothing for its client

    def spare(self, reads: Callable[[TopicPartition], bool]) -> None:
        """Of the places that came with a token, those of partitions that `reads` says no to are
        taken to where the tail stands, as soon as that is known."""
        unread = (tp for tp, place in self.own.items() if place.lineage == UNVERIFIED)
        self._reads, self._spared = reads, {tp for tp in unread if not reads(tp)}
        self._pass_by()

    def _pass_by(self) -> None:
        """Not while it has yet to ride: ids on the way are of an earlier place of the tail."""
        tail = self._sub.channel.tail
        if self._sub.cursor != self._sub.channel.head:
            return
        for tp in list(self._spared):
            now = tail.position.get(tp)
            if now is not None and now.pending:
                continue
            self._spared.discard(tp)
            if now is not None and self._may_pass(tp, now):
                self.put(tp, now)
                self._join(tp)

    def _may_pass(self, tp: TopicPartition, now: Place) -> bool:
        """No id goes back, and of a topic created anew it is told."""
        place = self.own.get(tp, now)
        if place.epoch == RETIRED or place.lineage != UNVERIFIED:
            return False
        if self._reads is None or self._reads(tp):
            return False
        ahead = (place.offset or 0) > (now.offset or 0)
        return not ahead and not self._sub.channel.tail.is_retiring(tp)

    # riding with the others

    def _part(self, position: Position) -> set[TopicPartition]:
        """Leave the ride at this position; the partitions that are to be read alone from it."""
        sub = self._sub
        tail, sub.cursor = sub.channel.tail, sub.channel.head
        parted: set[TopicPartition] = set()
        for tp, place in position.items():
            now = tail.position[tp]
            if tp in self.own or place == now:
                continue
            if place.pending:
                place = tail.logs[tp].origin or place
            self.put(tp, place)
            parted.add(tp)
        return parted

    def _ride(self) -> None:
        sub = self._sub
        channel = sub.channel
        if sub.bounded:
            self._own_all()
        while sub.cursor < channel.head and self._left > 0 and not sub.ended:
            chunk = channel.chunk(sub.cursor)
            if sub.credit is not None and not self._spend(chunk):
                break
            sub.cursor += 1
            data = self._without_own(chunk) if self.own else chunk.data
            if data:
                self._out.append(data)
                self._left -= len(data)
            if chunk.ends and not chunk.ends <= self.own.keys():
                sub.ended = "offset-out-of-range"

    def _spend(self, chunk: Chunk) -> bool:
        """Pay for a chunk; for one that costs more than there is, in records, one at a time."""
        sub = self._sub
        assert sub.credit is not None
        cost = sum(event.counts and event.tp not in self.own for event in chunk.events)
        if cost <= sub.credit:
            sub.credit -= cost
            return True
        if sub.credit:
            self._short |= self._part(sub.channel.tail.position_before(chunk.turn))
        return False

    def _run_short(self) -> None:
        """What it reads alone for want of credit it is slow with, once the ring is past it."""
        sub = self._sub
        channel, self._short = sub.channel, self._short & self.own.keys()
        if not self._short or sub.slow is SlowClient.CATCH_UP or self._seen == channel.first:
            return
        self._seen = channel.first
        oldest = channel.oldest
        if not any(self.own[tp].is_behind(oldest[tp]) for tp in self._short):
            return
        if sub.slow is SlowClient.DISCONNECT:
            sub.ended = "slow"
        else:
            self._leave_out(self._short)
            self._short = set()

    def _own_all(self) -> None:
        sub = self._sub
        sub.cursor = sub.channel.head
        for tp, place in sub.channel.tail.position.items():
            if tp not in self.own and sub.until is None:
                self.put(tp, Place(0, NO_EPOCH, place.lineage))

    def _without_own(self, chunk: Chunk) -> bytes:
        sub = self._sub
        issued = sub.since if any(place.pending for place in self.own.values()) else None
        if self._key is None:
            self._key = (issued, *sorted(self.own.items(), key=lambda item: item[0]))
        return sub.channel.cohort(chunk, self.own, self._key, issued)

    # reading alone

    def _skip(self) -> None:
        """It reads again: what it fell behind with is left out up to here, not to where it
        fell, or it would only fall again."""
        skipped, self._skipped = self._skipped, set()
        for tp in sorted(skipped & self.own.keys()):
            place, now = self.own[tp], self._sub.channel.tail.position[tp]
            if place.is_behind(now):  # where the log itself went back, that is what is told
                gap = Gap(tp, place.offset or 0, now.offset or 0, now.epoch, Reason.SKIPPED)
                self._told.append((tp, now, gap))

    def _tell(self) -> None:
        """Gaps found out about a place. One id for all: it holds nothing that was not told."""
        sub = self._sub
        told, later = self._told, []
        if sub.cursor < sub.channel.head:  # ids that are still to come are of the old topic
            later = [each for each in told if each[2].reason is Reason.RECREATED]
            told = [each for each in told if each[2].reason is not Reason.RECREATED]
        self._told = later
        if not told:
            return
        for tp, place, _ in told:
            self._drop(tp)  # what lies before the gap's end is not sent any more
            self.put(tp, place)
        for _, _, gap in told:
            self._events.append(Event(gap.tp, sub.channel.encoder.head(gap) or b"", None))
            if sub.channel.ends_at(gap):
                sub.ended = "offset-out-of-range"
        self._events[-1] = self._events[-1]._replace(text=sub.writer().text())
        self._render()

    def _read_alone(self) -> None:
        sub = self._sub
        conflates = sub.channel.tail.conflates or bool(self._conflated)
        self._flush = conflates or sub.snapshot is not None
        self._turns = deque(tp for tp in self._turns if tp in self.own)
        self._turns.extend(sorted(self.own.keys() - set(self._turns)))
        idle = 0
        while self._left > 0 and not sub.ended and idle < len(self._turns):
            tp = self._turns[0]
            self._turns.rotate(-1)
            idle = 0 if tp in self.own and self._read(tp) else idle + 1
        if sub.snapshot is not None:
            self._close_snapshot(sub.snapshot)
        if self._writer is not None and self._events and self._flush:
            self._events[-1] = self._events[-1]._replace(text=self._writer.text())
        elif self._writer is not None and self._events and not sub.channel.tail.exact:
            self._events.append(Event(None, sub.channel.encoder.position(), self._writer.text()))
        if sub.until is not None and all(self._reached(tp) for tp in self.own):
            sub.ended = sub.ended or "until"

    def _read(self, tp: TopicPartition) -> bool:
        """Send what there is of one partition; False if there was nothing."""
        sub = self._sub
        log = sub.channel.tail.logs.get(tp)
        if log is None or not self._placed(tp, log) or self._is_held(tp):
            return False
        if sub.credit == 0:
            return self._join(tp)
        left = self._left
        quantum = left - QUANTUM
        for entry in self._entries(tp, log, quantum):
            place = Place(entry.next, entry.epoch, log.lineage)
            self.put(tp, place)
            self._left -= ENTRY_COST
            if isinstance(entry, Block):
                self._send_block(entry, place)
            else:
                self._send(entry, place)
            spent = self._left <= max(0, quantum) or sub.credit == 0
            if spent or sub.ended or self._reached(tp) or self._is_held(tp):
                break
        return self._join(tp) or self._left < left

    def _placed(self, tp: TopicPartition, log: Log) -> bool:
        """Bring the place into the log's present lineage, if it can be read at all."""
        place = self.own[tp]
        if place.lineage == UNVERIFIED or log.origin is None:
            return False
        if place.pending:
            self.put(tp, log.origin)
            return self._placed(tp, log)
        if place.lineage != log.lineage:
            self._drop(tp)
            gap, place = log.rebase(place)
            self.put(tp, place)
            if gap is not None:
                self._send(gap, place)
        parted, sure = log.parted(place)
        if parted is None:
            return True
        self._drop(tp)
        self.put(tp, parted if sure else place._replace(lineage=UNVERIFIED))
        if sure:
            self._send(_truncated(tp, place, parted), parted)
        return sure

    def _entries(self, tp: TopicPartition, log: Log, left: int) -> Iterator[Entry | Block]:
        """What is to be sent next of it. left: of the budget, when another has its turn."""
        if self._reached(tp):
            return iter(())
        if self._sub.snapshot is not None and self._sub.snapshot.is_fresh(tp):
            return self._given(tp)
        if self._sub.channel.tail.conflates or tp in self._conflated:
            return self._gathered(tp, log, left)
        return self._following(tp, log, self.own[tp])

    def _gathered(self, tp: TopicPartition, log: Log, left: int) -> Iterator[Entry]:
        """The latest of each key, of as much as there is; it may take some turns to see it all.
        What is not sent in one turn is what the next one begins with."""
        place, stretch = self.own[tp], self._stretches.get(tp)
        if stretch is None or stretch.done:
            assert place.offset is not None
            accepts = self._sub.channel.accepts
            stretch = Stretch(tp, place.offset, place.epoch, STRETCH, accepts)
        end = self._end(tp)
        if not stretch.closed:
            self._stretches[tp] = stretch
            at = Place(stretch.end, stretch.epoch, log.lineage)
            for entry in self._following(tp, log, at):
                stretch.add(entry)
                self._left -= ENTRY_COST
                if stretch.full or (end is not None and stretch.end >= end):
                    break
                if self._left <= max(0, left):
                    return
            stretch.close()
        yield from stretch.take()

    def _given(self, tp: TopicPartition) -> Iterator[Entry | Block]:
        """What was brought of its table."""
        while brought := self._brought.get(tp):
            piece = brought.popleft()
            self._fed -= weight(piece)
            yield piece

    def _end(self, tp: TopicPartition) -> int | None:
        """Up to where it may be conflated: what ends there must not lack what came before."""
        sub = self._sub
        if sub.until is not None:
            return sub.until.get(tp, 0)
        return sub.snapshot.ends.get(tp) if sub.snapshot is not None else None

    def _following(self, tp: TopicPartition, log: Log, place: Place) -> Iterator[Entry]:
        """What comes after a place, and not more than the tail has seen: it is joined there. One
        with an end of its own never joins."""
        sub = self._sub
        end = sub.channel.tail.position[tp]
        assert place.offset is not None
        bounded = sub.bounded
        if not bounded and end.lineage != log.lineage:
            return
        if log.covers(place):
            self._drop_backlog(tp)
            for entry in log.read(place.offset):
                if not bounded and entry.next > (end.offset or 0):
                    return
                yield entry
        while backlog := self._backlog.get(tp):
            if not bounded and backlog[0].next > (end.offset or 0):
                return
            entry = backlog.popleft()
            self._fed -= weight(entry)
            yield entry

    def _join(self, tp: TopicPartition) -> bool:
        """Give the partition back to the ride if it stands where the tail stands."""
        sub = self._sub
        tail, place = sub.channel.tail, self.own[tp]
        now = tail.position[tp]
        if sub.bounded or (place.offset, place.lineage) != (now.offset, now.lineage):
            return False
        if sub.snapshot is not None and (tp in sub.snapshot.left or not sub.snapshot.told):
            return False
        del self.own[tp]
        self._key = None
        self._conflated.discard(tp)
        self._drop(tp)
        if self._writer is not None:
            self._writer.move(tp, now.offset, tail.epoch(tp, now))
        return True

    def _send(self, entry: Entry, place: Place) -> None:
        sub = self._sub
        channel = sub.channel
        head = channel.event_head(entry)
        if self._writer is None and head is not None:
            self._writer = sub.writer(self.own)
        elif self._writer is not None:
            self._writer.move(entry.tp, place.offset, channel.tail.epoch(entry.tp, place))
        if head is None or self._writer is None:
            return
        text = self._writer.text() if channel.tail.exact and not self._flush else None
        self._events.append(Event(entry.tp, head, text))
        self._left -= len(head) + len(text or b"")
        if channel.ends_at(entry):
            sub.ended = "offset-out-of-range"
        if type(entry) is Record:
            self._count()

    def _count(self) -> None:
        sub = self._sub
        if sub.snapshot is not None and not sub.snapshot.told:
            sub.snapshot.records += 1
        if sub.credit is not None:
            sub.credit -= 1
        if sub.count is not None:
            sub.count -= 1
            sub.ended = sub.ended or ("until" if sub.count <= 0 else None)

    def _render(self) -> None:
        """What was read alone, onto the wire, before anything that follows."""
        if self._events:
            self._out.append(self._sub.channel.render(self._events))
            self._events = []

    # a snapshot

    def _send_block(self, block: Block, place: Place) -> None:
        """As `_send`, of what was encoded for all."""
        sub = self._sub
        if self._writer is None and block.last is not None:
            self._writer = sub.writer(self.own)
        elif self._writer is not None:
            epoch = sub.channel.tail.epoch(block.tp, place)
            self._writer.move(block.tp, place.offset, epoch)
        if block.last is None:
            return
        self._render()
        if block.data:
            self._out.append(block.data)
        self._events.append(Event(block.tp, block.last, None))
        self._left -= len(block.data) + len(block.last)
        assert sub.snapshot is not None
        sub.snapshot.records += block.records

    def _is_held(self, tp: TopicPartition) -> bool:
        snapshot = self._sub.snapshot
        return snapshot is not None and snapshot.holds(tp)

    def _close_snapshot(self, snapshot: Snapshot) -> None:
        """Tell its end when that is due; from then on the client is one as all others."""
        sub = self._sub
        end = snapshot.end()
        if end is not None:
            self._writer = self._writer or sub.writer(self.own)
            head = sub.channel.encoder.head(end)
            if head is not None:
                self._events.append(Event(None, head, None))
            self._left = min(self._left, 0)  # what is held till now has its turn
        if not snapshot.left:
            sub.snapshot = None
            self._conflated.clear()

    # small things

    def put(self, tp: TopicPartition, place: Place) -> None:
        """Read it alone from here on."""
        if self._sub.snapshot is not None:
            self._sub.snapshot.moved(tp, place)
        self.own[tp] = place
        self._key = None

    def _lacks(self, tp: TopicPartition, place: Place) -> bool:
        tail = self._sub.channel.tail
        log = tail.logs.get(tp)
        if log is None or place.lineage != log.lineage or tail.is_retiring(tp):
            return False
        brought = self._backlog.get(tp) or self._brought.get(tp)
        if place.offset is None or brought or self._reached(tp):
            return False
        snapshot = self._sub.snapshot
        if snapshot is not None and snapshot.seeks(tp):
            return True
        stretch = self._stretches.get(tp)
        if log.start is None or (stretch is not None and not stretch.done):
            return False
        return place.offset < log.start

    def _reached(self, tp: TopicPartition) -> bool:
        """An unverified place has reached nothing: its offset may be of another log."""
        sub = self._sub
        place = self.own[tp]
        if sub.until is None or place.offset is None or place.lineage == UNVERIFIED:
            return False
        return place.offset >= sub.until.get(tp, 0)

    def _drop(self, tp: TopicPartition) -> None:
        """What it has in hand is of no use any more."""
        self._drop_backlog(tp)
        for piece in self._brought.pop(tp, ()):
            self._fed -= weight(piece)
        self._stretches.pop(tp, None)
        if self._sub.snapshot is not None:
            self._sub.snapshot.parted(tp)

    def _drop_backlog(self, tp: TopicPartition) -> None:
        for entry in self._backlog.pop(tp, ()):
            self._fed -= weight(entry)


def _truncated(tp: TopicPartition, stood: Place, place: Place) -> Gap:
    assert stood.offset is not None and place.offset is not None
    return Gap(tp, stood.offset, place.offset, place.epoch, Reason.TRUNCATED)
