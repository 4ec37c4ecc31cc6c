"""Keep what workers have counted, so that the sums of a scrape never fall.

A scrape adds up the workers that answer. If one is late, or crashed and counts from 0 again, the
sums of counters would be lower than before. Prometheus takes that for a restart of the whole
gateway, and the value after it for what happened since.

Owned by the supervisor, which outlives the workers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gateway.telemetry.samples import MetricSamples, select_counters


class CounterHistory:
    """The counters of the workers of a gateway, as of the last scrape that they answered."""

    def __init__(self) -> None:
        """Know of no worker yet."""
        self._last: dict[int, Mapping[str, Iterable[Any]]] = {}
        self._ended = MetricSamples()

    def update(
        self, report: Mapping[str, Any], running: Collection[int], samples: MetricSamples
    ) -> None:
        """Remember the counters of a scrape, and add what it lacks.

        Args:
            report: What the scrape has, by `build_report`.
            running: The workers whose processes run. Others have ended since they answered.
            samples: Where the counters of missing and of ended workers are added.
        """
        self._last.update(
            {worker: counters for worker, counters in report["counters"] if worker in running}
        )
        samples.merge(self._ended.to_json())
        for worker in report["missing"]:
            samples.merge(self._last.get(worker, {}))

    def end_worker(self, worker: int) -> None:
        """Count for good what the process of a worker had counted when it was last asked."""
        self._ended.merge(self._last.pop(worker, {}))


def build_report(
    answers: Mapping[int, Mapping[str, Iterable[Any]]], missing: Iterable[int]
) -> dict[str, Any]:
    """Return what a scrape has of which workers, as JSON.

    Args:
        answers: The samples of the workers that answered, by their numbers.
        missing: The workers that did not.
    """
    counters = [[worker, select_counters(samples)] for worker, samples in answers.items()]
    return {"counters": counters, "missing": sorted(missing)}
