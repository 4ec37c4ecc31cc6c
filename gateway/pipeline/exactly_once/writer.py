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

from gateway.config.sections.pipeline import Output
from gateway.errors import PipelineUnavailable
from gateway.pipeline.progress import progress
from gateway.pipeline.run.dead_letters import dead_letters_of
from gateway.pipeline.run.failures import of_kafka
from gateway.pipeline.topics import max_message_bytes

from .ledger import Ledger, opened, owner_key
from .plan import Change, Entry, Plan, Superseded, verify, verify_owner
from .producers import MARK, Transactional
from .recreated import ReadTopic
from .task import OUTCOME, Task, refusal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from gateway.pipeline.checkpoint.checkpoint import Checkpoint

log = logging.getLogger(__name__)

T = TypeVar("T")

TRIES = 6
DELAY = 0.5  # s, doubled: 15 s in all, beside the time that a try itself waits for Kafka


class Writer:
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
        query: str,
        output: Output,
        client: Mapping[str, object],
        *,
        checkpoint: Checkpoint,
        ledger: str | None = None,
        job: str = "",
        read: tuple[ReadTopic, ...] = (),
    ) -> None:
        self._query = query
        self._job = job
        self._read = read
        self._output = output
        self._client: Mapping[str, Any] = client
        self._checkpoint = checkpoint
        self._beside = ledger or output.topic
        self._driver = uuid.uuid4().hex
        self._owns = False  # has this driver taken the query over?
        self._plan: Plan | None = None
        self._served: dict[int, str] = {}

    def prepare(self, epoch: int) -> None:
        """Take the query over, if that is still to be done, so that `epoch` can be written.

        Called before anything is written of a batch, its rows or what is told beside them.

        Raises:
            CheckpointRefused: The ledger has other batches than the checkpoint. Nothing was
                written, and a process that runs by the other checkpoint goes on.
            PipelineError: Another process has taken the query over, or Kafka refuses.
        """
        self._retry(lambda: self._planned(epoch), epoch)

    def __call__(self, rows: DataFrame, epoch: int) -> int:
        """Returns when all of them are committed, by now or before: how many were by now."""
        return self._retry(lambda: self._once(rows, epoch), epoch)

    def _retry(self, action: Callable[[], T], epoch: int) -> T:
        for count in range(TRIES):
            try:
                return action()
            except Exception as error:
                self._served.clear()
                self._plan = None  # read anew: who failed may have lost it to another driver
                self._consider(error, epoch, last=count == TRIES - 1)
                time.sleep(DELAY * 2**count)
        raise AssertionError("the last try returns or raises")

    def _consider(self, error: Exception, epoch: int, *, last: bool) -> None:
        """Raises what ends the query; returns if another try is worth it."""
        text = f"{type(error).__name__}: {error}"
        if refused := refusal(text):
            raise refused from None
        if isinstance(error, KafkaException):
            error = of_kafka(f"batch {epoch} cannot be written", error)
        if MARK not in text and not isinstance(error, PipelineUnavailable):
            raise error
        said = next((line for line in text.splitlines() if MARK in line), text)
        cause = said[max(0, said.find(MARK)) :]
        if last:
            what = f"batch {epoch} could not be committed to {self._output.topic}: {cause}"
            raise PipelineUnavailable(f"{what}; it is finished by the next start") from None
        log.warning("batch %d of %s is written again: %s", epoch, self._query, cause)

    def _once(self, rows: DataFrame, epoch: int) -> int:
        plan = self._planned(epoch)
        task = Task(
            query=self._query,
            topic=self._output.topic,
            ledger=self.ledger,
            plan=plan,
            epoch=epoch,
            mark=self._checkpoint.mark(epoch),
            timeout=self._output.transaction_timeout,
            served=dict(self._served),
            limit=self._limit,
            dead=self._dead,
            read=self._read,
        )
        # By the hash of the key, not by where rows are: that depends on how a batch was cut into
        # tasks. The shuffle costs 0.2 s for 250,000 rows, of 4 s in all.
        key = rows["key"].cast("binary")
        done = rows.repartition(plan.writers, key).mapInArrow(task, OUTCOME).collect()
        self._served = {each.writer: each.process for each in done if each.process}
        progress.note(self._query, epoch, sink=max((each.seconds for each in done), default=0.0))
        if large := sum(each.large for each in done):
            what = "%d rows of batch %d are too large for topic %s: they are in %s"
            log.warning(what, large, epoch, self._output.topic, self._dead)
        if refused := sum(each.refused for each in done):
            what = "%d rows of batch %d are refused by the schema of topic %s: they are in %s"
            log.warning(what, refused, epoch, self._output.topic, self._dead)
        return sum(each.rows for each in done if each.written)

    @cached_property
    def _limit(self) -> int:
        return max_message_bytes(self._client, self._output.topic)

    @property
    def _dead(self) -> str:
        """What is too large for dead letters themselves is cut there."""
        return dead_letters_of(self._output.topic)

    @cached_property
    def ledger(self) -> Ledger:
        output = self._output
        return opened(self._beside, output.writers, output.transaction_timeout, self._client)

    def _planned(self, epoch: int) -> Plan:
        """The plan for this epoch: this driver's, with the number of writers that is wanted as
        soon as that can be changed."""
        if self._plan is None and self._owns:
            self._plan = self._own(self.ledger.plan(self._query))
        if self._plan is None or self._plan.writers != self._output.writers:
            self._plan = self._take_over(epoch)
        return self._plan

    def _take_over(self, epoch: int) -> Plan:
        """The steps of `plan`, in their order."""
        self._served.clear()
        self._verify(epoch)
        self._claim_job()
        producer = self._transactional("plan")  # from now on nobody else changes the plan unseen
        before = self.ledger.plan(self._query)
        if self._owns:
            before = self._own(before)
        change = Change(before, self._output.writers, epoch, self._driver)
        self._register(producer, change.closing)
        for writer in range(0 if before is None else before.writers):
            self._transactional(str(writer))
        plan = change.settled(self._verify(epoch))
        if plan != change.closing:
            self._register(producer, plan)
            log.info("%s has %d writers from batch %d on", self._query, plan.writers, epoch)
        self._owns = True
        return plan

    def _claim_job(self) -> None:
        """Become the owner of the job, unless this query is. Raises CheckpointRefused."""
        if not self._job or self._owner() == self._query:
            return
        key = owner_key(self._job)
        producer = self._producer(key)  # fences whoever claims the job at the same time
        if owner := self._owner():
            self._fence(owner)
        producer.begin()
        producer.entry(self.ledger.topic, 0, key, {"query": self._query})
        producer.commit()

    def _owner(self) -> str | None:
        owner, plan = self.ledger.owner(self._job, self._query)
        verify_owner(owner, self._query, plan)
        return owner

    def _fence(self, query: str) -> None:
        """Let no process write for another query any more, also none that runs now."""
        producer = self._producer(f"{query}-plan")
        plan = self.ledger.plan(query)
        if plan is None:
            return
        closed = Plan(plan.generation + 1, plan.writers, self._driver)
        producer.begin()
        producer.entry(self.ledger.topic, 0, query, asdict(closed))
        producer.commit()
        for writer in range(plan.writers):
            self._producer(f"{query}-{writer}")

    def _verify(self, epoch: int) -> list[Entry]:
        entries = self.ledger.entries(self._query)
        verify(entries, epoch, self._checkpoint.mark)
        return entries

    def _own(self, plan: Plan | None) -> Plan:
        """Raises Superseded: it is another driver's by now."""
        if plan is None or plan.driver != self._driver:
            raise Superseded(f"the writers of {self._query} were taken over")
        return plan

    def _register(self, producer: Transactional, plan: Plan) -> None:
        producer.begin()
        producer.entry(self.ledger.topic, 0, self._query, asdict(plan))
        producer.commit()

    def _transactional(self, name: str) -> Transactional:
        return self._producer(f"{self._query}-{name}")

    def _producer(self, identity: str) -> Transactional:
        timeout = self._output.transaction_timeout
        return Transactional(identity, self._client, self.ledger.topic, timeout)
