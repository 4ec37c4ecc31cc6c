"""What retention took before a job had read it: told once, in `<output>.gaps`.

A query goes on where its checkpoint says. Where the log begins later by now, the records between
are gone, and Spark (failOnDataLoss=false) says nothing. So the two are compared before the query
starts, when the range of a batch that is run again counts as unread, and before each batch. What
is taken while a batch reads is not seen.

A gap record and how far has been told of its partition go out in one transaction, under a key of
the ledger of its own: a crash between finding and telling tells it at the next start, and nobody
tells it twice. Some records of a gap may have been written before, by a batch that was interrupted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaException

from gateway.pipeline.run.failures import build_kafka_error

from .ledger import Ledger, fetch_log_starts
from .producers import LedgerProducer

log = logging.getLogger(__name__)

PartitionOffsets = Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class InputGap:
    """Offsets [start, end) of a partition; where its topic was made anew, it ends at the begin."""

    topic: str
    partition: int
    start: int
    end: int

    def build_record(self, job: str) -> dict[str, Any]:
        """The value of a gap record."""
        found = {"topic": self.topic, "partition": self.partition}
        reason = "retention" if self.start < self.end else "recreated"
        return found | {"from": self.start, "to": self.end, "reason": reason, "job": job}


def find_gaps(
    positions: PartitionOffsets, starts: PartitionOffsets, reported_ends: PartitionOffsets
) -> list[InputGap]:
    """The gaps that are to be told. following: what is read next; starts: where logs begin; told:
    how far gaps were told before. A partition that is gone has no start: it is no gap."""
    gaps = []
    for (topic, partition), offset in sorted(positions.items()):
        end = starts.get((topic, partition), 0)
        start = max(offset, reported_ends.get((topic, partition), 0))
        if start < end:
            gaps.append(InputGap(topic, partition, start, end))
    return gaps


class GapReporter:
    """Of one input.

    query: as of `Writer`. name: of the input; it is told, and keys of the ledger have it, as two
    inputs of a job may read one topic, or topics of one name in two clusters. topic: of the gap
    records. read: librdkafka's properties of the input's cluster. timeout: s, of transactions.
    ensure: makes the topic, before the first of them is told.
    """

    def __init__(
        self,
        job: str,
        query_id: str,
        input_name: str,
        gap_topic: str,
        ledger: Ledger,
        *,
        input_config: Mapping[str, Any],
        timeout_s: float,
        ensure_topic: Callable[[], None] = lambda: None,
    ) -> None:
        self._job = job
        self._query_id = query_id
        self._input_name = input_name
        self._gap_topic = gap_topic
        self._ledger = ledger
        self._timeout_s = timeout_s
        self._ensure_topic = ensure_topic
        self._consumer = Consumer(
            {**input_config, "group.id": "gateway-gaps", "enable.auto.commit": False}
        )

    def report_gaps(self, positions: PartitionOffsets) -> list[InputGap]:
        """Return those that were found now, and told.

        Raises:
            PipelineError: Kafka does not answer, or refuses.
        """
        try:
            starts = fetch_log_starts(self._consumer, positions)
            if not find_gaps(positions, starts, {}):
                return []
            ledger = self._ledger
            # Made before the ledger is read: nobody else can tell of the same gaps after that.
            name = f"{self._query_id}-gaps"
            producer = LedgerProducer(name, ledger.client_config, ledger.topic, self._timeout_s)
            gaps = find_gaps(positions, starts, self._read_reported_ends(positions))
            if gaps:
                self._ensure_topic()
                self._write_gaps(producer, gaps)
        except KafkaException as error:
            raise build_kafka_error(f"gaps of {self._job} cannot be looked for", error) from error
        return gaps

    def report_recreated(self, gaps: Iterable[InputGap], topic_id: str) -> list[InputGap]:
        """Tell gaps of a topic that was made anew, unless they were told.

        Args:
            gaps: One of each partition.
            topic: The id of the new topic.

        Returns:
            Those that were told now.
        """
        try:
            ledger = self._ledger
            name = f"{self._query_id}-gaps"
            producer = LedgerProducer(name, ledger.client_config, ledger.topic, self._timeout_s)
            keys = {self._ledger_key(each.topic, each.partition): each for each in gaps}
            told = self._ledger.read_values(keys)
            left = [each for key, each in keys.items() if told.get(key, {}).get("id") != topic_id]
            if left:
                self._ensure_topic()
                self._write_gaps(producer, left, id=topic_id)
        except KafkaException as error:
            raise build_kafka_error(f"gaps of {self._job} cannot be told", error) from error
        return left

    def close(self) -> None:
        self._consumer.close()

    def _ledger_key(self, topic: str, partition: int) -> str:
        return f"{self._query_id}|gap|{self._input_name}|{topic}|{partition}"

    def _read_reported_ends(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[tuple[str, int], int]:
        keys = {self._ledger_key(*each): each for each in partitions}
        return {keys[key]: found["to"] for key, found in self._ledger.read_values(keys).items()}

    def _write_gaps(self, producer: LedgerProducer, gaps: Iterable[InputGap], **extra: str) -> None:
        producer.begin()
        for gap in gaps:
            record = gap.build_record(self._job) | {"input": self._input_name}
            value = json.dumps(record, separators=(",", ":"))
            producer.write_to_topic(self._gap_topic, [f"{gap.topic}-{gap.partition}"], [value])
            key = self._ledger_key(gap.topic, gap.partition)
            producer.write_entry(self._ledger.topic, 0, key, {"to": gap.end, **extra})
            log.warning("%s lacks records that are gone: %s", self._job, record)
        producer.commit()
