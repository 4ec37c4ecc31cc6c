"""What a job tells beside its rows: gaps of its inputs, its late and its undecodable records.

Gaps are looked for before each batch. Late and undecodable records are looked for in several
batches at a time, by one job of Spark each `EVERY` seconds at most, because one for each batch
takes as long as a small batch itself; and only where progress said that there are any. How far was
looked is in the ledger. So the next process, to which progress says nothing, looks at the batches
that are left, before its first. All of it is written once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.config.sections.pipeline import Input, Output
from gateway.config.sections.settings import Settings
from gateway.errors import PipelineError
from gateway.pipeline import topics
from gateway.pipeline.checkpoint.checkpoint import Batch, Checkpoint, Sources
from gateway.pipeline.progress import counts
from gateway.pipeline.spark.connect import client, cluster_of
from gateway.telemetry import catalog

from .gaps import Gaps
from .ledger import Ledger, opened
from .producers import Interrupted, Transactional
from .recreated import ReadTopic, Rewound, remember
from .side import Kind, Late, Side, since_rewound, topic_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

Counts = Callable[[int], Mapping[str, int] | None]
"""Of a batch by its number: `late` rows, and `invalid` ones by input; None where unknown."""


EVERY = 10.0  # s
MOST = 50  # batches


class Part(NamedTuple):
    """A batch whose rows are written, and what is known of it."""

    batch: Batch
    known: Mapping[str, int] | None


# By query: one that is begun again closes the clients of its run before, which Spark holds on to.
_running: dict[str, Beside] = {}


class Beside:
    """inputs: by name. sources: which of them the query's are. rewound: see `recreated`. late: the
    job's predicate of an input, for those that have one. retained: batches whose offsets are kept,
    for the next process. read: as of `Writer`. clock: seconds of any monotonic one."""

    def __init__(
        self,
        spark: SparkSession,
        job: str,
        query: str,
        inputs: Mapping[str, Input],
        output: Output,
        settings: Settings,
        checkpoint: Checkpoint,
        *,
        sources: Sources,
        rewound: Rewound | None = None,
        late: Mapping[str, Late],
        counted: Counts,
        retained: int = 100,
        read: tuple[ReadTopic, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job
        self._checkpoint = checkpoint
        self._sources = sources
        self._rewound = rewound
        self._late = late
        self._counted = counted
        self._into = cluster_of(settings.clusters, output.kafka)
        self._output = output
        self._settings = settings
        self._inputs = inputs
        self._query = query
        self._sides = {
            name: Side(
                spark,
                query,
                name,
                each,
                cluster_of(settings.clusters, each.kafka),
                output,
                self._into,
                checkpoint,
                settings.catalogs,
                read,
            )
            for name, each in inputs.items()
            if each.on_invalid == "dead-letter" or (name in late and each.late == "topic")
        }
        self._gaps: dict[str, Gaps] = {}
        self._kept = ExitStack()
        self._parts: list[Part] = []
        self._under_way: Batch | None = None
        self._teller: Transactional | None = None
        self._most = min(MOST, max(1, retained - 1))
        self._clock = clock
        self._looked = 0.0  # when
        close(query)
        _running[query] = self

    def before(self, epoch: int) -> None:
        """Called when a batch begins, before it is read. Raises PipelineError."""
        batch = self._checkpoint.batch(epoch)
        if self._sides:
            self._written(epoch)
        self._under_way = batch
        self._tell_recreated()
        self._lacking(batch)

    def finish(self) -> None:
        """Look at all that is left, once a query has done all that there was.

        Raises:
            PipelineError: Some of it cannot be written.
        """
        done = self._checkpoint.committed()
        if done is None or not self._sides:
            return
        last, self._under_way = self._under_way, None
        if last is not None and last.number == done:
            self._parts.append(Part(last, self._counted(done)))
            self._look(done, again=False)
        else:
            self._parts = self._left(done + 1)
            self._look(done, again=True)

    def close(self) -> None:
        self._kept.close()
        self._teller = None

    def _written(self, epoch: int) -> None:
        """All batches before this one are."""
        first = self._under_way is None
        if first:
            self._parts = self._left(epoch)
        elif self._under_way is not None and self._under_way.number == epoch - 1:
            self._parts.append(Part(self._under_way, self._counted(epoch - 1)))
        since = self._clock() - self._looked
        if first or since >= EVERY or len(self._parts) >= self._most:
            self._look(epoch - 1, again=first)
            self._looked = self._clock()

    def _left(self, epoch: int) -> list[Part]:
        """What an earlier process has not looked at. Without a word of that, as where a checkpoint
        was restored, it is the last batch."""
        told = self._ledger.values([self._key]).get(self._key)
        after = int(told["to"]) if told is not None else max(-1, epoch - 2)
        found: list[Part] = []
        for number in range(epoch - 1, after, -1):
            try:
                found.insert(0, Part(self._checkpoint.batch(number), None))
            except PipelineError as error:
                log.warning("%s: late and invalid records before it are left: %s", self._job, error)
                break
        return found

    def _look(self, epoch: int, *, again: bool) -> None:
        """Late and undecodable records of all batches that are not looked at. again: some may have
        been sent."""
        for name, side in self._sides.items():
            if side.input.on_invalid == "dead-letter":
                batches = self._wanted(name, "dlq", name, again=again)
                self._sent(name, "dlq", batches, side.invalid(batches))
            late = self._late.get(name)
            if late and side.input.late == "topic":
                batches = self._wanted(name, "late", "late", again=again)
                self._sent(name, "late", batches, side.late(batches, late))
        self._parts.clear()
        self._told(epoch)

    def _wanted(self, name: str, kind: Kind, count: str, *, again: bool) -> list[Batch]:
        """From the first batch that has any to the last one."""
        parts = self._parts
        if again and parts:
            done = self._sides[name].written(kind)
            parts = [each for each in parts if each.batch.number > done]
        some = [at for at, each in enumerate(parts) if each.known is None or each.known.get(count)]
        wanted = parts[some[0] : some[-1] + 1] if some else []
        batches = [self._sources.select(each.batch, name) for each in wanted]
        found = since_rewound(batches)
        if len(found) < len(batches):
            first, last = batches[0].number, batches[-len(found) - 1].number
            log.warning(
                "%s: %s records of batches %d to %d of %s are gone, if there were any, as the "
                "topic was recreated before they were looked for",
                *(self._job, "late" if kind == "late" else "invalid", first, last, name),
            )
        return list(found)

    def _told(self, epoch: int) -> None:
        """Into the ledger. What fails here is only looked at again."""
        ledger, timeout = self._ledger, self._output.transaction_timeout
        try:
            if self._teller is None:
                name = f"{self._query}-beside"
                self._teller = Transactional(name, ledger.client, ledger.topic, timeout)
            self._teller.begin()
            self._teller.entry(ledger.topic, 0, self._key, {"to": epoch})
            self._teller.commit()
        except Interrupted as error:
            self._teller = None
            log.warning(
                "%s: batch %d is looked at again by the next start: %s", self._job, epoch, error
            )

    @property
    def _key(self) -> str:
        return f"{self._query}|beside"

    @cached_property
    def _ledger(self) -> Ledger:
        output = self._output
        into = client(self._into)
        return opened(output.topic, output.writers, output.transaction_timeout, into)

    def _sent(self, name: str, kind: Kind, batches: Sequence[Batch], count: int) -> None:
        if count:
            topic = topic_of(self._inputs[name].topic, kind)
            first, last = batches[0].number, batches[-1].number
            log.info(
                "%s: %d records of batches %d to %d to %s", self._job, count, first, last, topic
            )

    def _lacking(self, batch: Batch) -> None:
        for name, each in self._inputs.items():
            for part in self._sources.select(batch, name).start:
                if part and each.on_data_loss == "gap":
                    for gap in self._gaps_of(name).check(part):
                        counts.add(catalog.PIPELINE_GAPS, 1, self._job, gap.topic)

    def _tell_recreated(self) -> None:
        if self._rewound is None:
            return
        for name, gaps in self._rewound.gaps.items():
            for gap in self._gaps_of(name).tell_recreated(gaps, self._rewound.topics[name].id):
                counts.add(catalog.PIPELINE_GAPS, 1, self._job, gap.topic)
        remember(self._rewound.held, self._rewound.topics)
        self._rewound = None

    def _gaps_of(self, name: str) -> Gaps:
        if name not in self._gaps:
            to, wait = f"{self._output.topic}.gaps", self._output.transaction_timeout
            of = self._inputs[name].kafka
            read = client(cluster_of(self._settings.clusters, of))
            made = Gaps(
                self._job,
                self._query,
                name,
                to,
                self._ledger,
                read=read,
                timeout=wait,
                ensure=lambda: topics.ensure(self._into, to, None, topics.present(self._into)),
            )
            self._gaps[name] = made
            self._kept.callback(made.close)
        return self._gaps[name]


def finish(query: str) -> None:
    """Look at all that the last run of a query has left; nothing where none tells of any."""
    if found := _running.get(query):
        found.finish()


def close(query: str) -> None:
    """Close the clients of the last run of a query; nothing where none tells of any."""
    if found := _running.pop(query, None):
        found.close()


def counted(query: Any) -> Counts:
    """From the newest progress of a StreamingQuery. Of all that it keeps each would be a document
    to parse, a hundred of them in every batch."""

    def of(epoch: int) -> Mapping[str, int] | None:
        running = query()
        newest = None if running is None else running.lastProgress
        return _counts(newest) if newest and newest["batchId"] == epoch else None

    return of


def _counts(progress: Any) -> Mapping[str, int]:
    operators = progress["stateOperators"] or []
    late = sum(int(each["numRowsDroppedByWatermark"]) for each in operators)
    observed = progress["observedMetrics"] or {}
    invalid = {name: int(row["invalid"]) for name, row in observed.items() if "invalid" in row}
    return {**invalid, "late": late}
