"""Counters of the driver's process that any part of a job adds to: gaps, damaged states, lookups.

    counts.add(catalog.PIPELINE_GAPS, 1, job, topic)

A scrape has them beside what Spark's progress says.
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
    """To a counter. Raises ValueError for what is none."""
    if metric.kind is not MetricKind.COUNTER:
        raise ValueError(f"{metric.name} is a {metric.kind}, no counter; use put")
    with _lock:
        _counts[metric, labels] += amount  # type: ignore[assignment]


def set_gauge(metric: Metric, value: float, *labels: str) -> None:
    """The present value of a gauge."""
    with _lock:
        _gauges[metric, labels] = value


def collect_metrics(samples: MetricSamples) -> None:
    with _lock:
        found = [*_counts.items(), *_gauges.items()]
    for (metric, labels), value in found:
        samples.add(metric, value, *labels)
