"""Dead letters of records that Spark cannot read: each once.

How far letters were sent of a partition is in the ledger, written in one transaction with them. So
a crash between the letters and the edit of the checkpoint neither loses nor repeats any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gateway.config import Kafka
from gateway.config.sections.pipeline import Output
from gateway.pipeline import topics
from gateway.pipeline.exactly_once import letters
from gateway.pipeline.exactly_once.ledger import Ledger, opened
from gateway.pipeline.exactly_once.producers import Transactional
from gateway.pipeline.exactly_once.side import INPUT, PLACE, REASON, topic_of
from gateway.pipeline.spark.connect import client
from gateway.pipeline.topics import Topic

from .log import Record


@dataclass(frozen=True, slots=True)
class Origin:
    """The partition that records are of, as an input of a job.

    Attributes:
        name: Of the input.
        topic: The topic, with its id: of one that was made anew, offsets begin again.
        partition: The number of the partition.
    """

    name: str
    topic: Topic
    partition: int


@dataclass
class DeadLetters:
    """Where the letters of a job go. Made for one start of it, which no other process does as well.

    Attributes:
        query: The id of its checkpoint.
        output: The topic of its rows, by which the ledger is named.
        into: The cluster of that topic.
    """

    query: str
    output: Output
    into: Kafka
    _topics: dict[str, tuple[Transactional, int]] = field(default_factory=dict)
    _sent: dict[str, int] = field(default_factory=dict)  # the next offset, by the ledger's key

    def send(self, origin: Origin, records: Sequence[Record]) -> None:
        """Send those that were not sent before. They must be given in the order of their offsets.

        Raises:
            PipelineError: Kafka does not take them, now or ever.
            KafkaException: The ledger cannot be read.
        """
        dead = topic_of(origin.topic.name, "dlq")
        if dead not in self._topics:
            self._topics[dead] = self._open(dead)
        producer, limit = self._topics[dead]
        key = f"{self.query}|unreadable|{origin.name}|{origin.topic.id}|{origin.partition}"
        if key not in self._sent:
            self._sent[key] = int(self._ledger.values([key]).get(key, {}).get("to", 0))
        left = [each for each in records if each.offset >= self._sent[key]]
        if not left:
            return
        following = left[-1].offset + 1
        rows = [_letter(origin, each, dead, limit) for each in left]
        producer.begin()
        producer.rows([dead] * len(rows), *map(list, zip(*rows, strict=True)))
        producer.entry(self._ledger.topic, 0, key, {"to": following})
        producer.commit()
        self._sent[key] = following

    @cached_property
    def _ledger(self) -> Ledger:
        timeout = self.output.transaction_timeout
        return opened(self.output.topic, self.output.writers, timeout, client(self.into))

    def _open(self, dead: str) -> tuple[Transactional, int]:
        """Return a producer for a topic of letters, made if it is missing, and its limit in bytes.

        It is made before the ledger is read: nobody else can send the same letters after that.
        """
        topics.ensure(self.into, dead, None, topics.present(self.into))
        limit = topics.max_message_bytes(client(self.into), dead)
        ledger, timeout = self._ledger, self.output.transaction_timeout
        name = f"{self.query}-unreadable-{dead}"
        return Transactional(name, ledger.client, ledger.topic, timeout, limit), limit


def _letter(
    origin: Origin, record: Record, dead: str, limit: int
) -> tuple[bytes | None, bytes | None, letters.Headers]:
    """Return the key, the value and the headers: as of `side.letters`."""
    place = origin.topic.name, origin.partition, record.offset, record.timestamp
    reason = f"its timestamp, {record.timestamp} ms, is beyond what Spark reads"
    if record.lacks_headers:
        reason += "; its headers are left out, as a name of them is not UTF-8"
    origins = [f"X-Origin-{each.title()}" for each in PLACE]
    told = zip([*origins, INPUT, REASON], [*place, origin.name, reason], strict=True)
    headers = [*record.headers, *((name, str(value).encode()) for name, value in told)]
    row = {
        "key": record.key,
        "value": record.value,
        "headers": [{"key": name, "value": value} for name, value in headers],
    }
    if letters.size_of(row) > limit:
        return letters.of_large(dead, row, limit)
    return record.key, record.value, headers
