"""Load the progress of a query, and parse it into the batches that the doctor judges.

A record is Spark's progress of one batch (`StreamingQueryProgress.json`). It may also have `tasks`,
the times of its stages (see `gateway.pipeline.progress.tasks`), and `notes`, the times of the job's
own parts (see `gateway.pipeline.progress.records`). Parsed times are in seconds.

Spark sums the times of an operator over all its tasks. To get its part of a batch, divide the sum
by `QueryRun.count_parallel_tasks`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from gateway.errors import PipelineError
from gateway.telemetry.diagnosed_cause import DiagnosedCause

MIN_BATCHES = 3
"""With fewer batches, nothing is judged."""

MAX_COLD_BATCHES = 2
"""How many batches after a start are left out.

They take 6 to 15 s, because code is not compiled and caches are empty.
"""

_TIME_PATTERN = re.compile(r"([+-]?\d{4,})(-.+)")
_CALENDAR_CYCLE_S = 146_097 * 86_400
"""The seconds of 400 years, after which the Gregorian calendar repeats."""


@dataclass(frozen=True, slots=True)
class StateOperatorProgress:
    """The progress of an operator with state. Times are summed over its tasks.

    Attributes:
        rows: The rows of the whole state.
        stores: The state stores; a join has several for each partition.
        custom_metrics: Spark's `customMetrics`; times are in ms.
    """

    name: str
    rows: int
    updated_rows: int
    dropped_rows: int
    update_seconds: float
    removal_seconds: float
    commit_seconds: float
    partitions: int
    stores: int
    memory_bytes: int
    custom_metrics: Mapping[str, float]

    def sum_seconds(self, *names: str) -> float:
        """Return the sum of custom metrics that are in ms."""
        return sum(max(0.0, self.custom_metrics.get(name, 0)) for name in names) / 1000

    def get_metric(self, name: str) -> float:
        """Return a custom metric, or 0 if it is missing or -1, which means unknown in Spark."""
        return max(0.0, self.custom_metrics.get(name, 0))


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """The progress of an input; `offsets_behind` is None if the source does not report it."""

    name: str
    rows: int
    offsets_behind: int | None


@dataclass(frozen=True, slots=True)
class StageMetrics:
    """The times of a stage's tasks, in seconds.

    The names of the attributes are those of a stage in the `tasks` of a record.

    Attributes:
        total: The time of all tasks together, as are `cpu` and `gc`.
        most_rows: The rows of the task that read most.
        shuffles: Whether it reads the output of other stages, instead of a topic.
        last: Whether no other stage reads its output.
    """

    tasks: int
    seconds: float
    total: float
    slowest: float
    least: float
    cpu: float
    gc: float
    rows: int
    most_rows: int
    shuffles: bool
    last: bool

    @property
    def mean_other_seconds(self) -> float:
        return (self.total - self.slowest) / (self.tasks - 1) if self.tasks > 1 else 0.0


@dataclass(frozen=True, slots=True)
class TaskMetrics:
    """The times of a batch's tasks.

    Attributes:
        python_seconds: The time in Python workers, summed over all tasks.
        job_seconds: The elapsed time in which at least one Spark job ran.
        is_busy: Whether the machine had more load than cores.
    """

    stages: Sequence[StageMetrics]
    python_seconds: float
    job_seconds: float
    is_busy: bool


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The progress of a batch. Points in time are in seconds since 1970.

    Attributes:
        phases: The seconds of each phase, by Spark's names in `durationMs`.
        sink_seconds: How long the writers of exactly-once output waited for Kafka.
        invalid_counts: The records that could not be decoded, by the name of the job's input.
            Inputs without such records are left out.
    """

    id: int
    started_at: float
    rows: int
    seconds: float
    phases: Mapping[str, float]
    operators: Sequence[StateOperatorProgress]
    sources: Sequence[SourceProgress]
    newest_event_time: float | None
    watermark: float | None
    tasks: TaskMetrics | None = None
    sink_seconds: float | None = None
    invalid_counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def invalid_records(self) -> int:
        return sum(self.invalid_counts.values())


