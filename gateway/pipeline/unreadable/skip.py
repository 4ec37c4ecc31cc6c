"""What a job's start does about a record that its last run could not read."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import KafkaException

from gateway.config import Kafka
from gateway.config.sections.job import Input
from gateway.errors import PipelineError, PipelineUnavailable
from gateway.pipeline.progress import counts
from gateway.pipeline.run.failures import UnreadableOffset, build_kafka_error
from gateway.pipeline.spark.client_config import build_client_config
from gateway.pipeline.topics import TopicDescription
from gateway.telemetry import catalog

from .dead_letters import DeadLetterSender, RecordOrigin
from .offsets import PartitionRange, UnfinishedBatch
from .records import UnreadableRecord, find_next_unreadable, read_run

log = logging.getLogger(__name__)

MAX_SKIP_S = 5.0  # how long records are passed over by one start; it passes over one at least


@dataclass(frozen=True, slots=True)
class InputSource:
    """An input of a job, as records are passed over in it.

    Attributes:
        input: Its settings.
        kafka: Its cluster.
        topic: Its topic, as it is read.
        letters: Where its dead letters go; None where it has none.
    """

    input: Input
    cluster: Kafka
    topic: TopicDescription
    dead_letters: DeadLetterSender | None


def skip_records(
    job: str,
    sources: Mapping[str, InputSource],
    batch: UnfinishedBatch | None,
    unreadable: UnreadableOffset,
    stop_event: threading.Event,
    max_skip_s: float = MAX_SKIP_S,
    *,
    check_topics: Callable[[], None] = lambda: None,
) -> None:
    """Edit a checkpoint so that its query gets past a record, before the query is begun again.

    The batch with it is cut to end before the record. If it starts with the record it is moved
    behind it, and behind those of its kind that follow at once, of which the dead letters are sent
    first. So a record in the middle of a batch takes two starts. Records that the batch would meet
    next, in whatever partition, are looked for, and need no start of their own.

    Args:
        job: The job's name.
        sources: By the names of the inputs.
        unfinished: The batch that failed; None where the checkpoint has none.
        found: The record that it failed by.
        ending: Once it is set, no more records are passed over than the one that was begun with.
        limit: How many seconds they are passed over at most. What is left ends the query again.
        check: Raises PipelineUnavailable where a topic was recreated since; called before letters
            are sent of what was read.

    Raises:
        PipelineUnavailable: The batch does not have the record, as where another process runs the
            same job; or Kafka does not answer.
        PipelineError: No input of the job has the record, or it must not be passed over.
    """
    topics = {each.input.topic for each in sources.values()}
    if unreadable.topic not in topics:
        raise PipelineError(unreadable.reason)
    deadline = time.monotonic() + max_skip_s
    known = batch.find_ranges(unreadable.topic, unreadable.partition) if batch else []
    ranges = [each for each in known if each.start <= unreadable.offset < each.end]
    if batch is None or not ranges:
        what = "the batch that the job is to do next does not have it; no other process may run "
        raise PipelineUnavailable(f"{unreadable.reason}; {what}the job")
    passing = _Skipper(
        job,
        sources,
        batch,
        lambda: stop_event.is_set() or time.monotonic() > deadline,
        check_topics,
    )
    try:
        passing.skip_failed_record(unreadable, ranges)
        passing.look_ahead()
    finally:
        passing.log_skipped()


@dataclass(slots=True)
class _SkippedRange:
    """What one start has passed over of a partition.

    Attributes:
        first: Offset of the first record.
        following: The offset behind the last one.
        records: How many were told.
        timestamp: Of one of them, in ms since 1970.
    """

    first_offset: int
    next_offset: int
    record_count: int = 0
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class _Skipper:
    """One edit of a checkpoint: see `pass_over`.

    Attributes:
        should_stop: Return whether to pass over no more.
        check: As of `pass_over`.
        passed: By input, topic and partition. A table that a query reads twice has two ranges, and
            its records are told once.
    """

    job: str
    sources: Mapping[str, InputSource]
    batch: UnfinishedBatch
    should_stop: Callable[[], bool]
    check_topics: Callable[[], None]
    skipped: dict[tuple[str, str, int], _SkippedRange] = field(default_factory=dict)

    def skip_failed_record(
        self, unreadable: UnreadableOffset, ranges: Iterable[PartitionRange]
    ) -> None:
        """Pass over the record that the query ended by."""
        # Two clusters may have topics of one name: the record is only in one of them.
        passed = [self._skip_run(each, unreadable.offset, unreadable.reason) for each in ranges]
        if all(each is None for each in passed):
            what = "job %s begins again: offset %d of %s is gone"
            log.info(what, self.job, unreadable.offset, unreadable.topic)

    def look_ahead(self) -> None:
        """Pass over what is near the start of any range of the batch."""
        for range in self.batch.list_ranges():
            source, start = self.sources[range.input_name], range.start
            if source.input.on_invalid == "fail":
                continue  # what is good before it is written first
            while not self.should_stop():
                offset = _find_next_unreadable(source, range._replace(start=start))
                if offset is None:
                    break
                following = self._skip_run(range._replace(start=start), offset)
                if following is None or offset > start:
                    break
                start = following

    def log_skipped(self) -> None:
        """Write a line of each partition of which records were told."""
        for (_, topic, partition), each in self.skipped.items():
            if each.record_count:
                log.warning(
                    "job %s passes over %d records of %s, partition %d, offsets %d to %d, as Spark "
                    "cannot read their timestamps, such as %d; let the topic's "
                    "message.timestamp.after.max.ms and .before.max.ms refuse them",
                    *(self.job, each.record_count, topic, partition),
                    *(each.first_offset, each.next_offset - 1, each.timestamp_ms),
                )

    def _skip_run(self, offset_range: PartitionRange, offset: int, reason: str = "") -> int | None:
        """Pass over a record of a range, whose reason is why the job ends where it must.

        Returns:
            Where the batch goes on, or ends; None where the range has no such record.
        """
        source, place = (
            self.sources[offset_range.input_name],
            (offset_range.topic, offset_range.partition),
        )
        passed = self.skipped.setdefault(
            (offset_range.input_name, *place), _SkippedRange(offset, offset)
        )
        following = offset
        stop = self.should_stop
        try:
            for chunk in read_run(
                build_client_config(source.cluster), *place, offset, should_stop=stop
            ):
                if source.input.on_invalid == "fail":
                    raise PipelineError(reason)
                if offset_range.start < offset:
                    self.batch.truncate(offset_range.line, *place, offset)
                    return offset
                following = chunk[-1].offset + 1
                if passed.next_offset < following:
                    self._report_records(offset_range, chunk, passed)
                    passed.next_offset = following
        except KafkaException as error:
            raise build_kafka_error(f"{offset_range.topic} cannot be read", error) from error
        if following == offset:
            return None
        self.batch.move_start(offset_range.line, *place, following)
        return following

    def _report_records(
        self,
        offset_range: PartitionRange,
        records: Sequence[UnreadableRecord],
        skipped: _SkippedRange,
    ) -> None:
        """Tell records as invalid, by dead letters and a counter, and note them."""
        source = self.sources[offset_range.input_name]
        if source.input.value.model != "string":  # a tombstone is no event, and never told
            records = [each for each in records if each.value is not None]
        if not records:
            return
        if source.dead_letters is not None:
            self.check_topics()
            source.dead_letters.send(
                RecordOrigin(offset_range.input_name, source.topic, offset_range.partition), records
            )
        counts.increment_counter(
            catalog.PIPELINE_UNREADABLE_RECORDS, len(records), self.job, offset_range.topic
        )
        skipped.record_count += len(records)
        skipped.timestamp_ms = records[0].timestamp_ms


def _find_next_unreadable(source: InputSource, offset_range: PartitionRange) -> int | None:
    try:
        place = offset_range.topic, offset_range.partition
        return find_next_unreadable(
            build_client_config(source.cluster), *place, offset_range.start, offset_range.end
        )
    except KafkaException as error:
        raise build_kafka_error(f"{offset_range.topic} cannot be read", error) from error
