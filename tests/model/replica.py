"""One gateway without its loop: the core, driven as the hub and the fetchers drive it.

Every question to Kafka is an `Ask`, and is sent, answered and delivered in separate steps,
so that answers come late, out of order, or to a reading that has moved on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from support.rendering import Rendering

from gateway.core.channel.byte_counts import Counted
from gateway.core.channel.channel import Channel, Event
from gateway.core.channel.dispatcher import Spread
from gateway.core.channel.filters import Filter, Filters
from gateway.core.client.subscription import Subscription
from gateway.core.log.partition_log import Log
from gateway.core.log.partition_reader import At, EpochEnd, Fetched, Live, OutOfRange, Reading, Todo
from gateway.core.log.position import NO_EPOCH, RETIRED, UNVERIFIED, Place
from gateway.core.log.record import Entry, Fault, Gap, Ready, Reason, Record, TopicPartition
from gateway.core.log.recovery import Backoff, Cause
from gateway.core.log.tail import Tail
from gateway.core.token.resume_token import decode
from gateway.wire.crc import Sum

from .simulation import TOPIC, Ended, Kafka, Listed, Metadata, Refused

WALL = 1_700_000_000  # the wall clock when the model's starts
SKEW = 2_000  # milliseconds that producers' clocks may be behind
KEY = b"a"  # what the filtered channel lets through
KEYED = Filters((Filter(key=KEY),))


class Encoder(Rendering):
    """Events short enough to be many, and counted: what every client got is checked by its sum."""

    def render(self, events: Iterable[Event], view: bytes) -> bytes:
        data = super().render(events, view)
        return Counted.of(data, Sum.of(data)) if data else data

    def head(self, entry: Entry) -> bytes | None:
        kind, p = type(entry), entry.tp.partition
        if kind is Record:
            return b"data: r %d %d %b\n" % (p, entry.offset, entry.value)
        if kind is Gap:
            told = (p, entry.offset, entry.next, entry.reason.encode())
            return b"event: gap\ndata: g %d %d %d %b\n" % told
        if kind is Ready:
            return b"event: ready\ndata: y %d %d\n" % (p, entry.next)
        return None

    def position(self) -> bytes:
        return b"event: position\ndata: {}\n"

    def end(self, token: bytes | None) -> bytes:
        return b"\n" if token is None else b"id: %b\n\n" % token


class Ask:
    """A question that is under way. `then` takes the answer, unless it is unwanted by then."""

    def __init__(self, tp: TopicPartition, todo: Todo, then: Callable[[Any], None], who: Any):
        self.tp, self.todo, self.then, self.who = tp, todo, then, who
        self.life = 0
        self.epoch = 0
        self.answer: object = None


class Job:
    """A reading, and the question it waits for."""

    def __init__(self, reading: Reading, sink: Callable[[Sequence[Entry]], None]) -> None:
        self.reading, self.sink = reading, sink
        self.flight: Ask | None = None
        self.done = False


class Replica:
    def __init__(self, world: Any, number: int) -> None:
        self.world, self.number = world, number
        self.kafka: Kafka = world.kafka
        self.asks: list[Ask] = []
        self.policy: OutOfRange = world.policy
        self.metadata: Metadata = self.kafka.metadata[-1]
        self.jobs: dict[TopicPartition, Job] = {}
        self.private: dict[tuple[Subscription, TopicPartition], Job] = {}
        self.verifying: dict[tuple[Subscription, TopicPartition], Ask] = {}
        self.entries: list[Entry] = []
        self.judged: dict[TopicPartition, Ready] = {}  # live starts, as of when they were found
        self.born = world.now
        logs = [self._open(TopicPartition(TOPIC, p)) for p in range(self._count())]
        self.tail = Tail("cluster", logs, {TOPIC: self.metadata.topic_id})
        fails = [TOPIC] if self.policy is OutOfRange.FAIL else []
        encoder, size = Encoder(), world.ring
        self.channels = [
            Channel(self.tail, b"all--", encoder, None, max_bytes=size, fails=fails),
            Channel(self.tail, b"keyed", encoder, KEYED.matches, max_bytes=size, fails=fails),
        ]
        self.spread = Spread(self.tail)
        for channel, filters in zip(self.channels, (Filters(), KEYED), strict=True):
            self.spread.add(channel, filters)

    def _count(self) -> int:
        return len(self.metadata.partitions)

    def _open(self, tp: TopicPartition, start: Any = None) -> Log:
        known = self.metadata.partitions[tp.partition]
        if start is None:
            start = self._live(self.world.now, known.epoch, not known.leader)
        job = Job(self._reading(tp, start), self._hand_in)
        self.jobs[tp] = job
        self._sync(job)
        return Log(tp, self.world.cache, 1e9)

    def _live(self, born: float, epoch: int, leaderless: bool) -> Live:
        return Live(int((WALL + born) * 1000), born, epoch, leaderless, SKEW)

    def _reading(self, tp: TopicPartition, start: Any) -> Reading:
        return Reading(tp, start, self.policy, Backoff(1.0, self.world.random))

    # metadata

    def refresh(self, age: int) -> None:
        """Ask a broker for metadata; it may be behind."""
        known = self.kafka.metadata
        answer = known[max(0, len(known) - 1 - age)]
        if answer.life != self.metadata.life:
            if answer.life < self.metadata.life:
                return  # an id that was left behind never comes back
            self.metadata = answer
            self.tail.identify(TOPIC, answer.topic_id)
            for sub in self._followers():
                self._retire(sub)
        else:
            before = self.metadata.partitions
            merged = tuple(
                new if new.epoch >= old.epoch else old
                for old, new in zip(before, answer.partitions, strict=False)
            )
            longer = max(before, answer.partitions, key=len)
            self.metadata = Metadata(answer.topic_id, answer.life, merged + longer[len(merged) :])
        for p in range(self._count()):
            tp = TopicPartition(TOPIC, p)
            if tp not in self.jobs:
                self.tail.add(self._open(tp, At(0)), Place(0))
        for job in [*self.jobs.values(), *self.private.values()]:
            self._sync(job)

    def _followers(self) -> list[Subscription]:
        every = [each for channel in self.channels for each in channel.followers]
        return [each for each in every if isinstance(each, Subscription)]

    def _retire(self, sub: Subscription) -> None:
        """What it has not held against the log yet is of the topic that is no more."""
        for work in (self.private, self.verifying):
            for key in [key for key in work if key[0] is sub]:
                del work[key]
        for tp, place in sub.own.items():
            if place.lineage == UNVERIFIED:
                sub.retire(tp)

    def _sync(self, job: Job) -> None:
        reading = job.reading
        known = self.metadata.partitions[reading.tp.partition]
        before = (reading.leader, reading.leader_epoch, reading.topic_id)
        reading.on_topic(self.metadata.topic_id)
        job.sink(reading.on_leader(1 if known.leader else None, known.epoch, self.world.now))
        if before != (reading.leader, reading.leader_epoch, reading.topic_id):
            job.flight = None

    # questions

    def _ask(self, tp: TopicPartition, todo: Todo, then: Callable[[Any], None], who: Any) -> Ask:
        ask = Ask(tp, todo, then, who)
        ask.life, ask.epoch = self.metadata.life, self.metadata.partitions[tp.partition].epoch
        self.asks.append(ask)
        return ask

    def send(self) -> None:
        """Ask whatever is due."""
        now = self.world.now
        for job in [*self.jobs.values(), *self.private.values()]:
            if job.flight is None and (todo := job.reading.todo(now)) is not None:
                self._send(job, todo)
        for sub in self._followers():
            self._attend(sub)

    def _send(self, job: Job, todo: Todo) -> None:
        job.flight = self._ask(job.reading.tp, todo, lambda answer: None, job)
        job.flight.epoch = job.reading.leader_epoch

    def serve(self, ask: Ask) -> bool:
        """The leader answers, if it can; the answer is not here yet."""
        if ask.answer is not None:
            return True
        kafka = self.kafka
        if ask.life != kafka.life:
            ask.answer = Refused(Cause.UNKNOWN_TOPIC)
            return True
        partition = kafka.partitions[ask.tp.partition]
        if partition.frozen:
            return False
        ask.answer = partition.answer(ask.todo, ask.epoch, 0)
        return True

    def deliver(self, ask: Ask) -> None:
        self.asks.remove(ask)
        if isinstance(ask.who, Job):
            if ask.who.flight is ask:
                ask.who.flight = None
                self._answered(ask.who, ask)
        elif self.verifying.get(ask.who) is ask:
            del self.verifying[ask.who]
            ask.then(ask.answer)

    def abandon(self, ask: Ask) -> None:
        """Out of patience. The answer may still come."""
        if isinstance(ask.who, Job):
            if ask.who.flight is ask:
                ask.who.flight = None
                ask.who.sink(ask.who.reading.on_error(Cause.TIMEOUT, self.world.now))
        elif self.verifying.get(ask.who) is ask:
            del self.verifying[ask.who]

    def _answered(self, job: Job, ask: Ask) -> None:
        reading, now, answer = job.reading, self.world.now, ask.answer
        if isinstance(answer, Refused):
            entries = reading.on_error(answer.cause, now)
        elif isinstance(answer, Fetched):
            entries = reading.on_fetched(answer, now)
        elif isinstance(answer, Listed):
            entries = reading.on_listed(answer.offset, answer.epoch, now)
        else:
            assert isinstance(answer, Ended)
            entries = reading.on_epoch_end(answer.epoch, answer.end, now)
        job.sink(entries)

    # the end of a turn of the loop

    def turn(self) -> None:
        """Apply what came: logs, the tail and channels in one breath."""
        entries, now = list(self.entries), self.world.now
        self.entries.clear()
        if entries:
            for entry in entries:
                log = self.tail.logs[entry.tp]
                if type(entry) is Ready:
                    if log.next is None:
                        self._resolved(entry)
                        log.open(entry.next, entry.epoch)
                elif type(entry) is not Fault:
                    log.append(entry, now)
            turn = self.tail.turn(entries, int(WALL + now))
            self.spread.publish(turn)

    def _hand_in(self, entries: Sequence[Entry]) -> None:
        """Until the turn ends; time may pass by then."""
        for entry in entries:
            start = self.jobs[entry.tp].reading.start
            if type(entry) is Ready and isinstance(start, Live):
                self.judged.setdefault(entry.tp, self._judged(entry, start))
        self.entries += entries

    def _resolved(self, ready: Ready) -> None:
        """The oracle is to know where a live start was found right after the connect."""
        if ready.tp in self.judged:
            self.world.resolved(self, None, self.judged[ready.tp])

    def _judged(self, ready: Ready, start: Live) -> Ready:
        """Only an end that was asked for within a second of the connect is that of then."""
        late = start.leaderless or self.world.now - start.born > 1.0
        return ready._replace(approximate=ready.approximate or late)

    def pump(self, rounds: int = 1) -> None:
        """The quick way: everything that can be answered is, at once."""
        for _ in range(rounds):
            self.send()
            for ask in list(self.asks):
                if self.serve(ask):
                    self.deliver(ask)
            self.turn()

    # clients

    def connect(self, view: int, last_event_id: str, start: str, **options: Any) -> Subscription:
        channel = self.channels[view]
        own: dict[TopicPartition, Place] = {}
        since = None
        if last_event_id:
            token = decode(last_event_id)
            topic = token.among([TOPIC])[TOPIC]
            since = token.issued
            if not topic.is_topic(self.tail.ids[TOPIC]):
                self.refresh(0)  # which of the two is the topic that is no more?
            for p in range(max(len(topic.offsets), self._count())):
                tp = TopicPartition(TOPIC, p)
                if p >= len(topic.offsets):
                    own[tp] = Place(0, NO_EPOCH, self.tail.logs[tp].lineage)
                    continue
                offset, epoch = topic.offsets[p], topic.epochs[p]
                ours = topic.is_topic(self.tail.ids[TOPIC])
                own[tp] = Place(offset, epoch if ours else RETIRED, UNVERIFIED)
        elif start == "earliest":
            own = {tp: Place(0, NO_EPOCH, UNVERIFIED) for tp in self.tail.logs}
        else:
            self._await_live()
        sub = Subscription(channel, own, since=since, **options)
        return sub

    def _await_live(self) -> None:
        for tp, log in self.tail.logs.items():
            start = self.jobs[tp].reading.start
            if log.next is None and isinstance(start, Live):
                epoch = start.epoch if start.leaderless else NO_EPOCH
                self.tail.await_since(tp, epoch, start.since // 1000)

    def promise(self, pending: Iterable[TopicPartition]) -> None:
        """A client was begun without them."""
        for tp in pending:
            self.jobs[tp].reading.promise()

    def close(self, sub: Subscription) -> None:
        sub.close()
        for work in (self.private, self.verifying):
            for key in [key for key in work if key[0] is sub]:
                del work[key]

    def _attend(self, sub: Subscription) -> None:
        if sub.ended:
            return
        for tp, place in sub.unverified():
            if (sub, tp) not in self.verifying and (sub, tp) not in self.private:
                self._verify(sub, tp, place)
        for tp, place in sub.lacks():
            if (sub, tp) not in self.private:
                self._fetch(sub, tp, place)

    def _fetch(self, sub: Subscription, tp: TopicPartition, place: Place) -> None:
        def sink(entries: Sequence[Entry]) -> None:
            found = [e for e in entries if not isinstance(e, Ready | Fault)]
            if found and self.private.pop((sub, tp), None):
                sub.feed(tp, place, found)

        assert place.offset is not None
        self._add_private(sub, tp, At(place.offset, place.epoch), sink)

    def _resolve(self, sub: Subscription, tp: TopicPartition, place: Place) -> None:
        lineage = self.jobs[tp].reading.lineage

        def sink(entries: Sequence[Entry]) -> None:
            for e in entries:
                if isinstance(e, Ready) and self.private.pop((sub, tp), None):
                    self.world.resolved(self, sub, self._judged(e, start))
                    sub.verified(tp, Place(e.next, e.epoch, lineage))

        assert sub.since is not None
        # born long ago: an end that is asked for now is not that of then (as in hub's `Lacks`)
        start = Live(sub.since * 1000, 0.0, place.epoch, place.epoch != NO_EPOCH, SKEW)
        self._add_private(sub, tp, start, sink)

    def _add_private(self, sub: Subscription, tp: TopicPartition, start: Any, sink: Any) -> None:
        job = self.private[sub, tp] = Job(self._reading(tp, start), sink)
        self._sync(job)

    def _verify(self, sub: Subscription, tp: TopicPartition, place: Place) -> None:
        if place.offset is None and place.epoch != RETIRED:
            self._resolve(sub, tp, place)
            return
        reading = self.jobs[tp].reading
        if not reading.stands_on(NO_EPOCH if place.epoch == RETIRED else place.epoch):
            return
        if place.epoch == RETIRED:
            first = Place(0, NO_EPOCH, reading.lineage)
            gap = Gap(tp, place.offset or 0, 0, NO_EPOCH, Reason.RECREATED)
            sub.verified(tp, first, gap if place.offset is not None else None)
            return
        present = Place(place.offset, reading.leader_epoch, reading.lineage)
        if place.epoch in (NO_EPOCH, reading.leader_epoch):
            sub.verified(tp, present._replace(epoch=place.epoch))
            return

        def then(answer: Any) -> None:
            if not isinstance(answer, Ended):
                return
            if not 0 <= answer.end < present.offset:
                sub.verified(tp, present)
                return
            gap = Gap(tp, present.offset, answer.end, present.epoch, Reason.TRUNCATED)
            sub.verified(tp, present._replace(offset=answer.end), gap)

        self.verifying[sub, tp] = self._ask(tp, EpochEnd(place.epoch), then, (sub, tp))
