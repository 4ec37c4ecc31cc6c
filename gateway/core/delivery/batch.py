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
class Rules:
    """records, bytes (of keys and values): the most of a batch; a larger record goes alone.

    retries:      of a suspect batch, and of one rolled back.
    threshold:    percent of failed records by which a batch is rolled back, that is tried again
                  as a whole; None for never. At most `retries` times: for ever would be what one
                  bad record in a batch of three makes of 30 percent.
    dead_letters: False: a record that fails is tried again for ever.
    first, ceiling: of the delays between tries, seconds. draw: from [0, 1).
    """

    records: int = 100
    bytes: int = 204_800
    retries: int = 3
    threshold: float | None = 30.0
    dead_letters: bool = True
    first: float = 1.0
    ceiling: float = 30.0
    draw: Callable[[], float] = random.random


class Dead(NamedTuple):
    """A record that is given up, and why."""

    record: Record
    reason: str


class Send(NamedTuple):
    """To the back end. attempt: how often it went before."""

    records: Sequence[Record]
    attempt: int


class Probe(NamedTuple):
    """Ask the back end whether it is well."""

    reason: str


class Bury(NamedTuple):
    """To the dead letters."""

    dead: Sequence[Dead]


class Wait(NamedTuple):
    until: float


Step: TypeAlias = Send | Probe | Bury | Wait


class Settled(NamedTuple):
    """Done with. points: what may be committed by it, the next offset of each partition."""

    processed: Sequence[Record]
    dead: Sequence[Dead]
    points: dict[TopicPartition, int]


class Stage(Enum):
    SEND = "send"
    PROBE = "probe"
    BURY = "bury"


@dataclass(slots=True, eq=False)
class Portion:
    """What is sent together. dropped: partitions that went while it was under way."""

    records: list[Record]
    attempts: int = 0
    sent: int = 0
    late: int = 0
    stage: Stage = Stage.SEND
    why: str = ""
    dead: list[Dead] = field(default_factory=list)
    unburied: list[Dead] = field(default_factory=list)
    dropped: set[TopicPartition] = field(default_factory=set)

    def forget(self, tps: Collection[TopicPartition]) -> None:
        self.records = [each for each in self.records if each.tp not in tps]
        self.dead = [each for each in self.dead if each.record.tp not in tps]
        self.unburied = [each for each in self.unburied if each.record.tp not in tps]

    def bury(self, dead: Iterable[Dead]) -> None:
        self.stage, self.dead = Stage.BURY, list(dead)
        self.unburied = self.dead


def size_of(record: Record) -> int:
    """Bytes of its key and value."""
    return len(record.key or b"") + len(record.value or b"")
