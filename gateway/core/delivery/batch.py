"""Define batches of records for a back end: their rules, their steps, and their outcomes."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from gateway.core.log.record import Record, TopicPartition


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """The limits and retries of one consumer's deliveries.

    Attributes:
        max_bytes: The largest size of a batch, in bytes of keys, values and headers; a larger
            record is sent alone.
        max_retries: How often a suspect batch, or one that was rolled back, is tried again.
        rollback_percent: The percentage of failed records from which on a batch is rolled back,
            that is, tried again as a whole; None for never. The retries are bounded because
            otherwise one bad record in a batch of three would be retried for ever at 30 percent.
        has_dead_letters: Whether failed records become dead letters; without them they are tried
            again for ever.
        first_delay: The delay before the first retry, in seconds; it doubles with each one.
        random: Draws a number from [0, 1).
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
    record: Record
    reason: str


class SendRecords(NamedTuple):
    records: Sequence[Record]
    attempt: int


class ProbeBackend(NamedTuple):
    reason: str


class SendToDeadLetters(NamedTuple):
    dead_letters: Sequence[DeadLetterRecord]


class WaitUntil(NamedTuple):
    until: float


DeliveryStep: TypeAlias = SendRecords | ProbeBackend | SendToDeadLetters | WaitUntil


class SettledRecords(NamedTuple):
    processed: Sequence[Record]
    dead_letters: Sequence[DeadLetterRecord]
    commit_offsets: dict[TopicPartition, int]


class DeliveryStage(Enum):
    SEND = "send"
    PROBE = "probe"
    DEAD_LETTER = "dead letter"


@dataclass(slots=True, eq=False)
class DeliverySlice:
    """Records that are sent together, and the attempts so far.

    Owned by a `DeliveryQueue`. `dead_letters` are set only in the stage DEAD_LETTER, and
    `unwritten_dead_letters` are those of them that are still to be written.

    Attributes:
        attempts: How often the batch failed by its own fault.
        late_count: How often the back end took it and did not answer in time.
        reason: Why the batch is suspect.
        dropped_partitions: Partitions that were lost while the batch was in flight; their records
            are removed when its answer arrives.
    """

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
        self.records = [record for record in self.records if record.tp not in tps]
        self.dead_letters = [item for item in self.dead_letters if item.record.tp not in tps]
        self.unwritten_dead_letters = [
            item for item in self.unwritten_dead_letters if item.record.tp not in tps
        ]

    def mark_dead(self, dead_letters: Iterable[DeadLetterRecord]) -> None:
        self.stage, self.dead_letters = DeliveryStage.DEAD_LETTER, list(dead_letters)
        self.unwritten_dead_letters = self.dead_letters
