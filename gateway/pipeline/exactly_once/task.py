"""What a Python worker does with one writer's rows of one epoch."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaException

from gateway.errors import CheckpointRefused, PipelineError
from gateway.pipeline import topics

from . import large_rows, producers
from .ledger import Ledger, writer_key
from .plan import PlanSuperseded, WriterPlan, must_write, verify_plan
from .producers import LedgerProducer, TransactionInterrupted, WriteRefused
from .recreated_topics import ReadTopic, check_topics

if TYPE_CHECKING:
    import pyarrow as pa

OUTCOME_SCHEMA = (
    "writer bigint, process string, rows bigint, written boolean, seconds double, large bigint, "
    "refused bigint"
)
"""seconds: with Kafka, on the clock; without those in which the rows were waited for. large: rows
that became dead letters, as their topic takes none of their size. refused: those that became dead
letters as the schema of their topic refuses them."""


class TaskResult(NamedTuple):
    """One row of it."""

    writer: int
    process: str
    rows: int
    written: bool
    seconds: float
    large: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Called by Spark with the Arrow batches of a partition; its number is the writer's.

    topic: of rows that name none. limit: bytes of a row that it takes; dead: the topic for those
    that are larger. served: which process had which writer last, and committed.
    read: what the rows are made of; nothing is committed where such a topic was recreated since.
    timeout: s, of transactions. An instance of an importable class is pickled by its name, so the
    producers that its module keeps are found again.
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

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields one row of `OUTCOME`. Raises Interrupted, Superseded, CheckpointRefused."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield _build_result_batch(self.write(context.partitionId(), batches))

    def write(self, writer: int, batches: Iterable[pa.RecordBatch]) -> TaskResult:
        """All rows and the entry in one transaction, unless they were written before."""
        filled = (batch for batch in batches if batch.num_rows)
        head = next(filled, None)
        if head is None:
            return TaskResult(writer, self.processes_by_writer.get(writer, ""), 0, False, 0.0)
        began = time.monotonic()
        producer = self._get_producer(writer)
        if producer is None:
            rest = sum(batch.num_rows for batch in filled)  # Spark wants its input to be read
            return TaskResult(writer, "", head.num_rows + rest, False, 0.0)
        producer.begin()
        spent = time.monotonic() - began
        rows = large = refused = 0
        try:
            for batch in chain((head,), filled):
                began = time.monotonic()
                kept, found = self._split_by_size(batch)
                refused += self._write_rows(producer, kept)
                self._write_dead_letters(producer, found)
                rows += batch.num_rows
                large += found.num_rows
                spent += time.monotonic() - began
            began = time.monotonic()
            # The rows went through a shuffle, so that all of the batch has been read by now.
            check_topics(self.read_topics)
            self._commit(producer, writer)
        except (TransactionInterrupted, WriteRefused):
            raise
        except BaseException:  # a task that is cancelled, rows that cannot be computed
            producer.abort()
            raise
        spent += time.monotonic() - began
        return TaskResult(writer, producers.get_process_name(), rows, True, spent, large, refused)

    def _get_producer(self, writer: int) -> LedgerProducer | None:
        """Ready for this epoch; None where it has been written.

        Only a producer that this process has had since the writer's last commit is as good as a
        new one: a new one asks the ledger, after it has fenced all others.
        """
        identity, client = f"{self.query_id}-{writer}", self.ledger.client_config
        mine = self.processes_by_writer.get(writer) == producers.get_process_name()
        if mine and (found := producers.get_producer(identity, client, self.plan.generation)):
            return found
        made = LedgerProducer(identity, client, self.ledger.topic, self.timeout_s, self.max_bytes)
        try:
            plan, entry = self.ledger.read_plan_and_entry(self.query_id, writer)
        except KafkaException as error:
            raise TransactionInterrupted(identity, error) from None
        verify_plan(plan or self.plan, self.plan)
        if not must_write(entry, self.epoch, self.digest):
            return None
        producers.store_producer(made, client, self.plan.generation)
        return made

    def _split_by_size(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The rows that their topic takes, and those that are too large for it."""
        if batch.nbytes <= self.max_bytes:
            return batch, batch.slice(0, 0)
        import pyarrow as pa
        import pyarrow.compute as pc

        large = pa.array(
            [large_rows.estimate_row_size(each) > self.max_bytes for each in batch.to_pylist()]
        )
        return batch.filter(pc.invert(large)), batch.filter(large)

    def _write_dead_letters(self, producer: LedgerProducer, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        topics.create_topic(self.ledger.client_config, self.dead_letter_topic)
        made = [
            large_rows.build_dead_letter(self.topic, row, self.max_bytes)
            for row in batch.to_pylist()
        ]
        producer.write_rows(
            [self.dead_letter_topic] * len(made), *map(list, zip(*made, strict=True))
        )

    def _write_rows(self, producer: LedgerProducer, batch: pa.RecordBatch) -> int:
        """Return how many rows are dead letters."""
        names = batch.schema.names
        # as bytes: a text of Spark's may be no UTF-8, such as a key that was cast
        keys, values = (batch.column(each).cast("binary").to_pylist() for each in ("key", "value"))
        if "headers" not in names and "topic" not in names:
            producer.write_to_topic(self.topic, keys, values)
            return 0
        places = batch.column("topic").to_pylist() if "topic" in names else [None] * len(values)
        tags = batch.column("headers").to_pylist() if "headers" in names else [None] * len(values)
        named = [topic or self.topic for topic in places]
        refused = 0 if self.dead_letter_topic == self.topic else named.count(self.dead_letter_topic)
        if refused:
            topics.create_topic(self.ledger.client_config, self.dead_letter_topic)
        producer.write_rows(named, keys, values, [large_rows.parse_headers(each) for each in tags])
        return refused

    def _commit(self, producer: LedgerProducer, writer: int) -> None:
        key, place = writer_key(self.query_id, writer), self.ledger.writer_partition(writer)
        entry = {"epoch": self.epoch, "writers": self.plan.writers, "mark": self.digest}
        producer.write_entry(self.ledger.topic, place, key, entry)
        producer.commit()


def _build_result_batch(result: TaskResult) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_pylist([result._asdict()])


def parse_refusal(text: str) -> PipelineError | None:
    """The error of ours within what Spark says of a failed batch; None: it is worth another try,
    or not ours."""
    for line in text.splitlines():
        _, found, message = line.partition("CheckpointRefused: ")
        if found:
            return CheckpointRefused(message.strip())
        _, found, message = line.partition(f"{PlanSuperseded.__name__}: ")
        if found:
            return PipelineError(f"{message.strip()}; another process runs this job, end one")
        _, found, message = line.partition(f"{WriteRefused.__name__}: ")
        if found:
            return PipelineError(message.strip())
    return None
