"""Tables of topics that have records which Spark cannot read.

Spark's read of a whole topic fails by the first such record. Then librdkafka reads the topic, once,
wherever such records are and however many: 300,000 records with 200 of them take 5 s, about as long
as Spark takes without them. What is kept is the latest record of each key and partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from confluent_kafka import KafkaException

from gateway.pipeline import topics
from gateway.pipeline.progress import counts
from gateway.pipeline.run.failures import build_kafka_error, find_unreadable, list_causes
from gateway.pipeline.topics import TopicDescription
from gateway.telemetry import catalog

from .records import is_readable, read_to_end

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

T = TypeVar("T")


class _SkippedRecord(NamedTuple):
    """A record that a table lacks."""

    partition: int
    offset: int
    timestamp_ms: int  # ms since 1970


@dataclass(slots=True)
class TopicReader:
    """Reads a topic whole, again and again, for the table of one job.

    Attributes:
        job: The job's name.
        topic: The topic's name.
        client: librdkafka's properties of its cluster.
    """

    job: str
    topic: str
    client_config: Mapping[str, Any]
    _has_unreadable: bool = False  # as of the last read
    _known_topic: TopicDescription | None = None  # the topic that `_told` is of
    _next_offsets: dict[int, int] = field(
        default_factory=dict
    )  # up to before which offset, by partition

    def read(self, load: Callable[[pa.Table | None], T]) -> T:
        """Return what is loaded.

        Args:
            load: Reads the topic by Spark. Where that cannot read it, it is given the latest record
                of each key and partition instead: key, value, partition, offset, timestamp.

        Raises:
            PipelineError: Kafka does not answer, or refuses.
            Exception: What `load` raises for another reason.
        """
        if not self._has_unreadable:
            try:
                return load(None)
            except Exception as error:
                found = find_unreadable(list_causes(error))
                if found is None or found.topic != self.topic:
                    raise
        return load(self._read_latest())

    def _read_latest(self) -> pa.Table:
        import pyarrow as pa

        topic = topics.describe_topic(self.client_config, self.topic)
        if self._known_topic is None or topic.id != self._known_topic.id:
            self._next_offsets.clear()
        self._known_topic = topic
        latest: dict[tuple[bytes, int], tuple[Any, int, int]] = {}
        unreadable: list[_SkippedRecord] = []
        try:
            for message in read_to_end(self.client_config, self.topic, topic.partitions):
                partition, offset = message.partition(), message.offset()
                _, timestamp = message.timestamp()
                if not is_readable(timestamp):
                    unreadable.append(_SkippedRecord(partition, offset, timestamp))
                elif (key := message.key()) is not None:
                    latest[key, partition] = message.value(), offset, timestamp * 1000
        except KafkaException as error:
            raise build_kafka_error(f"{self.topic} cannot be read", error) from error
        self._has_unreadable = bool(unreadable)
        self._report_skipped(unreadable)
        columns = {
            "key": pa.array([key for key, _ in latest], pa.binary()),
            "partition": pa.array([partition for _, partition in latest], pa.int32()),
            "value": pa.array([each[0] for each in latest.values()], pa.binary()),
            "offset": pa.array([each[1] for each in latest.values()], pa.int64()),
            "timestamp": pa.array(
                [each[2] for each in latest.values()], pa.timestamp("us", tz="UTC")
            ),
        }
        return pa.table(columns)

    def _report_skipped(self, skipped: list[_SkippedRecord]) -> None:
        """Count the records that were not told before, and write one line of them."""
        new = [each for each in skipped if each.offset >= self._next_offsets.get(each.partition, 0)]
        if not new:
            return
        for each in new:
            self._next_offsets[each.partition] = each.offset + 1
        counts.increment_counter(
            catalog.PIPELINE_UNREADABLE_RECORDS, len(new), self.job, self.topic
        )
        log.warning(
            "the table of job %s lacks %d records of %s, as Spark cannot read their timestamps, "
            "such as partition %d, offset %d, timestamp %d; let the topic's "
            "message.timestamp.after.max.ms and .before.max.ms refuse them",
            *(self.job, len(new), self.topic, *new[0]),
        )
