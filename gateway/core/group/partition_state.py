"""Describe one partition that a consumer holds: its position, and the records fetched ahead.

There are two offsets: `position` is the next one to be *returned*, and the one to commit;
`fetch_offset` is the next one to fetch. The records between them are kept. Answers to requests from
before a seek bring nothing: `lineage` tells them apart.

Kafka keeps committed offsets by the name of a topic, so each goes along with a `TopicMark`, which
says which topic of that name it is of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Self
from uuid import UUID

from gateway.core.log.record import HEADER_OVERHEAD_BYTES, NO_EPOCH, Entry, Record, TopicPartition
from gateway.core.log.recovery import Backoff, Cause

LATEST, EARLIEST = -1, -2  # the special timestamps of Kafka's ListOffsets
RECORD_OVERHEAD_BYTES = 60  # bytes that a record is counted beside its payload
MAX_KNOWN_EPOCHS = 16  # leader epochs whose first offsets are remembered, for commits
# Shared by all partitions without records, as an empty deque takes 776 bytes. Never added to.
_EMPTY: deque[Any] = deque()


def prefetched_size(record: Record) -> int:
    overhead = RECORD_OVERHEAD_BYTES + HEADER_OVERHEAD_BYTES * len(record.headers)
    return overhead + record.payload_size


@dataclass(slots=True, eq=False)
class PartitionState:
    """The state of one partition, owned by a consumer's `PrefetchFetcher`.

    Invariants between calls: either `position` is known or `offset_spec` says how to find it.
    `records` are in offset order, from `position` on and below `fetch_offset`, and `_sizes` has the
    size of each. If `records` is empty, `position` equals `fetch_offset`. `lineage` has increased
    since any request whose answer must not be used. Times are seconds of one monotonic clock.

    Attributes:
        topic_id: None while metadata does not know the topic, and for good where brokers have no
            topic ids.
        expected_topic_id: The id of the topic that the position is of, if the position was found
            while `topic_id` was not known; None if that says nothing about it.
        epoch: The leader epoch of the record before `position`.
        fetch_epoch: The leader epoch of the record before `fetch_offset`.
        offset_spec: How to find the position: LATEST, EARLIEST or milliseconds since 1970; None if
            it is known.
        committed: The committed offset as last heard.
        missing_offset: The offset that Kafka does not have, while `offset_spec` looks for another.
        is_starting: Nothing is fetched yet, as the group may have no offset of it: the next owner
            of the partition would begin elsewhere, and lose the records that were returned here.
        is_revoking: It is being given up, and nothing more is returned of it.
        is_cut_off: The records after `records` could not be read: they are out of range, damaged or
            too large. They are fetched again when `records` were returned, which a reset or a stop
            would lose.
        is_stopped: It cannot go on from here; a seek helps.
        lineage: How often an answer in flight became useless.
        in_flight: The shell's request for it; a seek does not wait for it.
        min_bytes: How many bytes the broker waits for before it answers a fetch; 0 if `in_flight`
            is no fetch.
        preferred_replica: The replica to fetch from instead of the leader (KIP-392).
        epoch_starts: From which offset on records of which leader epoch were returned, in order.
            The last entry is that of the record before `position`.
        former_position: The position in a log that was cut off before it; -1 if none was.
    """

    tp: TopicPartition
    backoff: Backoff
    topic_id: UUID | None = None
    expected_topic_id: UUID | None = None
    position: int | None = None
    epoch: int = -1
    fetch_offset: int = 0
    fetch_epoch: int = -1
    offset_spec: int | None = None
    committed: int | None = None
    missing_offset: int | None = None
    is_starting: bool = False
    is_paused: bool = False
    is_revoking: bool = False
    is_cut_off: bool = False
    is_stopped: bool = False
    lineage: int = 0
    records: deque[Record] = field(default_factory=lambda: _EMPTY, init=False)
    # Taking records computes no size again.
    _sizes: deque[int] = field(default_factory=lambda: _EMPTY, init=False)
    buffered_bytes: int = 0
    in_flight: object | None = None
    min_bytes: int = 0
    preferred_replica: int | None = None
    preferred_replica_until: float = 0.0
    retry_at: float = 0.0
    failures: int = 0
    epoch_starts: list[tuple[int, int]] = field(default_factory=list)
    former_position: int = -1
    former_epoch_starts: list[tuple[int, int]] = field(default_factory=list)

    @property
    def is_readable(self) -> bool:
        return not (self.is_paused or self.is_revoking or self.is_stopped)

    def seek(self, offset: int, epoch: int = -1) -> None:
        self._clear()
        self.position = self.fetch_offset = offset
        self.epoch = self.fetch_epoch = epoch
        self.epoch_starts = []
        self._note_epoch(offset - 1, epoch)

    def truncate(self, end: int, epoch: int) -> None:
        """Drop records behind the end of the newest epoch that the log still has in common."""
        end = min(end, self.fetch_offset)
        position, starts = self.position, self.epoch_starts
        shared = [(start, each) for start, each in starts if start < end and each <= epoch]
        if position is None or position >= end:
            self.seek(end, epoch)
            self.epoch_starts = shared
            self._note_epoch(end - 1, epoch)
            if position is not None:
                self.former_position, self.former_epoch_starts = position, starts
            return
        self.epoch_starts = shared
        self.discard_in_flight()
        # A record of a later epoch before `end` is of the lost log, too.
        while self.records and (self.records[-1].offset >= end or self.records[-1].epoch > epoch):
            self.records.pop()
            self.buffered_bytes -= self._sizes.pop()
        # Go on behind the last record that is kept, not at `end`: offsets between that held nothing
        # in the lost log may hold records now. Its epoch is named, too, so that the leader finds
        # out if the logs part even earlier (KIP-320).
        if self.records:
            self.fetch_offset = self.records[-1].next_offset
            self.fetch_epoch = self.records[-1].epoch
        else:
            self.epoch = min(self.epoch, epoch)
            self.fetch_offset, self.fetch_epoch = position, self.epoch
        self.is_cut_off = False

    def forget_position(self) -> None:
        self._clear()
        self.position = None

    def reset(self, offset_spec: int) -> None:
        self.forget_position()
        self.offset_spec = offset_spec

    def update_topic(self, topic_id: UUID | None) -> bool:
        """Adopt the topic id of metadata; return whether the position was of another topic."""
        former_id = self.topic_id or self.expected_topic_id
        self.topic_id = topic_id
        if former_id in (None, topic_id):
            return False
        self.reset(EARLIEST)
        self.committed = None
        return True

    def add_fetched(self, entries: Sequence[Entry], fetch_offset: int, epoch: int) -> None:
        if not self.records:
            self.records, self._sizes = deque(), deque()
        for entry in entries:
            if isinstance(entry, Record):
                size = prefetched_size(entry)
                self.records.append(entry)
                self._sizes.append(size)
                self.buffered_bytes += size
        self.fetch_offset, self.is_cut_off, self.failures = fetch_offset, False, 0
        if epoch >= 0:
            self.fetch_epoch = epoch
        self.backoff.reset()
        # Nothing is kept, so what was fetched holds nothing to return: a commit may pass it.
        if not self.records:
            self._clear_records()
            self._advance_position()

    def drop_fetched(self) -> None:
        """Forget the records that were fetched ahead; they are fetched again."""
        if self.records:
            assert self.position is not None
            self.discard_in_flight()
            self._clear_records()
            self.is_cut_off = False
            self.fetch_offset, self.fetch_epoch = self.position, self.epoch

    def take(self, max_records: int, max_bytes: int) -> list[Record]:
        """Return the next records, and advance the position. The first may exceed `max_bytes`."""
        taken: list[Record] = []
        while self.records and len(taken) < max_records:
            size = self._sizes[0]
            if taken and size > max_bytes:
                break
            taken.append(self.records.popleft())
            self.buffered_bytes -= self._sizes.popleft()
            max_bytes -= size
        if taken:
            self.position, self.epoch = taken[-1].next_offset, taken[-1].epoch
            if self._last_epoch != self.epoch:
                for record in taken:
                    self._note_epoch(record.offset, record.epoch)
            if not self.records:
                self._clear_records()
                self._advance_position()
        return taken

    def epoch_before(self, offset: int) -> int:
        """Return the leader epoch of the record before an offset, for a commit; -1 if not returned.

        Beyond the cut of a log it is that of the lost record, by which the next reader finds the
        cut.
        """
        starts = self.epoch_starts
        if self.position is None or offset > self.position:
            starts = self.former_epoch_starts if offset <= self.former_position else []
        return next((epoch for start, epoch in reversed(starts) if start < offset), -1)

    def discard_in_flight(self) -> None:
        self.lineage += 1
        self.in_flight = None

    def back_off(self, cause: Cause, now: float, min_delay: float = 0.0) -> None:
        """Wait before the next request, which goes to the leader again."""
        self.preferred_replica = None
        self.retry_at = now + max(min_delay, self.backoff.next_delay(cause))

    def _advance_position(self) -> None:
        """Advance past control batches, aborted and compacted records."""
        self.position, self.epoch = self.fetch_offset, self.fetch_epoch
        self._note_epoch(self.position - 1, self.epoch)

    @property
    def _last_epoch(self) -> int:
        return self.epoch_starts[-1][1] if self.epoch_starts else -1

    def _note_epoch(self, offset: int, epoch: int) -> None:
        if epoch > self._last_epoch:
            self.epoch_starts.append((offset, epoch))
            del self.epoch_starts[:-MAX_KNOWN_EPOCHS]

    def _clear_records(self) -> None:
        self.records = self._sizes = _EMPTY
        self.buffered_bytes = 0

    def _clear(self) -> None:
        self.discard_in_flight()
        self._clear_records()
        self.offset_spec = None
        self.is_cut_off = False
        self.is_stopped = False
        self.retry_at, self.failures, self.missing_offset = 0.0, 0, None
        self.expected_topic_id = None
        self.former_position, self.former_epoch_starts = -1, []


class OffsetRange(Enum):
    """Where an offset lies that Kafka does not have (OFFSET_OUT_OF_RANGE).

    Below the log, retention or DeleteRecords have removed the records. Above it, an unclean
    election has cut the log off (KIP-320), and the records after the cut are not read yet.
    """

    BELOW_LOG = "below the log"
    IN_LOG = "in the log"  # the broker that answered was behind: fetch again
    ABOVE_LOG = "above the log"
    # Of a topic of the same name that was deleted, or of a leader that is to come: brokers answer
    # so wherever the offset lies.
    OTHER_LOG = "of another log"


def locate_offset(
    offset: int, epoch: int, *, log_start: int, log_end: int, leader_epoch: int
) -> OffsetRange:
    """Return where an offset lies that is out of range, by the leader's log and epoch.

    A topic that was created again is known by its id. Without topic ids (before Kafka 2.8), it is
    noticed only if the leader epoch of the new topic is lower. `log_end` is not limited to the last
    stable offset.
    """
    if offset < log_start:
        return OffsetRange.BELOW_LOG
    if leader_epoch != NO_EPOCH and epoch > leader_epoch:
        return OffsetRange.OTHER_LOG  # a log has no record of an epoch that is still to come
    return OffsetRange.IN_LOG if offset <= log_end else OffsetRange.ABOVE_LOG


_TOPIC_ID_PREFIX = "topic-id="
_PARTITIONS_PREFIX = ",partitions="
_CLUSTER_ID_PREFIX = ",cluster-id="

MAX_METADATA_LENGTH = 4096  # the default of Kafka's `offset.metadata.max.bytes`


class TopicMark(NamedTuple):
    """The topic that a committed offset is of, as the text that Kafka keeps along with an offset.

    A member that still had a deleted topic may commit after a topic of the same name was created,
    and the next owner of the partition cannot tell such an offset from later ones of the new topic,
    but for the mark:

        topic-id=5f0c9a52-6a53-4c0b-9a3f-1c1c6a5d9a10,partitions=3,cluster-id=MkU3OEVBNTcwNTJENDM2Qk

    If the program that commits gives a text of its own, the mark stands behind it, after a space.
    Programs that copy offsets to another cluster copy that text, too (MirrorMaker 2 does so in its
    checkpoints). There every topic has another id, which says nothing about the copied offset.

    `initial_partitions` is the number when the group began; 0 for a topic that was created later.
    It distinguishes partitions that were added after the group had begun, all of whose records the
    group is owed, from those without a committed offset for another reason.
    """

    topic_id: UUID
    cluster_id: str | None = None
    initial_partitions: int | None = None

    @classmethod
    def split(cls, metadata: str | None) -> tuple[str | None, Self | None]:
        own, prefix, mark = (metadata or "").rpartition(_TOPIC_ID_PREFIX)
        text, _, cluster_id = mark.partition(_CLUSTER_ID_PREFIX)
        topic_id, _, partitions = text.partition(_PARTITIONS_PREFIX)
        if not prefix or own[-1:] not in ("", " "):
            return metadata, None
        try:
            count = int(partitions) if partitions else None
            return own[:-1], cls(UUID(topic_id), cluster_id or None, count)
        except ValueError:
            return metadata, None

    def append_to(self, metadata: str | None) -> str | None:
        """Return the metadata of an offset with the mark behind it, unless that is too long."""
        marked = f"{metadata} {self}" if metadata else str(self)
        return marked if len(marked) <= MAX_METADATA_LENGTH else metadata

    def __str__(self) -> str:
        cluster = f"{_CLUSTER_ID_PREFIX}{self.cluster_id}" if self.cluster_id else ""
        count = self.initial_partitions
        partitions = f"{_PARTITIONS_PREFIX}{count}" if count is not None else ""
        return f"{_TOPIC_ID_PREFIX}{self.topic_id}{partitions}{cluster}"

    def is_of_other_cluster(self, cluster_id: str | None) -> bool:
        """Return whether the mark was made in another cluster; an unknown one counts as the same.

        Reading a topic again is better than passing over records of a new one.
        """
        return None not in (cluster_id, self.cluster_id) and cluster_id != self.cluster_id
