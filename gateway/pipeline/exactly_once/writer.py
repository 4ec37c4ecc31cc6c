"""The batches of a query into Kafka, each once: what `foreachBatch` calls."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaException

from gateway.config.sections.job import Output
from gateway.errors import PipelineUnavailable
from gateway.pipeline.progress import progress_file
from gateway.pipeline.run.dead_letters import get_dead_letter_topic
from gateway.pipeline.run.failures import build_kafka_error
from gateway.pipeline.topics import fetch_max_message_bytes

from .ledger import Ledger, open_ledger, owner_key
from .plan import LedgerEntry, PlanChange, PlanSuperseded, WriterPlan, verify_entries, verify_owner
from .producers import RETRY_MARKER, LedgerProducer
from .recreated_topics import ReadTopic
from .task import OUTCOME_SCHEMA, WriteTask, parse_refusal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from gateway.pipeline.checkpoint.checkpoint import Checkpoint

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_ATTEMPTS = 6
RETRY_DELAY_S = 0.5  # s, doubled: 15 s in all, beside the time that a try itself waits for Kafka


class ExactlyOnceWriter:
    """Rows of encoded columns `key`, `value`, and where there are such `headers` and `topic`.

    query:      whose epochs they are: the id of the checkpoint, so that a new checkpoint, which
                counts from 0 again, has a name of its own in the ledger.
    output:     the topic, the number of writers, and the timeout of their transactions.
    client:     librdkafka's properties of the output's cluster.
    checkpoint: of the query; one that was put back to another state is refused.
    ledger:     the topic that the ledger is named by, if not the output's.
    job:        what tells the jobs of the output apart; an earlier checkpoint of the same job is
                refused. "" where that is not looked at.
    read:       the topics that the rows are made of.

    All rows of a key go to one writer, all rows without a key to the first by its hash. A try
    that Kafka interrupts is aborted and made again from the same rows; who is still interrupted
    after the last ends the query with PipelineError, and the next start goes on from there.
    """

    def __init__(
        self,
        query_id: str,
        output: Output,
        client_config: Mapping[str, object],
        *,
        checkpoint: Checkpoint,
        ledger_output: str | None = None,
        job: str = "",
        read_topics: tuple[ReadTopic, ...] = (),
    ) -> None:
        self._query_id = query_id
        self._job = job
        self._read_topics = read_topics
        self._output = output
        self._client_config: Mapping[str, Any] = client_config
        self._checkpoint = checkpoint
        self._ledger_output = ledger_output or output.topic
        self._driver_id = uuid.uuid4().hex
        self._is_owner = False  # has this driver taken the query over?
        self._plan: WriterPlan | None = None
        self._processes_by_writer: dict[int, str] = {}

    def prepare(self, epoch: int) -> None:
        """Take the query over, if that is still to be done, so that `epoch` can be written.

        Called before anything is written of a batch, its rows or what is told beside them.

        Raises:
            CheckpointRefused: The ledger has other batches than the checkpoint. Nothing was
                written, and a process that runs by the other checkpoint goes on.
            PipelineError: Another process has taken the query over, or Kafka refuses.
        """
        self._retry(lambda: self._get_plan(epoch), epoch)

    def __call__(self, rows: DataFrame, epoch: int) -> int:
        """Returns when all of them are committed, by now or before: how many were by now."""
        return self._retry(lambda: self._write_once(rows, epoch), epoch)

    def _retry(self, action: Callable[[], T], epoch: int) -> T:
        for count in range(MAX_ATTEMPTS):
            try:
                return action()
            except Exception as error:
                self._processes_by_writer.clear()
                self._plan = None  # read anew: who failed may have lost it to another driver
                self._raise_unless_retriable(error, epoch, is_last=count == MAX_ATTEMPTS - 1)
                time.sleep(RETRY_DELAY_S * 2**count)
        raise AssertionError("the last try returns or raises")

    def _raise_unless_retriable(self, error: Exception, epoch: int, *, is_last: bool) -> None:
        """Raises what ends the query; returns if another try is worth it."""
        text = f"{type(error).__name__}: {error}"
        if refused := parse_refusal(text):
            raise refused from None
        if isinstance(error, KafkaException):
            error = build_kafka_error(f"batch {epoch} cannot be written", error)
        if RETRY_MARKER not in text and not isinstance(error, PipelineUnavailable):
            raise error
        said = next((line for line in text.splitlines() if RETRY_MARKER in line), text)
        cause = said[max(0, said.find(RETRY_MARKER)) :]
        if is_last:
            what = f"batch {epoch} could not be committed to {self._output.topic}: {cause}"
            raise PipelineUnavailable(f"{what}; it is finished by the next start") from None
        log.warning("batch %d of %s is written again: %s", epoch, self._query_id, cause)

    def _write_once(self, rows: DataFrame, epoch: int) -> int:
        plan = self._get_plan(epoch)
        task = WriteTask(
            query_id=self._query_id,
            topic=self._output.topic,
            ledger=self.ledger,
            plan=plan,
            epoch=epoch,
            digest=self._checkpoint.compute_digest(epoch),
            timeout_s=self._output.transaction_timeout,
            processes_by_writer=dict(self._processes_by_writer),
            max_bytes=self._max_bytes,
            dead_letter_topic=self._dead_letter_topic,
            read_topics=self._read_topics,
        )
        # By the hash of the key, not by where rows are: that depends on how a batch was cut into
        # tasks. The shuffle costs 0.2 s for 250,000 rows, of 4 s in all.
        key = rows["key"].cast("binary")
        done = rows.repartition(plan.writers, key).mapInArrow(task, OUTCOME_SCHEMA).collect()
        self._processes_by_writer = {each.writer: each.process for each in done if each.process}
        progress_file.add_note(
            self._query_id, epoch, sink=max((each.seconds for each in done), default=0.0)
        )
        if large := sum(each.large for each in done):
            what = "%d rows of batch %d are too large for topic %s: they are in %s"
            log.warning(what, large, epoch, self._output.topic, self._dead_letter_topic)
        if refused := sum(each.refused for each in done):
            what = "%d rows of batch %d are refused by the schema of topic %s: they are in %s"
            log.warning(what, refused, epoch, self._output.topic, self._dead_letter_topic)
        return sum(each.rows for each in done if each.written)

    @cached_property
    def _max_bytes(self) -> int:
        return fetch_max_message_bytes(self._client_config, self._output.topic)

    @property
    def _dead_letter_topic(self) -> str:
        """What is too large for dead letters themselves is cut there."""
        return get_dead_letter_topic(self._output.topic)

    @cached_property
    def ledger(self) -> Ledger:
        output = self._output
        return open_ledger(
            self._ledger_output, output.writers, output.transaction_timeout, self._client_config
        )

    def _get_plan(self, epoch: int) -> WriterPlan:
        """The plan for this epoch: this driver's, with the number of writers that is wanted as
        soon as that can be changed."""
        if self._plan is None and self._is_owner:
            self._plan = self._verify_own_plan(self.ledger.read_plan(self._query_id))
        if self._plan is None or self._plan.writers != self._output.writers:
            self._plan = self._take_over(epoch)
        return self._plan

    def _take_over(self, epoch: int) -> WriterPlan:
        """The steps of `plan`, in their order."""
        self._processes_by_writer.clear()
        self._verify_entries(epoch)
        self._claim_job()
        producer = self._create_query_producer(
            "plan"
        )  # from now on nobody else changes the plan unseen
        before = self.ledger.read_plan(self._query_id)
        if self._is_owner:
            before = self._verify_own_plan(before)
        change = PlanChange(before, self._output.writers, epoch, self._driver_id)
        self._write_plan(producer, change.fencing_plan)
        for writer in range(0 if before is None else before.writers):
            self._create_query_producer(str(writer))
        plan = change.choose_plan(self._verify_entries(epoch))
        if plan != change.fencing_plan:
            self._write_plan(producer, plan)
            log.info("%s has %d writers from batch %d on", self._query_id, plan.writers, epoch)
        self._is_owner = True
        return plan

    def _claim_job(self) -> None:
        """Become the owner of the job, unless this query is. Raises CheckpointRefused."""
        if not self._job or self._read_owner() == self._query_id:
            return
        key = owner_key(self._job)
        producer = self._create_producer(key)  # fences whoever claims the job at the same time
        if owner := self._read_owner():
            self._fence_query(owner)
        producer.begin()
        producer.write_entry(self.ledger.topic, 0, key, {"query": self._query_id})
        producer.commit()

    def _read_owner(self) -> str | None:
        owner, plan = self.ledger.read_owner(self._job, self._query_id)
        verify_owner(owner, self._query_id, plan)
        return owner

    def _fence_query(self, query_id: str) -> None:
        """Let no process write for another query any more, also none that runs now."""
        producer = self._create_producer(f"{query_id}-plan")
        plan = self.ledger.read_plan(query_id)
        if plan is None:
            return
        closed = WriterPlan(plan.generation + 1, plan.writers, self._driver_id)
        producer.begin()
        producer.write_entry(self.ledger.topic, 0, query_id, asdict(closed))
        producer.commit()
        for writer in range(plan.writers):
            self._create_producer(f"{query_id}-{writer}")

    def _verify_entries(self, epoch: int) -> list[LedgerEntry]:
        entries = self.ledger.read_entries(self._query_id)
        verify_entries(entries, epoch, self._checkpoint.compute_digest)
        return entries

    def _verify_own_plan(self, plan: WriterPlan | None) -> WriterPlan:
        """Raises Superseded: it is another driver's by now."""
        if plan is None or plan.driver != self._driver_id:
            raise PlanSuperseded(f"the writers of {self._query_id} were taken over")
        return plan

    def _write_plan(self, producer: LedgerProducer, plan: WriterPlan) -> None:
        producer.begin()
        producer.write_entry(self.ledger.topic, 0, self._query_id, asdict(plan))
        producer.commit()

    def _create_query_producer(self, name: str) -> LedgerProducer:
        return self._create_producer(f"{self._query_id}-{name}")

    def _create_producer(self, transactional_id: str) -> LedgerProducer:
        timeout = self._output.transaction_timeout
        return LedgerProducer(transactional_id, self._client_config, self.ledger.topic, timeout)
