"""One partition that a consumer holds: where it is, what was fetched ahead of that.

Two offsets: `position` is the next to be *returned*, and what a commit means; `fetched` is the next
to fetch. Between them lie the records that are kept. An answer to what was asked before a seek
brings nothing: `lineage` tells.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from gateway.core.log.record import Entry, Record, TopicPartition
from gateway.core.log.recovery import Backoff, Cause

LATEST, EARLIEST = -1, -2
RECORD_OVERHEAD_BYTES = 60  # bytes that a record is counted beside its key and value


def prefetched_size(record: Record) -> int:
    return RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")


@dataclass(slots=True, eq=False)
class PartitionState:
    """Times in seconds of one monotonic clock.

    topic_id:  of the topic that it is a partition of; a successor of the same name is another.
    position:  None until it is known. epoch: leader epoch of the record before it.
    spec:      LATEST, EARLIEST or milliseconds: to be looked up, for the position.
    committed: as last heard; None for nothing, or not asked yet.
    giving_up: it is being revoked, and nothing more is returned of it.
    drained:   what comes after what is kept cannot be had as things are: to be fetched when
               nothing is kept any more.
    stopped:   it cannot go on from here; a seek helps.
    missing:   the offset that Kafka does not have, while `spec` looks for where to go on.
    flight:    what is under way for it, of the shell's; a seek does not wait for it.
    min_bytes: that the broker waits for before it answers that.
    """

    tp: TopicPartition
    backoff: Backoff
    topic_id: UUID | None = None
    position: int | None = None
    epoch: int = -1
    fetch_offset: int = 0
    fetch_epoch: int = -1
    offset_spec: int | None = None
    committed: int | None = None
    missing_offset: int | None = None
    is_paused: bool = False
    is_revoking: bool = False
    is_drained: bool = False
    is_stopped: bool = False
    lineage: int = 0
    records: deque[Record] = field(default_factory=deque)
    buffered_bytes: int = 0
    in_flight: object | None = None
    min_bytes: int = 0
    preferred_replica: int | None = None
    preferred_replica_until: float = 0.0
    retry_at: float = 0.0
    failures: int = 0

    @property
    def is_readable(self) -> bool:
        return not (self.is_paused or self.is_revoking or self.is_stopped)

    def seek(self, offset: int, epoch: int = -1) -> None:
        """Return this one next."""
        self._clear()
        self.position = self.fetch_offset = offset
        self.epoch = self.fetch_epoch = epoch

    def reset(self, offset_spec: int) -> None:
        """The position is to be looked up."""
        self._clear()
        self.position, self.offset_spec = None, offset_spec

    def add_fetched(self, entries: Sequence[Entry], fetch_offset: int, epoch: int) -> None:
        """A fetch from `fetched` brought these, and goes on at the new one."""
        for entry in entries:
            if isinstance(entry, Record):
                self.records.append(entry)
                self.buffered_bytes += prefetched_size(entry)
        self.fetch_offset, self.is_drained, self.failures = fetch_offset, False, 0
        if epoch >= 0:
            self.fetch_epoch = epoch
        self.backoff.reset()
        if not self.records:
            self._advance_position()

    def take(self, max_records: int, max_bytes: int) -> list[Record]:
        """The next records, at most as many, and of at most `size` bytes after the first."""
        taken: list[Record] = []
        while self.records and len(taken) < max_records:
            weight = prefetched_size(self.records[0])
            if taken and weight > max_bytes:
                break
            taken.append(self.records.popleft())
            self.buffered_bytes -= weight
            max_bytes -= weight
        if taken:
            self.position, self.epoch = taken[-1].next_offset, taken[-1].epoch
            if not self.records:
                self._advance_position()
        return taken

    def discard_in_flight(self) -> None:
        """What is under way is of no use: something else is asked for in its place."""
        self.lineage += 1
        self.in_flight = None

    def back_off(self, cause: Cause, now: float, min_delay: float = 0.0) -> None:
        self.preferred_replica = None
        self.retry_at = now + max(min_delay, self.backoff.next_delay(cause))

    def _advance_position(self) -> None:
        """Past what holds nothing to return: control batches, aborted and compacted records."""
        self.position, self.epoch = self.fetch_offset, self.fetch_epoch

    def _clear(self) -> None:
        self.discard_in_flight()
        self.records.clear()
        self.buffered_bytes, self.offset_spec, self.is_drained, self.is_stopped = (
            0,
            None,
            False,
            False,
        )
        self.retry_at, self.failures, self.missing_offset = 0.0, 0, None
