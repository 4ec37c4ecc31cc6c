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

from gateway.pipeline.run.failures import of_kafka

from .ledger import Ledger, log_starts
from .producers import Transactional

log = logging.getLogger(__name__)

Offsets = Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets [start, end) of a partition; where its topic was made anew, it ends at the begin."""

    topic: str
    partition: int
    start: int
    end: int

    def record(self, job: str) -> dict[str, Any]:
        """The value of a gap record."""
        found = {"topic": self.topic, "partition": self.partition}
        reason = "retention" if self.start < self.end else "recreated"
        return found | {"from": self.start, "to": self.end, "reason": reason, "job": job}


def lacking(following: Offsets, starts: Offsets, told: Offsets) -> list[Gap]:
    """The gaps that are to be told. following: what is read next; starts: where logs begin; told:
    how far gaps were told before. A partition that is gone has no start: it is no gap."""
    gaps = []
    for (topic, partition), offset in sorted(following.items()):
        end = starts.get((topic, partition), 0)
        start = max(offset, told.get((topic, partition), 0))
        if start < end:
            gaps.append(Gap(topic, partition, start, end))
    return gaps


class Gaps:
    """Of one input.

    query: as of `Writer`. name: of the input; it is told, and keys of the ledger have it, as two
    inputs of a job may read one topic, or topics of one name in two clusters. topic: of the gap
    records. read: librdkafka's properties of the input's cluster. timeout: s, of transactions.
    ensure: makes the topic, before the first of them is told.
    """

    def __init__(
        self,
        job: str,
        query: str,
        name: str,
        topic: str,
        ledger: Ledger,
        *,
        read: Mapping[str, Any],
        timeout: float,
        ensure: Callable[[], None] = lambda: None,
    ) -> None:
        self._job = job
        self._query = query
        self._name = name
        self._topic = topic
        self._ledger = ledger
        self._timeout = timeout
        self._ensure = ensure
        self._consumer = Consumer({**read, "group.id": "gateway-gaps", "enable.auto.commit": False})

    def check(self, following: Offsets) -> list[Gap]:
        """Return those that were found now, and told.

        Raises:
            PipelineError: Kafka does not answer, or refuses.
        """
        try:
            starts = log_starts(self._consumer, following)
            if not lacking(following, starts, {}):
                return []
            ledger = self._ledger
            # Made before the ledger is read: nobody else can tell of the same gaps after that.
            name = f"{self._query}-gaps"
            producer = Transactional(name, ledger.client, ledger.topic, self._timeout)
            gaps = lacking(following, starts, self._told(following))
            if gaps:
                self._ensure()
                self._tell(producer, gaps)
        except KafkaException as error:
            raise of_kafka(f"gaps of {self._job} cannot be looked for", error) from error
        return gaps

    def tell_recreated(self, gaps: Iterable[Gap], topic: str) -> list[Gap]:
        """Tell gaps of a topic that was made anew, unless they were told.

        Args:
            gaps: One of each partition.
            topic: The id of the new topic.

        Returns:
            Those that were told now.
        """
        try:
            ledger = self._ledger
            name = f"{self._query}-gaps"
            producer = Transactional(name, ledger.client, ledger.topic, self._timeout)
            keys = {self._key(each.topic, each.partition): each for each in gaps}
            told = self._ledger.values(keys)
            left = [each for key, each in keys.items() if told.get(key, {}).get("id") != topic]
            if left:
                self._ensure()
                self._tell(producer, left, id=topic)
        except KafkaException as error:
            raise of_kafka(f"gaps of {self._job} cannot be told", error) from error
        return left

    def close(self) -> None:
        self._consumer.close()

    def _key(self, topic: str, partition: int) -> str:
        return f"{self._query}|gap|{self._name}|{topic}|{partition}"

    def _told(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        keys = {self._key(*each): each for each in partitions}
        return {keys[key]: found["to"] for key, found in self._ledger.values(keys).items()}

    def _tell(self, producer: Transactional, gaps: Iterable[Gap], **more: str) -> None:
        producer.begin()
        for gap in gaps:
            record = gap.record(self._job) | {"input": self._name}
            value = json.dumps(record, separators=(",", ":"))
            producer.plain(self._topic, [f"{gap.topic}-{gap.partition}"], [value])
            key = self._key(gap.topic, gap.partition)
            producer.entry(self._ledger.topic, 0, key, {"to": gap.end, **more})
            log.warning("%s lacks records that are gone: %s", self._job, record)
        producer.commit()
