"""Skip the record that ended a query's last run, before the query is started again."""

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

from .dead_letters import DeadLetterWriter, RecordOrigin
from .offsets import PartitionRange, UnfinishedBatch
from .records import UnreadableRecord, find_next_unreadable, read_run

log = logging.getLogger(__name__)

# How long one start skips records at most. It skips at least one.
MAX_SKIP_S = 5.0


@dataclass(frozen=True, slots=True)
class InputSource:
    """An input whose records may be skipped; without `dead_letters` they are not written."""

    input: Input
    cluster: Kafka
    topic: TopicDescription
    dead_letters: DeadLetterWriter | None


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
    """Edit a checkpoint so that its query gets past a record that Spark cannot read.

    If the record is in the middle of the unfinished batch, the batch is cut to end before it. If
    the batch starts with the record, the start is moved behind it and behind all unreadable records
    that directly follow, after these were written as dead letters. So a record in the middle of a
    batch takes two starts of the query. Unreadable records near the starts of all other partitions
    are skipped at the same time, so that they do not need a start of their own.

    Args:
        batch: The batch that failed, or None if the checkpoint has no unfinished batch.
        stop_event: Once it is set, only the record at hand is skipped.
        max_skip_s: How long records are skipped at most. The remaining ones end the query again.
        check_topics: Raises PipelineUnavailable if a topic was recreated since. It is called after
            records were read and before they are written as dead letters.

    Raises:
        PipelineUnavailable: The batch does not have the record, for example because another process
            runs the same job; or Kafka does not answer.
        PipelineError: No input of the job has the record, or the record must not be skipped.
    """
    topics = {source.input.topic for source in sources.values()}
    if unreadable.topic not in topics:
        raise PipelineError(unreadable.reason)
    deadline = time.monotonic() + max_skip_s
    partition_ranges = batch.find_ranges(unreadable.topic, unreadable.partition) if batch else []
    ranges = [
        offset_range
        for offset_range in partition_ranges
        if offset_range.start <= unreadable.offset < offset_range.end
    ]
    if batch is None or not ranges:
        problem = "the next batch of the job does not have it; no other process may run the job"
        raise PipelineUnavailable(f"{unreadable.reason}; {problem}")
    skipper = _Skipper(
        job,
        sources,
        batch,
        lambda: stop_event.is_set() or time.monotonic() > deadline,
        check_topics,
    )
    try:
        skipper.skip_failed_record(unreadable, ranges)
        skipper.look_ahead()
    finally:
        skipper.log_skipped()


@dataclass(slots=True)
class _SkippedRange:
    """The records of a partition that one start has skipped.

    Attributes:
        next_offset: The offset after the last one.
        record_count: How many were reported.
        timestamp_ms: The timestamp of one of them, in ms since 1970.
    """

    first_offset: int
    next_offset: int
    record_count: int = 0
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class _Skipper:
    """One call of `skip_records`.

    Attributes:
        skipped: The skipped records by input, topic and partition. A table that a query reads twice
            has two ranges with the same key, so its records are reported only once.
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
        # Two clusters may have topics of the same name, and only one of them has the record. In
        # the ranges of the other one no unreadable record is found.
        positions = [
            self._skip_run(offset_range, unreadable.offset, unreadable.reason)
            for offset_range in ranges
        ]
        if all(position is None for position in positions):
            text = "job %s begins again: offset %d of %s is gone"
            log.info(text, self.job, unreadable.offset, unreadable.topic)

    def look_ahead(self) -> None:
        for offset_range in self.batch.list_ranges():
            source, start = self.sources[offset_range.input_name], offset_range.start
            if source.input.on_invalid == "fail":
                continue  # the query writes the records before it first, and then fails at it
            while not self.should_stop():
                offset = _find_next_unreadable(source, offset_range._replace(start=start))
                if offset is None:
                    break
                position = self._skip_run(offset_range._replace(start=start), offset)
                # If the record was not at the start, the batch now ends before it.
                if position is None or offset > start:
                    break
                start = position

    def log_skipped(self) -> None:
        for (_, topic, partition), skipped in self.skipped.items():
            if skipped.record_count:
                log.warning(
                    "job %s passes over %d records of %s, partition %d, offsets %d to %d, as Spark "
                    "cannot read their timestamps, such as %d; let the topic's "
                    "message.timestamp.after.max.ms and .before.max.ms refuse them",
                    *(self.job, skipped.record_count, topic, partition),
                    *(skipped.first_offset, skipped.next_offset - 1, skipped.timestamp_ms),
                )

    def _skip_run(self, offset_range: PartitionRange, offset: int, reason: str = "") -> int | None:
        """Skip an unreadable record of a range, and those that directly follow it.

        Args:
            reason: The error with which the job ends if its input must not skip records.

        Returns:
            The new start or the new end of the range, or None if it has no such record.
        """
        source = self.sources[offset_range.input_name]
        place = (offset_range.topic, offset_range.partition)
        skipped = self.skipped.setdefault(
            (offset_range.input_name, *place), _SkippedRange(offset, offset)
        )
        position = offset
        stop = self.should_stop
        try:
            for chunk in read_run(
                build_client_config(source.cluster), *place, offset, should_stop=stop
            ):
                if source.input.on_invalid == "fail":
                    raise PipelineError(reason)
                if offset_range.start < offset:
                    # The records before it are written first. The next start finds the record at
                    # the start of the batch.
                    self.batch.truncate(offset_range.line, *place, offset)
                    return offset
                position = chunk[-1].offset + 1
                if skipped.next_offset < position:
                    self._report_records(offset_range, chunk, skipped)
                    skipped.next_offset = position
        except KafkaException as error:
            raise build_kafka_error(f"{offset_range.topic} cannot be read", error) from error
        if position == offset:
            return None
        # The dead letters were written first. After a crash in between, the next start repeats
        # this, and by the ledger it leaves out those that were written.
        self.batch.move_start(offset_range.line, *place, position)
        return position

    def _report_records(
        self,
        offset_range: PartitionRange,
        records: Sequence[UnreadableRecord],
        skipped: _SkippedRange,
    ) -> None:
        """Report records as invalid by dead letters and a counter, and add them to `skipped`."""
        source = self.sources[offset_range.input_name]
        if source.input.value.model != "string":  # tombstones are not events, and are not reported
            records = [record for record in records if record.value is not None]
        if not records:
            return
        if source.dead_letters is not None:
            self.check_topics()
            source.dead_letters.write(
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
