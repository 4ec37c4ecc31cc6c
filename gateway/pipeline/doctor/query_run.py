"""A query's progress, as the doctor reads it: seconds and counts, whatever wrote it down.

A record is Spark's own progress of one batch (StreamingQueryProgress.json), and where it is known
`tasks`, what its stages took (see `gateway.pipeline.progress.tasks`), and `notes` of the job's own
parts.
Spark adds the times of operators up over tasks; what that is of a batch is `Run.width`'s to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any

MIN_BATCHES = 3
"""Batches: fewer say nothing."""

MAX_COLD_BATCHES = 2
"""Batches that are left out after a start: they take 6 to 15 s, for the compiler and the caches."""

_TIME_PATTERN = re.compile(r"([+-]?\d{4,})(-.+)")
_CALENDAR_CYCLE_S = 146_097 * 86_400
"""Seconds of 400 years, after which the calendar repeats itself."""


@dataclass(frozen=True, slots=True)
class StateOperatorProgress:
    """One with state. Seconds are summed over its tasks; counted: Spark's customMetrics."""

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
        """Of metrics in ms; what is not counted is 0, and so is -1, Spark's word for unknown."""
        return sum(max(0.0, self.custom_metrics.get(name, 0)) for name in names) / 1000

    def get_metric(self, name: str) -> float:
        return max(0.0, self.custom_metrics.get(name, 0))


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """behind: offsets that the batch left in the topic; None where the source does not say."""

    name: str
    rows: int
    offsets_behind: int | None


@dataclass(frozen=True, slots=True)
class StageMetrics:
    """seconds: on the clock. total, cpu, gc: of all its tasks. slowest: of one task. rows: that its
    largest task read, and all. shuffles: it reads what others wrote. last: nobody reads it on."""

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
        """What a task takes that is not the slowest."""
        return (self.total - self.slowest) / (self.tasks - 1) if self.tasks > 1 else 0.0


@dataclass(frozen=True, slots=True)
class TaskMetrics:
    """What tasks say of a batch. python: seconds in Python workers, of all tasks. jobs: seconds in
    which a job of Spark ran. busy: the machine had more to do than cores."""

    stages: Sequence[StageMetrics]
    python_seconds: float
    job_seconds: float
    is_busy: bool


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """at: when it began, seconds of the epoch. newest, watermark: event times, likewise."""

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
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueryRun:
    """One query's batches, the oldest first. cores: of all executors; None if nobody said."""

    job: str
    batches: Sequence[BatchProgress]
    cores: int | None = None

    @property
    def batches_with_input(self) -> Sequence[BatchProgress]:
        """Those that had input: the ones that cost."""
        return [each for each in self.batches if each.rows > 0]

    @property
    def batches_with_tasks(self) -> Sequence[BatchProgress]:
        """Those of `full` whose tasks were looked at, the listener does so every ten seconds; none
        if they are too few."""
        found = [each for each in self.batches_with_input if each.tasks is not None]
        return found if len(found) >= MIN_BATCHES else ()

    @property
    def parallelism(self) -> int:
        """Cores; if they are not known, as many as were busy with state at least."""
        if self.cores:
            return self.cores
        at_once = [
            sum(
                each.update_seconds + each.removal_seconds + each.commit_seconds
                for each in batch.operators
            )
            / batch.phases["addBatch"]
            for batch in self.batches_with_input
            if batch.phases.get("addBatch")
        ]
        return max(1, round(median(at_once) + 0.49)) if at_once else 1

    def count_parallel_tasks(self, partitions: int) -> int:
        """How many of an operator's tasks run at a time."""
        return max(1, min(self.parallelism, partitions))

    def get_median(self, get_value: Callable[[BatchProgress], float]) -> float:
        """The median of batches with input; 0 without any."""
        return _compute_median(get_value, self.batches_with_input)

    def get_task_median(self, get_value: Callable[[BatchProgress, TaskMetrics], float]) -> float:
        """The median of batches whose tasks are known; 0 without any."""
        return _compute_median(
            lambda batch: get_value(batch, batch.tasks) if batch.tasks else 0.0,
            self.batches_with_tasks,
        )

    @property
    def batch_seconds(self) -> float:
        return self.get_median(lambda batch: batch.seconds)


