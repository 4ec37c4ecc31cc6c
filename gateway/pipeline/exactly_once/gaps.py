"""Report records that retention deleted before a job read them, each gap once, in `<output>.gaps`.

A query goes on at the offsets of its checkpoint. If the log begins later by now, the records in
between are gone, and Spark (with failOnDataLoss=false) does not report that. So the offsets are
compared with the log starts before every batch, also before one that is repeated, whose whole range
counts as unread. They are compared again before Spark commits the batch: records that were deleted
meanwhile may have been read or not, as the reason of the gap says.

A gap record is written in one transaction with a ledger entry, which has the offset up to which the
gaps of its partition have been reported. So after a crash the next start reports the gap, and no
gap is reported twice. Some records of a gap may have been processed by a batch that was
interrupted.

Jobs that write no gap records, because that needs a call of Python in each batch, have their gaps
logged when they start (`log_gaps`). Later gaps are not found.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from gateway.pipeline.clusters import create_topic, fetch_config
from gateway.pipeline.failures import explain_kafka_errors
from gateway.pipeline.reports import Reports
from gateway.telemetry import catalog

from .ledger import REQUEST_TIMEOUT_S, Ledger, fetch_log_starts
from .producers import LedgerProducer

log = logging.getLogger(__name__)

RETENTION = "retention"
RETENTION_IN_BATCH = "retention while a batch read them: some may have been read"

# Offsets by topic and partition.
PartitionOffsets = Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class InputGap:
    """Offsets of a partition that a job did not read, from `start` to before `end`."""

    topic: str
    partition: int
    start: int
    end: int

    def build_record(self, job: str, reason: str = RETENTION) -> dict[str, Any]:
        origin = {"topic": self.topic, "partition": self.partition}
        return origin | {"from": self.start, "to": self.end, "reason": reason, "job": job}


def find_gaps(
    positions: PartitionOffsets, starts: PartitionOffsets, reported_ends: PartitionOffsets
) -> list[InputGap]:
    """Return new gaps; a partition without a start does not exist any more, and has none."""
    gaps = []
    for (topic, partition), offset in sorted(positions.items()):
        end = starts.get((topic, partition), 0)
        # The log start may move on between a report and the batch that reads on from there. Then
        # only the offsets since the last report are a new gap.
        start = max(offset, reported_ends.get((topic, partition), 0))
        if start < end:
            gaps.append(InputGap(topic, partition, start, end))
    return gaps


def add_partitions(
    positions: PartitionOffsets, partitions: Iterable[tuple[str, int]]
) -> PartitionOffsets:
    """Return positions with those of partitions that were added since, which are read from 0."""
    return dict.fromkeys(partitions, 0) | dict(positions)


def _create_consumer(client_config: Mapping[str, Any]) -> Consumer:
    return Consumer({**client_config, "group.id": "gateway-gaps", "enable.auto.commit": False})


def find_deleted(positions: PartitionOffsets, input_config: Mapping[str, Any]) -> list[InputGap]:
    consumer = _create_consumer(input_config)
    with closing(consumer), explain_kafka_errors("deleted records cannot be found"):
        return find_gaps(positions, fetch_log_starts(consumer, positions), {})


def count_gaps(
    job: str, found: Sequence[InputGap], reports: Reports, max_records: int | None = None
) -> None:
    """Count gaps, and log how many batches Spark needs to go through the offsets in them."""
    for gap in found:
        reports.increment_counter(catalog.PIPELINE_GAPS, 1, job, gap.topic)
    offsets = sum(gap.end - gap.start for gap in found)
    if max_records and (batches := offsets // max_records) > 1:
        log.warning(
            "job %s: about %d batches will be empty, as maxRecords counts records that are gone, "
            "too: start with a larger one until then",
            *(job, batches),
        )


def log_gaps(
    job: str,
    positions: PartitionOffsets,
    input_config: Mapping[str, Any],
    reports: Reports,
    max_records: int | None = None,
) -> None:
    consumer = _create_consumer(input_config)
    with closing(consumer), explain_kafka_errors(f"gaps of {job} cannot be found"):
        for topic in {topic for topic, _ in positions}:
            metadata = consumer.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic]
            places = ((topic, partition) for partition in metadata.partitions)
            positions = add_partitions(positions, places)
        gaps = find_gaps(positions, fetch_log_starts(consumer, positions), {})
    count_gaps(job, gaps, reports, max_records)
    for gap in gaps:
        log.warning("job %s did not read records that are gone: %s", job, gap.build_record(job))


def log_removed_tombstones(
    job: str,
    positions: PartitionOffsets,
    read_at_ms: int,
    input_config: Mapping[str, Any],
    reports: Reports,
) -> None:
    """Log that compaction may have removed tombstones that a job has not read.

    Kafka keeps a tombstone for `delete.retention.ms`. Log starts do not show that it is gone.
    """
    for topic in {topic for topic, _ in positions}:
        if "compact" not in (fetch_config(input_config, topic, "cleanup.policy") or ""):
            continue
        retention_ms = int(fetch_config(input_config, topic, "delete.retention.ms") or 0)
        if time.time() * 1000 - read_at_ms < retention_ms:
            continue
        consumer = _create_consumer(input_config)
        with closing(consumer), explain_kafka_errors(f"gaps of {job} cannot be found"):
            has_unread = any(
                consumer.get_watermark_offsets(TopicPartition(*place), REQUEST_TIMEOUT_S)[1]
                > offset
                for place, offset in positions.items()
            )
        if has_unread:
            reports.increment_counter(catalog.PIPELINE_GAPS, 1, job, topic)
            log.warning(
                "job %s has not read topic %s for longer than its delete.retention.ms (%d): rows "
                "whose tombstones compaction has removed since stay in the table; delete its keys "
                "and start with --fresh",
                *(job, topic, retention_ms),
            )


@dataclass(eq=False)
class GapReporter:
    """The reporter of an input's gaps, which `SideOutputs` calls before and after every batch.

    Attributes:
        input_name: The name of the input in the job. It is part of the gap records and of the
            ledger's keys, as two inputs of a job may read one topic, or topics of the same name in
            two clusters.
        input_config: librdkafka's properties of the input's cluster.
    """

    job: str
    query_id: str
    input_name: str
    gap_topic: str
    ledger: Ledger
    _: KW_ONLY
    input_config: Mapping[str, Any]
    timeout_s: float

    def __post_init__(self) -> None:
        self._consumer = _create_consumer(self.input_config)

    def report_gaps(self, positions: PartitionOffsets, reason: str = RETENTION) -> list[InputGap]:
        with explain_kafka_errors(f"gaps of {self.job} cannot be found"):
            starts = fetch_log_starts(self._consumer, positions)
            # Usually there are none. Then no producer is created, and the ledger is not read.
            if not find_gaps(positions, starts, {}):
                return []
            ledger = self.ledger
            # The producer is created before the ledger is read. It fences every other process, so
            # that nobody else can report the same gaps after the read.
            transactional_id = f"{self.query_id}-gaps"
            producer = LedgerProducer(
                transactional_id, ledger.client_config, ledger.topic, self.timeout_s
            )
            gaps = find_gaps(positions, starts, self._read_reported_ends(positions))
            if gaps:
                create_topic(ledger.client_config, self.gap_topic)
                self._write_gaps(producer, gaps, reason)
        return gaps

    def close(self) -> None:
        self._consumer.close()

    def _ledger_key(self, topic: str, partition: int) -> str:
        return f"{self.query_id}|gap|{self.input_name}|{topic}|{partition}"

    def _read_reported_ends(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[tuple[str, int], int]:
        keys = {self._ledger_key(*partition): partition for partition in partitions}
        return {keys[key]: value["to"] for key, value in self.ledger.read_values(keys).items()}

    def _write_gaps(self, producer: LedgerProducer, gaps: Iterable[InputGap], reason: str) -> None:
        producer.begin()
        for gap in gaps:
            record = gap.build_record(self.job, reason) | {"input": self.input_name}
            value = json.dumps(record, separators=(",", ":"))
            place = f"{gap.topic}-{gap.partition}"
            producer.write_rows([self.gap_topic], [place], [value], [None])
            key = self._ledger_key(gap.topic, gap.partition)
            producer.write_entry(self.ledger.topic, 0, key, {"to": gap.end})
            log.warning("job %s did not read records that are gone: %s", self.job, record)
        producer.commit()
