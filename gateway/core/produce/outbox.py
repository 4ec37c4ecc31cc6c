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

MAX_BATCH_BYTES = 512 * 1024  # bytes of records; brokers take batches up to 1 MiB by default
DELIVERY_TIMEOUT_S = 120.0  # seconds; Java's delivery.timeout.ms
SEQUENCE_COUNT = 1 << 31  # they wrap to 0

DUPLICATE_SEQUENCE_NUMBER = 46  # it was appended before; Kafka forgot where
# Refused before anything is appended: about one record, where a batch may hold several.
RECORD_ERRORS = frozenset({2, 10, 18, 32, 87})  # corrupt, too large (twice), timestamp, invalid
# The broker does not know the producer id, or not as we do.
UNKNOWN_PRODUCER_ERRORS = frozenset({45, 47, 49, 59, 90})
# To be tried again. Most of them may also come after an append: a leader that is deposed while it
# waits for its replicas answers NOT_LEADER.
RETRIABLE_ERRORS = frozenset({3, 5, 6, 7, 8, 9, 13, 14, 15, 19, 20, 56, 72, 74, 75, 78, 89, 100})
# NOT_ENOUGH_REPLICAS and THROTTLING_QUOTA_EXCEEDED come before an append. After one, a broker
# answers UNKNOWN_TOPIC_OR_PARTITION or UNKNOWN_TOPIC_ID only where the topic was deleted, and the
# batch with it. So a batch for a topic that is gone is not in doubt.
NOT_APPENDED_ERRORS = frozenset({3, 19, 89, 100})


class WriteStatus(Enum):
    WRITTEN = "Kafka has it"
    REJECTED = "Kafka does not want it; it was not written"
    UNKNOWN = "given up; nobody knows whether it was written"
    PENDING = "to be sent again"


class WriteOutcome(NamedTuple, Generic[T]):
    """items: those it is the fate of."""

    status: WriteStatus
    items: Sequence[T] = ()


class ProducerIdAndEpoch(NamedTuple):
    """As given by InitProducerId."""

    id: int
    epoch: int


@dataclass(slots=True)
class Outbox(Generic[T]):
    """most: bytes of a batch; a larger item is a batch alone. doubt: seconds."""

    max_batch_bytes: int = MAX_BATCH_BYTES
    delivery_timeout_s: float = DELIVERY_TIMEOUT_S
    producer: ProducerIdAndEpoch | None = None
    sequence: int = 0
    _waiting: deque[tuple[T, int]] = field(default_factory=deque)
    _in_flight: list[tuple[T, int]] = field(default_factory=list)
    _in_doubt_since: float | None = None  # since when the fate of what flies is unknown
    _single_batches_left: int = 0  # so many of the waiting go one by one: one of them was refused

    def __len__(self) -> int:
        return len(self._waiting) + len(self._in_flight)

    def items(self) -> list[T]:
        """All of them, in order."""
        return [item for item, _ in (*self._in_flight, *self._waiting)]

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

    def set_producer(self, producer: ProducerIdAndEpoch) -> None:
        """Write under this id from now on. Not while something flies."""
        assert not self._in_flight, "a batch keeps the producer id that it was first sent under"
        self.producer, self.sequence = producer, 0

    def next_batch(self) -> Sequence[T]:
        """What to send now, by `producer` from `sequence` on: again what is in doubt, or what
        waits. It counts as sent."""
        assert self.producer is not None, "adopt a producer first"
        if not self._in_flight:
            self._cut_batch()
        return [item for item, _ in self._in_flight]

    def on_response(self, code: int, now: float) -> WriteOutcome[T]:
        """The broker's word on the batch."""
        if code in (0, DUPLICATE_SEQUENCE_NUMBER):
            self.sequence = (self.sequence + len(self._in_flight)) % SEQUENCE_COUNT
            return self._settle(WriteStatus.WRITTEN)
        if code in RETRIABLE_ERRORS:
            sure = code in NOT_APPENDED_ERRORS and self._in_doubt_since is None
            return self._requeue() if sure else self.on_no_response(now)
        if code in UNKNOWN_PRODUCER_ERRORS:
            self.producer = None
            return (
                self._requeue()
                if self._in_doubt_since is None
                else self._settle(WriteStatus.UNKNOWN)
            )
        if (
            self._in_doubt_since is not None
        ):  # this word is on the last attempt, not on those before it
            self.producer = None
            return self._settle(WriteStatus.UNKNOWN)
        if code in RECORD_ERRORS and len(self._in_flight) > 1:
            self._single_batches_left = len(self._in_flight)
            return self._requeue()
        return self._settle(WriteStatus.REJECTED)

    def on_no_response(self, now: float) -> WriteOutcome[T]:
        """The batch was sent, and no answer came, or none that says what became of it."""
        if self._in_flight and self._in_doubt_since is None:
            self._in_doubt_since = now
        return self.on_not_sent(now)

    def on_not_sent(self, now: float) -> WriteOutcome[T]:
        """Nothing could be sent."""
        if self._in_doubt_since is None or now - self._in_doubt_since < self.delivery_timeout_s:
            return WriteOutcome(WriteStatus.PENDING)
        self.producer = None
        return self._settle(WriteStatus.UNKNOWN)

    def reject_waiting(self) -> WriteOutcome[T]:
        """Nobody may write here: what waits is refused; what is in doubt stays in doubt."""
        self._waiting, waiting = deque(), self._waiting
        return WriteOutcome(WriteStatus.REJECTED, [item for item, _ in waiting])

    def _cut_batch(self) -> None:
        room = self.max_batch_bytes
        while self._waiting and (not self._in_flight or self._waiting[0][1] <= room):
            one = self._waiting.popleft()
            self._in_flight.append(one)
            room -= one[1]
            if self._single_batches_left:
                self._single_batches_left -= 1
                return

    def _requeue(self) -> WriteOutcome[T]:
        """It was not written: it waits again, and may be withdrawn."""
        self._waiting.extendleft(reversed(self._in_flight))
        self._in_flight = []
        return WriteOutcome(WriteStatus.PENDING)

    def _settle(self, status: WriteStatus) -> WriteOutcome[T]:
        items = [item for item, _ in self._in_flight]
        self._in_flight, self._in_doubt_since = [], None
        return WriteOutcome(status, items)
