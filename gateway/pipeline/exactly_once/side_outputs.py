"""Write a job's side outputs: gaps of its inputs, late records, and undecodable records.

Gaps are looked for before each batch. Late and undecodable records are looked for in several
batches at once, by one job of Spark every `SCAN_INTERVAL_S` seconds at most, because one job per
batch takes as long as a small batch itself. Only batches are scanned in which Spark's progress
counted such records. A query that waits for records scans the rest (`scan_idle`), because an idle
topic has no next batch. The ledger has the last batch that was scanned. A new process has no
progress of earlier batches, so before its first batch, or when it first waits, it scans all that
were not scanned. Each record is written exactly once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from threading import Lock
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
from .recreated_topics import ReadTopic
from .side_output import LateFilter, SideOutput, SideOutputKind, side_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

BatchCounter = Callable[[int], Mapping[str, int] | None]
"""Returns the counts of a batch by its number: the late rows as `late`, and the invalid records by
the name of their input; None if they are unknown."""


SCAN_INTERVAL_S = 10.0
MAX_SCAN_BATCHES = 50


class WrittenBatch(NamedTuple):
    """A batch whose rows are written, and its counts as of `BatchCounter`."""

    batch: BatchOffsets
    counts: Mapping[str, int] | None


# By query id. Spark keeps references to the objects of a query that has ended, so a new run of the
# query closes the Kafka clients of the run before.
_running_outputs: dict[str, SideOutputs] = {}


class SideOutputs:
    """All side outputs of one run of a query.

    A job creates one when it starts its query, and calls `begin_batch` before it reads a batch, in
    the thread of the query. The runner calls `scan_idle` in its own thread while the query waits. A
    lock lets one of these calls wait for the other. Between calls, `_pending_batches` has the
    batches that are written and were not scanned, in their order, and `_current_batch` is the batch
    that was begun last.
    """

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
        late_filters: Mapping[str, LateFilter],
        get_counts: BatchCounter,
        retained_batches: int = 100,
        read_topics: tuple[ReadTopic, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Close the side outputs of the query's previous run, and register this run.

        Args:
            retained_batches: The number of batches whose offsets Spark keeps. Pending batches are
                fewer, so that the next process can still read their offsets.
        """
        self._job = job
        self._checkpoint = checkpoint
        self._sources = sources
        self._late_filters = late_filters
        self._get_counts = get_counts
        self._output_cluster = find_cluster(settings.clusters, output.kafka)
        self._output = output
        self._settings = settings
        self._inputs = inputs
        self._query_id = query_id
        self.side_outputs = {
            name: SideOutput(
                spark,
                query_id,
                name,
                job_input,
                find_cluster(settings.clusters, job_input.kafka),
                output,
                self._output_cluster,
                checkpoint,
                settings.catalogs,
                read_topics,
            )
            for name, job_input in inputs.items()
            if job_input.on_invalid == "dead-letter"
            or (name in late_filters and job_input.late == "topic")
        }
        self._gap_reporters: dict[str, GapReporter] = {}
        self._exit_stack = ExitStack()
        self._pending_batches: list[WrittenBatch] = []
        self._current_batch: BatchOffsets | None = None
        self._ledger_producer: LedgerProducer | None = None
        # One less than Spark keeps, because the batch that runs has offsets, too.
        self._max_pending = min(MAX_SCAN_BATCHES, max(1, retained_batches - 1))
        self._clock = clock
        self._scanned_at = 0.0  # seconds of the clock
        self._has_scanned_earlier = False  # whether the batches of earlier processes are scanned
        self._lock = Lock()
        close(query_id)
        _running_outputs[query_id] = self

    def begin_batch(self, epoch: int) -> None:
        """Scan the batches before a batch if that is due, and report the gaps before it."""
        with self._lock:
            batch = self._checkpoint.read_batch(epoch)
            if self.side_outputs:
                self._scan_when_due(epoch)
            self._current_batch = batch
            self._report_gaps(batch)

    def scan_idle(self) -> None:
        """Scan the batches that were not scanned, if that is due, while the query waits.

        A failure is logged. The batches are then scanned by a later call or before the next batch.
        """
        if not self.side_outputs or self._clock() - self._scanned_at < SCAN_INTERVAL_S:
            return
        with self._lock:
            if not self._has_left_records():
                return
            self._scanned_at = self._clock()
            try:
                self._scan_rest()
            except Exception as error:
                log.warning(
                    "%s: late and invalid records are not written yet, and are tried again: %s",
                    *(self._job, error),
                )

    def _has_left_records(self) -> bool:
        if not self._has_scanned_earlier:
            return True
        counted = [written.counts for written in self._pending_batches]
        if self._current_batch is not None:
            counted.append(self._get_counts(self._current_batch.number))
        return any(counts is None or any(counts.values()) for counts in counted)

    def finish(self) -> None:
        """Scan all batches that were not scanned, after a query has ended."""
        with self._lock:
            self._scan_rest()

    def _scan_rest(self) -> None:
        committed = self._checkpoint.read_last_committed()
        if committed is None or not self.side_outputs:
            self._has_scanned_earlier = True
            return
        # None, so that a later batch of this run would look for unscanned batches again.
        last, self._current_batch = self._current_batch, None
        if last is not None and last.number == committed:
            self._pending_batches.append(WrittenBatch(last, self._get_counts(committed)))
            self._scan_pending(committed, is_repeated=False)
        else:
            # This process has not begun the last batch, so it knows nothing of the batches before.
            self._pending_batches = self._find_unscanned(committed + 1)
            self._scan_pending(committed, is_repeated=True)

    def close(self) -> None:
        with self._lock:
            self._exit_stack.close()
            self._ledger_producer = None

    def _scan_when_due(self, epoch: int) -> None:
        # Spark begins a batch only after the previous one is written, so all before it are.
        is_first = self._current_batch is None
        if is_first:
            self._pending_batches = self._find_unscanned(epoch)
        elif self._current_batch is not None and self._current_batch.number == epoch - 1:
            self._pending_batches.append(
                WrittenBatch(self._current_batch, self._get_counts(epoch - 1))
            )
        elapsed = self._clock() - self._scanned_at
        is_full = len(self._pending_batches) >= self._max_pending
        if is_first or elapsed >= SCAN_INTERVAL_S or is_full:
            self._scan_pending(epoch - 1, is_repeated=is_first)
            self._scanned_at = self._clock()

    def _find_unscanned(self, epoch: int) -> list[WrittenBatch]:
        """Return the batches before an epoch that an earlier process has not scanned.

        If the ledger has no position, as when a checkpoint was restored, only the last batch is
        returned.
        """
        position = self.ledger.read_values([self._ledger_key]).get(self._ledger_key)
        scanned = int(position["to"]) if position is not None else max(-1, epoch - 2)
        unscanned: list[WrittenBatch] = []
        for number in range(epoch - 1, scanned, -1):
            try:
                unscanned.insert(0, WrittenBatch(self._checkpoint.read_batch(number), None))
            except PipelineError as error:
                # Spark has removed the offsets of this batch and of all before it.
                log.warning(
                    "%s: late and invalid records of batch %d and before are left out: %s",
                    *(self._job, number, error),
                )
                break
        return unscanned

    def _scan_pending(self, epoch: int, *, is_repeated: bool) -> None:
        """Write the late and the undecodable records of all pending batches.

        Args:
            epoch: The last of these batches, or the last batch before this process.
            is_repeated: Whether an earlier process may have written some of the records.
        """
        for name, side_output in self.side_outputs.items():
            if side_output.input.on_invalid == "dead-letter":
                batches = self._select_batches(name, "dlq", name, is_repeated=is_repeated)
                self._log_sent(name, "dlq", batches, side_output.write_invalid(batches))
            late_filter = self._late_filters.get(name)
            if late_filter and side_output.input.late == "topic":
                batches = self._select_batches(name, "late", "late", is_repeated=is_repeated)
                self._log_sent(name, "late", batches, side_output.write_late(batches, late_filter))
        self._pending_batches.clear()
        self._has_scanned_earlier = True
        self._store_scan_position(epoch)

    def _select_batches(
        self, input_name: str, kind: SideOutputKind, count_key: str, *, is_repeated: bool
    ) -> list[BatchOffsets]:
        """Return the pending batches to scan, from the first that has such records to the last."""
        pending = self._pending_batches
        if is_repeated and pending:
            last = pending[-1].batch.number
            last_written = self.side_outputs[input_name].read_last_batch(kind, last)
            pending = [written for written in pending if written.batch.number > last_written]
        indexes = [
            i
            for i, written in enumerate(pending)
            if written.counts is None or written.counts.get(count_key)
        ]
        # The batches in between are read, too: one range of offsets is one read of Kafka.
        span = pending[indexes[0] : indexes[-1] + 1] if indexes else []
        return [self._sources.select(written.batch, input_name) for written in span]

    def _store_scan_position(self, epoch: int) -> None:
        """Store the last scanned batch in the ledger. After a failure it is scanned again."""
        ledger, timeout = self.ledger, self._output.transaction_timeout
        try:
            if self._ledger_producer is None:
                transactional_id = f"{self._query_id}-beside"
                self._ledger_producer = LedgerProducer(
                    transactional_id, ledger.client_config, ledger.topic, timeout
                )
            self._ledger_producer.begin()
            self._ledger_producer.write_entry(ledger.topic, 0, self._ledger_key, {"to": epoch})
            self._ledger_producer.commit()
        except TransactionInterrupted as error:
            self._ledger_producer = None
            log.warning("%s: the next start scans batch %d again: %s", self._job, epoch, error)

    @property
    def _ledger_key(self) -> str:
        return f"{self._query_id}|beside"

    @cached_property
    def ledger(self) -> Ledger:
        output = self._output
        client_config = build_client_config(self._output_cluster)
        return open_ledger(output.topic, output.writers, output.transaction_timeout, client_config)

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
        for name, job_input in self._inputs.items():
            for starts in self._sources.select(batch, name).start:
                if starts and job_input.on_data_loss == "gap":
                    for gap in self._get_gap_reporter(name).report_gaps(starts):
                        counts.increment_counter(catalog.PIPELINE_GAPS, 1, self._job, gap.topic)

    def _get_gap_reporter(self, input_name: str) -> GapReporter:
        if input_name not in self._gap_reporters:
            gap_topic = f"{self._output.topic}.gaps"
            cluster = find_cluster(self._settings.clusters, self._inputs[input_name].kafka)
            reporter = GapReporter(
                self._job,
                self._query_id,
                input_name,
                gap_topic,
                self.ledger,
                input_config=build_client_config(cluster),
                timeout_s=self._output.transaction_timeout,
                ensure_topic=lambda: topics.ensure_topic(
                    self._output_cluster, gap_topic, None, topics.list_topics(self._output_cluster)
                ),
            )
            self._gap_reporters[input_name] = reporter
            self._exit_stack.callback(reporter.close)
        return self._gap_reporters[input_name]


def finish(query_id: str) -> None:
    if outputs := _running_outputs.get(query_id):
        outputs.finish()


def scan_idle(query_id: str) -> None:
    if outputs := _running_outputs.get(query_id):
        outputs.scan_idle()


def close(query_id: str) -> None:
    if outputs := _running_outputs.pop(query_id, None):
        outputs.close()


def create_batch_counter(get_query: Any) -> BatchCounter:
    """Return a function that reads the counts of a batch from the progress of a query.

    It only reads the newest progress. `recentProgress` would parse a hundred JSON documents in
    every batch.
    """

    def get_counts(epoch: int) -> Mapping[str, int] | None:
        query = get_query()
        progress = None if query is None else query.lastProgress
        return _parse_counts(progress) if progress and progress["batchId"] == epoch else None

    return get_counts


def _parse_counts(progress: Any) -> Mapping[str, int]:
    operators = progress["stateOperators"] or []
    late = sum(int(operator["numRowsDroppedByWatermark"]) for operator in operators)
    observed = progress["observedMetrics"] or {}
    invalid = {name: int(row["invalid"]) for name, row in observed.items() if "invalid" in row}
    return {**invalid, "late": late}
