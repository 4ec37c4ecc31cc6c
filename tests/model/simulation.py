"""A Kafka that fits in a page: what its logs hold, and what its leaders answer.

It answers as Kafka 4 does where that matters to a reader: read_committed up to the last
stable offset, holes of compaction, retention, leader epochs with their ends (KIP-320), topic
ids (KIP-516), requests fenced by epoch. Every slot knows the one that was before it when it
was written, so that an oracle can walk the log as it was then, whatever became of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.core.log.partition_reader import (
    EARLIEST,
    LATEST,
    EpochEnd,
    Fetch,
    Fetched,
    ListOffset,
    Todo,
)
from gateway.core.log.record import Entry, Record, Skip, TopicPartition
from gateway.core.log.recovery import Cause

TOPIC = "t"
FETCH_SLOTS = 4


class Transaction:
    def __init__(self) -> None:
        self.state = "open"


class Slot:
    """One offset of a log. A control record has no value."""

    __slots__ = (
        "compacted",
        "control",
        "epoch",
        "key",
        "life",
        "offset",
        "prev",
        "serial",
        "timestamp",
        "transaction",
        "value",
    )

    def __init__(self, prev, offset, epoch, life, serial, timestamp, key, value, transaction):
        self.prev: Slot | None = prev
        self.offset: int = offset
        self.epoch: int = epoch
        self.life: int = life
        self.serial: int = serial
        self.timestamp: int = timestamp
        self.key: bytes | None = key
        self.value: bytes = value
        self.transaction: Transaction | None = transaction
        self.control = False
        self.compacted = False

    @property
    def delivers(self) -> bool:
        """Must those who read past it have seen it?"""
        if self.control or self.compacted:
            return False
        return self.transaction is None or self.transaction.state == "committed"


class Known(NamedTuple):
    """What metadata says of one partition."""

    leader: bool
    epoch: int


class Metadata(NamedTuple):
    topic_id: str
    life: int
    partitions: tuple[Known, ...]


class Refused(NamedTuple):
    cause: Cause


class Listed(NamedTuple):
    offset: int | None
    epoch: int


class Ended(NamedTuple):
    epoch: int
    end: int


@dataclass
class Partition:
    tp: TopicPartition
    life: int
    slots: list[Slot] = field(default_factory=list)
    start: int = 0
    epoch: int = 0
    leader: bool = True
    frozen: bool = False
    cuts: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    open: dict[int, tuple[Transaction, int]] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return len(self.slots)

    @property
    def stable(self) -> int:
        return min((first for _, first in self.open.values()), default=self.end)

    def append(self, serial: int, timestamp: int, key, value, transaction=None) -> Slot:
        prev = self.slots[-1] if self.slots else None
        slot = Slot(
            prev, self.end, self.epoch, self.life, serial, timestamp, key, value, transaction
        )
        self.slots.append(slot)
        return slot

    # what its leader answers

    def answer(self, todo: Todo, epoch: int, timestamps_from: int) -> object:
        if not self.leader:
            return Refused(Cause.NO_LEADER)
        if epoch != self.epoch:
            return Refused(Cause.NOT_LEADER)
        if isinstance(todo, Fetch):
            return self._fetch(todo.offset)
        if isinstance(todo, ListOffset):
            return self._list(todo)
        assert isinstance(todo, EpochEnd)
        return self._epoch_end(todo.epoch)

    def _fetch(self, offset: int) -> object:
        if not self.start <= offset <= self.end:
            return Refused(Cause.OUT_OF_RANGE)
        upto = min(self.stable, offset + FETCH_SLOTS)
        entries: list[Entry] = []
        at, epoch = offset, -1
        for slot in self.slots[offset:upto]:
            epoch = slot.epoch
            if slot.delivers:
                entries.append(
                    Record(self.tp, slot.offset, epoch, slot.timestamp, slot.key, slot.value)
                )
                at = slot.offset + 1
            elif slot.control or slot.offset + 1 == upto:
                entries.append(Skip(self.tp, at, slot.offset + 1, epoch))
                at = slot.offset + 1
        return Fetched(entries, at, epoch, self.end, self.stable, self.start)

    def _list(self, todo: ListOffset) -> Listed:
        if todo.timestamp == EARLIEST:
            epoch = self.slots[self.start].epoch if self.start < self.end else self.epoch
            return Listed(self.start, epoch)
        if todo.timestamp == LATEST:
            return Listed(self.stable if todo.stable else self.end, self.epoch)
        for slot in self.slots[self.start : self.stable]:
            if slot.timestamp >= todo.timestamp and not slot.control:
                return Listed(slot.offset, slot.epoch)
        return Listed(None, -1)

    def _epoch_end(self, epoch: int) -> Ended:
        if epoch == self.epoch:
            return Ended(epoch, self.end)
        after = [start for known, start in self.epochs if known > epoch]
        upto = [known for known, _ in self.epochs if known <= epoch]
        if not after:
            return Ended(-1, -1)
        return Ended(max(upto, default=epoch), max(self.start, min(after)))


class Kafka:
    """One topic of some partitions, and what its brokers believe about it."""

    def __init__(self, partitions: int) -> None:
        self.life = 0
        self.serial = 0
        self.written: dict[bytes, Slot] = {}
        self.lives: list[list[Partition]] = []
        self._create(partitions)
        self.metadata: list[Metadata] = []
        self.publish()

    @property
    def partitions(self) -> list[Partition]:
        return self.lives[-1]

    @property
    def topic_id(self) -> str:
        return f"id{self.life}"

    def publish(self) -> None:
        """The brokers learn how things are now; some go on saying how they were."""
        known = tuple(Known(p.leader, p.epoch) for p in self.partitions)
        now = Metadata(self.topic_id, self.life, known)
        if not self.metadata or self.metadata[-1] != now:
            self.metadata.append(now)

    def append(self, p: Partition, timestamp: int, key: bytes, transaction=None) -> Slot:
        self.serial += 1
        value = b"v%d" % self.serial
        slot = self.written[value] = p.append(self.serial, timestamp, key, value, transaction)
        return slot

    def begin(self, p: Partition, timestamp: int, key: bytes) -> None:
        transaction = Transaction()
        slot = self.append(p, timestamp, key, transaction)
        p.open[slot.serial] = (transaction, slot.offset)

    def finish(self, p: Partition, timestamp: int, which: int, commit: bool) -> None:
        serial = list(p.open)[which % len(p.open)]
        transaction, _ = p.open.pop(serial)
        transaction.state = "committed" if commit else "aborted"
        slot = self.append(p, timestamp, b"", transaction)
        slot.control = True

    def retain(self, p: Partition, start: int) -> None:
        p.start = max(p.start, min(start, p.stable))

    def compact(self, p: Partition, offset: int) -> bool:
        """Is it gone? The latest of each key stays."""
        if not p.start <= offset < p.stable or p.slots[offset].control:
            return False
        slot = p.slots[offset]
        later = (each for each in p.slots[offset + 1 : p.stable] if each.key == slot.key)
        if any(each.delivers for each in later):
            slot.compacted = True
        return slot.compacted

    def lose_leader(self, p: Partition) -> None:
        p.leader = False
        p.epoch += 1
        self.publish()

    def elect(self, p: Partition, lost: int = 0) -> None:
        """A new leader; an unclean one comes without the last `lost` slots."""
        p.leader, p.frozen = True, False
        p.epoch += 1
        if lost:
            self._truncate(p, max(p.start, p.end - lost))
        p.epochs.append((p.epoch, p.end))
        self.publish()

    def _truncate(self, p: Partition, end: int) -> None:
        """A transaction is never cut in two: what became of its rest would be undefined."""
        p.cuts += 1
        while True:
            cut = {id(slot.transaction) for slot in p.slots[end:] if slot.transaction}
            split = [s.offset for s in p.slots[p.start : end] if id(s.transaction) in cut]
            if not split:
                break
            end = split[0]
        # one that began before the log start is cut all the same
        for serial, (_, first) in list(p.open.items()):
            if first >= end:
                del p.open[serial]
        del p.slots[end:]
        p.epochs = [(epoch, start) for epoch, start in p.epochs if start < end]

    def recreate(self, partitions: int) -> None:
        self.life += 1
        self._create(partitions)
        self.publish()

    def add_partition(self) -> None:
        self.partitions.append(Partition(TopicPartition(TOPIC, len(self.partitions)), self.life))
        self.publish()

    def _create(self, partitions: int) -> None:
        self.lives.append(
            [Partition(TopicPartition(TOPIC, n), self.life) for n in range(partitions)]
        )