@dataclass(frozen=True, slots=True)
class QueryRun:
    """The batches of one run of a query, without the slow ones of its warm-up."""

    job: str
    batches: Sequence[BatchProgress]
    cores: int | None = None
    warm_up: Sequence[BatchProgress] = ()

    @property
    def batches_with_input(self) -> Sequence[BatchProgress]:
        """The batches with input. The others cost little and would hide what is slow."""
        return [each for each in self.batches if each.rows > 0]

    @property
    def batches_with_tasks(self) -> Sequence[BatchProgress]:
        """The batches with input whose times of tasks are known, or none if they are too few."""
        batches = [each for each in self.batches_with_input if each.tasks is not None]
        return batches if len(batches) >= MIN_BATCHES else ()

    @property
    def parallelism(self) -> int:
        """The number of cores or, if it is not known, of those that at least worked on state."""
        if self.cores:
            return self.cores
        busy_cores = [
            sum(
                each.update_seconds + each.removal_seconds + each.commit_seconds
                for each in batch.operators
            )
            / batch.phases["addBatch"]
            for batch in self.batches_with_input
            if batch.phases.get("addBatch")
        ]
        return max(1, round(median(busy_cores) + 0.49)) if busy_cores else 1  # rounded up

    def count_parallel_tasks(self, partitions: int) -> int:
        return max(1, min(self.parallelism, partitions))

    def get_median(self, get_value: Callable[[BatchProgress], float]) -> float:
        return _compute_median(get_value, self.batches_with_input)

    def get_task_median(self, get_value: Callable[[BatchProgress, TaskMetrics], float]) -> float:
        return _compute_median(
            lambda batch: get_value(batch, batch.tasks) if batch.tasks else 0.0,
            self.batches_with_tasks,
        )

    @property
    def batch_seconds(self) -> float:
        return self.get_median(lambda batch: batch.seconds)


def load_records(path: Path) -> list[dict[str, Any]]:
    """Return the progress of all queries in a file of JSON or JSON lines, the oldest first."""
    try:
        objects = [each for each in _parse_objects(path.read_text()) if isinstance(each, dict)]
    except (OSError, ValueError) as error:
        raise PipelineError(f"{path} cannot be read as JSON: {error}") from None
    # A saved event of a query listener has the progress as a field.
    progress = [each.get("progress", each) for each in objects]
    progress = [each for each in progress if "durationMs" in each and "batchId" in each]
    if not progress:
        advice = "save query.recentProgress, or give a job's progress.jsonl"
        raise PipelineError(f"{path} holds no progress of a query; {advice}")
    return progress


