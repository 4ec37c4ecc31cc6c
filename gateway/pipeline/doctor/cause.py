"""Define a cause that makes a job slow or wrong, and the thresholds above which it counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gateway.telemetry.diagnosed_cause import DiagnosedCause


class Thresholds(NamedTuple):
    """The least effect that makes something a cause.

    Attributes:
        min_seconds: The least time per batch, in seconds. A batch of 300 ms spends half of its time
            on what every batch costs, and is still healthy.
    """

    min_share: float = 0.25
    min_seconds: float = 0.5
    max_late_share: float = 0.2

    def is_exceeded(self, seconds: float, batch_seconds: float) -> bool:
        return seconds >= self.min_seconds and seconds >= self.min_share * batch_seconds


@dataclass(frozen=True, slots=True)
class BatchCause(DiagnosedCause):
    """Something that makes a job slow or its results late or wrong.

    Its name is one of `diagnosis.CAUSE_NAMES`; its settings are those of the YAML, of `spark.conf`,
    or commands.

    Attributes:
        seconds: How much shorter a batch would be without it, or how long results wait for it.
    """

    seconds: float
    share: float


def share_of_batch(seconds: float, batch_seconds: float) -> float:
    return min(1.0, seconds / batch_seconds) if batch_seconds > 0 else 0.0
