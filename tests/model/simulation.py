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
    Command,
    EpochEndCommand,
    FetchCommand,
    FetchResult,
    ListOffsetCommand,
)
from gateway.core.log.record import Entry, Record, Skip, TopicPartition
from gateway.core.log.recovery import Cause

TOPIC = "t"
MAX_FETCH_SLOTS = 4


class Transaction:
    def __init__(self) -> None:
        self.state = "open"


class Slot:
    """One offset of a log. A control record has no value."""

    __slots__ = (
        "epoch",
        "incarnation",
        "is_compacted",
        "is_control",
        "key",
        "offset",
        "previous",
        "serial",
        "timestamp",
        "transaction",
        "value",
    )

    def __init__(self, prev, offset, epoch, life, serial, timestamp, key, value, transaction):
        self.previous: Slot | None = prev
        self.offset: int = offset
        self.epoch: int = epoch
        self.incarnation: int = life
        self.serial: int = serial
        self.timestamp: int = timestamp
        self.key: bytes | None = key
        self.value: bytes = value
        self.transaction: Transaction | None = transaction
        self.is_control = False
        self.is_compacted = False

    @property
    def must_deliver(self) -> bool:
        """Must those who read past it have seen it?"""
        if self.is_control or self.is_compacted:
            return False
        return self.transaction is None or self.transaction.state == "committed"


class KnownPartition(NamedTuple):
    """What metadata says of one partition."""

    has_leader: bool
    epoch: int


class Metadata(NamedTuple):
    topic_id: str
    incarnation: int
    partitions: tuple[KnownPartition, ...]


class RefusedAnswer(NamedTuple):
    cause: Cause


class ListedOffset(NamedTuple):
    offset: int | None
    epoch: int


class EpochEndAnswer(NamedTuple):
    epoch: int
    end_offset: int


@dataclass
class Partition:
    tp: TopicPartition
    incarnation: int
    slots: list[Slot] = field(default_factory=list)
    log_start: int = 0
    epoch: int = 0
    has_leader: bool = True
    is_frozen: bool = False
    truncations: list[list[Slot]] = field(default_factory=list)  # the slots that each one took
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    open_transactions: dict[int, tuple[Transaction, int]] = field(default_factory=dict)

    @property
    def end_offset(self) -> int:
        return len(self.slots)

    @property
    def stable_offset(self) -> int:
        return min((first for _, first in self.open_transactions.values()), default=self.end_offset)

    def append_slot(self, serial: int, timestamp: int, key, value, transaction=None) -> Slot:
        prev = self.slots[-1] if self.slots else None
        slot = Slot(
            prev,
            self.end_offset,
            self.epoch,
            self.incarnation,
            serial,
            timestamp,
            key,
            value,
            transaction,
        )
        self.slots.append(slot)
        return slot

    # what its leader answers

    def answer_request(self, command: Command, epoch: int, timestamps_from: int) -> object:
        if not self.has_leader:
            return RefusedAnswer(Cause.NO_LEADER)
        if epoch != self.epoch:
            return RefusedAnswer(Cause.NOT_LEADER)
        if isinstance(command, FetchCommand):
            return self._answer_fetch(command.offset)
        if isinstance(command, ListOffsetCommand):
            return self._list_offset(command)
        assert isinstance(command, EpochEndCommand)
        return self._find_epoch_end(command.epoch)

    def _answer_fetch(self, offset: int) -> object:
        if not self.log_start <= offset <= self.end_offset:
            return RefusedAnswer(Cause.OUT_OF_RANGE)
        upto = min(self.stable_offset, offset + MAX_FETCH_SLOTS)
        entries: list[Entry] = []
        at, epoch = offset, -1
        for slot in self.slots[offset:upto]:
            epoch = slot.epoch
            if slot.must_deliver:
                entries.append(
                    Record(self.tp, slot.offset, epoch, slot.timestamp, slot.key, slot.value)
                )
                at = slot.offset + 1
            elif slot.is_control or slot.offset + 1 == upto:
                entries.append(Skip(self.tp, at, slot.offset + 1, epoch))
                at = slot.offset + 1
        return FetchResult(entries, at, epoch, self.end_offset, self.stable_offset, self.log_start)

    def _list_offset(self, command: ListOffsetCommand) -> ListedOffset:
        if command.timestamp == EARLIEST:
            epoch = (
                self.slots[self.log_start].epoch if self.log_start < self.end_offset else self.epoch
            )
            return ListedOffset(self.log_start, epoch)
        if command.timestamp == LATEST:
            return ListedOffset(
                self.stable_offset if command.is_stable else self.end_offset, self.epoch
            )
        for slot in self.slots[self.log_start : self.stable_offset]:
            if slot.timestamp >= command.timestamp and not slot.is_control:
                return ListedOffset(slot.offset, slot.epoch)
        return ListedOffset(None, -1)

    def _find_epoch_end(self, epoch: int) -> EpochEndAnswer:
        if epoch == self.epoch:
            return EpochEndAnswer(epoch, self.end_offset)
        after = [start for known, start in self.epochs if known > epoch]
        upto = [known for known, _ in self.epochs if known <= epoch]
        if not after:
            return EpochEndAnswer(-1, -1)
        return EpochEndAnswer(max(upto, default=epoch), max(self.log_start, min(after)))


