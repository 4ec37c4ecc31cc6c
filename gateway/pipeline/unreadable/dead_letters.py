"""Dead letters of records that Spark cannot read: each once.

How far letters were sent of a partition is in the ledger, written in one transaction with them. So
a crash between the letters and the edit of the checkpoint neither loses nor repeats any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gateway.config import Kafka
from gateway.config.sections.job import Output
from gateway.pipeline import topics
from gateway.pipeline.exactly_once import large_rows
from gateway.pipeline.exactly_once.ledger import Ledger, open_ledger
from gateway.pipeline.exactly_once.producers import LedgerProducer
from gateway.pipeline.exactly_once.side_output import (
    INPUT_HEADER,
    ORIGIN_FIELDS,
    REASON_HEADER,
    side_topic,
)
from gateway.pipeline.spark.client_config import build_client_config
from gateway.pipeline.topics import TopicDescription

from .records import UnreadableRecord


@dataclass(frozen=True, slots=True)
class RecordOrigin:
    """The partition that records are of, as an input of a job.

    Attributes:
        name: Of the input.
        topic: The topic, with its id: of one that was made anew, offsets begin again.
        partition: The number of the partition.
    """

    input_name: str
    topic: TopicDescription
    partition: int


@dataclass
class DeadLetterSender:
    """Where the letters of a job go. Made for one start of it, which no other process does as well.

    Attributes:
        query: The id of its checkpoint.
        output: The topic of its rows, by which the ledger is named.
        into: The cluster of that topic.
    """

    query_id: str
    output: Output
    output_cluster: Kafka
    _producers: dict[str, tuple[LedgerProducer, int]] = field(default_factory=dict)
    _next_offsets: dict[str, int] = field(
        default_factory=dict
    )  # the next offset, by the ledger's key

    def send(self, origin: RecordOrigin, records: Sequence[UnreadableRecord]) -> None:
        """Send those that were not sent before. They must be given in the order of their offsets.

        Raises:
            PipelineError: Kafka does not take them, now or ever.
            KafkaException: The ledger cannot be read.
        """
        dead = side_topic(origin.topic.name, "dlq")
        if dead not in self._producers:
            self._producers[dead] = self._open_producer(dead)
        producer, limit = self._producers[dead]
        key = f"{self.query_id}|unreadable|{origin.input_name}|{origin.topic.id}|{origin.partition}"
        if key not in self._next_offsets:
            self._next_offsets[key] = int(self._ledger.read_values([key]).get(key, {}).get("to", 0))
        left = [each for each in records if each.offset >= self._next_offsets[key]]
        if not left:
            return
        following = left[-1].offset + 1
        rows = [_build_dead_letter(origin, each, dead, limit) for each in left]
        producer.begin()
        producer.write_rows([dead] * len(rows), *map(list, zip(*rows, strict=True)))
        producer.write_entry(self._ledger.topic, 0, key, {"to": following})
        producer.commit()
        self._next_offsets[key] = following

    @cached_property
    def _ledger(self) -> Ledger:
        timeout = self.output.transaction_timeout
        return open_ledger(
            self.output.topic,
            self.output.writers,
            timeout,
            build_client_config(self.output_cluster),
        )

    def _open_producer(self, dead_letter_topic: str) -> tuple[LedgerProducer, int]:
        """Return a producer for a topic of letters, made if it is missing, and its limit in bytes.

        It is made before the ledger is read: nobody else can send the same letters after that.
        """
        topics.ensure_topic(
            self.output_cluster, dead_letter_topic, None, topics.list_topics(self.output_cluster)
        )
        limit = topics.fetch_max_message_bytes(
            build_client_config(self.output_cluster), dead_letter_topic
        )
        ledger, timeout = self._ledger, self.output.transaction_timeout
        name = f"{self.query_id}-unreadable-{dead_letter_topic}"
        return LedgerProducer(name, ledger.client_config, ledger.topic, timeout, limit), limit


def _build_dead_letter(
    origin: RecordOrigin, record: UnreadableRecord, dead_letter_topic: str, max_bytes: int
) -> tuple[bytes | None, bytes | None, large_rows.Headers]:
    """Return the key, the value and the headers: as of `side.letters`."""
    place = origin.topic.name, origin.partition, record.offset, record.timestamp_ms
    reason = f"its timestamp, {record.timestamp_ms} ms, is beyond what Spark reads"
    if record.lacks_headers:
        reason += "; its headers are left out, as a name of them is not UTF-8"
    origins = [f"X-Origin-{each.title()}" for each in ORIGIN_FIELDS]
    told = zip(
        [*origins, INPUT_HEADER, REASON_HEADER], [*place, origin.input_name, reason], strict=True
    )
    headers = [*record.headers, *((name, str(value).encode()) for name, value in told)]
    row = {
        "key": record.key,
        "value": record.value,
        "headers": [{"key": name, "value": value} for name, value in headers],
    }
    if large_rows.estimate_row_size(row) > max_bytes:
        return large_rows.build_dead_letter(dead_letter_topic, row, max_bytes)
    return record.key, record.value, headers
