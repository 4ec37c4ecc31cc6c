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
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.partition_reader import (
    LiveStart,
    OffsetStart,
    OutOfRangePolicy,
    PartitionReader,
    ReaderState,
    Start,
)
from gateway.core.log.position import NO_EPOCH, PartitionPosition
from gateway.core.log.record import Entry, Fault, Gap, Ready, Record, Skip, TopicPartition
from gateway.core.log.recovery import Backoff
from gateway.core.log.tail import Tail
from gateway.hub.fanout.broadcaster import BatchPacing
from gateway.hub.fanout.shared_tail import SharedTail
from gateway.hub.wires.transform import Transformer
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.metadata_changes import TopicChange
from gateway.kafka.fetch.fetcher import Fetcher
from gateway.kafka.fetch.topic_model import TopicModel, get_no_model

READINESS_REFRESH_S = 0.02  # seconds from one look at all partitions of a tail to the next
MAX_FLUSH_S = 0.008  # of one flush, estimated from those before
# Of an entry and a channel of its partition, before one was measured: a record that 600 views look
# at takes 1.2 ms, one that is for all of them some 10 ms; 10,000 that are found by key take 5 us.
DEFAULT_ENTRY_S = 2e-5
RECORD_TYPES = (Record, Skip)  # the entries that may wait; all others are control entries
STALE_S = 1.5  # seconds without an answer after which a partition no longer counts as ready

PendingEntries: TypeAlias = tuple[
    PartitionReader, Sequence[Entry]
]  # what a reading delivered, transformed


@dataclass(slots=True, eq=False)
class SharedRead:
    """One partition: its shared read, what is held of it, and who looks at it."""

    reader: PartitionReader
    log: PartitionLog
    tails: set[SharedTail] = field(default_factory=set)
    _entry_s: float = DEFAULT_ENTRY_S  # of an entry, with as many channels as in
    _measured_channels: int = 1

    def estimate_entry_s(self) -> float:
        """Return how many seconds it takes to apply one entry: as long as last time, or longer by
        the channels that came since."""
        channels = sum(len(shared.channels) for shared in self.tails)
        return self._entry_s * max(1.0, channels / self._measured_channels)

    def set_entry_s(self, seconds: float) -> None:
        """Note how many seconds one entry took."""
        self._entry_s = max(seconds, 1e-7)
        self._measured_channels = max(1, sum(len(shared.channels) for shared in self.tails))


