"""All that is wrong with a run, what costs most first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from . import flow, partitions, runtime, state
from .cause import Cause, Limits
from .reading import LEAST, Batch, Run

Look: TypeAlias = Callable[[Run, Limits], Iterator[Cause]]

COSTS: Mapping[str, Look] = {
    "state-lookups": state.lookups,
    "compaction": state.compaction,
    "commit": state.commits,
    "skew": partitions.skew,
    "partitions-too-many": partitions.too_many,
    "partitions-too-few": partitions.too_few,
    "sink-slow": flow.sink,
    "python": runtime.python,
    "gc": runtime.collector,
}
"""What makes batches long."""

FAULTS: Mapping[str, Look] = {"watermark-stuck": flow.watermark, "late-drops": flow.late}
"""What makes results late or wrong, however short batches are."""

NAMES = (*COSTS, "source-behind", *FAULTS)

_TASKS = ("skew", "partitions-too-few", "sink-slow", "python", "gc")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """causes: in their order. parts: where a typical batch goes, seconds. unseen: causes that
    cannot be told from these records, with what it would take."""

    job: str
    batches: int
    seconds: float
    rows: float
    causes: Sequence[Cause]
    parts: Mapping[str, float]
    unseen: Mapping[str, str]


def diagnose(run: Run, limits: Limits | None = None) -> Diagnosis:
    """limits: what is worth a name; default those of `Limits`."""
    limits = limits or Limits()
    causes: list[Cause] = []
    if len(run.full) >= LEAST:
        for look in COSTS.values():
            causes += look(run, limits)
        if not causes:  # else it is behind because of them
            causes += flow.source(run, limits)
        for look in FAULTS.values():
            causes += look(run, limits)
    causes.sort(key=lambda cause: -cause.seconds)
    return Diagnosis(
        run.job, len(run.full), run.seconds, run.typical(lambda each: each.rows), causes,
        _parts(run), _unseen(run, {cause.name for cause in causes}),
    )  # fmt: skip


def _parts(run: Run) -> dict[str, float]:
    """Of a batch's own clock; state is within addBatch."""
    names = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")

    def of(name: str) -> Callable[[Batch], float]:
        return lambda batch: batch.phases.get(name, 0.0)

    return {name: run.typical(of(name)) for name in names}


def _unseen(run: Run, found: Collection[str]) -> dict[str, str]:
    if len(run.full) < LEAST:
        what = f"needs {LEAST} batches with input after the first two, has {len(run.full)}"
        return dict.fromkeys(NAMES, what)
    unseen: dict[str, str] = {}
    if not run.looked:
        what = "an event log, or the job's own file"
        if any(batch.work for batch in run.full):
            what = f"of {LEAST} batches; a job that runs has them of one in ten seconds"
        unseen |= dict.fromkeys(_TASKS, f"needs times of tasks: {what}")
    elif any(batch.work and batch.work.busy for batch in run.full) and not any(
        batch.sink is not None for batch in run.full
    ):
        unseen["sink-slow"] = "the machine has more to do than cores: every task waits"
    if all(each.behind is None for batch in run.full for each in batch.sources):
        unseen["source-behind"] = "the source does not say how far it is"
    return {name: why for name, why in unseen.items() if name not in found}
