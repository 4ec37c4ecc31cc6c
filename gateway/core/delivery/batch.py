"""A batch of records for a back end: by which rules it goes, in which steps, and what it came to.

`lane` decides; these are its words.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from gateway.core.log.record import Record, TopicPartition


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """records, bytes (of keys and values): the most of a batch; a larger record goes alone.

    retries:      of a suspect batch, and of one rolled back.
    threshold:    percent of failed records by which a batch is rolled back, that is tried again
                  as a whole; None for never. At most `retries` times: for ever would be what one
                  bad record in a batch of three makes of 30 percent.
    dead_letters: False: a record that fails is tried again for ever.
    first, ceiling: of the delays between tries, seconds. draw: from [0, 1).
    """

    max_records: int = 100
    max_bytes: int = 204_800
    max_retries: int = 3
    rollback_percent: float | None = 30.0
    has_dead_letters: bool = True
    first_delay: float = 1.0
    max_delay: float = 30.0
    random: Callable[[], float] = random.random


class DeadLetterRecord(NamedTuple):
    """A record that is given up, and why."""

    record: Record
    reason: str


class SendRecords(NamedTuple):
    """To the back end. attempt: how often it went before."""

    records: Sequence[Record]
    attempt: int


class ProbeBackend(NamedTuple):
    """Ask the back end whether it is well."""

    reason: str


class SendToDeadLetters(NamedTuple):
    """To the dead letters."""

    dead_letters: Sequence[DeadLetterRecord]


class WaitUntil(NamedTuple):
    until: float


DeliveryStep: TypeAlias = SendRecords | ProbeBackend | SendToDeadLetters | WaitUntil


class SettledRecords(NamedTuple):
    """Done with. points: what may be committed by it, the next offset of each partition."""

    processed: Sequence[Record]
    dead_letters: Sequence[DeadLetterRecord]
    commit_offsets: dict[TopicPartition, int]


class DeliveryStage(Enum):
    SEND = "send"
    PROBE = "probe"
    DEAD_LETTER = "bury"


@dataclass(slots=True, eq=False)
class DeliverySlice:
    """What is sent together. dropped: partitions that went while it was under way."""

    records: list[Record]
    attempts: int = 0
    send_count: int = 0
    late_count: int = 0
    stage: DeliveryStage = DeliveryStage.SEND
    reason: str = ""
    dead_letters: list[DeadLetterRecord] = field(default_factory=list)
    unwritten_dead_letters: list[DeadLetterRecord] = field(default_factory=list)
    dropped_partitions: set[TopicPartition] = field(default_factory=set)

    def remove_partitions(self, tps: Collection[TopicPartition]) -> None:
        self.records = [each for each in self.records if each.tp not in tps]
        self.dead_letters = [each for each in self.dead_letters if each.record.tp not in tps]
        self.unwritten_dead_letters = [
            each for each in self.unwritten_dead_letters if each.record.tp not in tps
        ]

    def mark_dead(self, dead_letters: Iterable[DeadLetterRecord]) -> None:
        self.stage, self.dead_letters = DeliveryStage.DEAD_LETTER, list(dead_letters)
        self.unwritten_dead_letters = self.dead_letters


def payload_size(record: Record) -> int:
    """Bytes of its key and value."""
    return len(record.key or b"") + len(record.value or b"")
