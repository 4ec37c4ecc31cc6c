"""Read each partition in use once, however many clients need it.

The entries that the readers deliver within one turn of the event loop are applied together: first
to the partitions' logs, then to every tail that has them, then to the channels. No client takes
anything in between, which makes it exact to switch from a private read of the log to the shared
chunks.

A flush is limited to `max_flush_s`, estimated from what earlier entries cost, so that many channels
do not block the loop. The rest follows in the next turn.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeAlias, assert_never

from gateway.config import Topic
from gateway.core.channel.tail import Tail
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.partition_reader import (
    LiveStart,
    OffsetStart,
    OutOfRangePolicy,
    PartitionReader,
    ReaderState,
    Start,
    TimestampStart,
)
from gateway.core.log.record import (
    NO_EPOCH,
    Entry,
    Fault,
    Gap,
    PartitionPosition,
    Ready,
    Record,
    Skip,
    TopicPartition,
)
from gateway.core.log.recovery import Backoff
from gateway.errors import Busy
from gateway.hub.wires.models import Transformer
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.metadata_changes import TopicChange
from gateway.kafka.fetch.fetcher import Fetcher, TopicModel, get_no_model
from gateway.kafka.protocol.requests import TopicMetadata

from .pacing import BatchPacing
from .shared_tail import SharedTail

log = logging.getLogger(__name__)

READINESS_REFRESH_S = 0.02  # seconds from one look at all partitions of a tail to the next
MAX_FLUSH_S = 0.008  # seconds of one flush, as estimated from earlier ones
# Seconds for one entry and one channel, before any was measured. A record that 600 views look at
# takes 1.2 ms, one that all of them show about 10 ms; 10,000 views found by key take 5 us.
DEFAULT_ENTRY_S = 2e-5
RECORD_TYPES = (Record, Skip)  # entries that may wait; all others are control entries
# Each refresh of metadata asks for them: 10,000 took 52 ms to write and 194 ms to parse.
MAX_UNKNOWN_TOPICS = 1000
STALE_S = 1.5  # seconds without a response after which a partition no longer counts as ready

PendingEntries: TypeAlias = tuple[PartitionReader, Sequence[Entry]]
"""What a reader delivered, after the topic's transforms."""


@dataclass(slots=True, eq=False)
class SharedRead:
    """The reader of one partition, its log, and the tails that take part in it."""

    reader: PartitionReader
    log: PartitionLog
    tails: set[SharedTail] = field(default_factory=set)
    _entry_s: float = DEFAULT_ENTRY_S  # seconds that one entry took
    _measured_channels: int = 1  # the number of channels when it was measured

    def estimate_entry_s(self) -> float:
        """Return the seconds of the last entry, in proportion to the channels added since."""
        channels = sum(len(tail.channels) for tail in self.tails)
        return self._entry_s * max(1.0, channels / self._measured_channels)

    def set_entry_s(self, seconds: float) -> None:
        self._entry_s = max(seconds, 1e-7)
        self._measured_channels = max(1, sum(len(tail.channels) for tail in self.tails))


