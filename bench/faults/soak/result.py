"""What a soak has found, and its verdict. Pure: no I/O but the file of the result."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import median

from ..results import FaultResult

MAX_SLOPE_PERCENT = 1.0  # of memory, in ten minutes
SLOPE_PERIOD_S = 600.0
MAX_LATENCY_GROWTH = 1.2
COMPARED_SHARE = 1 / 3  # of the windows without faults, at the beginning and at the end
# The gateway keeps records in memory for ten minutes (`cache.age`): so long does a worker grow.
WORKER_WARM_UP_S = 600.0
MIN_FITTED_S = 300.0  # a shorter time tells nothing about a slope
MAX_FITTED_SAMPLES = 400  # a fit takes the slope of every pair


@dataclass
class WorkerSample:
    """What a worker held at a time.

    Attributes:
        pid: Its process.
        pss_bytes: Its memory; of shared pages its share.
        descriptors: Its file descriptors.
        tasks: Its tasks; None if it was not asked.
        timers: The timers of its event loop; None if it was not asked.
    """

    pid: int
    pss_bytes: int
    descriptors: int
    tasks: int | None = None
    timers: int | None = None


@dataclass
class Sample:
    """A window of some seconds.

    Attributes:
        at_s: Its end, in seconds from the beginning of the soak.
        clients: Clients that are connected, as they know it.
        metrics: What the gateway says of itself, over all workers.
        workers: What each worker held at its end.
        records: How many records came to clients that were there when these were sent.
        p50_s: The median of the time from sent to received; None without records.
        p99_s: The 99th percentile.
        is_quiet: Whether there was no fault in it, nor shortly before.
    """

    at_s: float
    clients: int
    metrics: dict[str, float] = field(default_factory=dict)
    workers: list[WorkerSample] = field(default_factory=list)
    records: int = 0
    p50_s: float | None = None
    p99_s: float | None = None
    is_quiet: bool = True


@dataclass
class SoakResult:
    """All of a soak.

    Attributes:
        minutes: How long clients came and went.
        clients: How many there were at a time.
        rate: Records a second.
        seed: What all choices were drawn from.
        warm_up_s: The time from the beginning that no verdict looks at.
        samples: The windows, by time.
        faults: The faults.
        leftovers: What workers had more of at the end than before the first client.
        findings: Records that were lost, came twice, and the like.
        visits: How many connections there were.
        sent: How many records were sent.
    """

    minutes: float
    clients: int
    rate: float
    seed: int
    warm_up_s: float
    samples: list[Sample] = field(default_factory=list)
    faults: list[FaultResult] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    visits: int = 0
    sent: int = 0

    @property
    def warm_samples(self) -> list[Sample]:
        """Return the samples after the warm-up."""
        return [each for each in self.samples if each.at_s >= self.warm_up_s]

    def compute_slopes(self) -> dict[int, float]:
        """Compute the growth of memory in percent of its median in ten minutes, by process.

        Only processes that lived long enough after the warm-up, that of the soak and their own,
        are named.
        """
        slopes = {}
        for pid, series in self.collect_memory(self.samples).items():
            warm_at = max(self.warm_up_s, series[0][0] + WORKER_WARM_UP_S)
            warm = [(at_s, size) for at_s, size in series if at_s >= warm_at]
            if warm and warm[-1][0] - warm[0][0] >= MIN_FITTED_S:
                middle = median(size for _, size in warm)
                slopes[pid] = 100 * fit_slope(warm) * SLOPE_PERIOD_S / middle
        return slopes

    def collect_memory(self, samples: Sequence[Sample]) -> dict[int, list[tuple[float, float]]]:
        """Return time and memory of each process."""
        found: dict[int, list[tuple[float, float]]] = {}
        for sample in samples:
            for worker in sample.workers:
                found.setdefault(worker.pid, []).append((sample.at_s, worker.pss_bytes))
        return found

    def compute_latency_growth(self) -> dict[str, float]:
        """Compute the latency of the last quiet windows as a multiple of that of the first ones."""
        quiet = [s for s in self.warm_samples if s.is_quiet and s.p50_s and s.p99_s]
        count = int(len(quiet) * COMPARED_SHARE)
        if not count:
            return {}
        first, last = quiet[:count], quiet[-count:]
        return {
            "p50": median(s.p50_s or 0 for s in last) / median(s.p50_s or 0 for s in first),
            "p99": median(s.p99_s or 0 for s in last) / median(s.p99_s or 0 for s in first),
        }

    def list_problems(self, *, with_times: bool = True) -> Iterator[str]:
        """Yield what fails the soak.

        Args:
            with_times: Whether memory over time and latency count, which need a run of some
                minutes on a machine that nobody else uses.
        """
        yield from (f"left behind: {each}" for each in self.leftovers)
        yield from self.findings
        for fault in self.faults:
            if fault.status != "effective":
                yield f"fault {fault.kind}: {fault.status}: {fault.effect}"
        if not with_times:
            return
        slopes = self.compute_slopes()
        if not slopes:
            yield "too short to tell whether memory grows"
        for pid, slope in slopes.items():
            if slope > MAX_SLOPE_PERCENT:
                yield f"memory of process {pid} grows by {slope:.2f} % in ten minutes"
        for name, growth in self.compute_latency_growth().items():
            if growth > MAX_LATENCY_GROWTH:
                yield f"the {name} of latency is {growth:.2f} times that of the beginning"


def fit_slope(points: Sequence[tuple[float, float]]) -> float:
    """Fit a line by Theil and Sen: the median of the slopes of all pairs ignores few outliers.

    Args:
        points: x and y; at least two different x.
    """
    step = -(-len(points) // MAX_FITTED_SAMPLES)
    pairs = combinations(points[::step], 2)
    return median((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in pairs if x2 != x1)


def write_result(result: SoakResult, path: Path) -> None:
    """Write all as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {
        "problems": list(result.list_problems()),
        "slopes": result.compute_slopes(),
        "latency_growth": result.compute_latency_growth(),
        **asdict(result),
    }
    path.write_text(json.dumps(data))
