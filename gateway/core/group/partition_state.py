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
OVERHEAD = 60  # bytes that a record is counted beside its key and value


def size_of(record: Record) -> int:
    return OVERHEAD + len(record.key or b"") + len(record.value or b"")


@dataclass(slots=True, eq=False)
class Held:
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
    fetched: int = 0
    fetched_epoch: int = -1
    spec: int | None = None
    committed: int | None = None
    missing: int | None = None
    paused: bool = False
    giving_up: bool = False
    drained: bool = False
    stopped: bool = False
    lineage: int = 0
    kept: deque[Record] = field(default_factory=deque)
    size: int = 0
    flight: object | None = None
    min_bytes: int = 0
    replica: int | None = None
    replica_until: float = 0.0
    retry_at: float = 0.0
    failures: int = 0

    @property
    def readable(self) -> bool:
        return not (self.paused or self.giving_up or self.stopped)

    def seek(self, offset: int, epoch: int = -1) -> None:
        """Return this one next."""
        self._forget()
        self.position = self.fetched = offset
        self.epoch = self.fetched_epoch = epoch

    def reset(self, spec: int) -> None:
        """The position is to be looked up."""
        self._forget()
        self.position, self.spec = None, spec

    def took(self, entries: Sequence[Entry], fetched: int, epoch: int) -> None:
        """A fetch from `fetched` brought these, and goes on at the new one."""
        for entry in entries:
            if isinstance(entry, Record):
                self.kept.append(entry)
                self.size += size_of(entry)
        self.fetched, self.drained, self.failures = fetched, False, 0
        if epoch >= 0:
            self.fetched_epoch = epoch
        self.backoff.succeeded()
        if not self.kept:
            self._arrive()

    def take(self, most: int, size: int) -> list[Record]:
        """The next records, at most as many, and of at most `size` bytes after the first."""
        taken: list[Record] = []
        while self.kept and len(taken) < most:
            weight = size_of(self.kept[0])
            if taken and weight > size:
                break
            taken.append(self.kept.popleft())
            self.size -= weight
            size -= weight
        if taken:
            self.position, self.epoch = taken[-1].next, taken[-1].epoch
            if not self.kept:
                self._arrive()
        return taken

    def supersede(self) -> None:
        """What is under way is of no use: something else is asked for in its place."""
        self.lineage += 1
        self.flight = None

    def hinder(self, cause: Cause, now: float, least: float = 0.0) -> None:
        self.replica = None
        self.retry_at = now + max(least, self.backoff.delay(cause))

    def _arrive(self) -> None:
        """Past what holds nothing to return: control batches, aborted and compacted records."""
        self.position, self.epoch = self.fetched, self.fetched_epoch

    def _forget(self) -> None:
        self.supersede()
        self.kept.clear()
        self.size, self.spec, self.drained, self.stopped = 0, None, False, False
        self.retry_at, self.failures, self.missing = 0.0, 0, None
