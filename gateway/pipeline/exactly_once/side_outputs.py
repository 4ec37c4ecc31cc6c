"""Write a job's side outputs: gaps of its inputs, late records, and undecodable records.

Gaps are looked for before and after each batch. Late and undecodable records are looked for in
several batches at once, by one job of Spark every `SCAN_INTERVAL_S` seconds at most, because one
job per batch takes as long as a small batch itself. Only batches are scanned in which Spark's
progress counted such records. A query that waits for records, or ends, scans the rest (`scan_idle`,
`finish`), because an idle topic has no next batch. Each record is written exactly once.

The checkpoint has the last batch that was scanned, and by which settings the batches after it were
read (`scanned.json`). A new process has no progress of earlier batches, so before its first batch,
or when it first waits, it scans all that were not scanned. It does so by the settings of the
process that read them: by its own, a record that was invalid before would be written nowhere.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.config.sections.job import Input, Output
from gateway.config.sections.settings import Settings
from gateway.errors import CheckpointRefused, PipelineError
from gateway.pipeline.checkpoint.checkpoint import SCANNED_FILE, BatchOffsets, Checkpoint, Sources
from gateway.pipeline.checkpoint.files import refuse_damaged
from gateway.pipeline.clusters import build_client_config, find_cluster
from gateway.pipeline.doctor.query_run import parse_invalid_counts
from gateway.pipeline.reports import Reports

from . import gaps
from .gaps import GapReporter
from .input_topics import ReadTopic
from .ledger import Ledger, open_ledger
from .side_output import LateFilter, SideOutput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


class BatchCounts(NamedTuple):
    """The late rows of a batch, and its invalid records by the name of their input."""

    late: int
    invalid: Mapping[str, int]


BatchCounter = Callable[[int], BatchCounts | None]
"""Returns the counts of a batch by its number; None if they are unknown."""


SCAN_INTERVAL_S = 10.0
MAX_SCAN_BATCHES = 50


class WrittenBatch(NamedTuple):
    """A batch whose rows are written, and its counts as of `BatchCounter`."""

    batch: BatchOffsets
    counts: BatchCounts | None


class ScanState(NamedTuple):
    """The content of `scanned.json`.

    Attributes:
        batch: The last batch that was scanned, or -1.
        inputs: The options of the inputs, by name, by which the batches after it were read.
        output: The topic whose ledger has the side outputs' entries, and its cluster.
    """

    batch: int
    inputs: Mapping[str, Any]
    output: Mapping[str, Any]


@dataclass
class SideOutputs:
    """All side outputs of one run of a query.

    A job creates one when it starts its query, and reads each batch within `enter_batch`, in the
    thread of the query. The runner calls `scan_idle` in its own thread while the query waits. A
    lock lets one of these calls wait for the other. Between calls, `_pending_batches` has the
    batches that are written and were not scanned, in their order, and `_current_batch` is the batch
    that was begun last.

    Attributes:
        retained_batches: The number of batches whose offsets Spark keeps. Pending batches are
            fewer, so that the next process can still read their offsets.
    """

    spark: SparkSession
    job: str
    query_id: str
    inputs: Mapping[str, Input]
    output: Output
    settings: Settings
    checkpoint: Checkpoint
    sources: Sources
    late_filters: Mapping[str, LateFilter]
    get_counts: BatchCounter
    reports: Reports = field(default_factory=Reports)
    retained_batches: int = 100
    read_topics: tuple[ReadTopic, ...] = ()
    clock: Callable[[], float] = time.monotonic
    create_side_output: Callable[..., SideOutput] = SideOutput
    ensure_main: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        """Create the outputs; Kafka is not contacted yet."""
        self._output_cluster = find_cluster(self.settings.clusters, self.output.kafka)
        self._side_outputs = self._create_side_outputs(self.inputs, self.output)
        self._gap_reporters: dict[str, GapReporter] = {}
        self._exit_stack = ExitStack()
        self._pending_batches: list[WrittenBatch] = []
        self._current_batch: BatchOffsets | None = None
        # The last batch that this process has begun or, before its first, has found.
        self._newest_batch: int | None = None
        # One less than Spark keeps, because the batch that runs has offsets, too.
        self._max_pending = min(MAX_SCAN_BATCHES, max(1, self.retained_batches - 1))
        self._scanned_at = 0.0  # seconds of the clock
        # That this process has stored; None until the batches of earlier ones are scanned.
        self._scan_state: ScanState | None = None
        self._lock = Lock()

    @contextmanager
    def enter_batch(self, epoch: int) -> Iterator[None]:
        """Scan the batches before a batch if that is due, and report its gaps.

        Records that are deleted while the context is entered are reported before Spark commits the
        batch.
        """
        with self._lock:
            batch = self.checkpoint.read_batch(epoch)
            if self._side_outputs or self._scan_state is None:
                self._scan_when_due(epoch)
            self._current_batch, self._newest_batch = batch, epoch
            self._report_gaps(batch, gaps.RETENTION)
        yield
        with self._lock:
            self._report_gaps(batch, gaps.RETENTION_IN_BATCH)

    def scan_idle(self) -> None:
        """Scan the batches that were not scanned, if that is due, while the query waits.

        A failure is logged. The batches are then scanned by a later call or before the next batch.
        """
        if self.clock() - self._scanned_at < SCAN_INTERVAL_S:
            return
        with self._lock:
            if not self._has_left_records():
                return
            self._scanned_at = self.clock()
            try:
                self._scan_rest()
            except Exception as error:
                log.warning(
                    "%s: late and invalid records are not written yet, and are tried again: %s",
                    *(self.job, error),
                )

    def _has_left_records(self) -> bool:
        if self._scan_state is None:
            return True
        if not self._side_outputs:
            return False
        counted = [written.counts for written in self._pending_batches]
        if self._current_batch is not None:
            counted.append(self.get_counts(self._current_batch.number))
        return any(each is None or each.late or any(each.invalid.values()) for each in counted)

    def finish(self) -> None:
        """Scan all batches that were not scanned, after a query has ended."""
        with self._lock:
            self._scan_rest()

    def _scan_rest(self) -> None:
        committed = self.checkpoint.read_last_committed()
        if committed is None:
            return
        # None, so that a later batch of this run would look for unscanned batches again.
        last, self._current_batch = self._current_batch, None
        if self._newest_batch is None:
            self._newest_batch = committed
        if committed > self._newest_batch:
            self._pending_batches.clear()
            log.warning(
                "%s: another process has written batch %d, and writes late and invalid records",
                *(self.job, committed),
            )
        elif last is not None and last.number == committed:
            self._pending_batches.append(WrittenBatch(last, self.get_counts(committed)))
            self._scan_pending(committed, self._side_outputs)
        else:
            # This process has not begun the last batch, so it knows nothing of the batches before.
            self._scan_earlier(committed + 1)
            self._current_batch = last  # one that has begun meanwhile, and is scanned later

    def close(self) -> None:
        with self._lock:
            self._exit_stack.close()

    def _scan_when_due(self, epoch: int) -> None:
        # Spark begins a batch only after the previous one is written, so all before it are.
        if self._current_batch is None:
            self._scan_earlier(epoch)
            self._scanned_at = self.clock()
            return
        if self._current_batch.number == epoch - 1:
            self._pending_batches.append(
                WrittenBatch(self._current_batch, self.get_counts(epoch - 1))
            )
        elapsed = self.clock() - self._scanned_at
        if elapsed >= SCAN_INTERVAL_S or len(self._pending_batches) >= self._max_pending:
            self._scan_pending(epoch - 1, self._side_outputs)
            self._scanned_at = self.clock()

    def _scan_earlier(self, epoch: int) -> None:
        """Scan the batches before an epoch that an earlier process has left, by its settings."""
        stored = self._read_scan_state()
        side_outputs: list[SideOutput] = []
        # Without a file, the batches before are of a job that had no side outputs.
        if stored is not None and stored.batch < epoch - 1:
            side_outputs = self._create_earlier_outputs(stored)
            self._pending_batches = (
                self._find_unscanned(epoch, stored.batch) if side_outputs else []
            )
        self._scan_pending(epoch - 1, side_outputs, is_repeated=True)

    def _find_unscanned(self, epoch: int, scanned: int) -> list[WrittenBatch]:
        """Return the batches before an epoch and after the one that was scanned last."""
        unscanned: list[WrittenBatch] = []
        for number in range(epoch - 1, scanned, -1):
            try:
                unscanned.insert(0, WrittenBatch(self.checkpoint.read_batch(number), None))
            except PipelineError as error:
                # Spark has removed the offsets of this batch and of all before it.
                log.warning(
                    "%s: late and invalid records of batch %d and before are left out: %s",
                    *(self.job, number, error),
                )
                break
        return unscanned

    def _scan_pending(
        self, epoch: int, side_outputs: list[SideOutput], *, is_repeated: bool = False
    ) -> None:
        """Write the late and the undecodable records of all pending batches.

        Args:
            epoch: The last of these batches, or the last batch before this process.
            is_repeated: Whether an earlier process may have written some of the records.
        """
        for side_output in side_outputs:
            batches = self._select_batches(side_output, is_repeated=is_repeated)
            if count := side_output.write(batches):
                span = f"{batches[0].number} to {batches[-1].number}"
                topic = side_output.topic
                log.info("%s: %d records of batches %s to %s", self.job, count, span, topic)
            deleted = side_output.find_deleted(batches)
            gaps.count_gaps(self.job, deleted, self.reports)
            for gap in deleted:
                log.warning(
                    "%s: records were deleted before those that are late or invalid were written "
                    "to %s: %s",
                    *(self.job, side_output.topic, gap.build_record(self.job)),
                )
        self._pending_batches.clear()
        self._store_scan_state(epoch)

    def _select_batches(self, side_output: SideOutput, *, is_repeated: bool) -> list[BatchOffsets]:
        """Return the pending batches to scan, from the first that has such records to the last."""
        pending = self._pending_batches
        if is_repeated and pending:
            last = pending[-1].batch.number
            last_written = side_output.read_last_batch(last)
            pending = [written for written in pending if written.batch.number > last_written]
        name = side_output.input_name
        indexes = [
            i
            for i, (_, counts) in enumerate(pending)
            if counts is None
            or (counts.late if side_output.kind == "late" else counts.invalid.get(name))
        ]
        # The batches in between are read, too: one range of offsets is one read of Kafka.
        span = pending[indexes[0] : indexes[-1] + 1] if indexes else []
        return [self.sources.select(written.batch, name) for written in span]

    def _create_side_outputs(self, inputs: Mapping[str, Input], output: Output) -> list[SideOutput]:
        created = []
        for name, job_input in inputs.items():
            late_filters: list[LateFilter | None] = []
            if job_input.on_invalid == "dead-letter":
                late_filters.append(None)
            if name in self.late_filters and job_input.late == "topic":
                late_filters.append(self.late_filters[name])
            created += [
                self.create_side_output(
                    self.spark,
                    self.query_id,
                    name,
                    job_input,
                    find_cluster(self.settings.clusters, job_input.kafka),
                    output,
                    find_cluster(self.settings.clusters, output.kafka),
                    self.checkpoint,
                    self.settings.catalogs,
                    self.read_topics,
                    late_filter,
                    self.ensure_main,
                )
                for late_filter in late_filters
            ]
        return created

    def _create_earlier_outputs(self, stored: ScanState) -> list[SideOutput]:
        """Return the side outputs of the batches that were read by stored settings.

        Raises:
            CheckpointRefused: The settings cannot be used any more: a cluster or catalog is gone.
        """
        if stored == self._describe_scan(stored.batch):
            return self._side_outputs
        log.info("%s: batches after %d are scanned as they were read", self.job, stored.batch)
        try:
            inputs = {name: Input.model_validate(each) for name, each in stored.inputs.items()}
            for catalog in {each.value.catalog for each in inputs.values()} - {None}:
                if catalog not in self.settings.catalogs:
                    raise PipelineError(f"there is no catalog '{catalog}'")
            output = self.output.model_copy(update={"kafka": None, **stored.output})
            return self._create_side_outputs(inputs, output)
        except (ValueError, PipelineError) as error:
            problem = "late and invalid records of earlier settings are not written yet"
            raise CheckpointRefused(
                f"job {self.job}: {problem}, and cannot be: {error}; take the change back until "
                f"the job has ended, or remove {SCANNED_FILE} from the checkpoint to leave them out"
            ) from None

    def _describe_scan(self, batch: int) -> ScanState:
        options = {"topic", "kafka", "value", "time", "on_invalid", "late"}
        inputs = {name: _dump(each, options) for name, each in self.inputs.items()}
        return ScanState(batch, inputs, _dump(self.output, {"topic", "kafka"}))

    def _read_scan_state(self) -> ScanState | None:
        try:
            data = self.checkpoint.files.read(SCANNED_FILE)
        except FileNotFoundError:
            return None
        with refuse_damaged(self.checkpoint.files.location, SCANNED_FILE):
            return ScanState(**json.loads(data))

    def _store_scan_state(self, epoch: int) -> None:
        state = self._describe_scan(epoch)
        if state != self._scan_state:
            data = json.dumps(state._asdict(), indent=1).encode()
            self.checkpoint.files.write(SCANNED_FILE, data)
            self._scan_state = state

    @cached_property
    def ledger(self) -> Ledger:
        output = self.output
        client_config = build_client_config(self._output_cluster)
        return open_ledger(output.topic, output.writers, output.transaction_timeout, client_config)

    def _report_gaps(self, batch: BatchOffsets, reason: str) -> None:
        for name, job_input in self.inputs.items():
            selected = self.sources.select(batch, name)
            places = {place for end in selected.end for place in end}
            for starts in selected.start:
                if starts and job_input.on_data_loss == "gap":
                    positions = gaps.add_partitions(starts, places)
                    found = self._get_gap_reporter(name).report_gaps(positions, reason)
                    gaps.count_gaps(self.job, found, self.reports, job_input.max_records)

    def _get_gap_reporter(self, input_name: str) -> GapReporter:
        if input_name not in self._gap_reporters:
            cluster = find_cluster(self.settings.clusters, self.inputs[input_name].kafka)
            reporter = GapReporter(
                self.job,
                self.query_id,
                input_name,
                f"{self.output.topic}.gaps",
                self.ledger,
                input_config=build_client_config(cluster),
                timeout_s=self.output.transaction_timeout,
            )
            self._gap_reporters[input_name] = reporter
            self._exit_stack.callback(reporter.close)
        return self._gap_reporters[input_name]


def _dump(section: Input | Output, options: set[str]) -> dict[str, Any]:
    return section.model_dump(mode="json", by_alias=True, include=options, exclude_none=True)


def create_batch_counter(get_query: Any, inputs: Collection[str]) -> BatchCounter:
    """Return a function that reads the counts of a batch from the progress of a query.

    It only reads the newest progress. `recentProgress` would parse a hundred JSON documents in
    every batch. The query is kept, because Spark does not find one that has ended. A trigger that
    finds no records has a progress with the number of the next batch, and no `addBatch`.
    """
    query = None

    def get_counts(epoch: int) -> BatchCounts | None:
        nonlocal query
        query = query or get_query()
        progress = None if query is None else query.lastProgress
        if progress and progress["batchId"] == epoch and "addBatch" in progress["durationMs"]:
            return _parse_counts(progress, inputs)
        return None

    return get_counts


def _parse_counts(progress: Any, inputs: Collection[str]) -> BatchCounts:
    operators = progress["stateOperators"] or []
    late = sum(int(operator["numRowsDroppedByWatermark"]) for operator in operators)
    invalid = parse_invalid_counts(progress["observedMetrics"] or {})
    return BatchCounts(late, {name: count for name, count in invalid.items() if name in inputs})
