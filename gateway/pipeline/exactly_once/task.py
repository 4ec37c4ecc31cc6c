"""Write one writer's rows of one epoch, in a Python worker of Spark or in the driver.

Rows that are too large for their topic, or that its schema refuses, become dead letters.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import KafkaException

from gateway.errors import CheckpointRefused, PipelineError
from gateway.pipeline import clusters
from gateway.pipeline.job_settings import build_dead_letter_headers

from . import producers
from .input_topics import ReadTopic, check_topics
from .ledger import Ledger, writer_key
from .producers import (
    BATCH_OVERHEAD_BYTES,
    LedgerProducer,
    TransactionInterrupted,
    WriteRefused,
)
from .writer_plan import (
    PlanSuperseded,
    WriterPlan,
    must_write,
    verify_plan,
)

if TYPE_CHECKING:
    import pyarrow as pa

RESULT_SCHEMA = (
    "writer bigint, process string, rows bigint, written boolean, seconds double, large bigint, "
    "refused bigint"
)
"""The schema of `TaskResult` in Spark SQL."""


class TaskResult(NamedTuple):
    """The result of one writer for its rows of an epoch, as Spark returns it to the driver.

    Attributes:
        process: The name of the process that has the writer's producer now, or "" if none has.
        written: Whether they were committed by this task.
        seconds: The time that was spent on Kafka, without the time of waiting for the rows.
        large: How many rows became dead letters because they are too large for their topic.
        refused: How many rows became dead letters because the schema of their topic refuses them.
    """

    writer: int
    process: str
    rows: int
    written: bool
    seconds: float
    large: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class WriteTask:
    """The function that Spark calls in its workers with the Arrow batches of each partition.

    The driver creates one for each attempt to write an epoch, and calls `write` itself if the epoch
    is small. In the workers, the number of the partition is the number of the writer. A callable of
    an importable class is pickled by its name. So the worker imports this module and finds the
    producers that `producers` has kept.

    Attributes:
        topic: The topic for rows that name none.
        plan: The plan that the driver wrote. A worker that finds another one in the ledger stops.
        processes_by_writer: The name of the process that committed each writer's rows last.
        max_bytes: The largest batch that the topic takes.
        dead_letter_topic: The topic for rows that the output topic refuses.
    """

    query_id: str
    topic: str
    ledger: Ledger
    plan: WriterPlan
    epoch: int
    digest: str
    timeout_s: float
    processes_by_writer: Mapping[int, str]
    max_bytes: int
    dead_letter_topic: str
    read_topics: tuple[ReadTopic, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of the current partition, and yield one row of `RESULT_SCHEMA`."""
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        result = self.write(context.partitionId(), batches)
        yield pa.RecordBatch.from_pylist([result._asdict()])

    def write(self, writer: int, batches: Iterable[pa.RecordBatch]) -> TaskResult:
        """Write all rows and the entry in one transaction, unless they were written before."""
        non_empty = (_cast_to_bytes(batch) for batch in batches if batch.num_rows)
        first = next(non_empty, None)
        if first is None:  # no transaction and no entry: a repeated epoch has no rows here, either
            return TaskResult(writer, self.processes_by_writer.get(writer, ""), 0, False, 0.0)
        began = time.monotonic()
        producer = self._get_producer(writer)
        if producer is None:
            # Spark expects that the whole input is read.
            remaining = sum(batch.num_rows for batch in non_empty)
            return TaskResult(writer, "", first.num_rows + remaining, False, 0.0)
        producer.begin()
        # Only the time in Kafka is counted: the iterator below waits for Spark to compute rows.
        seconds = time.monotonic() - began
        rows = large = refused = 0
        try:
            for batch in chain((first,), non_empty):
                began = time.monotonic()
                fitting, too_large = self._split_by_size(batch)
                refused += self._write_rows(producer, fitting)
                self._write_dead_letters(producer, too_large)
                rows += batch.num_rows
                large += too_large.num_rows
                seconds += time.monotonic() - began
            began = time.monotonic()
            # The rows went through a shuffle, so all of the input has been read by now: a topic
            # that still has its id has had it during the whole read.
            check_topics(self.read_topics)
            self._commit(producer, writer)
        except (TransactionInterrupted, WriteRefused):
            raise  # the producer has already given itself up
        except BaseException:  # the task was cancelled, or rows could not be computed
            producer.abort()
            raise
        seconds += time.monotonic() - began
        return TaskResult(writer, producers.get_process_name(), rows, True, seconds, large, refused)

    def _get_producer(self, writer: int) -> LedgerProducer | None:
        """Return a producer for this epoch, or None if the epoch has been written.

        The ledger need not be read if this process made the writer's last commit, of an earlier
        epoch, and still has the producer. Otherwise the ledger is read, after a new producer has
        fenced all others.
        """
        transactional_id, client_config = f"{self.query_id}-{writer}", self.ledger.client_config
        generation = self.plan.generation
        is_last = self.processes_by_writer.get(writer) == producers.get_process_name()
        if is_last and (
            kept := producers.get_producer(transactional_id, client_config, generation, self.epoch)
        ):
            return kept
        producer = LedgerProducer(
            transactional_id, client_config, self.ledger.topic, self.timeout_s, self.max_bytes
        )
        try:
            plan, entry = self.ledger.read_plan_and_entry(self.query_id, writer)
        except KafkaException as error:
            raise TransactionInterrupted(transactional_id, error) from None
        verify_plan(plan or self.plan, self.plan)
        if not must_write(entry, self.epoch, self.plan.writers, self.digest):
            return None
        producers.store_producer(producer, client_config, generation, self.epoch)
        return producer

    def _split_by_size(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        # The usual case: if the whole Arrow batch is smaller than one record may be, every row is.
        # Arrow has fewer bytes for a single row than a record batch of Kafka.
        if batch.nbytes + BATCH_OVERHEAD_BYTES <= self.max_bytes:
            return batch, batch.slice(0, 0)
        import pyarrow as pa
        import pyarrow.compute as pc

        is_large = pa.array([estimate_row_size(row) > self.max_bytes for row in batch.to_pylist()])
        return batch.filter(pc.invert(is_large)), batch.filter(is_large)

    def _write_dead_letters(self, producer: LedgerProducer, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        clusters.create_topic(self.ledger.client_config, self.dead_letter_topic)
        dead_letters = [
            build_dead_letter(self.topic, row, self.max_bytes) for row in batch.to_pylist()
        ]
        producer.write_rows(
            [self.dead_letter_topic] * len(dead_letters),
            *map(list, zip(*dead_letters, strict=True)),
        )

    def _write_rows(self, producer: LedgerProducer, batch: pa.RecordBatch) -> int:
        """Write rows to the topics that they name; return how many of them are dead letters."""
        names = batch.schema.names
        keys, values = (batch.column(name).to_pylist() for name in ("key", "value"))
        if "headers" not in names and "topic" not in names:
            count = len(values)
            producer.write_rows(repeat(self.topic, count), keys, values, repeat(None, count))
            return 0
        nulls = [None] * len(values)
        row_topics = batch.column("topic").to_pylist() if "topic" in names else nulls
        headers = batch.column("headers").to_pylist() if "headers" in names else nulls
        targets = [topic or self.topic for topic in row_topics]
        # Rows that the schema of the output refuses come with the topic of its dead letters.
        refused = (
            0 if self.dead_letter_topic == self.topic else targets.count(self.dead_letter_topic)
        )
        tags = [parse_headers(column) for column in headers]
        if refused:
            client_config, topic = self.ledger.client_config, self.dead_letter_topic
            clusters.create_topic(client_config, topic)
            max_bytes = clusters.fetch_max_message_bytes(client_config, topic)
            for i, row in enumerate(batch.to_pylist()):
                if targets[i] == topic and estimate_row_size(row) > max_bytes:
                    keys[i], values[i], tags[i] = build_dead_letter(topic, row, max_bytes)
        producer.write_rows(targets, keys, values, tags)
        return refused

    def _commit(self, producer: LedgerProducer, writer: int) -> None:
        key, partition = writer_key(self.query_id, writer), self.ledger.writer_partition(writer)
        entry = {
            "epoch": self.epoch,
            "writers": self.plan.writers,
            "mark": self.digest,
            "settings": self.settings,
        }
        producer.write_entry(self.ledger.topic, partition, key, entry)
        producer.commit()


def _cast_to_bytes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return keys and values as bytes, without a copy: a text of Spark need not be UTF-8."""
    for name in ("key", "value"):
        index = batch.schema.get_field_index(name)
        batch = batch.set_column(index, name, batch.column(index).cast("binary"))
    return batch


def parse_refusal(text: str) -> PipelineError | None:
    """Return the error of a worker that ends the query, if Spark's text of a failure has one."""
    for line in text.splitlines():
        _, separator, message = line.partition("CheckpointRefused: ")
        if separator:
            return CheckpointRefused(message.strip())
        _, separator, message = line.partition(f"{PlanSuperseded.__name__}: ")
        if separator:
            return PipelineError(f"{message.strip()}; another process runs this job, end one")
        _, separator, message = line.partition(f"{WriteRefused.__name__}: ")
        if separator:
            return PipelineError(message.strip())
    return None


# How much of such a row its dead letter keeps: of the key, and of the headers and the value.
MAX_KEY_BYTES, MAX_SAMPLE_BYTES = 1_000, 16_384
# Upper bounds of what a batch of one record takes beside key, value and headers, and of what a
# header takes beside its name and value.
HEADER_OVERHEAD_BYTES = 10

Headers = list[tuple[str, bytes | None]]


def parse_headers(column: Iterable[Mapping[str, Any]] | None) -> Headers:
    return [(header["key"], header["value"]) for header in column or ()]


def estimate_row_size(row: Mapping[str, Any]) -> int:
    """Return the most bytes that a row takes as a batch of its own, without compression."""
    headers = _estimate_headers_size(parse_headers(row.get("headers")))
    return BATCH_OVERHEAD_BYTES + len(row["key"] or b"") + len(row["value"] or b"") + headers


def build_dead_letter(
    topic: str, row: Mapping[str, Any], max_bytes: int
) -> tuple[bytes | None, bytes | None, Headers]:
    """Return key, value and headers of a row's dead letter: the row's beginning and the reason."""
    # Key, value and headers are three quarters of the batch at most, the rest is for the reason.
    sample_bytes = min(MAX_SAMPLE_BYTES, max_bytes // 4)
    size = f"the row has {estimate_row_size(row):,} bytes, and topic {topic} takes {max_bytes:,}"
    advice = "raise its max.message.bytes, or make its rows smaller"
    headers = parse_headers(row.get("headers"))
    kept = headers if _estimate_headers_size(headers) <= sample_bytes else []
    added = build_dead_letter_headers(topic, f"{size}; {advice}")
    key, value = row["key"], row["value"]
    return (
        key and key[: min(MAX_KEY_BYTES, sample_bytes)],
        value and value[:sample_bytes],
        [*kept, *added],
    )


def _estimate_headers_size(headers: Headers) -> int:
    return sum(
        HEADER_OVERHEAD_BYTES + len(name.encode()) + len(value or b"") for name, value in headers
    )
