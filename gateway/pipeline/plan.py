"""Estimate how many machines a job needs, from measurements on two shared cores.

All figures grow in proportion to what was measured, with Spark and Kafka on the same machine, so a
plan is only a first guess. Each line of a plan says what it is computed from. Nothing says that a
demand is met: compare the lines with it. When a run of `make bench WORK=spark` is kept in
`bench/results`, its figures replace those here, and its file becomes their source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple


class Estimate(NamedTuple):
    """A figure that plans are computed from.

    Attributes:
        description: The unit and the circumstances, as a plan shows them.
        source: The run that measured it. It begins with `assumed` if none did.
    """

    value: float
    description: str
    source: str


_BENCH_RESULT = "bench/results/2026-11-30T033704Z, pyspark 4.2.0, 2 cores"
_PROTOTYPE = "prototype, pyspark 4.2.0, 2 cores"
_LOADED_PROTOTYPE = "prototype, pyspark 4.3.0, 2 cores under load"

EVENT_RATES: Mapping[str, Estimate] = {
    "stateless": Estimate(53_900, "events/s a core, JSON to JSON", _LOADED_PROTOTYPE),
    "aggregate": Estimate(
        44_000, "events/s a core, taken from sessions", "assumed: that of sessions"
    ),
    "sessions": Estimate(44_000, "events/s a core, 50k keys", _BENCH_RESULT),
    "join": Estimate(20_500, "records/s a core, both sides together", _BENCH_RESULT),
    "enrich": Estimate(50_000, "events/s a core, all looked up in Redis", _BENCH_RESULT),
}
"""The rate per core of each kind of job."""

TRANSACTIONAL_WRITE_RATE = Estimate(39_200, "rows/s a core, written exactly once", _BENCH_RESULT)
SPARK_SINK_WRITE_RATE = Estimate(
    31_300, "rows/s a core, written by Spark's own sink", _BENCH_RESULT
)

LATENCIES_S: Mapping[str, Estimate] = {
    "stateless": Estimate(0.282, "p99 at 1,000 events/s", _BENCH_RESULT),
    "state": Estimate(0.47, "p99 at 1,000 events/s, 10 s windows", _BENCH_RESULT),
    "stateless, exactly once": Estimate(
        0.339, "p99 at 1,000 events/s, exactly once", _BENCH_RESULT
    ),
    "state, exactly once": Estimate(
        0.485, "p99 at 1,000 events/s, 10 s windows, exactly once", _BENCH_RESULT
    ),
}
"""The times from an event to its output, by kind of job and guarantee.

The output is written at least once where the key does not say otherwise. Each batch began when the
one before had ended.
"""

FIRST_BATCH_S = Estimate(
    4.27, "s from the query's start, 1M keys on a local disk; 100k took 4.08", _BENCH_RESULT
)
SPARK_START_S = Estimate(11.5, "s to start a process with Spark", _PROTOTYPE)
FIRST_ROW_S = Estimate(8.25, "measured from the first batch's start, cold JVM", _BENCH_RESULT)
SNAPSHOT_REPAIR_S = Estimate(1.45, "s more, when the newest snapshot is damaged", _BENCH_RESULT)

CHECKPOINT_BYTES_PER_S = Estimate(
    500e6, "bytes/s an executor to the checkpoint's store", "assumed: 4 Gbit/s"
)
SNAPSHOT_AMPLIFICATION = Estimate(3.0, "bytes in snapshots for each that changed", "assumed")
EXECUTOR_LOSS_TIMEOUT_S = Estimate(
    10.0, "s until the driver knows that an executor is gone", "assumed: its socket closes"
)
EXECUTOR_HEAP_BYTES = Estimate(1.5e9, "bytes of heap an executor, and 0.5 GB a core", "assumed")
PYTHON_WORKER_BYTES = Estimate(0.3e9, "bytes of a Python worker", "assumed")

MAX_UTILIZATION = 0.6
"""The share of the time that batches may take.

