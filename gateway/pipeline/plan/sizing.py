"""From what a job must do to what it takes. All linear in what was measured on two cores."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from . import estimates
from .estimates import Estimate

KINDS = tuple(estimates.EVENT_RATES)
STATEFUL_KINDS = ("aggregate", "sessions", "join")
PYTHON_KINDS = ("enrich",)  # and whoever writes exactly once
MAX_PARTITION_STATE_BYTES = (
    2e9  # bytes of state that one should hold: it is one task's to load and to snapshot
)


@dataclass(frozen=True, slots=True)
class JobRequirements:
    """events: a second. output: rows a second, default as many as events where there is no state, a
    tenth of them else. sizes in bytes, times in seconds. hot: the share of events that the most
    frequent key has. executors, memory: as they are, where they are not to be computed; memory: of
    an executor's state. active: the share of the state that is in use."""

    kind: str = "stateless"
    events: float = 1000.0
    state: float = 0.0
    keys: float = 0.0
    sla: float = 1.0
    output: float | None = None
    exactly_once: bool = True
    cores: int = 8
    executors: int | None = None
    memory: float | None = None
    active: float = 0.2
    hot: float = 0.0
    bandwidth: float = estimates.CHECKPOINT_BYTES_PER_S.value
    snapshot_interval_s: float = 60.0
    gap: float = 0.0
    watermark: float = 0.0
    max_length: float = 0.0
    table: float = 0.0
    staleness: float = 5.0

    @property
    def output_rows(self) -> float:
        if self.output is not None:
            return self.output
        return self.events / 10 if self.kind in STATEFUL_KINDS else self.events

    @property
    def is_stateful(self) -> bool:
        return self.kind in STATEFUL_KINDS


class PlanLine(NamedTuple):
    """why: where it is from, `measured`, `linear` (computed from it) or `assumed`."""

    name: str
    value: float
    unit: str
    why: str


@dataclass(slots=True)
class SizingPlan:
    """refused: what does not work on this design, with what to do instead."""

    requirements: JobRequirements
    lines: list[PlanLine] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add_line(self, name: str, value: float, unit: str, why: str) -> None:
        self.lines.append(PlanLine(name, value, unit, why))

    def __getitem__(self, name: str) -> float:
        return next(line.value for line in self.lines if line.name == name)


def build_plan(requirements: JobRequirements) -> SizingPlan:
    """Never fails: what cannot be is `refused`."""
    made = SizingPlan(requirements)
    _add_cores(made)
    if requirements.is_stateful and requirements.state:
        _add_state(made)
    _add_latency(made)
    _add_restart(made)
    if requirements.hot:
        _add_hot_key(made)
    if requirements.kind == "sessions" and requirements.gap:
        _add_sessions(made)
    if requirements.kind == "enrich" and requirements.table:
        _add_table(made)
    return made


def _add_cores(plan: SizingPlan) -> None:
    wanted = plan.requirements
    rate = estimates.EVENT_RATES[wanted.kind]
    sink = (
        estimates.TRANSACTIONAL_WRITE_RATE
        if wanted.exactly_once
        else estimates.SPARK_SINK_WRITE_RATE
    )
    work, write = wanted.events / rate.value, wanted.output_rows / sink.value
    cores = max(1, ceil((work + write) / estimates.MAX_UTILIZATION))
    plan.add_line(
        "cores",
        cores,
        "",
        f"linear: {_format_estimate(rate)}; {_format_estimate(sink)}; "
        f"{estimates.MAX_UTILIZATION:.0%} busy",
    )
    executors = ceil(cores / wanted.cores)
    if wanted.executors is not None:
        load = (work + write) / (wanted.executors * wanted.cores)
        plan.add_line("executors", wanted.executors, f"of {wanted.cores} cores", "given")
        plan.add_line("busy", load * 100, "%", "linear")
        if load > 1:
            plan.refused.append(
                f"{wanted.executors} executors of {wanted.cores} cores do {1 / load:.0%} of it: "
                f"take {executors}"
            )
    else:
        plan.add_line("executors", executors, f"of {wanted.cores} cores", "cores / cores of one")
    if cores > estimates.MAX_TASKS_PER_BATCH.value:
        jobs = ceil(cores / estimates.MAX_TASKS_PER_BATCH.value)
        plan.refused.append(
            f"one driver for {cores:,} tasks a batch is not measured (200 were); divide the topic "
            f"among {jobs} jobs by key, each with a checkpoint of its own"
        )


