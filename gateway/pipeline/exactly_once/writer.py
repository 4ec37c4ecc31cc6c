"""The batches of a query into Kafka, each once: what `foreachBatch` calls."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from gateway.config.pipeline import Output
from gateway.errors import PipelineError

from .. import progress
from .ledger import Ledger, opened
from .plan import Change, Plan, first
from .producers import MARK, Interrupted, Transactional
from .task import OUTCOME, Task, refusal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ..checkpoint import Checkpoint

log = logging.getLogger(__name__)

TRIES = 6
DELAY = 0.5  # s, doubled: 15 s in all, beside the time that a try itself waits for Kafka


class Writer:
    """Rows of encoded columns `key`, `value`, and where there are such `headers` and `topic`.

    query:      whose epochs they are: the id of the checkpoint, so that a new checkpoint, which
                counts from 0 again, has a name of its own in the ledger.
    output:     the topic, the number of writers, and the timeout of their transactions.
    client:     librdkafka's properties of the output's cluster.
    checkpoint: of the query; with it, one that was put back to an older state is refused.
    ledger:     the topic that the ledger is named by, if not the output's.

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
        checkpoint: Checkpoint | None = None,
        ledger: str | None = None,
    ) -> None:
        self._query = query
        self._output = output
        self._client: Mapping[str, Any] = client
        self._checkpoint = checkpoint
        self._beside = ledger or output.topic
        self._plan: Plan | None = None
        self._served: dict[int, str] = {}

    def __call__(self, rows: DataFrame, epoch: int) -> int:
        """Returns when all of them are committed, by now or before: how many were by now."""
        mark = self._checkpoint.mark(epoch) if self._checkpoint is not None else ""
        for count in range(TRIES):
            try:
                return self._once(rows, epoch, mark)
            except Exception as error:
                self._served.clear()
                self._plan = None  # read anew: who failed may have lost it to another driver
                self._consider(error, epoch, last=count == TRIES - 1)
                time.sleep(DELAY * 2**count)
        raise AssertionError("the last try returns or raises")

    def _consider(self, error: Exception, epoch: int, *, last: bool) -> None:
        """Raises what ends the query; returns if another try is worth it."""
        text = str(error)
        if refused := refusal(text):
            raise refused from None
        if MARK not in text and not isinstance(error, (KafkaException, Interrupted)):
            raise error
        said = next((line for line in text.splitlines() if MARK in line), text)
        cause = said[max(0, said.find(MARK)) :]
        if last:
            what = f"batch {epoch} could not be committed to {self._output.topic}: {cause}"
            raise PipelineError(f"{what}; it is finished by the next start") from None
        log.warning("batch %d of %s is written again: %s", epoch, self._query, cause)

    def _once(self, rows: DataFrame, epoch: int, mark: str) -> int:
        plan = self._planned(epoch)
        task = Task(
            query=self._query,
            topic=self._output.topic,
            ledger=self.ledger,
            plan=plan,
            epoch=epoch,
            mark=mark,
            timeout=self._output.transaction_timeout,
            served=dict(self._served),
        )
        # By the hash of the key, not by where rows are: that depends on how a batch was cut into
        # tasks. The shuffle costs 0.2 s for 250,000 rows, of 4 s in all.
        key = rows["key"].cast("binary")
        done = rows.repartition(plan.writers, key).mapInArrow(task, OUTCOME).collect()
        self._served = {each.writer: each.process for each in done if each.process}
        progress.note(self._query, epoch, sink=max((each.seconds for each in done), default=0.0))
        return sum(each.rows for each in done if each.written)

    @cached_property
    def ledger(self) -> Ledger:
        output = self._output
        return opened(self._beside, output.writers, output.transaction_timeout, self._client)

    def _planned(self, epoch: int) -> Plan:
        """The plan for this epoch: the ledger's, with the number of writers that is wanted as
        soon as that can be changed."""
        wanted = self._output.writers
        plan = self._plan or self.ledger.plan(self._query)
        if plan is None:
            plan = first(wanted)
            self._register(plan)
        elif plan.writers != wanted:
            plan = self._changed(Change(plan, wanted, epoch))
        self._plan = plan
        return plan

    def _changed(self, change: Change) -> Plan:
        self._served.clear()
        self._register(change.closing)
        for writer in range(change.plan.writers):
            self._transactional(str(writer))
        plan = change.settled(self.ledger.entries(self._query, change.plan.writers))
        if plan != change.closing:
            self._register(plan)
            log.info("%s has %d writers from batch %d on", self._query, plan.writers, change.epoch)
        return plan

    def _register(self, plan: Plan) -> None:
        producer = self._transactional("plan")
        producer.begin()
        value = {"generation": plan.generation, "writers": plan.writers}
        producer.entry(self.ledger.topic, 0, self._query, value)
        producer.commit()

    def _transactional(self, name: str) -> Transactional:
        timeout = self._output.transaction_timeout
        return Transactional(f"{self._query}-{name}", self._client, self.ledger.topic, timeout)
