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

from . import letters, producers
from .ledger import Ledger, writer_key
from .plan import Plan, Superseded, current, due
from .producers import Interrupted, Transactional, WriteRefused
from .recreated import ReadTopic, check

if TYPE_CHECKING:
    import pyarrow as pa

OUTCOME = (
    "writer bigint, process string, rows bigint, written boolean, seconds double, large bigint, "
    "refused bigint"
)
"""seconds: with Kafka, on the clock; without those in which the rows were waited for. large: rows
that became dead letters, as their topic takes none of their size. refused: those that became dead
letters as the schema of their topic refuses them."""


class Outcome(NamedTuple):
    """One row of it."""

    writer: int
    process: str
    rows: int
    written: bool
    seconds: float
    large: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """Called by Spark with the Arrow batches of a partition; its number is the writer's.

    topic: of rows that name none. limit: bytes of a row that it takes; dead: the topic for those
    that are larger. served: which process had which writer last, and committed.
    read: what the rows are made of; nothing is committed where such a topic was recreated since.
    timeout: s, of transactions. An instance of an importable class is pickled by its name, so the
    producers that its module keeps are found again.
    """

    query: str
    topic: str
    ledger: Ledger
    plan: Plan
    epoch: int
    mark: str
    timeout: float
    served: Mapping[int, str]
    limit: int
    dead: str
    read: tuple[ReadTopic, ...] = ()

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields one row of `OUTCOME`. Raises Interrupted, Superseded, CheckpointRefused."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield _row(self.write(context.partitionId(), batches))

    def write(self, writer: int, batches: Iterable[pa.RecordBatch]) -> Outcome:
        """All rows and the entry in one transaction, unless they were written before."""
        filled = (batch for batch in batches if batch.num_rows)
        head = next(filled, None)
        if head is None:
            return Outcome(writer, self.served.get(writer, ""), 0, False, 0.0)
        began = time.monotonic()
        producer = self._producer(writer)
        if producer is None:
            rest = sum(batch.num_rows for batch in filled)  # Spark wants its input to be read
            return Outcome(writer, "", head.num_rows + rest, False, 0.0)
        producer.begin()
        spent = time.monotonic() - began
        rows = large = refused = 0
        try:
            for batch in chain((head,), filled):
                began = time.monotonic()
                kept, found = self._fitting(batch)
                refused += self._rows(producer, kept)
                self._bury(producer, found)
                rows += batch.num_rows
                large += found.num_rows
                spent += time.monotonic() - began
            began = time.monotonic()
            # The rows went through a shuffle, so that all of the batch has been read by now.
            check(self.read)
            self._commit(producer, writer)
        except (Interrupted, WriteRefused):
            raise
        except BaseException:  # a task that is cancelled, rows that cannot be computed
            producer.abort()
            raise
        spent += time.monotonic() - began
        return Outcome(writer, producers.process(), rows, True, spent, large, refused)

    def _producer(self, writer: int) -> Transactional | None:
        """Ready for this epoch; None where it has been written.

        Only a producer that this process has had since the writer's last commit is as good as a
        new one: a new one asks the ledger, after it has fenced all others.
        """
        identity, client = f"{self.query}-{writer}", self.ledger.client
        mine = self.served.get(writer) == producers.process()
        if mine and (found := producers.kept(identity, client, self.plan.generation)):
            return found
        made = Transactional(identity, client, self.ledger.topic, self.timeout, self.limit)
        try:
            plan, entry = self.ledger.standing(self.query, writer)
        except KafkaException as error:
            raise Interrupted(identity, error) from None
        current(plan or self.plan, self.plan)
        if not due(entry, self.epoch, self.mark):
            return None
        producers.keep(made, client, self.plan.generation)
        return made

    def _fitting(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The rows that their topic takes, and those that are too large for it."""
        if batch.nbytes <= self.limit:
            return batch, batch.slice(0, 0)
        import pyarrow as pa
        import pyarrow.compute as pc

        large = pa.array([letters.size_of(each) > self.limit for each in batch.to_pylist()])
        return batch.filter(pc.invert(large)), batch.filter(large)

    def _bury(self, producer: Transactional, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        topics.create(self.ledger.client, self.dead)
        made = [letters.of_large(self.topic, row, self.limit) for row in batch.to_pylist()]
        producer.rows([self.dead] * len(made), *map(list, zip(*made, strict=True)))

    def _rows(self, producer: Transactional, batch: pa.RecordBatch) -> int:
        """Return how many rows are dead letters."""
        names = batch.schema.names
        # as bytes: a text of Spark's may be no UTF-8, such as a key that was cast
        keys, values = (batch.column(each).cast("binary").to_pylist() for each in ("key", "value"))
        if "headers" not in names and "topic" not in names:
            producer.plain(self.topic, keys, values)
            return 0
        places = batch.column("topic").to_pylist() if "topic" in names else [None] * len(values)
        tags = batch.column("headers").to_pylist() if "headers" in names else [None] * len(values)
        named = [topic or self.topic for topic in places]
        refused = 0 if self.dead == self.topic else named.count(self.dead)
        if refused:
            topics.create(self.ledger.client, self.dead)
        producer.rows(named, keys, values, [letters.headers_of(each) for each in tags])
        return refused

    def _commit(self, producer: Transactional, writer: int) -> None:
        key, place = writer_key(self.query, writer), self.ledger.place(writer)
        entry = {"epoch": self.epoch, "writers": self.plan.writers, "mark": self.mark}
        producer.entry(self.ledger.topic, place, key, entry)
        producer.commit()


def _row(outcome: Outcome) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_pylist([outcome._asdict()])


def refusal(text: str) -> PipelineError | None:
    """The error of ours within what Spark says of a failed batch; None: it is worth another try,
    or not ours."""
    for line in text.splitlines():
        _, found, message = line.partition("CheckpointRefused: ")
        if found:
            return CheckpointRefused(message.strip())
        _, found, message = line.partition(f"{Superseded.__name__}: ")
        if found:
            return PipelineError(f"{message.strip()}; another process runs this job, end one")
        _, found, message = line.partition(f"{WriteRefused.__name__}: ")
        if found:
            return PipelineError(message.strip())
    return None