The rest is needed to catch up after a restart, and because load and partitions are uneven.
"""


KINDS = tuple(EVENT_RATES)
STATEFUL_KINDS = ("aggregate", "sessions", "join")
PYTHON_KINDS = ("enrich",)  # that need Python workers even without exactly-once output
_SIZE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"))
MAX_PARTITION_STATE_BYTES = 2e9  # because a single task loads and snapshots a partition's state


@dataclass(frozen=True, slots=True)
class JobRequirements:
    """The work of a job, and the machines to run it on.

    Sizes are in bytes, times in seconds, rates per second, and shares from 0 to 1.

    Attributes:
        keys: How many keys have state, or, for `enrich`, how many are in use.
        output: The rate of rows written. The default is the rate of events for a job without state,
            and a tenth of it for a job with state.
        active: The share of the state that is in use.
        hot: The share of events that have the most frequent key.
        bandwidth: The rate in bytes from an executor to the store of the checkpoint.
        max_length: The longest time of a session, or 0 for no limit.
        staleness: How old a cached row of the table may be.
    """

    kind: str = "stateless"
    events: float = 1000.0
    state: float = 0.0
    keys: float = 0.0
    output: float | None = None
    exactly_once: bool = True
    cores: int = 8
    executors: int | None = None
    memory: float | None = None
    active: float = 0.2
    hot: float = 0.0
    bandwidth: float = CHECKPOINT_BYTES_PER_S.value
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
    """One figure of a plan.

    Attributes:
        unit: `bytes`, `bytes/s`, `s`, `%`, `/s`, another unit, or empty for a number.
        why: Its sources, and whether it is `measured`, `linear` (computed in proportion to a
            measurement) or `assumed`.
    """

    name: str
    value: float
    unit: str
    why: str


@dataclass(slots=True)
class SizingPlan:
    """The size of a job."""

    needs: JobRequirements
    lines: list[PlanLine] = field(default_factory=list)

    def add(self, name: str, value: float, unit: str, why: str) -> None:
        self.lines.append(PlanLine(name, value, unit, why))

    def __getitem__(self, name: str) -> float:
        return next(line.value for line in self.lines if line.name == name)


def build_plan(needs: JobRequirements) -> SizingPlan:
    plan = SizingPlan(needs)
    _add_cores(plan)  # first: the other functions read the line `executors`
    if needs.is_stateful and needs.state:
        _add_state(plan)
    _add_latency(plan)
    _add_restart(plan)
    if needs.hot:
        _add_hot_key(plan)
    if needs.kind == "sessions" and needs.gap:
        _add_sessions(plan)
    if needs.kind == "enrich" and needs.table:
        _add_table(plan)
    return plan


def _add_cores(plan: SizingPlan) -> None:
    needs = plan.needs
    rate = EVENT_RATES[needs.kind]
    sink = TRANSACTIONAL_WRITE_RATE if needs.exactly_once else SPARK_SINK_WRITE_RATE
    # How many would always be busy with computing and with writing.
    busy_cores = needs.events / rate.value + needs.output_rows / sink.value
    cores = max(1, ceil(busy_cores / MAX_UTILIZATION))
    figures = f"{_format_estimate(rate)}; {_format_estimate(sink)}"
    plan.add("cores", cores, "", f"linear: {figures}; {MAX_UTILIZATION:.0%} busy")
    executors = needs.executors or ceil(cores / needs.cores)
    why = "given" if needs.executors else "cores / cores of one"
    plan.add("executors", executors, f"of {needs.cores} cores", why)
    if needs.executors:
        load = busy_cores / (executors * needs.cores)
        plan.add("busy", load * 100, "%", "linear")


def _add_state(plan: SizingPlan) -> None:
    needs, executors = plan.needs, plan["executors"]
    partitions = max(executors * needs.cores, ceil(needs.state / MAX_PARTITION_STATE_BYTES))
    plan.add("state.partitions", partitions, "", "a task a core, at most 2 GB each")
    state = needs.state / executors
    plan.add("state an executor", state, "bytes", "state / executors")
    plan.add("its disk", 2 * state, "bytes", "assumed: twice, for compaction and snapshots")
    cache = needs.memory if needs.memory is not None else needs.active * state
    why = "given" if needs.memory else "assumed: what is in use"
    plan.add("state.memory", cache, "bytes", why)
    hits = min(1.0, cache / (needs.active * state)) if state else 1.0
    plan.add("of it what is in use", hits * 100, "%", "memory / (active x state)")
    memory = EXECUTOR_HEAP_BYTES.value + 0.5e9 * needs.cores + cache
    if needs.exactly_once or needs.kind in PYTHON_KINDS:
        memory += PYTHON_WORKER_BYTES.value * needs.cores
    plan.add("memory an executor", memory, "bytes", "assumed: heap, state.memory, Python workers")
    _add_checkpoint(plan)


def _add_checkpoint(plan: SizingPlan) -> None:
    needs = plan.needs
    row = needs.state / needs.keys if needs.keys else 100.0  # bytes
    # A batch writes each of its keys once, so more events than keys do not write more.
    changed = min(needs.events, needs.keys or needs.events) * row  # bytes/s
    # In each interval, snapshots write at most the whole state.
    most = min(changed, needs.state / needs.snapshot_interval_s)
    total = changed + SNAPSHOT_AMPLIFICATION.value * most
    plan.add("checkpoint", total, "bytes/s", "linear: changed rows, and snapshots (assumed x 3)")
    bandwidth = needs.bandwidth * plan["executors"]
    plan.add("its share of the network", total / bandwidth * 100, "%", "given or assumed bandwidth")


def _add_latency(plan: SizingPlan) -> None:
    needs = plan.needs
    kind = "state" if needs.is_stateful else "stateless"
    p99 = LATENCIES_S[f"{kind}, exactly once" if needs.exactly_once else kind]
    why = f"measured: {p99.description}; that more cores keep it is assumed"
    plan.add("latency p99", p99.value, "s", why)


def _add_restart(plan: SizingPlan) -> None:
    needs = plan.needs
    down = SPARK_START_S.value + FIRST_BATCH_S.value
    state = needs.state if needs.is_stateful else 0.0
    load = state / plan["executors"] / needs.bandwidth
    measured = f"measured {SPARK_START_S.value:g} + {FIRST_BATCH_S.value:g}"
    plan.add("restart", down + load, "s", f"{measured}; then state / (executors x bandwidth)")
    busy = plan["busy"] / 100 if needs.executors else MAX_UTILIZATION
    if busy < 1:  # else it never catches up
        plan.add("then catching up", (down + load) * busy / (1 - busy), "s", "linear: its headroom")
    if needs.is_stateful and needs.state:
        lost, repair = EXECUTOR_LOSS_TIMEOUT_S.value, SNAPSHOT_REPAIR_S.value
        plan.add("executor lost", lost + load, "s", f"assumed {lost:g}, and its share of state")
        plan.add("damaged snapshot", down + load + repair, "s", f"measured + {repair:g}")


def _add_hot_key(plan: SizingPlan) -> None:
    needs = plan.needs
    rate = EVENT_RATES[needs.kind].value * MAX_UTILIZATION
    hot_cores = needs.hot * needs.events / rate
    plan.add("hot key", hot_cores, "cores", "linear: its events / rate of a core")
    if hot_cores > 1:
        plan.add("salt.buckets", ceil(hot_cores) + 1, "", "so that each is below one core's rate")


def _add_sessions(plan: SizingPlan) -> None:
    needs = plan.needs
    wait = needs.gap + needs.watermark
    plan.add("closes after", wait, "s", "gap + watermark past its last event")
    if needs.max_length:
        longest = needs.max_length + needs.watermark
        plan.add("at most", longest, "s", "max_length + watermark")
    open_sessions = min(needs.keys or needs.events, needs.events * wait)
    plan.add(
        "open sessions", open_sessions, "", "keys seen within gap + watermark: the bound on rows"
    )
    plan.add("their state", open_sessions * 100.0, "bytes", "assumed: 100 bytes a row")


def _add_table(plan: SizingPlan) -> None:
    needs = plan.needs
    plan.add("broadcast: each executor holds", needs.table, "bytes", "a copy each")
    plan.add("broadcast: start", needs.table / needs.bandwidth, "s", "table / bandwidth")
    why = f"{FIRST_ROW_S.description}; the table is not waited for"
    plan.add("Redis: first row", FIRST_ROW_S.value, "s", why)
    keys = needs.keys or needs.events * needs.staleness
    lookups = needs.events
    if needs.staleness:
        lookups = min(lookups, keys / needs.staleness)
    plan.add("Redis: lookups", lookups, "/s", "at most: keys in use / staleness, or all events")
    plan.add("Redis: a value's age", needs.staleness, "s", "at most: staleness")


def _format_estimate(estimate: Estimate) -> str:
    return f"{estimate.value:,.0f} {estimate.description}"


def render_table(plan: SizingPlan) -> str:
    name_width = max(len(line.name) for line in plan.lines)
    value_width = max(len(_format_value(line)) for line in plan.lines)
    return "\n".join(
        f"{line.name:<{name_width}}  {_format_value(line):>{value_width}}  {line.why}"
        for line in plan.lines
    )


def _format_value(line: PlanLine) -> str:
    """Return the value of a line with its unit, such as `2 GB`, `16 s` or `4.2 min`."""
    if line.unit in ("bytes", "bytes/s"):
        return _format_size(line.value) + line.unit.removeprefix("bytes")
    if line.unit == "s":
        return _format_time(line.value)
    number = (
        f"{line.value:,.0f}" if line.value >= 10 or line.value % 1 == 0 else f"{line.value:.1f}"
    )
    return f"{number}{'' if line.unit in ('%', '/s') else ' '}{line.unit}".rstrip()


def _format_size(value: float) -> str:
    for size, unit in _SIZE_UNITS:
        if value >= size:
            # From 1,000 TB on, `g` would switch to exponents.
            return f"{value / size:,.3g} {unit}" if value < 1e15 else f"{value / size:,.0f} {unit}"
    return f"{value:.0f} B"


def _format_time(value: float) -> str:
    if value >= 7200:
        return f"{value / 3600:.3g} h"
    return f"{value / 60:.3g} min" if value >= 120 else f"{value:.3g} s"
