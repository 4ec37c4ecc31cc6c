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

from gateway.config.sections.job import Input, Output
from gateway.config.sections.settings import Settings
from gateway.errors import PipelineError
from gateway.pipeline import topics
from gateway.pipeline.checkpoint.checkpoint import BatchOffsets, Checkpoint, Sources
from gateway.pipeline.progress import counts
from gateway.pipeline.spark.client_config import build_client_config, find_cluster
from gateway.telemetry import catalog

from .gaps import GapReporter
from .ledger import Ledger, open_ledger
from .producers import LedgerProducer, TransactionInterrupted
from .recreated_topics import ReadTopic, RewoundInputs, store_topic_ids
from .side_output import LateFilter, SideOutput, SideOutputKind, drop_rewound, side_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

BatchCounter = Callable[[int], Mapping[str, int] | None]
"""Of a batch by its number: `late` rows, and `invalid` ones by input; None where unknown."""


SCAN_INTERVAL_S = 10.0  # s
MAX_SCAN_BATCHES = 50  # batches


class WrittenBatch(NamedTuple):
    """A batch whose rows are written, and what is known of it."""

    batch: BatchOffsets
    counts: Mapping[str, int] | None


# By query: one that is begun again closes the clients of its run before, which Spark holds on to.
_running_outputs: dict[str, SideOutputs] = {}