@dataclass(eq=False)
class SharedReads:
    """Own the shared reads of one cluster, and apply what they deliver.

    `Hub` creates one at each start. Between turns of the loop, the logs and tails agree: whatever a
    log has was also published, except by a `SteppedTail`, which is behind its logs. A topic is open
    if it is in `by_topic`.

    Args:
        on_growth: Called after each flush with the bytes by which the logs grew.
        max_flush_s: The seconds of one flush, as estimated from what earlier entries cost.
        on_unreadable: Called with a record whose value is no JSON, where `transforms` look into it.
    """

    cluster: Cluster
    _get_topic_settings: Callable[[str], Topic]
    _pacing: BatchPacing = field(default_factory=BatchPacing)
    get_topic_model: Callable[[str], TopicModel | None] = get_no_model
    on_growth: Callable[[int], None] = lambda size: None
    max_flush_s: float = MAX_FLUSH_S
    on_unreadable: Callable[[Record], None] = lambda record: None
    by_partition: dict[TopicPartition, SharedRead] = field(default_factory=dict)
    by_topic: dict[str, list[SharedRead]] = field(default_factory=dict)
    _watched_topics: set[str] = field(default_factory=set)  # by `watch_topic`
    _tails: dict[str, set[SharedTail]] = field(default_factory=dict)
    # Topics that metadata does not know yet, with the time at which the first client came.
    _unknown_topics: dict[str, LiveStart] = field(default_factory=dict)
    _transformers: dict[str, Transformer] = field(default_factory=dict)
    _pending_entries: list[PendingEntries] = field(default_factory=list)
    _has_pending_control: bool = False  # some pending entries are control entries
    _has_pending_rest: bool = False  # some were left over by the last flush
    _pushes_due: int = 0  # how many pushes had been scheduled when the last flush ended

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.fetcher = Fetcher(
            self.cluster,
            self.on_entries,
            pause=self._pacing.pause,
            get_topic_model=self.get_topic_model,
        )
        self._unlisten = self.cluster.metadata.add_listener(self._on_metadata_change)

    async def close(self) -> None:
        self._unlisten()
        await self.fetcher.close()

    def watch_topic(self, topic: str, described: TopicMetadata | None = None) -> None:
        """Watch a topic until `close_topic`; the hub's sweep closes one that is not used."""
        self._watched_topics.add(topic)
        self.cluster.metadata.watch(topic, described)

    def open_topic(self, topic: str) -> list[SharedRead]:
        """Return the reads of all partitions that metadata knows, or knew; begin missing ones."""
        metadata = self.cluster.get_topic(topic)
        partitions = set(metadata.partitions) if metadata is not None else set()
        partitions |= {read.log.tp.partition for read in self.by_topic.get(topic, ())}
        return [
            self._get_read(TopicPartition(topic, partition), None)
            for partition in sorted(partitions)
        ]

    def close_topic(self, topic: str) -> None:
        """Stop reading and watching a topic, which no tail has any more."""
        if topic in self.by_topic:
            log.debug("topic closed topic=%s", topic, extra={"topic": topic})
        for read in self.by_topic.pop(topic, ()):
            self.fetcher.remove_partition(read.log.tp)
            del self.by_partition[read.log.tp]
        self._tails.pop(topic, None)
        self._unknown_topics.pop(topic, None)
        self._transformers.pop(topic, None)  # it may be opened again with other settings
        self._watched_topics.discard(topic)
        self.cluster.metadata.unwatch(topic)

    @property
    def topics(self) -> set[str]:
        """Return the topics that are read or that a tail waits for."""
        return self.by_topic.keys() | self._tails.keys()

    @property
    def watched_topics(self) -> AbstractSet[str]:
        return self._watched_topics

    def attach_tail(self, shared_tail: SharedTail) -> None:
        """Let a new tail take part in its partitions, and watch its topics: they may be created.

        Raises Busy if too many topics would be watched that do not exist.
        """
        unknown = shared_tail.tail.topic_ids.keys() - self.by_topic.keys()
        if unknown and len(self._unknown_topics.keys() | unknown) > MAX_UNKNOWN_TOPICS:
            detail = "too many topics that do not exist are waited for; come back later"
            raise Busy(503, detail, retry_after=random.uniform(3.0, 10.0))
        for topic in shared_tail.tail.topic_ids:
            self._tails.setdefault(topic, set()).add(shared_tail)
            if topic not in self.by_topic and topic not in self._unknown_topics:
                # Metadata knows no partition yet, so this start holds for all of them.
                self._unknown_topics[topic] = self._build_live_start(
                    TopicPartition(topic, 0), self._get_topic_settings(topic)
                )
                self.watch_topic(topic)
        for tp in shared_tail.tail.logs:
            read = self.by_partition[tp]
            read.tails.add(shared_tail)
            self._mark_pending(shared_tail.tail, read)

    def detach_tail(self, shared_tail: SharedTail) -> None:
        # Topics that no tail has any more stay open: the hub's sweep closes them.
        for topic in shared_tail.tail.topic_ids:
            self._tails[topic].discard(shared_tail)
        for tp in shared_tail.tail.logs:
            if tp in self.by_partition:
                self.by_partition[tp].tails.discard(shared_tail)

    def refresh_readiness(self, shared_tail: SharedTail) -> None:
        """Update which partitions of a tail can be read.

        Partitions that failed are pending again, and so are those whose leader has not answered for
        `STALE_S`: a leader that froze does not report it.
        """
        now = self._loop.time()
        if now - shared_tail.refreshed_at < READINESS_REFRESH_S:
            return
        shared_tail.refreshed_at = now
        reads = [(tp, self.by_partition.get(tp)) for tp in shared_tail.tail.logs]
        readers = [(tp, read.reader) for tp, read in reads if read is not None]
        shared_tail.resolving_readers = [
            reader for _, reader in readers if reader.state is ReaderState.RESOLVING
        ]
        for tp, reader in readers:
            if reader.is_ready and now - reader.last_response_at > STALE_S:
                reader.is_ready = False  # so that its next answer brings a `Ready` again
                _log_partition(tp, "pending cause=silent leader=%s", reader.leader)
            if reader.is_ready:
                shared_tail.tail.readiness.mark_ready(tp)
            else:
                shared_tail.tail.readiness.mark_pending(tp)

    def is_resolving(self, shared_tail: SharedTail, since: float) -> bool:
        """Return whether a leader that was asked after `since` for a partition's end is silent.

        It looks at the partitions of the last `refresh_readiness`.
        """
        return any(
            isinstance(reader.start, LiveStart)
            and reader.state is ReaderState.RESOLVING
            and reader.leader is not None
            and reader.start.connected_at > since
            for reader in shared_tail.resolving_readers
        )

    def pin_starts(self, pending: Iterable[TopicPartition]) -> None:
        """Keep the starts of the partitions without which a client begins now."""
        for tp in pending:
            read = self.by_partition.get(tp)
            if read is not None and read.log.next_offset is None:
                read.reader.pin_start()

    def flush(self) -> None:
        """Apply the entries that arrived since the last flush, as many as one turn may take.

        Clients are offered the entries of the last flush first. Otherwise attached clients would
        fall out of the ring of their channel, and count as slow, for chunks that were never written
        to them.
        """
        pacing = self._pacing
        # Records wait until the pushes of the last flush have run, and while a round is under way
        # if there is more than one flush can take. Control entries never wait.
        waits = pacing.pushes_done < self._pushes_due or (
            self._has_pending_rest and pacing.has_rounds
        )
        if waits and not self._has_pending_control:
            pacing.is_behind = True
            self._loop.call_soon(self.flush)
            return
        began = perf_counter()
        pending = self._take_pending(only_control=waits)
        self._pacing.is_single = len(pending) == 1 and len(pending[0][1]) == 1
        now, wall = self._loop.time(), int(time.time())
        entries_by_tail: dict[SharedTail, list[Entry]] = {}
        reads: list[SharedRead] = []
        grown = 0
        for reader, entries in pending:
            read = self.by_partition.get(reader.tp)
            if read is None or read.reader is not reader:
                continue  # it was closed, and perhaps opened again with other transforms
            reads.append(read)
            bytes_before = read.log.bytes
            for entry in entries:
                self._append_to_log(read.log, entry, now)
            grown += read.log.bytes - bytes_before
            # Published only when all logs have what this turn brought: a client may join from the
            # log of one partition to a chunk that has entries of another.
            for tail in read.tails:
                entries_by_tail.setdefault(tail, []).extend(entries)
        ends = perf_counter()
        # All costs are seconds per entry: an entry is appended once, and published by each tail.
        append_s = (ends - began) / max(1, sum(len(entries) for _, entries in pending))
        publish_s: dict[SharedTail, float] = {}
        for tail, tail_entries in entries_by_tail.items():
            tail.publish(tail_entries, wall)
            starts, ends = ends, perf_counter()
            publish_s[tail] = (ends - starts) / max(1, len(tail_entries))
        for read in reads:
            read.set_entry_s(append_s + sum(publish_s.get(tail, 0.0) for tail in read.tails))
        self._pushes_due = pacing.pushes_scheduled
        self.on_growth(max(0, grown))
        self._pacing.record_cost(perf_counter() - began)

    def _take_pending(self, *, only_control: bool) -> list[PendingEntries]:
        """Return the entries to apply in this turn, and schedule another flush for the rest.

        Control entries (a partition is ready, failed or went back) are applied at once, with
        everything that their partition delivered before them: the reader goes on meanwhile, and a
        client that begins would take the partition for pending, from a time on that is past
        already. Of the other entries, as many are returned as fit into `max_flush_s` by the
        estimate, and at least one; none with `only_control`.
        """
        taken, pending = (
            self._take_control() if self._has_pending_control else ([], self._pending_entries)
        )
        may_wait = only_control or bool(taken)
        remaining_s = 0.0 if only_control else self.max_flush_s
        remaining_s -= sum(len(entries) * self._estimate_cost(reader) for reader, entries in taken)
        # `may_wait`: this flush applies something already, so the next entry need not fit.
        for i, (reader, entries) in enumerate(pending):
            cost = self._estimate_cost(reader)
            count = int(max(0.0, remaining_s) / cost)
            if not count and not may_wait:
                count = 1
            if len(entries) > count:
                if count:
                    taken.append((reader, entries[:count]))
                    entries = entries[count:]
                self._pending_entries = [(reader, entries), *pending[i + 1 :]]
                self._loop.call_soon(self.flush)
                break
            taken.append((reader, entries))
            remaining_s -= len(entries) * cost
            may_wait = True
        else:
            self._pending_entries = []
        self._has_pending_rest = self._pacing.is_behind = bool(self._pending_entries)
        self._has_pending_control = False
        return taken

    def _take_control(self) -> tuple[list[PendingEntries], list[PendingEntries]]:
        """Return the entries of each partition up to its last control entry, and those after it."""
        # Of each partition with a control entry: the index of the last delivery that has one, and
        # the index after it within that delivery.
        ends: dict[TopicPartition, tuple[int, int]] = {}
        for index, (reader, entries) in enumerate(self._pending_entries):
            for i in range(len(entries) - 1, -1, -1):
                if type(entries[i]) not in RECORD_TYPES:
                    ends[reader.tp] = index, i + 1
                    break
        taken, rest = list[PendingEntries](), list[PendingEntries]()
        for index, (reader, entries) in enumerate(self._pending_entries):
            last, end = ends.get(reader.tp, (-1, 0))
            count = len(entries) if index < last else end if index == last else 0
            if count:
                taken.append((reader, entries[:count]))
            if count < len(entries):
                rest.append((reader, entries[count:]))
        return taken, rest

    def _estimate_cost(self, reader: PartitionReader) -> float:
        read = self.by_partition.get(reader.tp)
        return DEFAULT_ENTRY_S if read is None else read.estimate_entry_s()

    def _append_to_log(self, partition_log: PartitionLog, entry: Entry, now: float) -> None:
        tp = partition_log.tp
        if type(entry) is Ready:
            if partition_log.next_offset is None:  # else it is ready again: the log goes on
                partition_log.open(entry.next_offset, entry.epoch)
            start = "approximate" if entry.is_approximate else "exact"
            _log_partition(tp, "ready offset=%d start=%s", entry.next_offset, start)
        elif type(entry) is Fault:
            _log_partition(tp, "pending cause=%s", entry.cause)
        elif partition_log.next_offset is not None:
            partition_log.append(entry, now)
            if type(entry) is Gap:
                offset, end = entry.offset, entry.next_offset
                self.fetcher.reads.count_gap(tp.topic, entry.reason, end - offset)
                _log_partition(tp, "gap reason=%s from=%d to=%d", entry.reason, offset, end)

    def on_entries(self, reader: PartitionReader, entries: Sequence[Entry]) -> None:
        transformer = self._transformers.get(reader.tp.topic)
        if not self._pending_entries:  # else a flush is scheduled already
            rest = self._pacing.remaining_rest
            if rest > 0:
                self._loop.call_later(rest, self.flush)
            else:
                self._loop.call_soon(self.flush)
        if transformer is not None:
            entries = list(map(transformer, entries))
        if not self._has_pending_control:
            self._has_pending_control = any(type(entry) not in RECORD_TYPES for entry in entries)
        self._pending_entries.append((reader, entries))

    def _get_read(self, tp: TopicPartition, start: Start | None) -> SharedRead:
        """Return the shared read of a partition; begin it at `start`, or at the present end."""
        read = self.by_partition.get(tp)
        if read is None:
            topic = self._get_topic_settings(tp.topic)
            reader = create_reader(tp, start or self._build_live_start(tp, topic), topic)
            partition_log = PartitionLog(tp, topic.cache.bytes, topic.cache.age)
            read = self.by_partition[tp] = SharedRead(reader, partition_log)
            self.by_topic.setdefault(tp.topic, []).append(read)
            if topic.transforms:
                self._transformers.setdefault(
                    tp.topic, Transformer(topic.transforms, self.on_unreadable)
                )
            self.fetcher.add_partition(reader, read_committed=topic.isolation == "read_committed")
        return read

    def _build_live_start(self, tp: TopicPartition, topic: Topic) -> LiveStart:
        metadata = self.cluster.get_topic(tp.topic)
        partition = metadata.partitions.get(tp.partition) if metadata is not None else None
        return LiveStart(
            connected_at_ms=int(time.time() * 1000),
            connected_at=self._loop.time(),
            epoch=NO_EPOCH if partition is None else partition.leader_epoch,
            was_leaderless=partition is not None and partition.leader < 0,
            clock_skew_ms=int(topic.clock_skew * 1000),
        )

    def _mark_pending(self, tail: Tail, read: SharedRead) -> None:
        """Tell a tail since when it waits for a partition that has not been read yet."""
        start = read.reader.start
        if read.log.next_offset is not None:
            return
        if isinstance(start, LiveStart):
            # A pending position with an epoch is resolved at the end of that epoch, which is exact
            # only if nobody led the partition, so that nothing was written before the next epoch.
            epoch = start.epoch if start.was_leaderless else NO_EPOCH
            tail.mark_pending_since(read.log.tp, epoch, start.connected_at_ms // 1000)
        elif isinstance(start, OffsetStart):
            tail.add_partition(read.log, PartitionPosition(start.offset, start.epoch))
        elif not isinstance(start, TimestampStart):
            assert_never(start)

    def _on_metadata_change(self, change: TopicChange) -> None:
        """Begin to read partitions that are new to metadata.

        Those added to a known topic are read from their first record on, those of a topic that was
        not known from where they ended when the first client came.
        """
        name = change.topic.name
        tails = self._tails.get(name)
        if tails is None:
            return
        for shared_tail in tails:
            shared_tail.tail.set_topic_id(name, str(change.topic.topic_id or ""))
        if change.is_recreated:  # until the gap of each partition, positions are of the old topic
            for read in self.by_topic.get(name, ()):
                _log_partition(read.log.tp, "retired cause=recreated")
        start = self._unknown_topics.pop(name, None) if change.topic.partitions else None
        for partition in change.topic.partitions:
            tp = TopicPartition(name, partition)
            if tp in self.by_partition:
                continue
            read = self._get_read(tp, start or OffsetStart(0))
            read.tails |= tails
            for shared_tail in tails:
                shared_tail.tail.add_partition(
                    read.log, PartitionPosition(0 if start is None else None)
                )
                if start is not None:
                    self._mark_pending(shared_tail.tail, read)


def _log_partition(tp: TopicPartition, text: str, *values: object) -> None:
    if log.isEnabledFor(logging.DEBUG):
        text = f"partition {text} topic=%s partition=%d"
        log.debug(text, *values, tp.topic, tp.partition, extra=tp._asdict())


def create_reader(tp: TopicPartition, start: Start, topic: Topic) -> PartitionReader:
    backoff = Backoff(topic.reconnect.max, random.random, topic.reconnect.initial)
    return PartitionReader(tp, start, OutOfRangePolicy(topic.offset_out_of_range), backoff)
