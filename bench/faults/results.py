"""What became of each seed, as a line of JSON, so that runs can be continued and merged."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from support.received import GapEvent, ReceivedItem, ReceivedRecord
from support.stream_check import AckedRecord

from .clients import ClientLog
from .reactive import Delivery
from .writers import WriterLog

BIN_S = 0.5
RESULTS_FILE = "results.jsonl"
GROUP_TIMELINE = "reactive group"


@dataclass
class FaultResult:
    """A fault as it happened; times in seconds from the beginning of the schedule.

    Attributes:
        kind: What happened.
        planned_at: When it was to begin.
        at: When it began.
        effect_at: When its effect was seen; None if it was not.
        healed_at: When it was healed.
        effect: How its effect was seen, or why there was none.
        status: effective, failed, or not possible.
    """

    kind: str
    planned_at: float
    at: float
    effect_at: float | None = None
    healed_at: float | None = None
    effect: str = ""
    status: str = "failed"


@dataclass
class Timeline:
    """What a class of clients got in each half second.

    Attributes:
        deliveries: How many records.
        lag_s: How old the oldest of these was since Kafka acknowledged it, in seconds.
        gaps: How many gaps were told.
    """

    deliveries: list[int] = field(default_factory=list)
    lag_s: list[float] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)


@dataclass
class SeedResult:
    """All of a seed.

    Attributes:
        seed: The seed.
        seconds: How long its schedule was.
        clients: How many clients there were.
        front: The proxy in front of the gateways; empty if there was none.
        duration_s: How long all took, from the schedule's beginning until the last client had all.
        faults: Its faults.
        records: How many records had which outcome, and how many transactions.
        counts: Deliveries, connections, gaps told and errors told.
        findings: What should not be, one line each, with the history below.
        timelines: By class of clients.
        error: What ended the run before its end; empty if nothing did.
    """

    seed: int
    seconds: float
    clients: int
    front: str = ""
    duration_s: float = 0.0
    faults: list[FaultResult] = field(default_factory=list)
    records: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    finding_kinds: dict[str, int] = field(default_factory=dict)
    timelines: dict[str, Timeline] = field(default_factory=dict)
    error: str = ""

    @property
    def is_clean(self) -> bool:
        """Return whether nothing is wrong."""
        return not self.findings and not self.error

    @property
    def state(self) -> str:
        """Return in a few words whether it is clean, and all its faults could take effect."""
        if self.error:
            return "BROKEN OFF"
        if not self.is_clean:
            return f"{sum(self.finding_kinds.values())} FINDINGS"
        failed = sum(each.status == "failed" for each in self.faults)
        return f"clean, FAULTS FAILED: {failed}" if failed else "clean"

    @property
    def verdict(self) -> str:
        """Return one line."""
        if self.error:
            return f"seed {self.seed}: {self.state}: {self.error.splitlines()[0]:.200}"
        effective = sum(each.status == "effective" for each in self.faults)
        faults = f"{effective} of {len(self.faults)} faults took effect"
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        return (
            f"seed {self.seed}: {self.state}; {faults}; "
            f"{self.records.get('acknowledged', 0)} records acknowledged, {counts}; "
            f"{self.duration_s:.0f} s"
        )


def append_result(result: SeedResult, directory: Path) -> None:
    """Add the line of a seed to the results of a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / RESULTS_FILE).open("a", encoding="utf-8") as file:
        # The line break before it ends a line that was cut when an earlier run was killed.
        file.write(f"\n{json.dumps(asdict(result))}\n")


def read_results(directory: Path) -> list[SeedResult]:
    """Read the results of a directory, by seed; of a seed that was run again, the last one."""
    path, found = directory / RESULTS_FILE, dict[int, SeedResult]()
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(json.JSONDecodeError):  # a line that was cut
            result = _parse_result(json.loads(line))
            found[result.seed] = result
    return [found[seed] for seed in sorted(found)]


def merge_results(sources: Iterable[Path], directory: Path) -> None:
    """Add the results of other directories to those of one, which are overridden by them.

    Of a seed that several of these directories have, a result that is not clean is kept: that it
    did not happen again elsewhere proves nothing.

    Raises:
        FileNotFoundError: A directory has no results.
    """
    found: dict[int, SeedResult] = {}
    for source in sources:
        results = read_results(source)
        if not results:
            raise FileNotFoundError(f"{source} has no results of seeds")
        for result in results:
            if result.seed not in found or found[result.seed].is_clean:
                found[result.seed] = result
    for result in found.values():
        append_result(result, directory)


def _parse_result(data: dict[str, object]) -> SeedResult:
    result = SeedResult(**data)  # type: ignore[arg-type]
    result.faults = [FaultResult(**each) for each in data["faults"]]  # type: ignore
    result.timelines = {
        name: Timeline(**each)
        for name, each in data["timelines"].items()  # type: ignore
    }
    return result


def count_received(logs: Sequence[ClientLog]) -> dict[str, int]:
    """Count what all clients got."""
    return {
        "deliveries": sum(log.record_count for log in logs),
        "connections": sum(len(log.connections) for log in logs),
        "gaps told": sum(len(log.gaps) for log in logs),
        "errors told": sum(len(log.errors) for log in logs),
    }


def build_timelines(
    logs: Iterable[ClientLog],
    pushed: Iterable[Delivery],
    written: WriterLog,
    began_at: float,
) -> dict[str, Timeline]:
    """Build the timeline of each class of clients, and of the reactive group.

    Args:
        logs: What clients got.
        pushed: What the back end of the reactive group accepted.
        written: When Kafka acknowledged which record.
        began_at: When the schedule began, by `time.monotonic`.
    """
    by_class: Mapping[str, list[tuple[float, ReceivedItem | AckedRecord]]] = defaultdict(list)
    for log in logs:
        by_class[log.plan.view.name] += zip(log.times, log.items, strict=True)
    by_class[GROUP_TIMELINE] += [(each.at, each.record) for each in pushed]
    return {name: _build_timeline(items, written, began_at) for name, items in by_class.items()}


def _build_timeline(
    items: Iterable[tuple[float, ReceivedItem | AckedRecord]], written: WriterLog, began_at: float
) -> Timeline:
    deliveries, gaps = Counter[int](), Counter[int]()
    lags: dict[int, float] = defaultdict(float)
    for at, item in items:
        number = max(0, int((at - began_at) / BIN_S))
        if isinstance(item, GapEvent):
            gaps[number] += 1
            continue
        deliveries[number] += 1
        lags[number] = max(lags[number], _compute_lag(item, at, written))
    count = max([0, *deliveries, *gaps]) + 1
    return Timeline(
        [deliveries[n] for n in range(count)],
        [round(lags.get(n, 0.0), 3) for n in range(count)],
        [gaps[n] for n in range(count)],
    )


def _compute_lag(record: ReceivedRecord | AckedRecord, at: float, written: WriterLog) -> float:
    """Return the seconds since Kafka's answer; 0 where nobody knows when that was."""
    assert record.tp is not None and record.offset is not None
    acked_at = written.get_acked_at(record.tp, record.offset, record.value)
    return 0.0 if acked_at is None else max(0.0, at - acked_at)
