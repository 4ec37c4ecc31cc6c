"""All that is wrong with a run, what costs most first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from . import flow, partitions, runtime, state
from .cause import DiagnosedCause, Thresholds
from .query_run import MIN_BATCHES, BatchProgress, QueryRun

CauseDetector: TypeAlias = Callable[[QueryRun, Thresholds], Iterator[DiagnosedCause]]

COST_DETECTORS: Mapping[str, CauseDetector] = {
    "state-lookups": state.find_slow_lookups,
    "compaction": state.find_slow_compaction,
    "commit": state.find_slow_commits,
    "skew": partitions.find_skew,
    "partitions-too-many": partitions.find_too_many_partitions,
    "partitions-too-few": partitions.find_too_few_partitions,
    "sink-slow": flow.find_slow_sink,
    "python": runtime.find_slow_python,
    "gc": runtime.find_slow_gc,
}
"""What makes batches long."""

FAULT_DETECTORS: Mapping[str, CauseDetector] = {
    "watermark-stuck": flow.find_stuck_watermark,
    "late-drops": flow.find_late_rows,
}
"""What makes results late or wrong, however short batches are."""

CAUSE_NAMES = (*COST_DETECTORS, "source-behind", *FAULT_DETECTORS)

_TASK_CAUSES = ("skew", "partitions-too-few", "sink-slow", "python", "gc")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """causes: in their order. parts: where a typical batch goes, seconds. unseen: causes that
    cannot be told from these records, with what it would take."""

    job: str
    batches: int
    seconds: float
    rows: float
    causes: Sequence[DiagnosedCause]
    parts: Mapping[str, float]
    unseen: Mapping[str, str]


def diagnose(run: QueryRun, thresholds: Thresholds | None = None) -> Diagnosis:
    """limits: what is worth a name; default those of `Limits`."""
    thresholds = thresholds or Thresholds()
    causes: list[DiagnosedCause] = []
    if len(run.batches_with_input) >= MIN_BATCHES:
        for look in COST_DETECTORS.values():
            causes += look(run, thresholds)
        if not causes:  # else it is behind because of them
            causes += flow.find_source_backlog(run, thresholds)
        for look in FAULT_DETECTORS.values():
            causes += look(run, thresholds)
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
    """Of a batch's own clock; state is within addBatch."""
    names = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")

    def get_phase_reader(name: str) -> Callable[[BatchProgress], float]:
        return lambda batch: batch.phases.get(name, 0.0)

    return {name: run.get_median(get_phase_reader(name)) for name in names}


def _explain_unseen(run: QueryRun, found_names: Collection[str]) -> dict[str, str]:
    if len(run.batches_with_input) < MIN_BATCHES:
        count = len(run.batches_with_input)
        what = f"needs {MIN_BATCHES} batches with input after the first two, has {count}"
        return dict.fromkeys(CAUSE_NAMES, what)
    unseen: dict[str, str] = {}
    if not run.batches_with_tasks:
        what = "an event log, or the job's own file"
        if any(batch.tasks for batch in run.batches_with_input):
            what = f"of {MIN_BATCHES} batches; a job that runs has them of one in ten seconds"
        unseen |= dict.fromkeys(_TASK_CAUSES, f"needs times of tasks: {what}")
    elif any(batch.tasks and batch.tasks.is_busy for batch in run.batches_with_input) and not any(
        batch.sink_seconds is not None for batch in run.batches_with_input
    ):
        unseen["sink-slow"] = "the machine has more to do than cores: every task waits"
    if all(
        each.offsets_behind is None for batch in run.batches_with_input for each in batch.sources
    ):
        unseen["source-behind"] = "the source does not say how far it is"
    return {name: why for name, why in unseen.items() if name not in found_names}
