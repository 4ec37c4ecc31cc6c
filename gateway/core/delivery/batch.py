"""Define batches of records for a back end: their rules, their steps, and what became of them.

`delivery_queue` decides with these types.
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
    """The limits and retries of one consumer's deliveries.

    Attributes:
        max_records: The largest number of records in a batch.
        max_bytes: The largest size of a batch, in bytes of keys, values and headers; a larger
            record is sent alone.
        max_retries: How often a suspect batch, or one that was rolled back, is tried again.
        rollback_percent: The percentage of failed records from which on a batch is rolled back,
            that is, tried again as a whole; None for never. The retries are bounded because
            otherwise one bad record in a batch of three would be retried for ever at 30 percent.
        has_dead_letters: Whether failed records become dead letters; without them they are tried
            again for ever.
        first_delay: The delay before the first retry, in seconds; it doubles with each one.
        max_delay: The largest delay between retries, in seconds.
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
    """A record that is given up, and the reason."""

    record: Record
    reason: str


class SendRecords(NamedTuple):
    """The step to send a batch to the back end.

    Attributes:
        attempt: How often the batch was sent before.
    """

    records: Sequence[Record]
    attempt: int


class ProbeBackend(NamedTuple):
    """The step to ask the back end whether it is healthy.

    Attributes:
        reason: Why the batch at hand is suspect.
    """

    reason: str


class SendToDeadLetters(NamedTuple):
    """The step to write records to the dead letters."""

    dead_letters: Sequence[DeadLetterRecord]


class WaitUntil(NamedTuple):
    """The step to do nothing before a time, in seconds of the clock of `next_step`."""

    until: float


DeliveryStep: TypeAlias = SendRecords | ProbeBackend | SendToDeadLetters | WaitUntil


class SettledRecords(NamedTuple):
    """Records that are done with.

    Attributes:
        processed: Those that the back end processed.
        dead_letters: Those that were given up.
        commit_offsets: What may be committed now: the next offset of each partition.
    """

    processed: Sequence[Record]
    dead_letters: Sequence[DeadLetterRecord]
    commit_offsets: dict[TopicPartition, int]


class DeliveryStage(Enum):
    """What is to be done with a batch next."""

    SEND = "send"
    PROBE = "probe"
    DEAD_LETTER = "dead letter"


@dataclass(slots=True, eq=False)
class DeliverySlice:
    """Records that are sent together, and what was tried with them.

    Owned by a `DeliveryQueue`. `dead_letters` are set only in the stage DEAD_LETTER, and
    `unwritten_dead_letters` are those of them that are still to be written.

    Attributes:
        records: The records, each partition's in order.
        attempts: How often the batch failed by its own fault.
        send_count: How often it was sent.
        late_count: How often the back end took it and did not answer in time.
        stage: What is to be done next.
        reason: Why the batch is suspect.
        dead_letters: The records that are given up.
        unwritten_dead_letters: Those of them that are not in the dead letter topic yet.
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
        """Remove the records of some partitions."""
        self.records = [record for record in self.records if record.tp not in tps]
        self.dead_letters = [item for item in self.dead_letters if item.record.tp not in tps]
        self.unwritten_dead_letters = [
            item for item in self.unwritten_dead_letters if item.record.tp not in tps
        ]

    def mark_dead(self, dead_letters: Iterable[DeadLetterRecord]) -> None:
        """Give these records up: they are to be written to the dead letters next."""
        self.stage, self.dead_letters = DeliveryStage.DEAD_LETTER, list(dead_letters)
        self.unwritten_dead_letters = self.dead_letters
