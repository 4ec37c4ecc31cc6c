"""The figures of a process at one instant, and what those of several come to.

Whoever has figures adds them; nothing is kept from one scrape to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, TypeAlias

from . import catalog
from .catalog import MergeMode, Metric
from .histogram import Histogram

Labels: TypeAlias = tuple[str, ...]
Value: TypeAlias = Any  # a number; of a histogram, its counts and at last its sum

_BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in catalog.METRICS}


class MetricSamples:
    """See the module. What is added twice for the same labels is merged, as the metric says."""

    def __init__(self) -> None:
        self._values: dict[str, dict[Labels, Value]] = {}
        self._cluster_labels: Labels = ()

    def for_cluster(self, cluster: str) -> Self:
        """The same, where what is added gets the name of its cluster as a further label; an empty
        one is none."""
        made = type(self)()
        made._values, made._cluster_labels = self._values, (cluster,) if cluster else ()
        return made

    def add(self, metric: Metric, value: float, *labels: object) -> None:
        self._merge_sample(metric, (*map(str, labels), *self._cluster_labels), value)

    def add_counts(self, metric: Metric, counts: Mapping[Any, float]) -> None:
        """Those of a Counter: its keys are labels, several in a tuple."""
        for key, value in counts.items():
            labels = key if isinstance(key, tuple) else (key,)
            self.add(metric, value, *labels)

    def add_histogram(self, metric: Metric, histogram: Histogram, *labels: object) -> None:
        of = (*map(str, labels), *self._cluster_labels)
        self._merge_sample(metric, of, [*histogram.counts, histogram.sum])

    def to_json(self) -> dict[str, list[Any]]:
        """As JSON, for another process."""
        return {
            name: [[labels, value] for labels, value in values.items()]
            for name, values in self._values.items()
        }

    def merge(self, samples: Mapping[str, Iterable[Any]]) -> None:
        """Those of another process."""
        for name, values in samples.items():
            metric = _BY_NAME.get(name)
            if metric is not None:  # a worker of another version may know others
                for labels, value in values:
                    self._merge_sample(metric, tuple(labels), value)

    def __iter__(self) -> Iterator[tuple[Metric, Mapping[Labels, Value]]]:
        """In the order of the catalog."""
        for name, metric in _BY_NAME.items():
            if name in self._values:
                yield metric, self._values[name]

    def __getitem__(self, metric: Metric) -> Mapping[Labels, Value]:
        return self._values.get(metric.name, {})

    def _merge_sample(self, metric: Metric, labels: Labels, value: Value) -> None:
        values = self._values.setdefault(metric.name, {})
        held = values.get(labels)
        values[labels] = value if held is None else _merge_values(metric.merge, held, value)


def _merge_values(merge: MergeMode, one: Value, other: Value) -> Value:
    if isinstance(one, list):
        return [mine + its for mine, its in zip(one, other, strict=True)]
    if merge is MergeMode.SUM:
        return one + other
    return max(one, other) if merge is MergeMode.MAX else min(one, other)