def _add_state(plan: SizingPlan) -> None:
    wanted, executors = plan.requirements, plan["executors"]
    partitions = max(executors * wanted.cores, ceil(wanted.state / MAX_PARTITION_STATE_BYTES))
    plan.add_line("state.partitions", partitions, "", "a task a core, at most 2 GB each")
    each = wanted.state / executors
    plan.add_line("state an executor", each, "bytes", "state / executors")
    plan.add_line("its disk", 2 * each, "bytes", "assumed: twice, for compaction and snapshots")
    held = wanted.memory if wanted.memory is not None else wanted.active * each
    plan.add_line(
        "state.memory", held, "bytes", "given" if wanted.memory else "assumed: what is in use"
    )
    hits = min(1.0, held / (wanted.active * each)) if each else 1.0
    plan.add_line("of it what is in use", hits * 100, "%", "memory / (active x state)")
    python = (
        estimates.PYTHON_WORKER_BYTES.value
        if wanted.exactly_once or wanted.kind in PYTHON_KINDS
        else 0.0
    )
    heap = estimates.EXECUTOR_HEAP_BYTES.value + 0.5e9 * wanted.cores
    memory = heap + held + python * wanted.cores
    plan.add_line(
        "memory an executor", memory, "bytes", "assumed: heap, state.memory, Python workers"
    )
    _add_checkpoint(plan)


def _add_checkpoint(plan: SizingPlan) -> None:
    wanted = plan.requirements
    row = wanted.state / wanted.keys if wanted.keys else 100.0
    changed = min(wanted.events, wanted.keys or wanted.events) * row
    snapshots = min(
        estimates.SNAPSHOT_AMPLIFICATION.value * changed,
        estimates.SNAPSHOT_AMPLIFICATION.value * wanted.state / wanted.snapshot_interval_s,
    )
    total = changed + snapshots
    plan.add_line(
        "checkpoint", total, "bytes/s", "linear: changed rows, and snapshots (assumed x 3)"
    )
    most = wanted.bandwidth * plan["executors"]
    plan.add_line("its share of the network", total / most * 100, "%", "given or assumed bandwidth")
    if total > 0.5 * most:
        plan.refused.append(
            "the checkpoint takes more than half of the network: more executors, longer batches "
            "(each key is written once a batch), or smaller rows"
        )


def _add_latency(plan: SizingPlan) -> None:
    wanted = plan.requirements
    kind = "state" if wanted.is_stateful else "stateless"
    p99 = estimates.LATENCIES_S[f"{kind}, exactly once" if wanted.exactly_once else kind]
    plan.add_line(
        "latency p99",
        p99.value,
        "s",
        f"measured: {p99.description}; that more cores keep it is assumed",
    )
    if wanted.sla >= p99.value:
        return
    said = f"p99 of {p99.value:.2g} s was measured, {wanted.sla:.2g} s is wanted"
    at_least_once, realtime = estimates.LATENCIES_S[kind], estimates.LATENCIES_S["realtime"]
    if wanted.sla >= at_least_once.value:
        plan.refused.append(f"{said}: guarantee: at-least-once has {at_least_once.value:.2g} s")
    elif wanted.is_stateful:
        plan.refused.append(
            f"{said}: not with state in micro-batches on Spark 4.2 (its real-time mode takes "
            "stateless jobs only)"
        )
    elif wanted.exactly_once or wanted.sla < realtime.value:
        plan.refused.append(
            f"{said}: trigger: realtime has {realtime.value:.2g} s, for stateless jobs with "
            "guarantee: at-least-once"
        )
    else:
        plan.notes.append(f"{said}: with trigger: realtime {realtime.value:.2g} s")


