"""What a job's start does about a record that its last run could not read."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import KafkaException

from gateway.config import Kafka
from gateway.config.sections.pipeline import Input
from gateway.errors import PipelineError, PipelineUnavailable
from gateway.pipeline.progress import counts
from gateway.pipeline.run.failures import Unreadable, of_kafka
from gateway.pipeline.spark.connect import client
from gateway.pipeline.topics import Topic
from gateway.telemetry import catalog

from .letters import DeadLetters, Origin
from .log import Record, find_next, read_run
from .offsets import Range, Unfinished

log = logging.getLogger(__name__)

PASS_S = 5.0  # how long records are passed over by one start; it passes over one at least


@dataclass(frozen=True, slots=True)
class Source:
    """An input of a job, as records are passed over in it.

    Attributes:
        input: Its settings.
        kafka: Its cluster.
        topic: Its topic, as it is read.
        letters: Where its dead letters go; None where it has none.
    """

    input: Input
    kafka: Kafka
    topic: Topic
    letters: DeadLetters | None


def pass_over(
    job: str,
    sources: Mapping[str, Source],
    unfinished: Unfinished | None,
    found: Unreadable,
    ending: threading.Event,
    limit: float = PASS_S,
    *,
    check: Callable[[], None] = lambda: None,
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
    if found.topic not in topics:
        raise PipelineError(found.reason)
    deadline = time.monotonic() + limit
    known = unfinished.ranges(found.topic, found.partition) if unfinished else []
    ranges = [each for each in known if each.start <= found.offset < each.end]
    if unfinished is None or not ranges:
        what = "the batch that the job is to do next does not have it; no other process may run "
        raise PipelineUnavailable(f"{found.reason}; {what}the job")
    passing = _Passing(
        job, sources, unfinished, lambda: ending.is_set() or time.monotonic() > deadline, check
    )
    try:
        passing.pass_found(found, ranges)
        passing.look_ahead()
    finally:
        passing.log_passed()


@dataclass(slots=True)
class _Passed:
    """What one start has passed over of a partition.

    Attributes:
        first: Offset of the first record.
        following: The offset behind the last one.
        records: How many were told.
        timestamp: Of one of them, in ms since 1970.
    """

    first: int
    following: int
    records: int = 0
    timestamp: int = 0


@dataclass(frozen=True, slots=True)
class _Passing:
    """One edit of a checkpoint: see `pass_over`.

    Attributes:
        should_stop: Return whether to pass over no more.
        check: As of `pass_over`.
        passed: By input, topic and partition. A table that a query reads twice has two ranges, and
            its records are told once.
    """

    job: str
    sources: Mapping[str, Source]
    unfinished: Unfinished
    should_stop: Callable[[], bool]
    check: Callable[[], None]
    passed: dict[tuple[str, str, int], _Passed] = field(default_factory=dict)

    def pass_found(self, found: Unreadable, ranges: Iterable[Range]) -> None:
        """Pass over the record that the query ended by."""
        # Two clusters may have topics of one name: the record is only in one of them.
        passed = [self._pass(each, found.offset, found.reason) for each in ranges]
        if all(each is None for each in passed):
            what = "job %s begins again: offset %d of %s is gone"
            log.info(what, self.job, found.offset, found.topic)

    def look_ahead(self) -> None:
        """Pass over what is near the start of any range of the batch."""
        for range in self.unfinished.all_ranges():
            source, start = self.sources[range.name], range.start
            if source.input.on_invalid == "fail":
                continue  # what is good before it is written first
            while not self.should_stop():
                offset = _find_next(source, range._replace(start=start))
                if offset is None:
                    break
                following = self._pass(range._replace(start=start), offset)
                if following is None or offset > start:
                    break
                start = following

    def log_passed(self) -> None:
        """Write a line of each partition of which records were told."""
        for (_, topic, partition), each in self.passed.items():
            if each.records:
                log.warning(
                    "job %s passes over %d records of %s, partition %d, offsets %d to %d, as Spark "
                    "cannot read their timestamps, such as %d; let the topic's "
                    "message.timestamp.after.max.ms and .before.max.ms refuse them",
                    *(self.job, each.records, topic, partition),
                    *(each.first, each.following - 1, each.timestamp),
                )

    def _pass(self, range: Range, offset: int, reason: str = "") -> int | None:
        """Pass over a record of a range, whose reason is why the job ends where it must.

        Returns:
            Where the batch goes on, or ends; None where the range has no such record.
        """
        source, place = self.sources[range.name], (range.topic, range.partition)
        passed = self.passed.setdefault((range.name, *place), _Passed(offset, offset))
        following = offset
        stop = self.should_stop
        try:
            for chunk in read_run(client(source.kafka), *place, offset, should_stop=stop):
                if source.input.on_invalid == "fail":
                    raise PipelineError(reason)
                if range.start < offset:
                    self.unfinished.cut(range.line, *place, offset)
                    return offset
                following = chunk[-1].offset + 1
                if passed.following < following:
                    self._tell(range, chunk, passed)
                    passed.following = following
        except KafkaException as error:
            raise of_kafka(f"{range.topic} cannot be read", error) from error
        if following == offset:
            return None
        self.unfinished.move(range.line, *place, following)
        return following

    def _tell(self, range: Range, records: Sequence[Record], passed: _Passed) -> None:
        """Tell records as invalid, by dead letters and a counter, and note them."""
        source = self.sources[range.name]
        if source.input.value.model != "string":  # a tombstone is no event, and never told
            records = [each for each in records if each.value is not None]
        if not records:
            return
        if source.letters is not None:
            self.check()
            source.letters.send(Origin(range.name, source.topic, range.partition), records)
        counts.add(catalog.PIPELINE_UNREADABLE, len(records), self.job, range.topic)
        passed.records += len(records)
        passed.timestamp = records[0].timestamp


def _find_next(source: Source, range: Range) -> int | None:
    try:
        place = range.topic, range.partition
        return find_next(client(source.kafka), *place, range.start, range.end)
    except KafkaException as error:
        raise of_kafka(f"{range.topic} cannot be read", error) from error
