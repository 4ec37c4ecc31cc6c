"""Keep the records to be written to one partition: one batch in flight, the others behind it.

The sequence numbers of an idempotent producer (KIP-98) make a batch that is sent twice one batch.
So a batch whose fate is unknown is never changed and never overtaken: it is sent again under the
same producer id until Kafka tells its fate. Only if that cannot be found out any more is it
reported as UNKNOWN, and the partition goes on under another producer id. A batch that was refused
or given up then leaves no hole in the sequence, for which Kafka would refuse all later batches.
Records that were never sent can be withdrawn.

Sans-I/O: time is an argument, in seconds of any monotonic clock; codes are Kafka's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from gateway.core.error_code import TOO_LARGE_ERRORS, ErrorCode

T = TypeVar("T")

MAX_BATCH_BYTES = 512 * 1024  # bytes of records; brokers take batches up to 1 MiB by default
DELIVERY_TIMEOUT_S = 120.0  # seconds; Java's delivery.timeout.ms
SEQUENCE_COUNT = 1 << 31  # sequence numbers wrap to 0

# The answers that mean that Kafka has the batch. DUPLICATE_SEQUENCE_NUMBER: it was appended before,
# and Kafka forgot where.
WRITTEN_CODES = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
# Refused before anything is appended, because of one record of possibly several in the batch, or of
# the size of them all.
RECORD_ERRORS = TOO_LARGE_ERRORS | {
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_RECORD,
}
# The broker does not know the producer id, or expects another epoch or sequence of it.
UNKNOWN_PRODUCER_ERRORS = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.PRODUCER_FENCED,
    }
)
# To be tried again. Most of them may also come after an append: a leader that is deposed while it
# waits for its replicas answers NOT_LEADER_OR_FOLLOWER.
RETRIABLE_ERRORS = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
# NOT_ENOUGH_REPLICAS and THROTTLING_QUOTA_EXCEEDED come before an append. After one, a broker
# answers UNKNOWN_TOPIC_OR_PARTITION or UNKNOWN_TOPIC_ID only where the topic was deleted, and the
# batch with it. So a batch for a topic that is gone is not in doubt.
NOT_APPENDED_ERRORS = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)


class WriteStatus(Enum):
    WRITTEN = "Kafka has it"
    REJECTED = "Kafka does not want it; it was not written"
    UNKNOWN = "given up; nobody knows whether it was written"
    PENDING = "to be sent again"


class WriteOutcome(NamedTuple, Generic[T]):
    """The effect of an event on the batch in flight.

    Attributes:
        items: Those that have the status, and are not in the outbox any more; none if PENDING.
        requeued: Those that wait again, and may be withdrawn.
    """

    status: WriteStatus
    items: Sequence[T] = ()
    requeued: Sequence[T] = ()


class ProducerIdAndEpoch(NamedTuple):
    id: int
    epoch: int


@dataclass(slots=True)
class Outbox(Generic[T]):
    """The items that are to be written to one partition.

    Created and driven by the producer. A batch passes through these states:

    - Waiting: never sent, or certainly not appended. Its items may be withdrawn.
    - In flight: handed out by `next_batch`, and no attempt to send it is in doubt.
    - In doubt (`_in_doubt_since` is set): some attempt may have been appended. Only success, or the
      end of `delivery_timeout_s`, or an answer about the sequence ends this state, or `give_up`.

    Invariants between calls: while `_in_flight` is not empty, `producer` is the one under which
    that batch was first sent and `sequence` is the number of its first record. `_in_doubt_since` is
    None if nothing is in flight.

    Where a batch is refused because of some of its items, those are rejected that the broker names.
    If it names none, the batch is halved, until the item to blame is alone: one of n costs 2 log n
    batches, not n. If all of it is too large, later batches are smaller, too: the size that a
    partition takes is known from its answers only.

    Attributes:
        max_batch_bytes: The size of a batch in bytes; a larger item is a batch alone.
        delivery_timeout_s: Seconds after which a batch in doubt is given up.
        producer: The identity to write under; None if a new one is needed.
        sequence: The sequence number of the next batch, or of the one in flight.
    """

    max_batch_bytes: int = MAX_BATCH_BYTES
    delivery_timeout_s: float = DELIVERY_TIMEOUT_S
    producer: ProducerIdAndEpoch | None = None
    sequence: int = 0
    # The size of each item, in their order. Items must not equal each other, so that each has a
    # fate of its own.
    _waiting: dict[T, int] = field(default_factory=dict)
    _in_flight: list[tuple[T, int]] = field(default_factory=list)
    _in_doubt_since: float | None = None  # since when the fate of what is in flight is unknown
    _batch_bytes: int = field(init=False)  # like `max_batch_bytes`, or less: the size learned
    # How many items the next batches have at most, the next one last: the parts of a refused batch.
    _part_sizes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._batch_bytes = self.max_batch_bytes

    def __len__(self) -> int:
        return len(self._waiting) + len(self._in_flight)

    def items(self) -> list[T]:
        return [item for item, _ in (*self._in_flight, *self._waiting.items())]

    def put(self, item: T, size: int) -> None:
        self._waiting[item] = size

    def withdraw(self, items: Iterable[T]) -> list[T]:
        return [item for item in items if self._waiting.pop(item, None) is not None]

    def set_producer(self, producer: ProducerIdAndEpoch) -> None:
        assert not self._in_flight, "a batch keeps the producer id that it was first sent under"
        self.producer, self.sequence = producer, 0

    def next_batch(self) -> Sequence[T]:
        """Return the batch in flight once more, or else a new one, and count it as sent."""
        assert self.producer is not None, "call `set_producer` first"
        if not self._in_flight:
            self._cut_batch()
        return [item for item, _ in self._in_flight]

    def on_response(self, code: int, now: float, invalid: Collection[int] = ()) -> WriteOutcome[T]:
        """Take the broker's answer about the batch.

        Args:
            code: Kafka's error code, 0 for success.
            invalid: The indexes of the items because of which the broker refuses the batch, if it
                names them.
        """
        if code in WRITTEN_CODES:
            # Sequence numbers count records, not batches.
            self.sequence = (self.sequence + len(self._in_flight)) % SEQUENCE_COUNT
            # The topic's limit may have been raised. A topic with a limit refuses 1 of 45 batches.
            self._batch_bytes = min(self.max_batch_bytes, self._batch_bytes * 65 // 64 + 1)
            return self._settle(WriteStatus.WRITTEN)
        if code in RETRIABLE_ERRORS:
            is_certain = code in NOT_APPENDED_ERRORS and self._in_doubt_since is None
            return self._requeue() if is_certain else self.on_no_response(now)
        if code in UNKNOWN_PRODUCER_ERRORS:
            self.producer = None
            return (
                self._requeue()
                if self._in_doubt_since is None
                else self._settle(WriteStatus.UNKNOWN)
            )
        if self._in_doubt_since is not None or code == ErrorCode.UNKNOWN_SERVER_ERROR:
            # The answer is about the last attempt; an earlier one may have been appended. And a
            # broker that failed unexpectedly may have done so after it appended the batch.
            return self.give_up()
        if code in RECORD_ERRORS and len(self._in_flight) > 1:
            return self._divide_batch(code, invalid)
        return self._settle(WriteStatus.REJECTED)

    def on_no_response(self, now: float) -> WriteOutcome[T]:
        self.mark_in_doubt(now)
        return self.on_not_sent(now)

    def mark_in_doubt(self, now: float) -> None:
        if self._in_flight and self._in_doubt_since is None:
            self._in_doubt_since = now

    def on_not_sent(self, now: float) -> WriteOutcome[T]:
        """Record that nothing could be sent; a batch in doubt is given up after the timeout."""
        if self._in_doubt_since is None or now - self._in_doubt_since < self.delivery_timeout_s:
            return WriteOutcome(WriteStatus.PENDING)
        return self.give_up()

    def give_up(self) -> WriteOutcome[T]:
        """End the attempts to write the batch in flight: nobody knows whether it is written."""
        self.producer = None
        return self._settle(WriteStatus.UNKNOWN)

    def reject_waiting(self) -> WriteOutcome[T]:
        """Refuse the waiting items, as nobody may write here. Items in doubt stay so."""
        self._waiting, waiting = {}, self._waiting
        return WriteOutcome(WriteStatus.REJECTED, [*waiting])

    def _cut_batch(self) -> None:
        bytes_left = self._batch_bytes
        items_left = self._part_sizes.pop() if self._part_sizes else len(self._waiting)
        for entry in islice(self._waiting.items(), items_left):
            bytes_left -= entry[1]
            if bytes_left < 0 and self._in_flight:
                break
            self._in_flight.append(entry)
        for item, _ in self._in_flight:
            del self._waiting[item]

    def _divide_batch(self, code: int, invalid: Collection[int]) -> WriteOutcome[T]:
        rejected = [item for index, (item, _) in enumerate(self._in_flight) if index in invalid]
        if rejected:
            self._in_flight = [
                entry for index, entry in enumerate(self._in_flight) if index not in invalid
            ]
        elif code in TOO_LARGE_ERRORS:
            self._batch_bytes = sum([size for _, size in self._in_flight]) // 2
        else:
            half = len(self._in_flight) // 2
            self._part_sizes += len(self._in_flight) - half, half
        return WriteOutcome(WriteStatus.REJECTED, rejected, self._requeue().requeued)

    def _requeue(self) -> WriteOutcome[T]:
        """Let the batch wait again, as it was not written; it may then be withdrawn."""
        self._waiting = dict(self._in_flight) | self._waiting
        return WriteOutcome(WriteStatus.PENDING, requeued=self._settle(WriteStatus.PENDING).items)

    def _settle(self, status: WriteStatus) -> WriteOutcome[T]:
        items = [item for item, _ in self._in_flight]
        self._in_flight, self._in_doubt_since = [], None
        return WriteOutcome(status, items)
