"""The shared reads: one per partition in use, however many look at it.

What the readings bring within one turn of the loop is applied at once, in one go: first to
the partitions' logs, then to every tail that has them, then to the channels. Nothing is
taken by a client in between, which is what makes joining from a log exact.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeAlias

from gateway.config import Topic
from gateway.core.log.partition_log import Log
from gateway.core.log.partition_reader import At, Live, OutOfRange, Reading, Start, State
from gateway.core.log.position import NO_EPOCH, Place
from gateway.core.log.record import Entry, Fault, Gap, Ready, Record, Skip, TopicPartition
from gateway.core.log.recovery import Backoff
from gateway.core.log.tail import Tail
from gateway.hub.fanout.broadcaster import Pace
from gateway.hub.fanout.shared_tail import SharedTail
from gateway.hub.wires.transform import Transformer
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.metadata_changes import Change
from gateway.kafka.fetch.fetcher import Fetcher
from gateway.kafka.fetch.understanding import Understand, as_it_is

REFRESH = 0.02  # seconds from one look at all partitions of a tail to the next
MAX_FLUSH_SECONDS = 0.008  # of one flush, estimated from those before
# Of an entry and a channel of its partition, before one was measured: a record that 600 views look
# at takes 1.2 ms, one that is for all of them some 10 ms; 10,000 that are found by key take 5 us.
CHANNEL_SECONDS = 2e-5
RECORDS = (Record, Skip)  # the entries that may wait; all others are control entries
STALE = 1.5  # seconds without an answer after which a partition no longer counts as ready

PendingEntries: TypeAlias = tuple[Reading, Sequence[Entry]]  # what a reading delivered, transformed


@dataclass(slots=True, eq=False)
class Feed:
    """One partition: its shared read, what is held of it, and who looks at it."""

    reading: Reading
    log: Log
    tails: set[SharedTail] = field(default_factory=set)
    _seconds: float = CHANNEL_SECONDS  # of an entry, with as many channels as in
    _channels: int = 1

    def estimate(self) -> float:
        """Return how many seconds it takes to apply one entry: as long as last time, or longer by
        the channels that came since."""
        channels = sum(len(shared.channels) for shared in self.tails)
        return self._seconds * max(1.0, channels / self._channels)

    def measure(self, seconds: float) -> None:
        """Note how many seconds one entry took."""
        self._seconds = max(seconds, 1e-7)
        self._channels = max(1, sum(len(shared.channels) for shared in self.tails))


class Feeds:
    """The shared reads of one cluster.

    topic: the settings of a topic, by name.
    pace:  how long what came may wait for more; a turn tells it what it cost.
    understand: how the entries of a topic are understood, by its name.
    on_growth: called after a flush with the bytes by which the logs grew.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: Callable[[str], Topic],
        pace: Pace | None = None,
        understand: Callable[[str], Understand | None] = as_it_is,
        on_growth: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.cluster = cluster
        self.by_partition: dict[TopicPartition, Feed] = {}
        self.by_topic: dict[str, list[Feed]] = {}
        self._pace = pace or Pace()
        self.fetcher = Fetcher(
            cluster, self._deliver, pause=self._pace.pause, understand=understand
        )
        self._topic = topic
        self._on_growth = on_growth
        self._tails: dict[str, set[SharedTail]] = {}
        self._awaited: dict[str, Live] = {}  # topics not known yet, since the first who looks at it
        self._transformers: dict[str, Transformer] = {}
        self._loop = asyncio.get_running_loop()
        self._pending: list[PendingEntries] = []
        self._pending_control = False  # some of it is no record: nothing of it may wait
        self._pending_rest = False  # some of it is the rest of a slice
        self._pushes_due = 0  # the pushes that were scheduled by the end of the last flush
        self._unlisten = cluster.metadata.listen(self._changed)

    async def close(self) -> None:
        self._unlisten()
        await self.fetcher.close()

    def open(self, topic: str) -> list[Feed]:
        """The feeds of all partitions of a topic that metadata knows, or knew: nobody else is
        believed."""
        known = self.cluster.topic(topic)
        partitions = set(known.partitions) if known is not None else set()
        partitions |= {feed.log.tp.partition for feed in self.by_topic.get(topic, ())}
        return [self._feed(TopicPartition(topic, p), None) for p in sorted(partitions)]

    def close_topic(self, topic: str) -> None:
        """Nobody looks at it any more."""
        for feed in self.by_topic.pop(topic, ()):
            self.fetcher.drop(feed.log.tp)
            del self.by_partition[feed.log.tp]
        self._tails.pop(topic, None)
        self._awaited.pop(topic, None)
        self._transformers.pop(topic, None)  # it may be opened again with others
        self.cluster.metadata.unwatch(topic)

    @property
    def topics(self) -> set[str]:
        return self.by_topic.keys() | self._tails.keys()

    def attach(self, shared: SharedTail) -> None:
        """Let a new tail take part in its partitions' entries."""
        for topic in shared.tail.ids:
            self._tails.setdefault(topic, set()).add(shared)
            if topic not in self.by_topic and topic not in self._awaited:
                self._awaited[topic] = self._live(TopicPartition(topic, 0), self._topic(topic))
        for tp in shared.tail.logs:
            feed = self.by_partition[tp]
            feed.tails.add(shared)
            self._pend(shared.tail, feed)

    def detach(self, shared: SharedTail) -> None:
        for topic in shared.tail.ids:
            self._tails[topic].discard(shared)
        for feed in self.by_partition.values():
            feed.tails.discard(shared)

    def refresh_readiness(self, shared: SharedTail) -> None:
        """What has failed, or has not been heard of for a while, is pending again."""
        now = self._loop.time()
        if now - shared.refreshed_at < REFRESH:
            return
        shared.refreshed_at = now
        feeds = [(tp, self.by_partition.get(tp)) for tp in shared.tail.logs]
        readings = [(tp, feed.reading) for tp, feed in feeds if feed is not None]
        shared.resolving = [each for _, each in readings if each.state is State.RESOLVING]
        for tp, reading in readings:
            if reading.is_ready and now - reading.heard_at > STALE:
                reading.is_ready = False
            if reading.is_ready:
                shared.tail.readiness.ready(tp)
            else:
                shared.tail.readiness.lost(tp)

    def resolving(self, shared: SharedTail, since: float) -> bool:
        """Was a leader asked for the end of a partition after that time, without an answer yet?
        As of the last `refresh_readiness`: partitions that were found by then are not walked
        over by every client."""
        return any(
            isinstance(reading.start, Live)
            and reading.state is State.RESOLVING
            and reading.leader is not None
            and reading.start.born > since
            for reading in shared.resolving
        )

    def promise(self, pending: Iterable[TopicPartition]) -> None:
        """A client is begun without these."""
        for tp in pending:
            feed = self.by_partition.get(tp)
            if feed is not None and feed.log.next is None:
                feed.reading.promise()

    def flush(self) -> None:
        """Apply the entries that came since the last flush, as many as one turn may take.

        Whoever is to get the last ones is offered them first. Else riders would fall out of the
        ring of their channel, and count as slow, for chunks that were never written to them.
        """
        pace = self._pace
        waits = pace.pushes_done < self._pushes_due or (self._pending_rest and pace.has_rounds)
        if waits and not self._pending_control:
            pace.is_behind = True
            self._loop.call_soon(self.flush)
            return
        began = perf_counter()
        pending = self._take_pending(only_control=waits)
        self._pace.lone = len(pending) == 1 and len(pending[0][1]) == 1
        now, wall = self._loop.time(), int(time.time())
        turns: dict[SharedTail, list[Entry]] = {}
        feeds: list[Feed] = []
        grown = 0
        for reading, entries in pending:
            feed = self.by_partition.get(reading.tp)
            if feed is None or feed.reading is not reading:
                continue  # closed, and perhaps opened again with other transforms
            feeds.append(feed)
            before = feed.log.bytes
            for entry in entries:
                self._log(feed.log, entry, now)
            grown += feed.log.bytes - before
            for shared in feed.tails:
                turns.setdefault(shared, []).extend(entries)
        ends = perf_counter()
        logged = (ends - began) / max(1, sum(len(entries) for _, entries in pending))
        published: dict[SharedTail, float] = {}  # seconds of an entry
        for shared, turn in turns.items():
            shared.publish(turn, wall)
            starts, ends = ends, perf_counter()
            published[shared] = (ends - starts) / max(1, len(turn))
        for feed in feeds:
            feed.measure(logged + sum(published.get(shared, 0.0) for shared in feed.tails))
        self._pushes_due = pace.pushes
        self._on_growth(max(0, grown))
        self._pace.spent(perf_counter() - began)

    def _take_pending(self, *, only_control: bool) -> list[PendingEntries]:
        """Return the entries to apply in this turn, and schedule another flush for the rest.

        That a partition is ready, failed or went back is applied at once, with all of that
        partition before it: its reading goes on meanwhile, and a client that begins would take it
        for pending, from a time on that is past already.

        The others are as many as `MAX_FLUSH_SECONDS` are estimated to be enough for, and one at
        least.

        Args:
            only_control: Apply none but those above.
        """
        taken, pending = self._take_control() if self._pending_control else ([], self._pending)
        may_wait, left = only_control or bool(taken), 0.0 if only_control else MAX_FLUSH_SECONDS
        left -= sum(len(entries) * self._cost(reading) for reading, entries in taken)
        for n, (reading, entries) in enumerate(pending):
            cost = self._cost(reading)
            fitting = int(max(0.0, left) / cost)
            if not fitting and not may_wait:
                fitting = 1
            if len(entries) > fitting:
                if fitting:
                    taken.append((reading, entries[:fitting]))
                    entries = entries[fitting:]
                self._pending = [(reading, entries), *pending[n + 1 :]]
                self._loop.call_soon(self.flush)
                break
            taken.append((reading, entries))
            left -= len(entries) * cost
            may_wait = True
        else:
            self._pending = []
        self._pending_rest = self._pace.is_behind = bool(self._pending)
        self._pending_control = False
        return taken

    def _take_control(self) -> tuple[list[PendingEntries], list[PendingEntries]]:
        """Return what each partition has up to its last control entry, and what comes after."""
        ends: dict[TopicPartition, tuple[int, int]] = {}
        for n, (reading, entries) in enumerate(self._pending):
            for i in range(len(entries) - 1, -1, -1):
                if type(entries[i]) not in RECORDS:
                    ends[reading.tp] = n, i + 1
                    break
        taken, rest = list[PendingEntries](), list[PendingEntries]()
        for n, (reading, entries) in enumerate(self._pending):
            last, end = ends.get(reading.tp, (-1, 0))
            count = len(entries) if n < last else end if n == last else 0
            if count:
                taken.append((reading, entries[:count]))
            if count < len(entries):
                rest.append((reading, entries[count:]))
        return taken, rest

    def _cost(self, reading: Reading) -> float:
        """Return how many seconds one of its entries takes."""
        feed = self.by_partition.get(reading.tp)
        return CHANNEL_SECONDS if feed is None else feed.estimate()

    def _log(self, log: Log, entry: Entry, now: float) -> None:
        if type(entry) is Ready:
            if log.next is None:
                log.open(entry.next, entry.epoch)
        elif type(entry) is not Fault and log.next is not None:
            log.append(entry, now)
            if type(entry) is Gap:
                self.fetcher.reads.gap(log.tp.topic, entry.reason, entry.next - entry.offset)

    def _deliver(self, reading: Reading, entries: Sequence[Entry]) -> None:
        transformer = self._transformers.get(reading.tp.topic)
        if not self._pending:
            rest = self._pace.rest
            if rest > 0:
                self._loop.call_later(rest, self.flush)
            else:
                self._loop.call_soon(self.flush)
        if transformer is not None:
            entries = list(map(transformer, entries))
        if not self._pending_control:
            self._pending_control = any(type(each) not in RECORDS for each in entries)
        self._pending.append((reading, entries))

    def _feed(self, tp: TopicPartition, start: Start | None) -> Feed:
        feed = self.by_partition.get(tp)
        if feed is None:
            topic = self._topic(tp.topic)
            reading = new_reading(tp, start or self._live(tp, topic), topic)
            log = Log(tp, topic.cache.bytes, topic.cache.age)
            feed = self.by_partition[tp] = Feed(reading, log)
            self.by_topic.setdefault(tp.topic, []).append(feed)
            if topic.transforms:
                self._transformers.setdefault(tp.topic, Transformer(topic.transforms))
            self.fetcher.add(reading, committed=topic.isolation == "read_committed")
        return feed

    def _live(self, tp: TopicPartition, topic: Topic) -> Live:
        known = self.cluster.topic(tp.topic)
        partition = known.partitions.get(tp.partition) if known is not None else None
        return Live(
            since=int(time.time() * 1000),
            born=self._loop.time(),
            epoch=NO_EPOCH if partition is None else partition.leader_epoch,
            leaderless=partition is not None and partition.leader < 0,
            skew=int(topic.clock_skew * 1000),
        )

    def _pend(self, tail: Tail, feed: Feed) -> None:
        start = feed.reading.start
        if feed.log.next is None and isinstance(start, Live):
            epoch = start.epoch if start.leaderless else NO_EPOCH
            tail.await_since(feed.log.tp, epoch, start.since // 1000)
        elif feed.log.next is None and isinstance(start, At):
            tail.add(feed.log, Place(start.offset, start.epoch))

    def _changed(self, change: Change) -> None:
        """Partitions that came into being since are read from their first record on; those of a
        topic that was not known at all from where they stood when somebody began to look at it."""
        name = change.topic.name
        tails = self._tails.get(name)
        if tails is None:
            return
        for shared in tails:
            shared.tail.identify(name, str(change.topic.topic_id or ""))
        start = self._awaited.pop(name, None) if change.topic.partitions else None
        for p in change.topic.partitions:
            tp = TopicPartition(name, p)
            if tp in self.by_partition:
                continue
            feed = self._feed(tp, start or At(0))
            feed.tails |= tails
            for shared in tails:
                shared.tail.add(feed.log, Place(0 if start is None else None))
                if start is not None:
                    self._pend(shared.tail, feed)


def new_reading(tp: TopicPartition, start: Start, topic: Topic) -> Reading:
    backoff = Backoff(topic.reconnect.max, random.random, topic.reconnect.initial)
    return Reading(tp, start, OutOfRange(topic.offset_out_of_range), backoff)