def _add_restart(plan: SizingPlan) -> None:
    wanted = plan.requirements
    down = estimates.SPARK_START_S.value + estimates.FIRST_BATCH_S.value
    load = wanted.state / plan["executors"] / wanted.bandwidth if wanted.is_stateful else 0.0
    measured = f"measured {estimates.SPARK_START_S.value:g} + {estimates.FIRST_BATCH_S.value:g}"
    plan.add_line("restart", down + load, "s", f"{measured}; then state / (executors x bandwidth)")
    busy = plan["busy"] / 100 if wanted.executors else estimates.MAX_UTILIZATION
    if busy < 1:
        plan.add_line(
            "then catching up", (down + load) * busy / (1 - busy), "s", "linear: its headroom"
        )
    if wanted.is_stateful and wanted.state:
        lost, repair = estimates.EXECUTOR_LOSS_TIMEOUT_S.value, estimates.SNAPSHOT_REPAIR_S.value
        plan.add_line(
            "executor lost", lost + load, "s", f"assumed {lost:g}, and its share of state"
        )
        plan.add_line("damaged snapshot", down + load + repair, "s", f"measured + {repair:g}")


def _add_hot_key(plan: SizingPlan) -> None:
    wanted = plan.requirements
    rate = estimates.EVENT_RATES[wanted.kind].value * estimates.MAX_UTILIZATION
    alone = wanted.hot * wanted.events / rate
    plan.add_line("hot key", alone, "cores", "linear: its events / rate of a core")
    if alone > 1:
        buckets = ceil(alone) + 1
        plan.add_line("salt.buckets", buckets, "", "so that each is below one core's rate")
        plan.refused.append(
            f"the hot key alone needs {alone:.1f} cores, one task has one: salt it over {buckets} "
            "buckets, or join by a finer key"
        )


def _add_sessions(plan: SizingPlan) -> None:
    wanted = plan.requirements
    plan.add_line(
        "closes after", wanted.gap + wanted.watermark, "s", "gap + watermark past its last event"
    )
    longest = wanted.max_length or 0.0
    if longest:
        plan.add_line("at most", longest + wanted.watermark, "s", "max_length + watermark")
    else:
        plan.notes.append("a key that never pauses never closes: max_length ends it")
    open_ = min(wanted.keys or wanted.events, wanted.events * (wanted.gap + wanted.watermark))
    plan.add_line("open sessions", open_, "", "keys seen within gap + watermark: the bound on rows")
    plan.add_line("their state", open_ * 100.0, "bytes", "assumed: 100 bytes a row")


def _add_table(plan: SizingPlan) -> None:
    wanted, executors = plan.requirements, plan["executors"]
    plan.add_line("broadcast: each executor holds", wanted.table, "bytes", "a copy each")
    plan.add_line("broadcast: start", wanted.table / wanted.bandwidth, "s", "table / bandwidth")
    first = estimates.FIRST_ROW_S
    plan.add_line(
        "Redis: first row", first.value, "s", f"{first.description}; the table is not waited for"
    )
    keys = wanted.keys or wanted.events * wanted.staleness
    distinct = min(wanted.events, keys / wanted.staleness) if wanted.staleness else wanted.events
    plan.add_line(
        "Redis: lookups", distinct, "/s", "at most: keys in use / staleness, or all events"
    )
    plan.add_line("Redis: a value's age", wanted.staleness, "s", "at most: staleness")
    if wanted.table > 1e9:
        size, copies = wanted.table / 1e9, executors
        plan.notes.append(f"no broadcast of {size:,.0f} GB to {copies:,.0f} executors: use Redis")


def _format_estimate(estimate: Estimate) -> str:
    return f"{estimate.value:,.0f} {estimate.description}"