def group_by_query(records: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the records of each query, by its name, or by its id if it has no name."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for each in records:
        groups.setdefault(str(each.get("name") or each.get("id") or "query"), []).append(each)
    return groups


def _parse_objects(text: str) -> Iterator[Any]:
    """Yield the values of JSON or JSON lines, of which the last may be cut off."""
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if document is not None:
        yield from document if isinstance(document, list) else [document]
        return
    lines = [line for line in text.splitlines() if line.strip()]
    for index, line in enumerate(lines):
        try:
            yield json.loads(line)
        except ValueError:
            if index < len(lines) - 1:
                raise


def build_run(records: Iterable[Mapping[str, Any]], cores: int | None = None) -> QueryRun:
    """Return the latest run among the records of a query, without the batches of its warm-up.

    Args:
        cores: The cores of all executors, used if the records do not contain it.

    Raises:
        KeyError: A record lacks a field.
        ValueError: A field of a record cannot be parsed.
    """
    by_batch: dict[int, Mapping[str, Any]] = {}
    run_id = ""
    for record in records:
        if record.get("runId", "") != run_id:
            run_id, by_batch = record.get("runId", ""), {}
        # Triggers without a batch repeat the number of the last one, but have no `addBatch`.
        if "addBatch" in record.get("durationMs", {}):
            by_batch[int(record["batchId"])] = record
    batches = list(by_batch.values())
    known_cores = [each["tasks"]["cores"] for each in batches if each.get("tasks")]
    name = next((each["name"] for each in batches if each.get("name")), "query")
    cold = (
        min(MAX_COLD_BATCHES, max(0, len(batches) - MIN_BATCHES))
        if batches and _is_first_batch(batches[0])
        else 0
    )
    return QueryRun(
        name,
        [parse_batch(each) for each in batches[cold:]],
        known_cores[-1] if known_cores else cores,
        [parse_batch(each) for each in batches[:cold]],
    )


def _compute_median(
    get_value: Callable[[BatchProgress], float], batches: Sequence[BatchProgress]
) -> float:
    return median(map(get_value, batches)) if batches else 0.0


def _is_first_batch(record: Mapping[str, Any]) -> bool:
    """Return whether a batch is the first of its process, which has no rate of input yet."""
    rates = [each.get("inputRowsPerSecond") for each in record.get("sources") or ()]
    return record["batchId"] == 0 or not any(isinstance(each, float) and each > 0 for each in rates)


def parse_batch(record: Mapping[str, Any]) -> BatchProgress:
    times, phases = record.get("eventTime") or {}, record["durationMs"]
    phases = {name: float(value) / 1000 for name, value in phases.items()}
    return BatchProgress(
        id=int(record["batchId"]),
        started_at=_parse_time(record["timestamp"]) or 0.0,
        rows=int(record.get("numInputRows") or 0),
        seconds=phases.get("triggerExecution", float(record.get("batchDuration") or 0) / 1000),
        phases=phases,
        operators=[_parse_operator(each) for each in record.get("stateOperators") or ()],
        sources=[_parse_source(each) for each in record.get("sources") or ()],
        newest_event_time=_parse_time(times.get("max")),
        watermark=_parse_time(times.get("watermark")),
        tasks=_parse_tasks(record["tasks"]) if record.get("tasks") else None,
        sink_seconds=(record.get("notes") or {}).get("sink"),
        invalid_counts=parse_invalid_counts(record.get("observedMetrics") or {}),
    )


def parse_invalid_counts(observed: Mapping[str, Any]) -> dict[str, int]:
    """Return the invalid records by input. A program may observe metrics of its own."""
    rows = {name: row for name, row in observed.items() if "rows" in row and "invalid" in row}
    counts = {name: row["invalid"] for name, row in rows.items()}
    return {name: count for name, count in counts.items() if count and isinstance(count, int)}


def _parse_operator(data: Mapping[str, Any]) -> StateOperatorProgress:
    partitions = int(data.get("numShufflePartitions") or 1)
    return StateOperatorProgress(
        name=data.get("operatorName", "state"),
        rows=int(data.get("numRowsTotal") or 0),
        updated_rows=int(data.get("numRowsUpdated") or 0),
        dropped_rows=int(data.get("numRowsDroppedByWatermark") or 0),
        update_seconds=float(data.get("allUpdatesTimeMs") or 0) / 1000,
        removal_seconds=float(data.get("allRemovalsTimeMs") or 0) / 1000,
        commit_seconds=float(data.get("commitTimeMs") or 0) / 1000,
        partitions=partitions,
        stores=int(data.get("numStateStoreInstances") or partitions),
        memory_bytes=int(data.get("memoryUsedBytes") or 0),
        custom_metrics=data.get("customMetrics") or {},
    )


def _parse_source(data: Mapping[str, Any]) -> SourceProgress:
    end, latest = _parse_offsets(data.get("endOffset")), _parse_offsets(data.get("latestOffset"))
    behind = None
    if end and latest:
        behind = sum(max(0, latest[each] - end.get(each, 0)) for each in latest)
    topics = sorted({topic for topic, _ in end})
    name = ", ".join(topics) or str(data.get("description", "source")).partition("[")[0]
    return SourceProgress(name, int(data.get("numInputRows") or 0), behind)


def _parse_offsets(data: Any) -> dict[tuple[str, str], int]:
    """Return the offset of each topic and partition, or nothing for another kind of source.

    Spark writes `{topic: {partition: offset}}`, as JSON or as text that is JSON.
    """
    if isinstance(data, str):
        try:
            data = json.loads(data)
        except ValueError:
            return {}
    if not isinstance(data, dict):
        return {}
    return {
        (topic, partition): int(offset)
        for topic, offsets in data.items()
        if isinstance(offsets, dict)
        for partition, offset in offsets.items()
    }


def _parse_tasks(data: Mapping[str, Any]) -> TaskMetrics:
    return TaskMetrics(
        stages=[StageMetrics(**each) for each in data["stages"]],
        python_seconds=float(data.get("python", 0.0)),
        job_seconds=float(data.get("jobs", 0.0)),
        is_busy=bool(data.get("busy", False)),
    )


def _parse_time(text: Any) -> float | None:
    """Return the seconds since 1970, or None for 1970, which means no watermark yet.

    Spark writes times of any year, such as +55840-11-08T22:13:20.000Z; Python knows the years 1 to
    9999. The time is therefore parsed in the same year of another 400-year cycle.
    """
    if not text:
        return None
    match = _TIME_PATTERN.fullmatch(str(text).replace("Z", "+00:00"))
    if match is None:
        raise ValueError(f"'{text}' is not a time of Spark's progress")
    cycles, year = divmod(int(match[1]) - 2000, 400)
    in_cycle = datetime.fromisoformat(f"{2000 + year}{match[2]}").timestamp()
    seconds = in_cycle + cycles * _CALENDAR_CYCLE_S
    return seconds if seconds > 0 else None


class Thresholds(NamedTuple):
    """The least effect that makes something a cause.

    Attributes:
        min_seconds: The least time per batch, in seconds. A batch of 300 ms spends half of its time
            on what every batch costs, and is still healthy.
    """

    min_share: float = 0.25
    min_seconds: float = 0.5
    max_late_share: float = 0.2

    def is_exceeded(self, seconds: float, batch_seconds: float) -> bool:
        return seconds >= self.min_seconds and seconds >= self.min_share * batch_seconds


@dataclass(frozen=True, slots=True)
class BatchCause(DiagnosedCause):
    """Something that makes a job slow or its results late or wrong.

    Its name is one of `diagnosis.CAUSE_NAMES`; its settings are those of the YAML, of `spark.conf`,
    or commands.

    Attributes:
        seconds: How much shorter a batch would be without it, or how long results wait for it.
        share: The part of a batch that this is; `diagnose` fills it in for `COST_DETECTORS`.
    """

    seconds: float
    share: float = 0.0


def share_of_batch(seconds: float, batch_seconds: float) -> float:
    return min(1.0, seconds / batch_seconds) if batch_seconds > 0 else 0.0
