"""What Kafka has at the end of a run, and had before: by it is judged what clients got."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from support.oracle import StreamOracle
from support.stream_check import AckedRecord, PartitionTruth

from gateway.core.log.record import TopicPartition

from .views import View


class LogStart(NamedTuple):
    """Where a partition began.

    Attributes:
        at: When Kafka was asked, by `time.monotonic`.
        tp: The partition.
        offset: Its first offset.
    """

    at: float
    tp: TopicPartition
    offset: int


class Truth:
    """What Kafka has at the end, and what it had before.

    Args:
        oracle: Knows every record that was committed, by partition and life of its log.
        partitions: The partitions of each topic at the end.
        log_starts: The first offset that each partition still has.
        read_records: What Kafka has at the end.
        whole_topics: The topics of which nothing may be gone.
        earlier_log_starts: Where partitions began before, in the order of time.
    """

    def __init__(
        self,
        oracle: StreamOracle,
        partitions: Mapping[str, Sequence[TopicPartition]],
        log_starts: Mapping[TopicPartition, int] | None = None,
        read_records: Sequence[AckedRecord] = (),
        whole_topics: Collection[str] = (),
        earlier_log_starts: Sequence[LogStart] = (),
    ) -> None:
        self.oracle = oracle
        self.partitions = partitions
        self.log_starts = dict(log_starts or {})
        self.read_records = read_records
        self.whole_topics = whole_topics
        self.earlier_log_starts = earlier_log_starts
        self._last_records: dict[View, Mapping[TopicPartition, AckedRecord]] = {}
        self._tables: dict[View, Mapping[tuple[TopicPartition, bytes | None], AckedRecord]] = {}
        self._logs: dict[View, Mapping[TopicPartition, Sequence[AckedRecord]]] = {}

    @cached_property
    def truths(self) -> Mapping[TopicPartition, PartitionTruth]:
        """Return what is known of each partition."""
        every = [tp for tps in self.partitions.values() for tp in tps]
        return {tp: self.oracle.get_truth(tp) for tp in every}

    def get_last_records(self, view: View) -> Mapping[TopicPartition, AckedRecord]:
        """Return the last record of a view in each partition that has one."""
        if view not in self._last_records:
            self._last_records[view] = {record.tp: record for record in self._list_visible(view)}
        return self._last_records[view]

    def get_table(self, view: View) -> Mapping[tuple[TopicPartition, bytes | None], AckedRecord]:
        """Return the last record of each key of a view, tombstones too."""
        if view not in self._tables:
            self._tables[view] = {
                (record.tp, record.key): record for record in self._list_visible(view)
            }
        return self._tables[view]

    def get_due_records(
        self, view: View, tp: TopicPartition, start: int, end: int
    ) -> Sequence[AckedRecord]:
        """Return the records of a view that Kafka still has in [start, end) of a partition."""
        if view not in self._logs:
            logs: dict[TopicPartition, list[AckedRecord]] = {}
            for record in filter(view.is_visible, self.read_records):
                logs.setdefault(record.tp, []).append(record)
            self._logs[view] = logs
        log = self._logs[view].get(tp, ())
        return log[_find(log, start) : _find(log, end)]

    def get_latest_log_start(self, tp: TopicPartition, at: float) -> int | None:
        """Return up to where a partition may have been deleted by a time of `time.monotonic`."""
        following = (
            each.offset for each in self.earlier_log_starts if each.tp == tp and each.at >= at
        )
        return next(following, self.log_starts.get(tp))

    def list_unwritten(self) -> list[TopicPartition]:
        """Return the partitions of which nothing was ever acknowledged."""
        return [tp for tp, truth in self.truths.items() if not any(truth.logs)]

    def _list_visible(self, view: View) -> Iterable[AckedRecord]:
        for tp in self.partitions[view.topic]:
            yield from filter(view.is_visible, self.oracle.list_acked(tp))


def _find(log: Sequence[AckedRecord], offset: int) -> int:
    """Return the index of the first record at this offset or behind."""
    return bisect_left(log, offset, key=lambda record: record.offset)
