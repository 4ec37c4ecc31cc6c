"""What a job tells beside its rows: gaps of its inputs, its late and its undecodable records.

Gaps are looked for before each batch. Late and undecodable records of a batch are looked for
when the next one begins, because only then progress says if there are any; of the last batch of a
process it says nothing to the next process, which looks. All of it is written once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from gateway.config.pipeline import Input, Output
from gateway.config.settings import Settings
from gateway.telemetry import catalog

from .. import counts, topics
from ..checkpoint import Checkpoint, Offsets
from ..connect import client, cluster_of
from .gaps import Gaps
from .ledger import opened
from .side import Late, Side, topic_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

Counts = Callable[[int], Mapping[str, int] | None]
"""Of a batch by its number: `late` rows, and `invalid` ones by input; None where unknown."""


class Beside:
    """inputs: by name. late: the job's predicate of an input, for those that have one."""

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
        late: Mapping[str, Late],
        counted: Counts,
    ) -> None:
        self._job = job
        self._checkpoint = checkpoint
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
                each,
                cluster_of(settings.clusters, each.kafka),
                output,
                self._into,
                checkpoint,
                settings.catalogs,
            )
            for name, each in inputs.items()
        }
        self._gaps: dict[str, Gaps] = {}
        self._kept = ExitStack()

    def before(self, epoch: int) -> None:
        """Called when a batch begins, before it is read. Raises PipelineError."""
        if epoch:
            self.rest(epoch - 1)
        for part in self._checkpoint.batch(epoch).start:
            self._lacking(part)

    def rest(self, epoch: int) -> None:
        """Late and undecodable records of a batch whose rows are written."""
        known = self._counted(epoch)
        for name, side in self._sides.items():
            if side.input.on_invalid == "dead-letter" and (known is None or known.get(name)):
                self._sent(name, "dlq", side.invalid(epoch), None)
            late = self._late.get(name)
            if late and side.input.late == "topic" and (known is None or known.get("late")):
                self._sent(name, "late", side.late(epoch, late), known)

    def close(self) -> None:
        self._kept.close()

    def _sent(self, name: str, kind: Any, count: int, known: Mapping[str, int] | None) -> None:
        topic = topic_of(self._inputs[name].topic, kind)
        if count:  # Spark counts rows behind its first aggregation: often fewer
            dropped = "unknown" if known is None else str(known.get("late", 0))
            log.info("%s: %d records to %s; late by Spark: %s", self._job, count, topic, dropped)

    def _lacking(self, following: Offsets) -> None:
        for name, each in self._inputs.items():
            own = {place: offset for place, offset in following.items() if place[0] == each.topic}
            if own and each.on_data_loss == "gap":
                for gap in self._gaps_of(name).check(own):
                    counts.add(catalog.PIPELINE_GAPS, 1, self._job, gap.topic)

    def _gaps_of(self, name: str) -> Gaps:
        if name not in self._gaps:
            to, wait = f"{self._output.topic}.gaps", self._output.transaction_timeout
            into = client(self._into)
            ledger = opened(self._output.topic, self._output.writers, wait, into)
            read = client(cluster_of(self._settings.clusters, self._inputs[name].kafka))
            made = Gaps(
                self._job,
                self._query,
                to,
                ledger,
                read=read,
                timeout=wait,
                ensure=lambda: topics.ensure(self._into, to, None, topics.present(self._into)),
            )
            self._gaps[name] = made
            self._kept.callback(made.close)
        return self._gaps[name]


def counted(query: Any) -> Counts:
    """From the progress that a StreamingQuery keeps."""

    def of(epoch: int) -> Mapping[str, int] | None:
        for each in query().recentProgress if query() is not None else ():
            if each["batchId"] == epoch:
                return _counts(each)
        return None

    return of


def _counts(progress: Any) -> Mapping[str, int]:
    operators = progress["stateOperators"] or []
    late = sum(int(each["numRowsDroppedByWatermark"]) for each in operators)
    observed = progress["observedMetrics"] or {}
    invalid = {name: int(row["invalid"]) for name, row in observed.items() if "invalid" in row}
    return {**invalid, "late": late}