class SimulatedBrokers:
    """One topic of some partitions, and what its brokers believe about it."""

    def __init__(self, partitions: int) -> None:
        self.incarnation = 0
        self.serial = 0
        self.slots_by_value: dict[bytes, Slot] = {}
        self.incarnations: list[list[Partition]] = []
        self._create_partitions(partitions)
        self.metadata: list[Metadata] = []
        self.publish_metadata()

    @property
    def partitions(self) -> list[Partition]:
        return self.incarnations[-1]

    @property
    def topic_id(self) -> str:
        return f"id{self.incarnation}"

    def publish_metadata(self) -> None:
        """The brokers learn how things are now; some go on saying how they were."""
        known = tuple(KnownPartition(p.has_leader, p.epoch) for p in self.partitions)
        now = Metadata(self.topic_id, self.incarnation, known)
        if not self.metadata or self.metadata[-1] != now:
            self.metadata.append(now)

    def append_record(self, p: Partition, timestamp: int, key: bytes, transaction=None) -> Slot:
        self.serial += 1
        value = b"v%d" % self.serial
        slot = self.slots_by_value[value] = p.append_slot(
            self.serial, timestamp, key, value, transaction
        )
        return slot

    def begin_transaction(self, p: Partition, timestamp: int, key: bytes) -> None:
        transaction = Transaction()
        slot = self.append_record(p, timestamp, key, transaction)
        p.open_transactions[slot.serial] = (transaction, slot.offset)

    def finish_transaction(self, p: Partition, timestamp: int, which: int, commit: bool) -> None:
        serial = list(p.open_transactions)[which % len(p.open_transactions)]
        transaction, _ = p.open_transactions.pop(serial)
        transaction.state = "committed" if commit else "aborted"
        slot = self.append_record(p, timestamp, b"", transaction)
        slot.is_control = True

    def advance_log_start(self, p: Partition, start: int) -> None:
        p.log_start = max(p.log_start, min(start, p.stable_offset))

    def compact_slot(self, p: Partition, offset: int) -> bool:
        """Is it gone? The latest of each key stays."""
        if not p.log_start <= offset < p.stable_offset or p.slots[offset].is_control:
            return False
        slot = p.slots[offset]
        later = (each for each in p.slots[offset + 1 : p.stable_offset] if each.key == slot.key)
        if any(each.must_deliver for each in later):
            slot.is_compacted = True
        return slot.is_compacted

    def lose_leader(self, p: Partition) -> None:
        p.has_leader = False
        p.epoch += 1
        self.publish_metadata()

    def elect_leader(self, p: Partition, lost: int = 0) -> None:
        """A new leader; an unclean one comes without the last `lost` slots."""
        p.has_leader, p.is_frozen = True, False
        p.epoch += 1
        if lost:
            self._truncate(p, max(p.log_start, p.end_offset - lost))
        p.epochs.append((p.epoch, p.end_offset))
        self.publish_metadata()

    def _truncate(self, p: Partition, end: int) -> None:
        """A transaction is never cut in two: what became of its rest would be undefined."""
        while True:
            cut = {id(slot.transaction) for slot in p.slots[end:] if slot.transaction}
            split = [s.offset for s in p.slots[p.log_start : end] if id(s.transaction) in cut]
            if not split:
                break
            end = split[0]
        # one that began before the log start is cut all the same
        for serial, (_, first) in list(p.open_transactions.items()):
            if first >= end:
                del p.open_transactions[serial]
        p.truncations.append(p.slots[end:])
        del p.slots[end:]
        p.epochs = [(epoch, start) for epoch, start in p.epochs if start < end]

    def recreate_topic(self, partitions: int) -> None:
        self.incarnation += 1
        self._create_partitions(partitions)
        self.publish_metadata()

    def add_partition(self) -> None:
        self.partitions.append(
            Partition(TopicPartition(TOPIC, len(self.partitions)), self.incarnation)
        )
        self.publish_metadata()

    def _create_partitions(self, partitions: int) -> None:
        self.incarnations.append(
            [Partition(TopicPartition(TOPIC, n), self.incarnation) for n in range(partitions)]
        )
