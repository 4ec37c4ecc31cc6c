"""Define one measured number, and summarize several of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Figure(NamedTuple):
    """what: in words, the conditions included. n: how many samples it stands for."""

    what: str
    value: float
    unit: str
    n: int = 1


def quantile(samples: Sequence[float], q: float) -> float:
    """The smallest sample that a share `q` of all does not exceed (nearest rank)."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def median(samples: Sequence[float]) -> float:
    return quantile(samples, 0.5)


def summarize_times(what: str, seconds: Sequence[float]) -> list[Figure]:
    """Median and 99th percentile in ms; the worst in its place where 100 samples lack."""
    n = len(seconds)
    high = ("p99", 0.99) if n >= 100 else ("worst", 1.0)
    return [
        Figure(f"{what}, {name}", 1000 * quantile(seconds, q), "ms", n)
        for name, q in (("p50", 0.5), high)
    ]
