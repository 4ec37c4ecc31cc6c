"""Count the reloads of a configuration, and remember how the last one ended."""

from __future__ import annotations

from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples


class ReloadCounts:
    """The reloads of one process.

    A `Reloader` owns one, and so does the supervisor of several workers, which loads the
    configuration for them.

    Attributes:
        applied: Configurations that were applied.
        refused: Configurations that were not, so that all stayed as it was.
        is_last_successful: Whether the last one was applied. True before the first.
    """

    def __init__(self) -> None:
        self.applied = 0
        self.refused = 0
        self.is_last_successful = True

    def count_applied(self) -> None:
        """Count a configuration that was applied."""
        self.applied += 1
        self.is_last_successful = True

    def count_refused(self) -> None:
        """Count a configuration that cannot be loaded or applied."""
        self.refused += 1
        self.is_last_successful = False

    def collect_metrics(self, samples: MetricSamples, *, is_one_of_several: bool = False) -> None:
        """Add the metrics of reloads.

        Args:
            is_one_of_several: Whether this process is a worker whose supervisor counts the
                configurations that were applied, so that each counts once.
        """
        samples.add(catalog.RELOADS, 0 if is_one_of_several else self.applied, "applied")
        samples.add(catalog.RELOADS, self.refused, "refused")
        samples.add(catalog.LAST_RELOAD_SUCCESSFUL, self.is_last_successful)
