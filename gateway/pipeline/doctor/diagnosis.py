"""Diagnose a run of a query: call all detectors, sort their causes by cost, and format them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

from gateway.telemetry.diagnosed_cause import iter_cause_lines

from . import costs, flow
from .query_run import (
    MIN_BATCHES,
    BatchCause,
    QueryRun,
    Thresholds,
    share_of_batch,
)

CauseDetector: TypeAlias = Callable[[QueryRun, Thresholds], Iterator[BatchCause]]

COST_DETECTORS: Mapping[str, CauseDetector] = {
    "state-lookups": costs.find_slow_lookups,
    "compaction": costs.find_slow_compaction,
    "commit": costs.find_slow_commits,
    "skew": costs.find_skew,
    "partitions-too-many": costs.find_too_many_partitions,
    "partitions-too-few": costs.find_too_few_partitions,
    "sink-slow": flow.find_slow_sink,
    "python": costs.find_slow_python,
    "gc": costs.find_slow_gc,
}
"""The detectors of what makes batches long, by the name of the cause."""

FAULT_DETECTORS: Mapping[str, CauseDetector] = {
    "watermark-stuck": flow.find_stuck_watermark,
    "late-drops": flow.find_late_rows,
}
"""The detectors of what makes results late or wrong, however short batches are."""

LOSS_DETECTORS: Mapping[str, CauseDetector] = {"invalid-records": flow.find_invalid_records}
"""The detectors of records that are missing from results. They judge any number of batches."""

_JUDGED_CAUSES = (*COST_DETECTORS, "source-behind", *FAULT_DETECTORS)  # need `MIN_BATCHES`
CAUSE_NAMES = (*_JUDGED_CAUSES, *LOSS_DETECTORS)

# Causes that are found from the times of tasks.
_TASK_CAUSES = ("skew", "partitions-too-few", "sink-slow", "python", "gc")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings of the doctor in a run of a query.

    Attributes:
        parts: The seconds of each phase of a typical batch, by Spark's name.
        unseen: The causes that these records cannot show, each with the reason.
    """

    job: str
    batches: int
    seconds: float
    rows: float
    causes: Sequence[BatchCause]
    parts: Mapping[str, float]
    unseen: Mapping[str, str]


def diagnose(run: QueryRun, thresholds: Thresholds | None = None) -> Diagnosis:
    thresholds = thresholds or Thresholds()
    causes: list[BatchCause] = []
    if len(run.batches_with_input) >= MIN_BATCHES:
        for detect in COST_DETECTORS.values():
            for cause in detect(run, thresholds):
                share = share_of_batch(cause.seconds, run.batch_seconds)
                causes.append(replace(cause, share=share))
        if not causes:  # otherwise the job is behind because its batches are long
            causes += flow.find_source_backlog(run, thresholds)
        for detect in FAULT_DETECTORS.values():
            causes += detect(run, thresholds)
    for detect in LOSS_DETECTORS.values():
        causes += detect(run, thresholds)
    causes.sort(key=lambda cause: -cause.seconds)
    return Diagnosis(
        run.job,
        len(run.batches_with_input),
        run.batch_seconds,
        run.get_median(lambda each: each.rows),
        causes,
        _median_phases(run),
        _explain_unseen(run, {cause.name for cause in causes}),
    )


def _median_phases(run: QueryRun) -> dict[str, float]:
    """Return the median seconds of each phase; the work on state is part of `addBatch`."""

    def compute_median(name: str) -> float:
        return run.get_median(lambda batch: batch.phases.get(name, 0.0))

    names = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
    return {name: compute_median(name) for name in names}


def _explain_unseen(run: QueryRun, found_names: Collection[str]) -> dict[str, str]:
    if len(run.batches_with_input) < MIN_BATCHES:
        count = len(run.batches_with_input)
        reason = f"needs {MIN_BATCHES} batches with input after the first two, has {count}"
        return dict.fromkeys(_JUDGED_CAUSES, reason)
    unseen: dict[str, str] = {}
    if not run.batches_with_tasks:
        missing = "the job's own file"
        if any(batch.tasks for batch in run.batches_with_input):
            missing = f"of {MIN_BATCHES} batches; a running job records one batch in ten seconds"
        unseen |= dict.fromkeys(_TASK_CAUSES, f"needs times of tasks: {missing}")
    elif any(batch.tasks and batch.tasks.is_busy for batch in run.batches_with_input) and not any(
        batch.sink_seconds is not None for batch in run.batches_with_input
    ):
        unseen["sink-slow"] = "the machine has too few cores for its load, so every task waits"
    if all(
        each.offsets_behind is None for batch in run.batches_with_input for each in batch.sources
    ):
        unseen["source-behind"] = "the source does not report the latest offsets"
    return {name: reason for name, reason in unseen.items() if name not in found_names}


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis as a JSON object; seconds and shares have three decimal places."""
    data = asdict(diagnosis)
    data["seconds"] = round(diagnosis.seconds, 3)
    data["parts"] = {name: round(value, 3) for name, value in diagnosis.parts.items()}
    for cause in data["causes"]:
        cause["seconds"], cause["share"] = round(cause["seconds"], 3), round(cause["share"], 3)
        cause["evidence"], cause["settings"] = list(cause["evidence"]), list(cause["settings"])
    return data


def render_text(diagnosis: Diagnosis) -> str:
    return "\n".join(_iter_lines(diagnosis))


def _iter_lines(diagnosis: Diagnosis) -> Iterator[str]:
    rate = diagnosis.rows / diagnosis.seconds if diagnosis.seconds else 0.0
    yield (
        f"{diagnosis.job}: {diagnosis.batches} batches of {diagnosis.rows:,.0f} rows in "
        f"{diagnosis.seconds:.2f} s ({rate:,.0f} rows/s)"
    )
    parts = [f"{name} {value:.2f} s" for name, value in diagnosis.parts.items() if value >= 0.005]
    if parts:
        yield f"  a batch: {', '.join(parts)}"
    if not diagnosis.causes and diagnosis.batches:
        yield "  no cause found: the job is healthy, as far as these records show"
    for number, cause in enumerate(diagnosis.causes, 1):
        yield ""
        yield from iter_cause_lines(number, cause, f"{cause.seconds:.1f} s ({cause.share:.0%})")
    if diagnosis.unseen:
        yield ""
        by_reason: dict[str, list[str]] = {}
        for name, reason in diagnosis.unseen.items():
            by_reason.setdefault(reason, []).append(name)
        for reason, names in by_reason.items():
            yield f"  not judged: {', '.join(names)}: {reason}"
