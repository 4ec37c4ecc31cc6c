"""Keep what workers have counted, so that the sums of a scrape never fall.

A scrape adds up the workers that answer. If one is late, or crashed and counts from 0 again, the
sums of counters would be lower than before. Prometheus takes that for a restart of the whole
gateway, and the value after it for what happened since.

An answer says when its process was started, because it may arrive when the worker has another one:
what a process has counted is added once, and for good as soon as the next one has answered.

Owned by the supervisor, which outlives the workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from gateway.telemetry.samples import MetricSamples, select_counters

CounterReport: TypeAlias = Iterable[tuple[int, float, Mapping[str, Iterable[Any]]]]
"""The number of a worker, when its process was started, and its counters; as JSON, arrays."""


class ProcessSamples(NamedTuple):
    """What one process of a worker answers to a scrape. As JSON it is an array.

    Attributes:
        started_at: When the process was started, in seconds of `time.monotonic`, which is one
            clock for all processes of a host.
        samples: Its samples, as `MetricSamples.to_json` returns them.
    """

    started_at: float
    samples: Mapping[str, Iterable[Any]]


class CounterHistory:
    """The counters of the workers of a gateway, as of the last scrape that they answered.

    Between calls, `_last` has the counters of the last process that has answered of each worker,
    whether it still runs or not, and `_ended` the sums of those before.
    """

    def __init__(self) -> None:
        """Know of no worker yet."""
        self._last: dict[int, ProcessSamples] = {}
        self._ended = MetricSamples()

    def update(self, report: CounterReport, samples: MetricSamples) -> None:
        """Remember the counters of a scrape, and add what it lacks.

        Args:
            report: What the scrape has, by `build_report`.
            samples: Where the counters of workers that did not answer, and of processes that ended,
                are added.
        """
        answered: set[int] = set()
        for worker, started_at, counters in report:
            last = self._last.get(worker)
            if last is not None and started_at < last.started_at:
                continue  # another scrape was faster, and has heard of the next process already
            if last is not None and started_at > last.started_at:
                self._ended.merge(last.samples)
            self._last[worker] = ProcessSamples(started_at, counters)
            answered.add(worker)
        samples.merge(self._ended.to_json())
        for worker, last in self._last.items():
            if worker not in answered:
                samples.merge(last.samples)


def build_report(answers: Mapping[int, ProcessSamples]) -> list[Any]:
    """Return what a scrape has of which processes, as JSON of a `CounterReport`.

    Args:
        answers: What the workers answered, by their numbers.
    """
    return [
        [worker, started_at, select_counters(samples)]
        for worker, (started_at, samples) in answers.items()
    ]
