"""Read topics with records that Spark cannot read as tables.

Spark's read of a whole topic fails at the first such record. Then librdkafka reads the topic once,
however many such records there are: 300,000 records with 200 of them take 5 s, about as long as
Spark takes without them. Only the latest record of each key and partition is kept.
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
    partition: int
    offset: int
    timestamp_ms: int


@dataclass(slots=True)
class TopicReader:
    """A reader of a whole topic, for the table of one job.

    It reads by Spark until that fails at a record, and from then on by librdkafka, as long as the
    topic has such a record. A job creates one for its table and reads it at every refresh.
    """

    job: str
    topic: str
    client_config: Mapping[str, Any]
    _has_unreadable: bool = False  # whether the last read found unreadable records
    _known_topic: TopicDescription | None = None  # the topic that `_next_offsets` is of
    # Unreadable records before these offsets were reported, by partition.
    _next_offsets: dict[int, int] = field(default_factory=dict)

    def read(self, load: Callable[[pa.Table | None], T]) -> T:
        """Load the table, and return the result of `load`.

        Args:
            load: Called with None, it reads the topic by Spark. If Spark cannot read the topic, it
                is called with the latest record of each key and partition instead, as the columns
                key, value, partition, offset, timestamp.
        """
        if not self._has_unreadable:
            try:
                return load(None)
            except Exception as error:
                unreadable = find_unreadable(list_causes(error))
                if unreadable is None or unreadable.topic != self.topic:
                    raise
        return load(self._read_latest())

    def _read_latest(self) -> pa.Table:
        import pyarrow as pa

        topic = topics.describe_topic(self.client_config, self.topic)
        if self._known_topic is None or topics.is_other_topic(self._known_topic.id, topic.id):
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
                    latest[key, partition] = message.value(), offset, timestamp * 1000  # to us
        except KafkaException as error:
            raise build_kafka_error(f"{self.topic} cannot be read", error) from error
        self._has_unreadable = bool(unreadable)
        self._report_skipped(unreadable)
        columns = {
            "key": pa.array([key for key, _ in latest], pa.binary()),
            "partition": pa.array([partition for _, partition in latest], pa.int32()),
            "value": pa.array([record[0] for record in latest.values()], pa.binary()),
            "offset": pa.array([record[1] for record in latest.values()], pa.int64()),
            "timestamp": pa.array(
                [record[2] for record in latest.values()], pa.timestamp("us", tz="UTC")
            ),
        }
        return pa.table(columns)

    def _report_skipped(self, skipped: list[_SkippedRecord]) -> None:
        new = [
            record
            for record in skipped
            if record.offset >= self._next_offsets.get(record.partition, 0)
        ]
        if not new:
            return
        for record in new:
            self._next_offsets[record.partition] = record.offset + 1
        counts.increment_counter(
            catalog.PIPELINE_UNREADABLE_RECORDS, len(new), self.job, self.topic
        )
        log.warning(
            "the table of job %s leaves out %d records of %s, as Spark cannot read their "
            "timestamps, such as partition %d, offset %d, timestamp %d; let the topic's "
            "message.timestamp.after.max.ms and .before.max.ms refuse them",
            *(self.job, len(new), self.topic, *new[0]),
        )
