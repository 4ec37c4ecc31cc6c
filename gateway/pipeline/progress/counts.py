"""Keep metrics of the driver that Spark's progress does not contain, such as gaps.

Any part of a job may change them, in any thread:

    counts.increment_counter(catalog.PIPELINE_GAPS, 1, job, topic)
"""

from __future__ import annotations

from collections import Counter
from threading import Lock

from gateway.telemetry.catalog import Metric, MetricKind
from gateway.telemetry.samples import MetricSamples

_counts: Counter[tuple[Metric, tuple[str, ...]]] = Counter()
_gauges: dict[tuple[Metric, tuple[str, ...]], float] = {}
_lock = Lock()


def increment_counter(metric: Metric, amount: float, *labels: str) -> None:
    if metric.kind is not MetricKind.COUNTER:
        raise ValueError(f"{metric.name} is a {metric.kind}, not a counter; use set_gauge")
    with _lock:
        _counts[metric, labels] += amount  # type: ignore[assignment]


def set_gauge(metric: Metric, value: float, *labels: str) -> None:
    with _lock:
        _gauges[metric, labels] = value


def collect_metrics(samples: MetricSamples) -> None:
    with _lock:
        items = [*_counts.items(), *_gauges.items()]
    for (metric, labels), value in items:
        samples.add(metric, value, *labels)
