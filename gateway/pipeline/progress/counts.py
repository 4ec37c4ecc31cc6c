"""Counters of the driver's process that any part of a job adds to: gaps, damaged states, lookups.

    counts.add(catalog.PIPELINE_GAPS, 1, job, topic)

A scrape has them beside what Spark's progress says.
"""

from __future__ import annotations

from collections import Counter
from threading import Lock

from gateway.telemetry.catalog import Kind, Metric
from gateway.telemetry.figures import Figures

_counts: Counter[tuple[Metric, tuple[str, ...]]] = Counter()
_levels: dict[tuple[Metric, tuple[str, ...]], float] = {}
_lock = Lock()


def add(metric: Metric, by: float, *labels: str) -> None:
    """To a counter. Raises ValueError for what is none."""
    if metric.kind is not Kind.COUNTER:
        raise ValueError(f"{metric.name} is a {metric.kind}, no counter; use put")
    with _lock:
        _counts[metric, labels] += by  # type: ignore[assignment]


def put(metric: Metric, value: float, *labels: str) -> None:
    """The present value of a gauge."""
    with _lock:
        _levels[metric, labels] = value


def figures(into: Figures) -> None:
    with _lock:
        found = [*_counts.items(), *_levels.items()]
    for (metric, labels), value in found:
        into.add(metric, value, *labels)
