"""What is to be written to one partition: one batch under way, the others wait behind it.

An idempotent producer's sequence (KIP-98) is what makes a batch that is sent again one batch.
So a batch whose fate is unknown is never changed and never overtaken: it goes again, the same,
under the same producer id, until Kafka says what became of it. Only where that cannot be said
any more is it told as doubtful, and the partition goes on under another producer id: a batch
refused or given up then leaves no hole in the sequence, which Kafka would refuse all later
ones for. What was never sent can be withdrawn.

Sans-I/O: time is an argument, in seconds of any monotonic clock; codes are Kafka's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

BATCH = 512 * 1024  # bytes of records; brokers take batches up to 1 MiB by default
DOUBT = 120.0  # seconds; Java's delivery.timeout.ms
SEQUENCES = 1 << 31  # they wrap to 0

DUPLICATE = 46  # it was appended before; Kafka forgot where
# Refused before anything is appended: about one record, where a batch may hold several.
RECORD = frozenset({2, 10, 18, 32, 87})  # corrupt, too large (twice), timestamp, invalid
# The broker does not know the producer id, or not as we do.
STRANGER = frozenset({45, 47, 49, 59, 90})
# To be tried again. Most of them may also come after an append: a leader that is deposed while it
# waits for its replicas answers NOT_LEADER.
PASSING = frozenset({3, 5, 6, 7, 8, 9, 13, 14, 15, 19, 20, 56, 72, 74, 75, 78, 89, 100})
# NOT_ENOUGH_REPLICAS and THROTTLING_QUOTA_EXCEEDED come before an append. After one, a broker
# answers UNKNOWN_TOPIC_OR_PARTITION or UNKNOWN_TOPIC_ID only where the topic was deleted, and the
# batch with it. So a batch for a topic that is gone is not in doubt.
BEFORE_APPEND = frozenset({3, 19, 89, 100})


class Fate(Enum):
    WRITTEN = "Kafka has it"
    REFUSED = "Kafka does not want it; it was not written"
    DOUBTFUL = "given up; nobody knows whether it was written"
    OPEN = "to be sent again"


class Outcome(NamedTuple, Generic[T]):
    """items: those it is the fate of."""

    fate: Fate
    items: Sequence[T] = ()


class Producer(NamedTuple):
    """As given by InitProducerId."""

    id: int
    epoch: int


@dataclass(slots=True)
class Outbox(Generic[T]):
    """most: bytes of a batch; a larger item is a batch alone. doubt: seconds."""

    most: int = BATCH
    doubt: float = DOUBT
    producer: Producer | None = None
    sequence: int = 0
    _waiting: deque[tuple[T, int]] = field(default_factory=deque)
    _flying: list[tuple[T, int]] = field(default_factory=list)
    _doubted: float | None = None  # since when the fate of what flies is unknown
    _alone: int = 0  # so many of the waiting go one by one: one of them was refused

    def __len__(self) -> int:
        return len(self._waiting) + len(self._flying)

    def items(self) -> list[T]:
        """All of them, in order."""
        return [item for item, _ in (*self._flying, *self._waiting)]

    def put(self, item: T, size: int) -> None:
        """size: its bytes, about."""
        self._waiting.append((item, size))

    def withdraw(self, items: Iterable[T]) -> list[T]:
        """Take them back. Those that were not sent: the fate of the others comes yet."""
        wanted = {id(item) for item in items}
        taken = [item for item, _ in self._waiting if id(item) in wanted]
        if taken:
            self._waiting = deque(each for each in self._waiting if id(each[0]) not in wanted)
        return taken

    def adopt(self, producer: Producer) -> None:
        """Write under this id from now on. Not while something flies."""
        assert not self._flying, "a batch keeps the producer id that it was first sent under"
        self.producer, self.sequence = producer, 0

    def batch(self) -> Sequence[T]:
        """What to send now, by `producer` from `sequence` on: again what is in doubt, or what
        waits. It counts as sent."""
        assert self.producer is not None, "adopt a producer first"
        if not self._flying:
            self._cut()
        return [item for item, _ in self._flying]

    def answered(self, code: int, now: float) -> Outcome[T]:
        """The broker's word on the batch."""
        if code in (0, DUPLICATE):
            self.sequence = (self.sequence + len(self._flying)) % SEQUENCES
            return self._settle(Fate.WRITTEN)
        if code in PASSING:
            sure = code in BEFORE_APPEND and self._doubted is None
            return self._back() if sure else self.unanswered(now)
        if code in STRANGER:
            self.producer = None
            return self._back() if self._doubted is None else self._settle(Fate.DOUBTFUL)
        if self._doubted is not None:  # this word is on the last attempt, not on those before it
            self.producer = None
            return self._settle(Fate.DOUBTFUL)
        if code in RECORD and len(self._flying) > 1:
            self._alone = len(self._flying)
            return self._back()
        return self._settle(Fate.REFUSED)

    def unanswered(self, now: float) -> Outcome[T]:
        """The batch was sent, and no answer came, or none that says what became of it."""
        if self._flying and self._doubted is None:
            self._doubted = now
        return self.delayed(now)

    def delayed(self, now: float) -> Outcome[T]:
        """Nothing could be sent."""
        if self._doubted is None or now - self._doubted < self.doubt:
            return Outcome(Fate.OPEN)
        self.producer = None
        return self._settle(Fate.DOUBTFUL)

    def refused(self) -> Outcome[T]:
        """Nobody may write here: what waits is refused; what is in doubt stays in doubt."""
        self._waiting, waiting = deque(), self._waiting
        return Outcome(Fate.REFUSED, [item for item, _ in waiting])

    def _cut(self) -> None:
        room = self.most
        while self._waiting and (not self._flying or self._waiting[0][1] <= room):
            one = self._waiting.popleft()
            self._flying.append(one)
            room -= one[1]
            if self._alone:
                self._alone -= 1
                return

    def _back(self) -> Outcome[T]:
        """It was not written: it waits again, and may be withdrawn."""
        self._waiting.extendleft(reversed(self._flying))
        self._flying = []
        return Outcome(Fate.OPEN)

    def _settle(self, fate: Fate) -> Outcome[T]:
        items = [item for item, _ in self._flying]
        self._flying, self._doubted = [], None
        return Outcome(fate, items)