class SideOutputs:
    """inputs: by name. sources: which of them the query's are. rewound: see `recreated`. late: the
    job's predicate of an input, for those that have one. retained: batches whose offsets are kept,
    for the next process. read: as of `Writer`. clock: seconds of any monotonic one."""

    def __init__(
        self,
        spark: SparkSession,
        job: str,
        query_id: str,
        inputs: Mapping[str, Input],
        output: Output,
        settings: Settings,
        checkpoint: Checkpoint,
        *,
        sources: Sources,
        rewound_inputs: RewoundInputs | None = None,
        late_filters: Mapping[str, LateFilter],
        get_counts: BatchCounter,
        retained_batches: int = 100,
        read_topics: tuple[ReadTopic, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job
        self._checkpoint = checkpoint
        self._sources = sources
        self._rewound_inputs = rewound_inputs
        self._late_filters = late_filters
        self._get_counts = get_counts
        self._output_cluster = find_cluster(settings.clusters, output.kafka)
        self._output = output
        self._settings = settings
        self._inputs = inputs
        self._query_id = query_id
        self._side_outputs = {
            name: SideOutput(
                spark,
                query_id,
                name,
                each,
                find_cluster(settings.clusters, each.kafka),
                output,
                self._output_cluster,
                checkpoint,
                settings.catalogs,
                read_topics,
            )
            for name, each in inputs.items()
            if each.on_invalid == "dead-letter" or (name in late_filters and each.late == "topic")
        }
        self._gap_reporters: dict[str, GapReporter] = {}
        self._exit_stack = ExitStack()
        self._pending_batches: list[WrittenBatch] = []
        self._current_batch: BatchOffsets | None = None
        self._ledger_producer: LedgerProducer | None = None
        self._max_pending = min(MAX_SCAN_BATCHES, max(1, retained_batches - 1))
        self._clock = clock
        self._scanned_at = 0.0  # when
        close(query_id)
        _running_outputs[query_id] = self

    def begin_batch(self, epoch: int) -> None:
        """Called when a batch begins, before it is read. Raises PipelineError."""
        batch = self._checkpoint.read_batch(epoch)
        if self._side_outputs:
            self._scan_when_due(epoch)
        self._current_batch = batch
        self._report_recreated()
        self._report_gaps(batch)

    def finish(self) -> None:
        """Look at all that is left, once a query has done all that there was.

        Raises:
            PipelineError: Some of it cannot be written.
        """
        done = self._checkpoint.read_last_committed()
        if done is None or not self._side_outputs:
            return
        last, self._current_batch = self._current_batch, None
        if last is not None and last.number == done:
            self._pending_batches.append(WrittenBatch(last, self._get_counts(done)))
            self._scan_pending(done, is_repeated=False)
        else:
            self._pending_batches = self._find_unscanned(done + 1)
            self._scan_pending(done, is_repeated=True)

    def close(self) -> None:
        self._exit_stack.close()
        self._ledger_producer = None

    def _scan_when_due(self, epoch: int) -> None:
        """All batches before this one are."""
        first = self._current_batch is None
        if first:
            self._pending_batches = self._find_unscanned(epoch)
        elif self._current_batch is not None and self._current_batch.number == epoch - 1:
            self._pending_batches.append(
                WrittenBatch(self._current_batch, self._get_counts(epoch - 1))
            )
        since = self._clock() - self._scanned_at
        if first or since >= SCAN_INTERVAL_S or len(self._pending_batches) >= self._max_pending:
            self._scan_pending(epoch - 1, is_repeated=first)
            self._scanned_at = self._clock()

    def _find_unscanned(self, epoch: int) -> list[WrittenBatch]:
        """What an earlier process has not looked at. Without a word of that, as where a checkpoint
        was restored, it is the last batch."""
        told = self._ledger.read_values([self._ledger_key]).get(self._ledger_key)
        after = int(told["to"]) if told is not None else max(-1, epoch - 2)
        found: list[WrittenBatch] = []
        for number in range(epoch - 1, after, -1):
            try:
                found.insert(0, WrittenBatch(self._checkpoint.read_batch(number), None))
            except PipelineError as error:
                log.warning("%s: late and invalid records before it are left: %s", self._job, error)
                break
        return found

    def _scan_pending(self, epoch: int, *, is_repeated: bool) -> None:
        """Late and undecodable records of all batches that are not looked at. again: some may have
        been sent."""
        for name, side in self._side_outputs.items():
            if side.input.on_invalid == "dead-letter":
                batches = self._select_batches(name, "dlq", name, is_repeated=is_repeated)
                self._log_sent(name, "dlq", batches, side.write_invalid(batches))
            late = self._late_filters.get(name)
            if late and side.input.late == "topic":
                batches = self._select_batches(name, "late", "late", is_repeated=is_repeated)
                self._log_sent(name, "late", batches, side.write_late(batches, late))
        self._pending_batches.clear()
        self._store_scan_position(epoch)

    def _select_batches(
        self, input_name: str, kind: SideOutputKind, count_key: str, *, is_repeated: bool
    ) -> list[BatchOffsets]:
        """From the first batch that has any to the last one."""
        parts = self._pending_batches
        if is_repeated and parts:
            done = self._side_outputs[input_name].read_last_batch(kind)
            parts = [each for each in parts if each.batch.number > done]
        some = [
            at for at, each in enumerate(parts) if each.counts is None or each.counts.get(count_key)
        ]
        wanted = parts[some[0] : some[-1] + 1] if some else []
        batches = [self._sources.select(each.batch, input_name) for each in wanted]
        found = drop_rewound(batches)
        if len(found) < len(batches):
            first, last = batches[0].number, batches[-len(found) - 1].number
            log.warning(
                "%s: %s records of batches %d to %d of %s are gone, if there were any, as the "
                "topic was recreated before they were looked for",
                *(self._job, "late" if kind == "late" else "invalid", first, last, input_name),
            )
        return list(found)

    def _store_scan_position(self, epoch: int) -> None:
        """Into the ledger. What fails here is only looked at again."""
        ledger, timeout = self._ledger, self._output.transaction_timeout
        try:
            if self._ledger_producer is None:
                name = f"{self._query_id}-beside"
                self._ledger_producer = LedgerProducer(
                    name, ledger.client_config, ledger.topic, timeout
                )
            self._ledger_producer.begin()
            self._ledger_producer.write_entry(ledger.topic, 0, self._ledger_key, {"to": epoch})
            self._ledger_producer.commit()
        except TransactionInterrupted as error:
            self._ledger_producer = None
            log.warning(
                "%s: batch %d is looked at again by the next start: %s", self._job, epoch, error
            )

    @property
    def _ledger_key(self) -> str:
        return f"{self._query_id}|beside"

    @cached_property
    def _ledger(self) -> Ledger:
        output = self._output
        into = build_client_config(self._output_cluster)
        return open_ledger(output.topic, output.writers, output.transaction_timeout, into)

    def _log_sent(
        self, input_name: str, kind: SideOutputKind, batches: Sequence[BatchOffsets], count: int
    ) -> None:
        if count:
            topic = side_topic(self._inputs[input_name].topic, kind)
            first, last = batches[0].number, batches[-1].number
            log.info(
                "%s: %d records of batches %d to %d to %s", self._job, count, first, last, topic
            )

    def _report_gaps(self, batch: BatchOffsets) -> None:
        for name, each in self._inputs.items():
            for part in self._sources.select(batch, name).start:
                if part and each.on_data_loss == "gap":
                    for gap in self._get_gap_reporter(name).report_gaps(part):
                        counts.increment_counter(catalog.PIPELINE_GAPS, 1, self._job, gap.topic)

    def _report_recreated(self) -> None:
        if self._rewound_inputs is None:
            return
        for name, gaps in self._rewound_inputs.gaps.items():
            for gap in self._get_gap_reporter(name).report_recreated(
                gaps, self._rewound_inputs.topics[name].id
            ):
                counts.increment_counter(catalog.PIPELINE_GAPS, 1, self._job, gap.topic)
        store_topic_ids(self._rewound_inputs.files, self._rewound_inputs.topics)
        self._rewound_inputs = None

    def _get_gap_reporter(self, input_name: str) -> GapReporter:
        if input_name not in self._gap_reporters:
            to, wait = f"{self._output.topic}.gaps", self._output.transaction_timeout
            of = self._inputs[input_name].kafka
            read = build_client_config(find_cluster(self._settings.clusters, of))
            made = GapReporter(
                self._job,
                self._query_id,
                input_name,
                to,
                self._ledger,
                input_config=read,
                timeout_s=wait,
                ensure_topic=lambda: topics.ensure_topic(
                    self._output_cluster, to, None, topics.list_topics(self._output_cluster)
                ),
            )
            self._gap_reporters[input_name] = made
            self._exit_stack.callback(made.close)
        return self._gap_reporters[input_name]


def finish(query_id: str) -> None:
    """Look at all that the last run of a query has left; nothing where none tells of any."""
    if found := _running_outputs.get(query_id):
        found.finish()


def close(query_id: str) -> None:
    """Close the clients of the last run of a query; nothing where none tells of any."""
    if found := _running_outputs.pop(query_id, None):
        found.close()


def create_batch_counter(get_query: Any) -> BatchCounter:
    """From the newest progress of a StreamingQuery. Of all that it keeps each would be a document
    to parse, a hundred of them in every batch."""

    def get_counts(epoch: int) -> Mapping[str, int] | None:
        running = get_query()
        newest = None if running is None else running.lastProgress
        return _parse_counts(newest) if newest and newest["batchId"] == epoch else None

    return get_counts


def _parse_counts(progress: Any) -> Mapping[str, int]:
    operators = progress["stateOperators"] or []
    late = sum(int(each["numRowsDroppedByWatermark"]) for each in operators)
    observed = progress["observedMetrics"] or {}
    invalid = {name: int(row["invalid"]) for name, row in observed.items() if "invalid" in row}
    return {**invalid, "late": late}
