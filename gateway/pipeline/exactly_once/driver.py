"""Write the batches of a query to Kafka, each exactly once, from Spark's `foreachBatch`.

The driver takes the query over by the steps of `writer_plan` and writes every batch by a
`WriteTask`. A batch that Kafka interrupts is written again from the same rows: writers that have
committed it skip it.

The task of a large batch runs in Spark's workers. Small batches are collected, and the driver runs
the task itself: that needs no shuffle and no Python worker, and the producers stay in one process,
while Spark gives a writer to another worker in nearly every batch, which has to fence the last one
and to read the ledger. Which rows a writer gets is the same in both cases, so a batch that was
begun in one way may be finished in the other.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaException

from gateway.config.sections.job import Output
from gateway.errors import PipelineUnavailable
from gateway.pipeline.clusters import TopicMissing, describe_topic, fetch_max_message_bytes
from gateway.pipeline.failures import build_kafka_error
from gateway.pipeline.job_settings import get_dead_letter_topic
from gateway.pipeline.reports import Reports
from gateway.pipeline.spark import F

from .input_topics import ReadTopic
from .ledger import Ledger, build_deleted_error, open_ledger, owner_key
from .producers import RETRY_MARKER, LedgerProducer
from .task import RESULT_SCHEMA, TaskResult, WriteTask, parse_refusal
from .writer_plan import (
    LedgerEntry,
    PlanSuperseded,
    WriterPlan,
    build_fencing_plan,
    choose_plan,
    verify_entries,
    verify_owner,
    verify_settings,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from gateway.pipeline.checkpoint.checkpoint import Checkpoint

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_ATTEMPTS = 6
# Doubled after each attempt: 15 s in all, besides the time that an attempt itself waits for Kafka.
RETRY_DELAY_S = 0.5

MAX_DRIVER_ROWS = 1000
"""The most rows of a batch that the driver writes itself: as many as come in a second or so."""
MAX_DRIVER_COLUMN_BYTES = 16 * 1024
"""The most bytes of such a row's value, key, and headers each. The JVM holds what it collects
several times, and Spark compares it with `spark.driver.maxResultSize` only afterwards."""
_TOO_LARGE = "spark.driver.maxResultSize"  # in Spark's error: the rows have too many bytes
# After a large batch, so many small ones are written by the workers: a batch that turns out to be
# too large for the driver is computed twice.
_RECENT_BATCHES = 5
_WRITER_COLUMN = "_writer"
_LARGE_COLUMN = "_is_large"
# Spark's `monotonically_increasing_id` has the row's index in its partition in the lower bits.
_INDEX_MASK = (1 << 33) - 1


def choose_writer(key: Column, writers: int) -> Column:
    """Return the writer's number of a row, as Spark's `repartition(writers, key)` chooses it."""
    return F.pmod(F.hash(key), F.lit(writers))


@dataclass(eq=False)
class ExactlyOnceOutput:
    """The driver's side of exactly-once output: it writes the batches of one query to Kafka.

    A job creates one for its output, and each `SideOutput` one for each of its topics. The rows
    have the encoded columns `key` and `value`, and optionally `headers` and `topic`. All rows of a
    key go to one writer; all rows without a key go to the writer that the hash of null gives.

    An attempt that Kafka interrupts is aborted and repeated from the same rows. If the last attempt
    fails, the query ends with a PipelineError, and the next start finishes the batch.

    Between calls, `_plan` is the plan that this driver wrote last, or None if it has to be read or
    written again.

    Attributes:
        query_id: The id of the checkpoint, or a name made of it. A new checkpoint counts its epochs
            from 0 again, so it must have a name of its own in the ledger.
        checkpoint: It is refused if it was put back to another state.
        ledger_output: The topic that the ledger is named after; "" for that of the output.
        job: A text that is unique among the jobs of the output: an earlier checkpoint of the same
            job is refused. "" leaves this check out.
        read_topics: The topics that the rows are made of. Nothing is committed if one was recreated
            since.
        settings: `compute_key_digests` of the job. An epoch that was interrupted with others is
            refused. Empty for rows whose keys depend on no setting.
        max_driver_rows: The most rows of a batch that the driver writes itself; 0 leaves all
            batches to the workers.
        stop_event: Once it is set, an attempt that Kafka interrupts is the last one.
        on_repeat: Called before the rows of a batch are computed once more.
        ensure_main: Of a side output, `ensure_ownership` of the job's output. Nobody must take a
            side output from the process that runs the job: neither one that was replaced nor one
            that has only begun, from which that process would take it back.
    """

    query_id: str
    output: Output
    client_config: Mapping[str, Any]
    _: KW_ONLY
    checkpoint: Checkpoint
    ledger_output: str = ""
    job: str = ""
    read_topics: tuple[ReadTopic, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    max_driver_rows: int = MAX_DRIVER_ROWS
    stop_event: threading.Event = field(default_factory=threading.Event)
    reports: Reports = field(default_factory=Reports)
    on_repeat: Callable[[], None] = lambda: None
    ensure_main: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        """Set the output up; Kafka is not contacted yet."""
        self._driver_id = uuid.uuid4().hex
        self._lock = threading.Lock()  # `ensure_ownership` may come in another thread
        self._is_owner = False  # whether this driver has taken the query over
        self._plan: WriterPlan | None = None
        self._processes_by_writer: dict[int, str] = {}
        # Of the last batches, whether the driver could have written them. Empty before the first
        # batch, which may be a backlog and which the workers therefore write.
        self._were_small: deque[bool] = deque(maxlen=_RECENT_BATCHES)
        # By the number of writers. Columns of Spark are created once: each takes a dozen calls of
        # the JVM, and all batches have the same.
        self._driver_columns: dict[int, dict[str, Column]] = {}

    def prepare(self, epoch: int) -> None:
        """Take the query over, unless this driver has, so that an epoch can be written.

        The caller does this before it writes anything of a batch: rows, dead letters or gaps.

        Raises:
            CheckpointRefused: The ledger has other batches than the checkpoint, or the epoch was
                interrupted with other settings. Nothing was written, and a process that runs with
                the other checkpoint is not disturbed.
            PipelineError: Another process has taken the query over, or Kafka refuses.
        """
        self._retry(lambda: self._get_plan(epoch), epoch)

    def ensure_ownership(self) -> None:
        """Take the query over before its next batch, unless this driver has.

        Raises:
            PlanSuperseded: Another driver has taken it over since.
        """
        if self._is_owner:
            self._verify_own_plan(self.ledger.read_plan(self.query_id))
        else:
            committed = self.checkpoint.read_last_committed()
            self._get_plan(0 if committed is None else committed + 1)

    def __call__(self, rows: DataFrame, epoch: int) -> int:
        """Write the rows of an epoch that were not committed before; return their number."""
        return self._retry(lambda: self._write_once(rows, epoch), epoch)

    def _retry(self, action: Callable[[], T], epoch: int) -> T:
        for attempt in range(MAX_ATTEMPTS):
            try:
                return action()
            except Exception as error:
                # The workers' producers may have been fenced, and another driver may have changed
                # the plan. So the next attempt creates producers and reads the plan again.
                self._processes_by_writer.clear()
                self._plan = None
                # The next start of the job creates its output again.
                is_missing = isinstance(error, TopicMissing)
                is_last = attempt == MAX_ATTEMPTS - 1 or self.stop_event.is_set() or is_missing
                self._raise_unless_retriable(error, epoch, is_last=is_last)
                self.stop_event.wait(RETRY_DELAY_S * 2**attempt)
                self.on_repeat()
        raise AssertionError("the last attempt returns or raises")

    def _raise_unless_retriable(self, error: Exception, epoch: int, *, is_last: bool) -> None:
        """Raise the error that ends the query, or return if another attempt may succeed.

        An error of a worker comes from Spark as one of Py4J, with the worker's traceback in its
        text. So the text is evaluated, not the type.
        """
        text = f"{type(error).__name__}: {error}"
        if refused := parse_refusal(text):
            raise refused from None
        if isinstance(error, KafkaException):
            error = build_kafka_error(f"batch {epoch} cannot be written", error)
        if RETRY_MARKER not in text and not isinstance(error, PipelineUnavailable):
            raise error
        cause_line = next((line for line in text.splitlines() if RETRY_MARKER in line), text)
        cause = cause_line[max(0, cause_line.find(RETRY_MARKER)) :]
        if is_last:
            problem = f"batch {epoch} could not be committed to {self.output.topic}: {cause}"
            raise PipelineUnavailable(f"{problem}; the next start finishes it") from None
        log.warning("batch %d of %s is written again: %s", epoch, self.query_id, cause)

    def _write_once(self, rows: DataFrame, epoch: int) -> int:
        plan = self._get_plan(epoch)
        task = WriteTask(
            query_id=self.query_id,
            topic=self.output.topic,
            ledger=self.ledger,
            plan=plan,
            epoch=epoch,
            digest=self.checkpoint.compute_digest(epoch),
            timeout_s=self.output.transaction_timeout,
            processes_by_writer=dict(self._processes_by_writer),
            max_bytes=self._max_bytes,
            dead_letter_topic=self._dead_letter_topic,
            read_topics=self.read_topics,
            settings=self.settings,
        )
        results = self._write_rows(rows, task)
        self._processes_by_writer = {
            result.writer: result.process for result in results if result.process
        }
        self.reports.add_note(
            self.query_id, epoch, sink=max((result.seconds for result in results), default=0.0)
        )
        if large := sum(result.large for result in results):
            text = "%d rows of batch %d are too large for topic %s: %s has the beginning of each"
            log.warning(text, large, epoch, self.output.topic, self._dead_letter_topic)
        if refused := sum(result.refused for result in results):
            text = "%d rows of batch %d are refused by the schema of topic %s: they are in %s"
            log.warning(text, refused, epoch, self.output.topic, self._dead_letter_topic)
        return sum(result.rows for result in results if result.written)

    def _write_rows(self, rows: DataFrame, task: WriteTask) -> Sequence[TaskResult]:
        """Write rows here if that is possible and recent batches were small, else in the workers.

        The first batch after a start is left to the workers. So if a batch is too large for the
        memory of the driver, the next start does not try it here again.
        """
        results = None
        is_tried = bool(self._were_small) and all(self._were_small)
        if is_tried:
            results = self._write_in_driver(rows, task)
        is_too_large = is_tried and results is None
        if is_too_large:
            self.on_repeat()
        if results is None:
            # A repeated batch must give every writer the same rows. The hash of the key ensures
            # that. The position of the rows does not: it depends on how Spark divided the batch
            # into tasks. The shuffle costs 0.2 s for 250,000 rows, of 4 s in all.
            key = rows["key"].cast("binary")
            shuffled = rows.repartition(task.plan.writers, key)
            collected = shuffled.mapInArrow(task, RESULT_SCHEMA).collect()
            results = [TaskResult(**row.asDict()) for row in collected]
        written_rows = sum(result.rows for result in results)
        is_small = written_rows <= self.max_driver_rows > 0 and not is_too_large
        self._were_small.append(is_small)
        return results

    def _write_in_driver(self, rows: DataFrame, task: WriteTask) -> Sequence[TaskResult] | None:
        """Write rows in this process; return None if they are too large, and write nothing."""
        import pyarrow.compute as pc

        writers = task.plan.writers
        columns = self._get_driver_columns(rows, writers)
        few = rows.where(self._is_within_limit).withColumns(columns)
        try:
            table = few.toArrow()
        except Exception as error:
            if _TOO_LARGE not in str(error):
                raise
            return None
        if table.num_rows > self.max_driver_rows or pc.any(table[_LARGE_COLUMN]).as_py():
            return None
        table = table.drop_columns([_LARGE_COLUMN])
        if writers == 1:
            return [task.write(0, table.to_batches())]
        numbers = table[_WRITER_COLUMN]
        records = table.drop_columns([_WRITER_COLUMN])

        def write_part(number: int) -> TaskResult:
            return task.write(number, records.filter(pc.equal(numbers, number)).to_batches())

        # The context ends when all writers have, so no attempt overlaps the next one.
        with ThreadPoolExecutor(writers, thread_name_prefix="writer") as executor:
            return list(executor.map(write_part, range(writers)))

    @cached_property
    def _is_within_limit(self) -> Column:
        """The filter by which a partition gives one row more than the limit at most.

        All tasks of Spark still read their whole input, because that commits their state. A limit
        of Spark would end them before.
        """
        index = F.monotonically_increasing_id().bitwiseAND(F.lit(_INDEX_MASK))
        return index <= self.max_driver_rows

    def _get_driver_columns(self, rows: DataFrame, writers: int) -> dict[str, Column]:
        """Return the columns without large rows, whether a row is one, and its writer."""
        if writers not in self._driver_columns:
            # Headers are an array, whose text has about as many bytes.
            sizes = (F.octet_length(F.col(name).cast("string")) for name in rows.columns)
            is_large = F.greatest(*sizes, F.lit(0)) > MAX_DRIVER_COLUMN_BYTES
            columns = {name: F.when(~is_large, F.col(name)) for name in rows.columns}
            columns[_LARGE_COLUMN] = is_large
            if writers > 1:
                columns[_WRITER_COLUMN] = choose_writer(F.col("key").cast("binary"), writers)
            self._driver_columns[writers] = columns
        return self._driver_columns[writers]

    @cached_property
    def _max_bytes(self) -> int:
        return fetch_max_message_bytes(self.client_config, self.output.topic)

    @property
    def _dead_letter_topic(self) -> str:
        return get_dead_letter_topic(self.output.topic)

    @cached_property
    def ledger(self) -> Ledger:
        output = self.output
        return open_ledger(
            self.ledger_output or output.topic,
            output.writers,
            output.transaction_timeout,
            self.client_config,
        )

    def _get_plan(self, epoch: int) -> WriterPlan:
        """Return the plan for an epoch, and take the query over if that is necessary."""
        with self._lock:
            # After a failed attempt the plan in the ledger must still be this driver's. A plan of
            # another driver must not be replaced: the newer process goes on, and this one ends.
            if self._plan is None and self._is_owner:
                for topic in (self.ledger.topic, self.output.topic):
                    describe_topic(self.client_config, topic)  # raises if it was deleted
                self._plan = self._verify_own_plan(self.ledger.read_plan(self.query_id))
            if self._plan is None or self._plan.writers != self.output.writers:
                self._plan = self._take_over(epoch)
            return self._plan

    def _take_over(self, epoch: int) -> WriterPlan:
        """Take the query over by the steps of `writer_plan`, in their order."""
        self._processes_by_writer.clear()
        self._verify_entries(epoch, is_final=False)
        self._claim_job()
        # This fences the producer of any other driver that is changing the plan. So the plan that
        # is read next stays the newest until this driver writes.
        producer = self._create_query_producer("plan")
        self.ensure_main()
        old_plan = self.ledger.read_plan(self.query_id)
        if self._is_owner:
            old_plan = self._verify_own_plan(old_plan)
        fencing_plan = build_fencing_plan(old_plan, self.output.writers, self._driver_id)
        self._write_entry(producer, self.query_id, asdict(fencing_plan))
        for writer in range(0 if old_plan is None else old_plan.writers):
            self._create_query_producer(str(writer))  # only to fence the old writer
        entries = self._verify_entries(epoch)
        plan = choose_plan(fencing_plan, entries, epoch, self.output.writers)
        if plan != fencing_plan:
            self._write_entry(producer, self.query_id, asdict(plan))
            log.info("%s has %d writers from batch %d on", self.query_id, plan.writers, epoch)
        # Only now: if a step before fails, the ledger may not have the plan of this driver yet.
        self._is_owner = True
        return plan

    def _claim_job(self) -> None:
        """Become the owner of the job, or raise CheckpointRefused if a later query is."""
        if not self.job or self._read_owner() == self.query_id:
            return
        key = owner_key(self.job)
        producer = self._create_producer(key)  # fences a process that claims the job at this moment
        if owner := self._read_owner():  # read again, now that nobody else can change it
            self._fence_query(owner)
        self._write_entry(producer, key, {"query": self.query_id})

    def _read_owner(self) -> str | None:
        """Return the job's owner, after verifying that this query may replace it."""
        owner, plan = self.ledger.read_owner(self.job, self.query_id)
        is_first, location = self.checkpoint.is_first(), self.checkpoint.location
        verify_owner(owner, self.query_id, plan, location, is_first=is_first)
        return owner

    def _fence_query(self, query_id: str) -> None:
        """Ensure that no process writes for another query any more, not even one that runs now."""
        producer = self._create_producer(f"{query_id}-plan")
        plan = self.ledger.read_plan(query_id)
        if plan is None:
            return
        fencing_plan = build_fencing_plan(plan, plan.writers, self._driver_id)
        self._write_entry(producer, query_id, asdict(fencing_plan))
        for writer in range(plan.writers):
            self._create_producer(f"{query_id}-{writer}")

    def _verify_entries(self, epoch: int, *, is_final: bool = True) -> list[LedgerEntry]:
        entries, side_entries = self.ledger.read_entries(self.query_id, is_final=is_final)
        if any(entry.epoch > epoch for entry in (*entries, *side_entries)):
            committed = self.checkpoint.read_last_committed()
            if committed is not None and committed >= epoch:
                raise PipelineUnavailable(
                    f"another process runs this job: it has written batch {committed}, and this "
                    f"one is at {epoch}"
                )
        verify_entries(entries, epoch, self.checkpoint.compute_digest)
        # Batches without rows have entries only of the dead letters and late records among them.
        verify_entries(side_entries, epoch, self.checkpoint.compute_digest)
        verify_settings(entries, epoch, self.settings)
        return entries

    def _verify_own_plan(self, plan: WriterPlan | None) -> WriterPlan:
        """Return a plan if this driver wrote it, else raise PlanSuperseded or CheckpointRefused."""
        if plan is None:
            raise build_deleted_error(self.ledger.topic)
        if plan.driver != self._driver_id:
            raise PlanSuperseded(f"the writers of {self.query_id} were taken over")
        return plan

    def _write_entry(self, producer: LedgerProducer, key: str, value: Mapping[str, Any]) -> None:
        producer.begin()
        producer.write_entry(self.ledger.topic, 0, key, value)
        producer.commit()

    def _create_query_producer(self, name: str) -> LedgerProducer:
        return self._create_producer(f"{self.query_id}-{name}")

    def _create_producer(self, transactional_id: str) -> LedgerProducer:
        timeout = self.output.transaction_timeout
        return LedgerProducer(transactional_id, self.client_config, self.ledger.topic, timeout)
