"""Count the reloads of a configuration, and remember how the last one ended."""

from __future__ import annotations

from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples


class ReloadCounts:
    """The reloads of one process, or those of a supervisor for all of its workers."""

    def __init__(self) -> None:
        self.applied = 0
        self.refused = 0
        self.is_last_successful = True

    def count_applied(self) -> None:
        self.applied += 1
        self.is_last_successful = True

    def count_refused(self) -> None:
        self.refused += 1
        self.is_last_successful = False

    def collect_metrics(self, samples: MetricSamples, *, is_one_of_several: bool = False) -> None:
        """Add the metrics of reloads; a supervisor counts those applied in several workers."""
        samples.add(catalog.RELOADS, 0 if is_one_of_several else self.applied, "applied")
        samples.add(catalog.RELOADS, self.refused, "refused")
        samples.add(catalog.LAST_RELOAD_SUCCESSFUL, self.is_last_successful)
