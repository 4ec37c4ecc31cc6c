"""Write the dead letters of records that Spark cannot read, each exactly once.

The ledger has the offset of each partition up to which dead letters were written. That entry is
written in one transaction with the dead letters, so a crash before the checkpoint is edited neither
loses nor repeats any.
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
    """The partition of an input that records are of.

    Attributes:
        topic: Its id is part of the ledger's key, because the offsets of a recreated topic begin at
            0 again.
    """

    input_name: str
    topic: TopicDescription
    partition: int


@dataclass
class DeadLetterWriter:
    """A writer of the dead letters of one job.

    The runner creates one for each start of the job, while it holds the job's lease. Between calls,
    `_next_offsets` agrees with the ledger for every partition that was written.
    """

    query_id: str
    output: Output
    output_cluster: Kafka
    _producers: dict[str, tuple[LedgerProducer, int]] = field(default_factory=dict)
    _next_offsets: dict[str, int] = field(default_factory=dict)  # by the ledger's key

    def write(self, origin: RecordOrigin, records: Sequence[UnreadableRecord]) -> None:
        """Write the dead letters of records, in order, except those that were written before."""
        topic = side_topic(origin.topic.name, "dlq")
        if topic not in self._producers:
            self._producers[topic] = self._open_producer(topic)
        producer, max_bytes = self._producers[topic]
        key = f"{self.query_id}|unreadable|{origin.input_name}|{origin.topic.id}|{origin.partition}"
        if key not in self._next_offsets:
            self._next_offsets[key] = int(self._ledger.read_values([key]).get(key, {}).get("to", 0))
        # A start that was killed after the commit has written some of these records.
        unwritten = [record for record in records if record.offset >= self._next_offsets[key]]
        if not unwritten:
            return
        next_offset = unwritten[-1].offset + 1
        rows = [_build_dead_letter(origin, record, topic, max_bytes) for record in unwritten]
        producer.begin()
        producer.write_rows([topic] * len(rows), *map(list, zip(*rows, strict=True)))
        producer.write_entry(self._ledger.topic, 0, key, {"to": next_offset})
        producer.commit()
        self._next_offsets[key] = next_offset

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
        """Return a producer for a topic of dead letters, and the topic's largest batch in bytes.

        The producer is created before the ledger is read. It fences every other process, so that
        none can write the same dead letters after the read.
        """
        topics.ensure_topic(
            self.output_cluster, dead_letter_topic, None, topics.list_topics(self.output_cluster)
        )
        max_bytes = topics.fetch_max_message_bytes(
            build_client_config(self.output_cluster), dead_letter_topic
        )
        ledger, timeout = self._ledger, self.output.transaction_timeout
        producer = LedgerProducer(
            f"{self.query_id}-unreadable-{dead_letter_topic}",
            ledger.client_config,
            ledger.topic,
            timeout,
            max_bytes,
        )
        return producer, max_bytes


def _build_dead_letter(
    origin: RecordOrigin, record: UnreadableRecord, dead_letter_topic: str, max_bytes: int
) -> tuple[bytes | None, bytes | None, large_rows.Headers]:
    place = origin.topic.name, origin.partition, record.offset, record.timestamp_ms
    reason = f"its timestamp, {record.timestamp_ms} ms, is beyond what Spark reads"
    if record.has_unreadable_headers:
        reason += "; its headers are left out, as the name of one is not UTF-8"
    origin_headers = [f"X-Origin-{name.title()}" for name in ORIGIN_FIELDS]
    additional = zip(
        [*origin_headers, INPUT_HEADER, REASON_HEADER],
        [*place, origin.input_name, reason],
        strict=True,
    )
    headers = [*record.headers, *((name, str(value).encode()) for name, value in additional)]
    row = {
        "key": record.key,
        "value": record.value,
        "headers": [{"key": name, "value": value} for name, value in headers],
    }
    if large_rows.estimate_row_size(row) > max_bytes:
        return large_rows.build_dead_letter(dead_letter_topic, row, max_bytes)
    return record.key, record.value, headers