class SharedReads:
    """The shared reads of one cluster.

    topic: the settings of a topic, by name.
    pace:  how long what came may wait for more; a turn tells it what it cost.
    understand: how the entries of a topic are understood, by its name.
    on_growth: called after a flush with the bytes by which the logs grew.
    """

    def __init__(
        self,
        cluster: Cluster,
        get_topic_settings: Callable[[str], Topic],
        pacing: BatchPacing | None = None,
        get_topic_model: Callable[[str], TopicModel | None] = get_no_model,
        on_growth: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.cluster = cluster
        self.by_partition: dict[TopicPartition, SharedRead] = {}
        self.by_topic: dict[str, list[SharedRead]] = {}
        self._pacing = pacing or BatchPacing()
        self.fetcher = Fetcher(
            cluster, self._on_entries, pause=self._pacing.pause, get_topic_model=get_topic_model
        )
        self._get_topic_settings = get_topic_settings
        self._on_growth = on_growth
        self._tails: dict[str, set[SharedTail]] = {}
        self._unknown_topics: dict[
            str, LiveStart
        ] = {}  # topics not known yet, since the first who looks at it
        self._transformers: dict[str, Transformer] = {}
        self._loop = asyncio.get_running_loop()
        self._pending_entries: list[PendingEntries] = []
        self._has_pending_control = False  # some of it is no record: nothing of it may wait
        self._has_pending_rest = False  # some of it is the rest of a slice
        self._pushes_due = 0  # the pushes that were scheduled by the end of the last flush
        self._unlisten = cluster.metadata.add_listener(self._on_metadata_change)

    async def close(self) -> None:
        self._unlisten()
        await self.fetcher.close()

    def open_topic(self, topic: str) -> list[SharedRead]:
        """The feeds of all partitions of a topic that metadata knows, or knew: nobody else is
        believed."""
        known = self.cluster.get_topic(topic)
        partitions = set(known.partitions) if known is not None else set()
        partitions |= {feed.log.tp.partition for feed in self.by_topic.get(topic, ())}
        return [self._get_read(TopicPartition(topic, p), None) for p in sorted(partitions)]

    def close_topic(self, topic: str) -> None:
        """Nobody looks at it any more."""
        for feed in self.by_topic.pop(topic, ()):
            self.fetcher.remove_partition(feed.log.tp)
            del self.by_partition[feed.log.tp]
        self._tails.pop(topic, None)
        self._unknown_topics.pop(topic, None)
        self._transformers.pop(topic, None)  # it may be opened again with others
        self.cluster.metadata.unwatch(topic)

    @property
    def topics(self) -> set[str]:
        return self.by_topic.keys() | self._tails.keys()

    def attach_tail(self, shared_tail: SharedTail) -> None:
        """Let a new tail take part in its partitions' entries."""
        for topic in shared_tail.tail.topic_ids:
            self._tails.setdefault(topic, set()).add(shared_tail)
            if topic not in self.by_topic and topic not in self._unknown_topics:
                self._unknown_topics[topic] = self._build_live_start(
                    TopicPartition(topic, 0), self._get_topic_settings(topic)
                )
        for tp in shared_tail.tail.logs:
            feed = self.by_partition[tp]
            feed.tails.add(shared_tail)
            self._mark_pending(shared_tail.tail, feed)

    def detach_tail(self, shared_tail: SharedTail) -> None:
        for topic in shared_tail.tail.topic_ids:
            self._tails[topic].discard(shared_tail)
        for feed in self.by_partition.values():
            feed.tails.discard(shared_tail)

    def refresh_readiness(self, shared_tail: SharedTail) -> None:
        """What has failed, or has not been heard of for a while, is pending again."""
        now = self._loop.time()
        if now - shared_tail.refreshed_at < READINESS_REFRESH_S:
            return
        shared_tail.refreshed_at = now
        feeds = [(tp, self.by_partition.get(tp)) for tp in shared_tail.tail.logs]
        readings = [(tp, feed.reader) for tp, feed in feeds if feed is not None]
        shared_tail.resolving_readers = [
            each for _, each in readings if each.state is ReaderState.RESOLVING
        ]
        for tp, reading in readings:
            if reading.is_ready and now - reading.last_response_at > STALE_S:
                reading.is_ready = False
            if reading.is_ready:
                shared_tail.tail.readiness.mark_ready(tp)
            else:
                shared_tail.tail.readiness.mark_pending(tp)

    def is_resolving(self, shared_tail: SharedTail, since: float) -> bool:
        """Was a leader asked for the end of a partition after that time, without an answer yet?
        As of the last `refresh_readiness`: partitions that were found by then are not walked
        over by every client."""
        return any(
            isinstance(reading.start, LiveStart)
            and reading.state is ReaderState.RESOLVING
            and reading.leader is not None
            and reading.start.connected_at > since
            for reading in shared_tail.resolving_readers
        )

    def pin_starts(self, pending: Iterable[TopicPartition]) -> None:
        """A client is begun without these."""
        for tp in pending:
            feed = self.by_partition.get(tp)
            if feed is not None and feed.log.next_offset is None:
                feed.reader.pin_start()

    def flush(self) -> None:
        """Apply the entries that came since the last flush, as many as one turn may take.

        Whoever is to get the last ones is offered them first. Else riders would fall out of the
        ring of their channel, and count as slow, for chunks that were never written to them.
        """
        pace = self._pacing
        waits = pace.pushes_done < self._pushes_due or (self._has_pending_rest and pace.has_rounds)
        if waits and not self._has_pending_control:
            pace.is_behind = True
            self._loop.call_soon(self.flush)
            return
        began = perf_counter()
        pending = self._take_pending(only_control=waits)
        self._pacing.is_single = len(pending) == 1 and len(pending[0][1]) == 1
        now, wall = self._loop.time(), int(time.time())
        turns: dict[SharedTail, list[Entry]] = {}
        feeds: list[SharedRead] = []
        grown = 0
        for reading, entries in pending:
            feed = self.by_partition.get(reading.tp)
            if feed is None or feed.reader is not reading:
                continue  # closed, and perhaps opened again with other transforms
            feeds.append(feed)
            before = feed.log.bytes
            for entry in entries:
                self._append_to_log(feed.log, entry, now)
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
            feed.set_entry_s(logged + sum(published.get(shared, 0.0) for shared in feed.tails))
        self._pushes_due = pace.pushes_scheduled
        self._on_growth(max(0, grown))
        self._pacing.record_cost(perf_counter() - began)

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
        taken, pending = (
            self._take_control() if self._has_pending_control else ([], self._pending_entries)
        )
        may_wait, left = only_control or bool(taken), 0.0 if only_control else MAX_FLUSH_S
        left -= sum(len(entries) * self._estimate_cost(reading) for reading, entries in taken)
        for n, (reading, entries) in enumerate(pending):
            cost = self._estimate_cost(reading)
            fitting = int(max(0.0, left) / cost)
            if not fitting and not may_wait:
                fitting = 1
            if len(entries) > fitting:
                if fitting:
                    taken.append((reading, entries[:fitting]))
                    entries = entries[fitting:]
                self._pending_entries = [(reading, entries), *pending[n + 1 :]]
                self._loop.call_soon(self.flush)
                break
            taken.append((reading, entries))
            left -= len(entries) * cost
            may_wait = True
        else:
            self._pending_entries = []
        self._has_pending_rest = self._pacing.is_behind = bool(self._pending_entries)
        self._has_pending_control = False
        return taken

    def _take_control(self) -> tuple[list[PendingEntries], list[PendingEntries]]:
        """Return what each partition has up to its last control entry, and what comes after."""
        ends: dict[TopicPartition, tuple[int, int]] = {}
        for n, (reading, entries) in enumerate(self._pending_entries):
            for i in range(len(entries) - 1, -1, -1):
                if type(entries[i]) not in RECORD_TYPES:
                    ends[reading.tp] = n, i + 1
                    break
        taken, rest = list[PendingEntries](), list[PendingEntries]()
        for n, (reading, entries) in enumerate(self._pending_entries):
            last, end = ends.get(reading.tp, (-1, 0))
            count = len(entries) if n < last else end if n == last else 0
            if count:
                taken.append((reading, entries[:count]))
            if count < len(entries):
                rest.append((reading, entries[count:]))
        return taken, rest

    def _estimate_cost(self, reader: PartitionReader) -> float:
        """Return how many seconds one of its entries takes."""
        feed = self.by_partition.get(reader.tp)
        return DEFAULT_ENTRY_S if feed is None else feed.estimate_entry_s()

    def _append_to_log(self, log: PartitionLog, entry: Entry, now: float) -> None:
        if type(entry) is Ready:
            if log.next_offset is None:
                log.open(entry.next_offset, entry.epoch)
        elif type(entry) is not Fault and log.next_offset is not None:
            log.append(entry, now)
            if type(entry) is Gap:
                self.fetcher.reads.count_gap(
                    log.tp.topic, entry.reason, entry.next_offset - entry.offset
                )

    def _on_entries(self, reader: PartitionReader, entries: Sequence[Entry]) -> None:
        transformer = self._transformers.get(reader.tp.topic)
        if not self._pending_entries:
            rest = self._pacing.remaining_rest
            if rest > 0:
                self._loop.call_later(rest, self.flush)
            else:
                self._loop.call_soon(self.flush)
        if transformer is not None:
            entries = list(map(transformer, entries))
        if not self._has_pending_control:
            self._has_pending_control = any(type(each) not in RECORD_TYPES for each in entries)
        self._pending_entries.append((reader, entries))

    def _get_read(self, tp: TopicPartition, start: Start | None) -> SharedRead:
        feed = self.by_partition.get(tp)
        if feed is None:
            topic = self._get_topic_settings(tp.topic)
            reading = create_reader(tp, start or self._build_live_start(tp, topic), topic)
            log = PartitionLog(tp, topic.cache.bytes, topic.cache.age)
            feed = self.by_partition[tp] = SharedRead(reading, log)
            self.by_topic.setdefault(tp.topic, []).append(feed)
            if topic.transforms:
                self._transformers.setdefault(tp.topic, Transformer(topic.transforms))
            self.fetcher.add_partition(reading, read_committed=topic.isolation == "read_committed")
        return feed

    def _build_live_start(self, tp: TopicPartition, topic: Topic) -> LiveStart:
        known = self.cluster.get_topic(tp.topic)
        partition = known.partitions.get(tp.partition) if known is not None else None
        return LiveStart(
            connected_at_ms=int(time.time() * 1000),
            connected_at=self._loop.time(),
            epoch=NO_EPOCH if partition is None else partition.leader_epoch,
            was_leaderless=partition is not None and partition.leader < 0,
            clock_skew_ms=int(topic.clock_skew * 1000),
        )

    def _mark_pending(self, tail: Tail, read: SharedRead) -> None:
        start = read.reader.start
        if read.log.next_offset is None and isinstance(start, LiveStart):
            epoch = start.epoch if start.was_leaderless else NO_EPOCH
            tail.mark_pending_since(read.log.tp, epoch, start.connected_at_ms // 1000)
        elif read.log.next_offset is None and isinstance(start, OffsetStart):
            tail.add_partition(read.log, PartitionPosition(start.offset, start.epoch))

    def _on_metadata_change(self, change: TopicChange) -> None:
        """Partitions that came into being since are read from their first record on; those of a
        topic that was not known at all from where they stood when somebody began to look at it."""
        name = change.topic.name
        tails = self._tails.get(name)
        if tails is None:
            return
        for shared in tails:
            shared.tail.set_topic_id(name, str(change.topic.topic_id or ""))
        start = self._unknown_topics.pop(name, None) if change.topic.partitions else None
        for p in change.topic.partitions:
            tp = TopicPartition(name, p)
            if tp in self.by_partition:
                continue
            feed = self._get_read(tp, start or OffsetStart(0))
            feed.tails |= tails
            for shared in tails:
                shared.tail.add_partition(feed.log, PartitionPosition(0 if start is None else None))
                if start is not None:
                    self._mark_pending(shared.tail, feed)


def create_reader(tp: TopicPartition, start: Start, topic: Topic) -> PartitionReader:
    backoff = Backoff(topic.reconnect.max, random.random, topic.reconnect.initial)
    return PartitionReader(tp, start, OutOfRangePolicy(topic.offset_out_of_range), backoff)
