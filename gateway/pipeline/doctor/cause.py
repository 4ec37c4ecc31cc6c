"""What makes a job slow or wrong: its name, how much of a batch it explains, what to change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Thresholds(NamedTuple):
    """What is worth a name.

    share: of a batch, at least. seconds: of it, at least; a batch of 300 ms spends half of them on
    what every batch costs, and is healthy. late: the share of late rows that is worth an alert.
    """

    min_share: float = 0.25
    min_seconds: float = 0.5
    max_late_share: float = 0.2

    def is_exceeded(self, seconds: float, batch_seconds: float) -> bool:
        return seconds >= self.min_seconds and seconds >= self.min_share * batch_seconds


@dataclass(frozen=True, slots=True)
class DiagnosedCause:
    """seconds: of a batch that go if it goes, or for how long results wait for it. share: of a
    batch. settings: of the YAML, or of `spark.conf`."""

    name: str
    title: str
    seconds: float
    share: float
    evidence: Sequence[str]
    settings: Sequence[str]
    advice: str


def share_of_batch(seconds: float, batch_seconds: float) -> float:
    """As a share, 0 to 1."""
    return min(1.0, seconds / batch_seconds) if batch_seconds > 0 else 0.0
