"""A partition with keys, a log of it with or without an index of keys, and a client of few keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from support.per_event_encoder import PerEventEncoder

from gateway.core.channel.channel import Channel
from gateway.core.channel.dispatcher import ChannelDispatcher
from gateway.core.channel.filters import Filters
from gateway.core.channel.tail import Tail
from gateway.core.client.read_buffer import ReadAnswer
from gateway.core.client.snapshot import Snapshot
from gateway.core.client.subscription import Subscription
from gateway.core.client.terms import DEFAULT_TERMS, SubscriptionTerms
from gateway.core.log.key_index import MIN_SCANNED_ENTRIES, SCANS_PER_ENTRY
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import (
    Entry,
    Gap,
    PartitionPosition,
    Ready,
    Record,
    SnapshotEnd,
    StreamItem,
    TopicPartition,
)
from gateway.core.token.resume_token import parse_token
from gateway.telemetry.traffic import StreamCounts

TP = TopicPartition("orders", 0)
VALUE = bytes(4096)  # large, so that the index of a short log is small beside its records


def scan_keys(log: PartitionLog, offset: int | None = None) -> None:
    """Look for a key from an offset on, or from the log's start, until an index pays."""
    start = log.start_offset if offset is None else offset
    assert start is not None
    entries = max(1, sum(1 for _ in log.iter_entries(start)))
    for _ in range(1 + max(SCANS_PER_ENTRY, MIN_SCANNED_ENTRIES // entries)):
        for _ in log.iter_key_entries(start, {b"no such key"}):
            pass


def build_index(log: PartitionLog, max_entries: int = 1000) -> int:
    """Do all the work that the log needs; return in how many slices."""
    slices = 1
    while log.build_key_index(max_entries):
        slices += 1
    return slices


class OffsetEncoder(PerEventEncoder):
    """One line an event: what it is, its offset, and the offset of its id."""

    def encode_entry(self, entry: StreamItem) -> bytes | None:
        if type(entry) is Record:
            return b"record %d" % entry.offset
        if type(entry) is SnapshotEnd:
            return b"snapshot-end"
        return b"gap %d %d" % (entry.offset, entry.next_offset) if type(entry) is Gap else None

    def encode_position(self) -> bytes:
        return b"position"

    def encode_event_end(self, token: bytes | None) -> bytes:
        offset = None if token is None else parse_token(token.decode()).topics[0].offsets[0]
        return b"\n" if offset is None else b" -> %d\n" % offset


class KeyedPartition:
    """A partition, the gateway that reads it, and one client of a filtered view.

    has_snapshot: the client begins with the latest record of each key, as one that resumed within
    its snapshot. history: what Kafka has, of the present lineage. lines: all that it was sent.
    """

    def __init__(
        self,
        filters: Filters,
        terms: SubscriptionTerms = DEFAULT_TERMS,
        *,
        has_snapshot: bool = False,
    ) -> None:
        self.log = PartitionLog(TP, 1 << 30, 1e9)
        self.log.open(0, 0)
        self.tail = Tail("cluster", [self.log], {"orders": "id"})
        self.channel = Channel(self.tail, b"view-", OffsetEncoder(), filters)
        self._dispatcher = ChannelDispatcher(self.tail)
        self._dispatcher.add(self.channel, filters)
        self._dispatcher.publish(self.tail.apply_entries([Ready(TP, 0, 0, 0)], 1))
        self.traffic, self.terms = StreamCounts(), terms
        self.history: list[Entry] = []
        self.lines: list[str] = []
        snapshot = Snapshot(("orders",), {TP}, set()) if has_snapshot else None
        self.subscription = self._subscribe(PartitionPosition(0), replace(terms, snapshot=snapshot))

    def append(self, *entries: Entry) -> None:
        """In one turn of the loop."""
        for entry in entries:
            self.log.append(entry, 0.0)
            if entry.next_offset < entry.offset:
                self.history = [e for e in self.history if e.next_offset <= entry.next_offset]
            else:
                self.history.append(entry)
        self._dispatcher.publish(self.tail.apply_entries(entries, 1))

    def append_keys(self, *keys: bytes | None) -> None:
        """Append a record of each of these keys."""
        first, epoch = self.log.next_offset or 0, self.log.epoch
        self.append(*[Record(TP, first + n, epoch, 0, key, VALUE) for n, key in enumerate(keys)])

    def drop_oldest(self, count: int) -> None:
        """Drop so many entries of the log; Kafka keeps them."""
        for _ in range(count):
            self.log.shrink(self.log.bytes - 1)

    def reconnect(self) -> None:
        """Come back from where the client stood, with what was left of its credit."""
        position, credit = self.subscription.get_position()[TP], self.subscription.credit
        self.subscription.close()
        terms = SubscriptionTerms(
            self.terms.slow_policy,
            self.terms.end_offsets,
            self.subscription.remaining_records,
            credit,
        )
        self.subscription = self._subscribe(position, terms)

    def take_all(self, max_bytes: int) -> None:
        """Let the client take until there is no more."""
        idle = 0
        while idle < 3 and not self.subscription.end_reason:
            self._feed_backfill()
            data = self.subscription.take(max_bytes, 0.0)
            self.lines += data.decode().splitlines()
            idle = 0 if data or self.subscription.has_more else idle + 1

    def get_looked_at(self) -> int:
        """How many entries of the log the client has looked at."""
        return self.traffic.catch_up_records["cache"]

    def _subscribe(self, position: PartitionPosition, terms: SubscriptionTerms) -> Subscription:
        positions = {} if position == self.tail.position[TP] else {TP: position}
        return Subscription(self.channel, positions, terms, self.traffic)

    def _feed_backfill(self) -> None:
        reader = self.subscription.private_reader
        for tp, position in () if reader is None else reader.list_backfills():
            following: Sequence[Entry] = [
                each for each in self.history if each.next_offset > (position.offset or 0)
            ]
            snapshot = self.subscription.snapshot
            if snapshot is not None and snapshot.needs_data(tp):
                reader.set_snapshot_end(tp, self.log.next_offset or 0)  # type: ignore[union-attr]
                continue
            if following:
                run = ReadAnswer(following[:3]).get_run()
                reader.feed(tp, position, run)  # type: ignore[union-attr]