def build_run(records: Iterable[Mapping[str, Any]], cores: int | None = None) -> QueryRun:
    """Of one query: the latest that these are of, without its cold batches. cores: if they are not
    among the records."""
    kept: dict[int, Mapping[str, Any]] = {}
    last = ""
    for record in records:
        if record.get("runId", "") != last:
            last, kept = record.get("runId", ""), {}
        if "addBatch" in record.get("durationMs", {}):  # idle triggers repeat the batch's number
            kept[int(record["batchId"])] = record
    found = list(kept.values())
    said = [each["tasks"]["cores"] for each in found if each.get("tasks")]
    name = next((each["name"] for each in found if each.get("name")), "query")
    cold = (
        min(MAX_COLD_BATCHES, max(0, len(found) - 3)) if found and _is_first_batch(found[0]) else 0
    )
    return QueryRun(name, [parse_batch(each) for each in found[cold:]], said[-1] if said else cores)


def _compute_median(
    get_value: Callable[[BatchProgress], float], batches: Sequence[BatchProgress]
) -> float:
    return median(map(get_value, batches)) if batches else 0.0


def _is_first_batch(record: Mapping[str, Any]) -> bool:
    """The first batch of a process has no rate of input yet."""
    rates = [each.get("inputRowsPerSecond") for each in record.get("sources") or ()]
    return record["batchId"] == 0 or not any(isinstance(each, float) and each > 0 for each in rates)


def _count_input_rows(record: Mapping[str, Any]) -> int:
    """In an event log only the sources have it."""
    told = record.get("numInputRows")
    if told is not None:
        return int(told)
    return sum(int(each.get("numInputRows") or 0) for each in record.get("sources") or ())


def parse_batch(record: Mapping[str, Any]) -> BatchProgress:
    """Raises KeyError or ValueError for what is no progress."""
    times, phases = record.get("eventTime") or {}, record["durationMs"]
    phases = {name: float(value) / 1000 for name, value in phases.items()}
    notes = record.get("notes") or {}
    return BatchProgress(
        id=int(record["batchId"]),
        started_at=_parse_time(record["timestamp"]) or 0.0,
        rows=_count_input_rows(record),
        seconds=phases.get("triggerExecution", float(record.get("batchDuration") or 0) / 1000),
        phases=phases,
        operators=[_parse_operator(each) for each in record.get("stateOperators") or ()],
        sources=[_parse_source(each) for each in record.get("sources") or ()],
        newest_event_time=_parse_time(times.get("max")),
        watermark=_parse_time(times.get("watermark")),
        tasks=_parse_tasks(record["tasks"]) if record.get("tasks") else None,
        sink_seconds=notes.get("sink"),
        notes=notes,
    )


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
    """Kafka's offsets are {topic: {partition: offset}}, as JSON or as its text."""
    end, latest = _parse_offsets(data.get("endOffset")), _parse_offsets(data.get("latestOffset"))
    behind = None
    if end and latest:
        behind = sum(max(0, latest[each] - end.get(each, 0)) for each in latest)
    topics = sorted({topic for topic, _ in end})
    name = ", ".join(topics) or str(data.get("description", "source")).partition("[")[0]
    return SourceProgress(name, int(data.get("numInputRows") or 0), behind)


def _parse_offsets(data: Any) -> dict[tuple[str, str], int]:
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
    """Return seconds since 1970. Spark tells times of any year, such as +55840-11-08T22:13:20.000Z;
    Python knows the years 1 to 9999. Raises ValueError."""
    if not text:
        return None
    found = _TIME_PATTERN.fullmatch(str(text).replace("Z", "+00:00"))
    if found is None:
        raise ValueError(f"'{text}' is no time of Spark's progress")
    cycles, year = divmod(int(found[1]) - 2000, 400)
    at = datetime.fromisoformat(f"{2000 + year}{found[2]}").timestamp() + cycles * _CALENDAR_CYCLE_S
    return at if at > 0 else None  # 1970: no watermark yet
