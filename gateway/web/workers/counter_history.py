"""Keep the counters of workers, so that the sums of a scrape never fall.

A scrape adds up the workers that answer. If one is late, or crashed and counts from 0 again, the
sums of counters would be lower than before. Prometheus takes that for a restart of the whole
gateway, and the value after it for an increase since then.

An answer says which process it is of and when its samples were collected, because scrapes overtake
each other: of each worker the latest answer counts, and the counters of its former processes are
added once. Sums are built worker by worker in the order of their numbers, since the sum of the same
floats in another order can be lower in its last digit.

The supervisor owns the history, because it outlives the workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from gateway.telemetry.samples import MetricSamples, reset_counters, select_counters

CounterReport: TypeAlias = Iterable[tuple[int, float, float, Mapping[str, Iterable[Any]]]]
"""The number of a worker, and the fields of a `ProcessSamples` with only its counters; as JSON,
arrays."""

WorkerTotals: TypeAlias = Iterable[tuple[int, Mapping[str, Iterable[Any]]]]
"""The number of a worker, and the counters of all its processes; as JSON, arrays."""


class ProcessSamples(NamedTuple):
    """The answer of one process of a worker to a scrape. As JSON it is an array.

    Times are of `time.monotonic`, which is one clock for all processes of a host.
    """

    started_at: float
    collected_at: float
    samples: Mapping[str, Iterable[Any]]


class CounterHistory:
    """The counters of the workers of a gateway, as of the last scrape that they answered.

    Between calls, `_last` has the latest answer of each worker, whether that process still runs or
    not, and `_ended` the sums of the worker's processes before it.
    """

    def __init__(self) -> None:
        self._last: dict[int, ProcessSamples] = {}
        self._ended: dict[int, MetricSamples] = {}

    def update(self, report: CounterReport) -> WorkerTotals:
        """Remember the counters of a scrape, and return the totals that replace them in its sums.

        Returns:
            The totals of the workers whose answer is not all that they have counted: it is missing,
            or older than one of another scrape, or the worker had another process before.
        """
        complete: set[int] = set()
        for worker, started_at, collected_at, counters in report:
            current = ProcessSamples(started_at, collected_at, counters)
            last = self._last.get(worker)
            if last is not None and current[:2] < last[:2]:
                continue  # another scrape was faster, and has a later answer
            if last is not None and current.started_at > last.started_at:
                self._ended.setdefault(worker, MetricSamples()).merge(last.samples)
            self._last[worker] = current
            if worker not in self._ended:
                complete.add(worker)
        return [(worker, self._add_up(worker)) for worker in self._last if worker not in complete]

    def _add_up(self, worker: int) -> dict[str, list[Any]]:
        total = MetricSamples()
        if worker in self._ended:
            total.merge(self._ended[worker].to_json())
        total.merge(self._last[worker].samples)
        return total.to_json()


def build_report(answers: Mapping[int, Sequence[Any]]) -> list[Any]:
    """Return the counters of `ProcessSamples` by worker as JSON of a `CounterReport`."""
    return [
        [worker, started_at, collected_at, select_counters(samples)]
        for worker, (started_at, collected_at, samples) in answers.items()
    ]


def merge_answers(
    answers: Mapping[int, Sequence[Any]], totals: WorkerTotals, samples: MetricSamples
) -> Iterator[None]:
    """Add the samples of one worker after the other; yield after each, as it takes long."""
    totals_by_worker = dict(totals)
    for worker in sorted(answers.keys() | totals_by_worker.keys()):
        total = totals_by_worker.get(worker)
        if worker in answers:
            _, _, answer = answers[worker]
            samples.merge(answer if total is None else reset_counters(answer))
        if total is not None:
            samples.merge(total)
        yield
