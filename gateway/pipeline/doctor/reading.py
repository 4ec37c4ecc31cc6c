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

LEAST = 3
"""Batches: fewer say nothing."""

COLD = 2
"""Batches that are left out after a start: they take 6 to 15 s, for the compiler and the caches."""

_TIME = re.compile(r"([+-]?\d{4,})(-.+)")
_CYCLE = 146_097 * 86_400
"""Seconds of 400 years, after which the calendar repeats itself."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One with state. Seconds are summed over its tasks; counted: Spark's customMetrics."""

    name: str
    rows: int
    updated: int
    dropped: int
    update: float
    removal: float
    commit: float
    partitions: int
    stores: int
    memory: int
    counted: Mapping[str, float]

    def seconds(self, *names: str) -> float:
        """Of metrics in ms; what is not counted is 0, and so is -1, Spark's word for unknown."""
        return sum(max(0.0, self.counted.get(name, 0)) for name in names) / 1000

    def count(self, name: str) -> float:
        return max(0.0, self.counted.get(name, 0))


@dataclass(frozen=True, slots=True)
class Source:
    """behind: offsets that the batch left in the topic; None where the source does not say."""

    name: str
    rows: int
    behind: int | None


@dataclass(frozen=True, slots=True)
class Stage:
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
    def others(self) -> float:
        """What a task takes that is not the slowest."""
        return (self.total - self.slowest) / (self.tasks - 1) if self.tasks > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """What tasks say of a batch. python: seconds in Python workers, of all tasks. jobs: seconds in
    which a job of Spark ran. busy: the machine had more to do than cores."""

    stages: Sequence[Stage]
    python: float
    jobs: float
    busy: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """at: when it began, seconds of the epoch. newest, watermark: event times, likewise."""

    id: int
    at: float
    rows: int
    seconds: float
    phases: Mapping[str, float]
    operators: Sequence[Operator]
    sources: Sequence[Source]
    newest: float | None
    watermark: float | None
    work: Work | None = None
    sink: float | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """One query's batches, the oldest first. cores: of all executors; None if nobody said."""

    job: str
    batches: Sequence[Batch]
    cores: int | None = None

    @property
    def full(self) -> Sequence[Batch]:
        """Those that had input: the ones that cost."""
        return [each for each in self.batches if each.rows > 0]

    @property
    def looked(self) -> Sequence[Batch]:
        """Those of `full` whose tasks were looked at, the listener does so every ten seconds; none
        if they are too few."""
        found = [each for each in self.full if each.work is not None]
        return found if len(found) >= LEAST else ()

    @property
    def parallel(self) -> int:
        """Cores; if they are not known, as many as were busy with state at least."""
        if self.cores:
            return self.cores
        at_once = [
            sum(each.update + each.removal + each.commit for each in batch.operators)
            / batch.phases["addBatch"]
            for batch in self.full
            if batch.phases.get("addBatch")
        ]
        return max(1, round(median(at_once) + 0.49)) if at_once else 1

    def width(self, partitions: int) -> int:
        """How many of an operator's tasks run at a time."""
        return max(1, min(self.parallel, partitions))

    def typical(self, of: Callable[[Batch], float]) -> float:
        """The median of batches with input; 0 without any."""
        return _median(of, self.full)

    def of_tasks(self, of: Callable[[Batch, Work], float]) -> float:
        """The median of batches whose tasks are known; 0 without any."""
        return _median(lambda batch: of(batch, batch.work) if batch.work else 0.0, self.looked)

    @property
    def seconds(self) -> float:
        return self.typical(lambda batch: batch.seconds)


def run(records: Iterable[Mapping[str, Any]], cores: int | None = None) -> Run:
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
    cold = min(COLD, max(0, len(found) - 3)) if found and _begins(found[0]) else 0
    return Run(name, [batch(each) for each in found[cold:]], said[-1] if said else cores)


def _median(of: Callable[[Batch], float], batches: Sequence[Batch]) -> float:
    return median(map(of, batches)) if batches else 0.0


