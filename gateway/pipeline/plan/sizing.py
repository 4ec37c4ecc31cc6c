"""From what a job must do to what it takes. All linear in what was measured on two cores."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from . import rates
from .rates import Rate

KINDS = tuple(rates.EVENTS)
STATEFUL = ("aggregate", "sessions", "join")
IN_PYTHON = ("enrich",)  # and whoever writes exactly once
PARTITION = 2e9  # bytes of state that one should hold: it is one task's to load and to snapshot


@dataclass(frozen=True, slots=True)
class Wanted:
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
    bandwidth: float = rates.BANDWIDTH.value
    snapshot_every: float = 60.0
    gap: float = 0.0
    watermark: float = 0.0
    max_length: float = 0.0
    table: float = 0.0
    staleness: float = 5.0

    @property
    def rows(self) -> float:
        if self.output is not None:
            return self.output
        return self.events / 10 if self.kind in STATEFUL else self.events

    @property
    def stateful(self) -> bool:
        return self.kind in STATEFUL


class Line(NamedTuple):
    """why: where it is from, `measured`, `linear` (computed from it) or `assumed`."""

    name: str
    value: float
    unit: str
    why: str


@dataclass(slots=True)
class Plan:
    """refused: what does not work on this design, with what to do instead."""

    wanted: Wanted
    lines: list[Line] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def add(self, name: str, value: float, unit: str, why: str) -> None:
        self.lines.append(Line(name, value, unit, why))

    def __getitem__(self, name: str) -> float:
        return next(line.value for line in self.lines if line.name == name)


def plan(wanted: Wanted) -> Plan:
    """Never fails: what cannot be is `refused`."""
    made = Plan(wanted)
    _cores(made)
    if wanted.stateful and wanted.state:
        _state(made)
    _latency(made)
    _restart(made)
    if wanted.hot:
        _hot(made)
    if wanted.kind == "sessions" and wanted.gap:
        _sessions(made)
    if wanted.kind == "enrich" and wanted.table:
        _table(made)
    return made


def _cores(made: Plan) -> None:
    wanted = made.wanted
    rate = rates.EVENTS[wanted.kind]
    sink = rates.WRITER if wanted.exactly_once else rates.SINK
    work, write = wanted.events / rate.value, wanted.rows / sink.value
    cores = max(1, ceil((work + write) / rates.HEADROOM))
    made.add("cores", cores, "", f"linear: {_said(rate)}; {_said(sink)}; {rates.HEADROOM:.0%} busy")
    executors = ceil(cores / wanted.cores)
    if wanted.executors is not None:
        load = (work + write) / (wanted.executors * wanted.cores)
        made.add("executors", wanted.executors, f"of {wanted.cores} cores", "given")
        made.add("busy", load * 100, "%", "linear")
        if load > 1:
            made.refused.append(
                f"{wanted.executors} executors of {wanted.cores} cores do {1 / load:.0%} of it: "
                f"take {executors}"
            )
    else:
        made.add("executors", executors, f"of {wanted.cores} cores", "cores / cores of one")
    if cores > rates.TASKS.value:
        jobs = ceil(cores / rates.TASKS.value)
        made.refused.append(
            f"one driver for {cores:,} tasks a batch is not measured (200 were); divide the topic "
            f"among {jobs} jobs by key, each with a checkpoint of its own"
        )


def _state(made: Plan) -> None:
    wanted, executors = made.wanted, made["executors"]
    partitions = max(executors * wanted.cores, ceil(wanted.state / PARTITION))
    made.add("state.partitions", partitions, "", "a task a core, at most 2 GB each")
    each = wanted.state / executors
    made.add("state an executor", each, "bytes", "state / executors")
    made.add("its disk", 2 * each, "bytes", "assumed: twice, for compaction and snapshots")
    held = wanted.memory if wanted.memory is not None else wanted.active * each
    made.add("state.memory", held, "bytes", "given" if wanted.memory else "assumed: what is in use")
    hits = min(1.0, held / (wanted.active * each)) if each else 1.0
    made.add("of it what is in use", hits * 100, "%", "memory / (active x state)")
    python = rates.PYTHON.value if wanted.exactly_once or wanted.kind in IN_PYTHON else 0.0
    heap = rates.HEAP.value + 0.5e9 * wanted.cores
    memory = heap + held + python * wanted.cores
    made.add("memory an executor", memory, "bytes", "assumed: heap, state.memory, Python workers")
    _checkpoint(made)


def _checkpoint(made: Plan) -> None:
    wanted = made.wanted
    row = wanted.state / wanted.keys if wanted.keys else 100.0
    changed = min(wanted.events, wanted.keys or wanted.events) * row
    snapshots = min(
        rates.AMPLIFIED.value * changed,
        rates.AMPLIFIED.value * wanted.state / wanted.snapshot_every,
    )
    total = changed + snapshots
    made.add("checkpoint", total, "bytes/s", "linear: changed rows, and snapshots (assumed x 3)")
    most = wanted.bandwidth * made["executors"]
    made.add("its share of the network", total / most * 100, "%", "given or assumed bandwidth")
    if total > 0.5 * most:
        made.refused.append(
            "the checkpoint takes more than half of the network: more executors, longer batches "
            "(each key is written once a batch), or smaller rows"
        )


def _latency(made: Plan) -> None:
    wanted = made.wanted
    kind = "state" if wanted.stateful else "stateless"
    p99 = rates.LATENCY[f"{kind}, exactly once" if wanted.exactly_once else kind]
    made.add(
        "latency p99", p99.value, "s", f"measured: {p99.what}; that more cores keep it is assumed"
    )
    if wanted.sla >= p99.value:
        return
    said = f"p99 of {p99.value:.2g} s was measured, {wanted.sla:.2g} s is wanted"
    at_least_once, realtime = rates.LATENCY[kind], rates.LATENCY["realtime"]
    if wanted.sla >= at_least_once.value:
        made.refused.append(f"{said}: guarantee: at-least-once has {at_least_once.value:.2g} s")
    elif wanted.stateful:
        made.refused.append(
            f"{said}: not with state in micro-batches on Spark 4.2 (its real-time mode takes "
            "stateless jobs only)"
        )
    elif wanted.exactly_once or wanted.sla < realtime.value:
        made.refused.append(
            f"{said}: trigger: realtime has {realtime.value:.2g} s, for stateless jobs with "
            "guarantee: at-least-once"
        )
    else:
        made.told.append(f"{said}: with trigger: realtime {realtime.value:.2g} s")


def _restart(made: Plan) -> None:
    wanted = made.wanted
    down = rates.START.value + rates.FIRST_BATCH.value
    load = wanted.state / made["executors"] / wanted.bandwidth if wanted.stateful else 0.0
    measured = f"measured {rates.START.value:g} + {rates.FIRST_BATCH.value:g}"
    made.add("restart", down + load, "s", f"{measured}; then state / (executors x bandwidth)")
    busy = made["busy"] / 100 if wanted.executors else rates.HEADROOM
    if busy < 1:
        made.add("then catching up", (down + load) * busy / (1 - busy), "s", "linear: its headroom")
    if wanted.stateful and wanted.state:
        lost, repair = rates.LOST.value, rates.REPAIR.value
        made.add("executor lost", lost + load, "s", f"assumed {lost:g}, and its share of state")
        made.add("damaged snapshot", down + load + repair, "s", f"measured + {repair:g}")


def _hot(made: Plan) -> None:
    wanted = made.wanted
    rate = rates.EVENTS[wanted.kind].value * rates.HEADROOM
    alone = wanted.hot * wanted.events / rate
    made.add("hot key", alone, "cores", "linear: its events / rate of a core")
    if alone > 1:
        buckets = ceil(alone) + 1
        made.add("salt.buckets", buckets, "", "so that each is below one core's rate")
        made.refused.append(
            f"the hot key alone needs {alone:.1f} cores, one task has one: salt it over {buckets} "
            "buckets, or join by a finer key"
        )


def _sessions(made: Plan) -> None:
    wanted = made.wanted
    made.add(
        "closes after", wanted.gap + wanted.watermark, "s", "gap + watermark past its last event"
    )
    longest = wanted.max_length or 0.0
    if longest:
        made.add("at most", longest + wanted.watermark, "s", "max_length + watermark")
    else:
        made.told.append("a key that never pauses never closes: max_length ends it")
    open_ = min(wanted.keys or wanted.events, wanted.events * (wanted.gap + wanted.watermark))
    made.add("open sessions", open_, "", "keys seen within gap + watermark: the bound on rows")
    made.add("their state", open_ * 100.0, "bytes", "assumed: 100 bytes a row")


def _table(made: Plan) -> None:
    wanted, executors = made.wanted, made["executors"]
    made.add("broadcast: each executor holds", wanted.table, "bytes", "a copy each")
    made.add("broadcast: start", wanted.table / wanted.bandwidth, "s", "table / bandwidth")
    first = rates.FIRST_ROW
    made.add("Redis: first row", first.value, "s", f"{first.what}; the table is not waited for")
    keys = wanted.keys or wanted.events * wanted.staleness
    distinct = min(wanted.events, keys / wanted.staleness) if wanted.staleness else wanted.events
    made.add("Redis: lookups", distinct, "/s", "at most: keys in use / staleness, or all events")
    made.add("Redis: a value's age", wanted.staleness, "s", "at most: staleness")
    if wanted.table > 1e9:
        size, copies = wanted.table / 1e9, executors
        made.told.append(f"no broadcast of {size:,.0f} GB to {copies:,.0f} executors: use Redis")


def _said(rate: Rate) -> str:
    return f"{rate.value:,.0f} {rate.what}"