def _begins(record: Mapping[str, Any]) -> bool:
    """The first batch of a process has no rate of input yet."""
    rates = [each.get("inputRowsPerSecond") for each in record.get("sources") or ()]
    return record["batchId"] == 0 or not any(isinstance(each, float) and each > 0 for each in rates)


def _rows(record: Mapping[str, Any]) -> int:
    """In an event log only the sources have it."""
    told = record.get("numInputRows")
    if told is not None:
        return int(told)
    return sum(int(each.get("numInputRows") or 0) for each in record.get("sources") or ())


def batch(record: Mapping[str, Any]) -> Batch:
    """Raises KeyError or ValueError for what is no progress."""
    times, phases = record.get("eventTime") or {}, record["durationMs"]
    phases = {name: float(value) / 1000 for name, value in phases.items()}
    notes = record.get("notes") or {}
    return Batch(
        id=int(record["batchId"]),
        at=_time(record["timestamp"]) or 0.0,
        rows=_rows(record),
        seconds=phases.get("triggerExecution", float(record.get("batchDuration") or 0) / 1000),
        phases=phases,
        operators=[_operator(each) for each in record.get("stateOperators") or ()],
        sources=[_source(each) for each in record.get("sources") or ()],
        newest=_time(times.get("max")),
        watermark=_time(times.get("watermark")),
        work=_work(record["tasks"]) if record.get("tasks") else None,
        sink=notes.get("sink"),
        notes=notes,
    )


def _operator(told: Mapping[str, Any]) -> Operator:
    partitions = int(told.get("numShufflePartitions") or 1)
    return Operator(
        name=told.get("operatorName", "state"),
        rows=int(told.get("numRowsTotal") or 0),
        updated=int(told.get("numRowsUpdated") or 0),
        dropped=int(told.get("numRowsDroppedByWatermark") or 0),
        update=float(told.get("allUpdatesTimeMs") or 0) / 1000,
        removal=float(told.get("allRemovalsTimeMs") or 0) / 1000,
        commit=float(told.get("commitTimeMs") or 0) / 1000,
        partitions=partitions,
        stores=int(told.get("numStateStoreInstances") or partitions),
        memory=int(told.get("memoryUsedBytes") or 0),
        counted=told.get("customMetrics") or {},
    )


def _source(told: Mapping[str, Any]) -> Source:
    """Kafka's offsets are {topic: {partition: offset}}, as JSON or as its text."""
    end, latest = _offsets(told.get("endOffset")), _offsets(told.get("latestOffset"))
    behind = None
    if end and latest:
        behind = sum(max(0, latest[each] - end.get(each, 0)) for each in latest)
    topics = sorted({topic for topic, _ in end})
    name = ", ".join(topics) or str(told.get("description", "source")).partition("[")[0]
    return Source(name, int(told.get("numInputRows") or 0), behind)


def _offsets(told: Any) -> dict[tuple[str, str], int]:
    if isinstance(told, str):
        try:
            told = json.loads(told)
        except ValueError:
            return {}
    if not isinstance(told, dict):
        return {}
    return {
        (topic, partition): int(offset)
        for topic, offsets in told.items()
        if isinstance(offsets, dict)
        for partition, offset in offsets.items()
    }


def _work(told: Mapping[str, Any]) -> Work:
    return Work(
        stages=[Stage(**each) for each in told["stages"]],
        python=float(told.get("python", 0.0)),
        jobs=float(told.get("jobs", 0.0)),
        busy=bool(told.get("busy", False)),
    )


def _time(text: Any) -> float | None:
    """Return seconds since 1970. Spark tells times of any year, such as +55840-11-08T22:13:20.000Z;
    Python knows the years 1 to 9999. Raises ValueError."""
    if not text:
        return None
    found = _TIME.fullmatch(str(text).replace("Z", "+00:00"))
    if found is None:
        raise ValueError(f"'{text}' is no time of Spark's progress")
    cycles, year = divmod(int(found[1]) - 2000, 400)
    at = datetime.fromisoformat(f"{2000 + year}{found[2]}").timestamp() + cycles * _CYCLE
    return at if at > 0 else None  # 1970: no watermark yet
