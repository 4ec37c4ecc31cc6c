"""Collect the values of all metrics at one instant, and merge those of several workers.

Each scrape, and each export, creates one `MetricSamples` and passes it to every part of the gateway
that has metrics. Nothing is kept from one to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any, Self, TypeAlias

from . import catalog
from .catalog import MergeMode, Metric, MetricKind
from .counts import Histogram

Labels: TypeAlias = tuple[str, ...]
Value: TypeAlias = Any  # a number, or a histogram as a list: its counts, and last its sum

_BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in catalog.METRICS}


class MetricSamples:
    """The values of series at one instant; two for the same labels merge by `MergeMode`."""

    def __init__(self) -> None:
        self._values: dict[str, dict[Labels, Value]] = {}
        self._cluster_labels: Labels = ()

    def for_cluster(self, cluster: str) -> Self:
        """Return a view that adds one cluster's name, if any, to the labels of new samples."""
        view = type(self)()
        view._values, view._cluster_labels = self._values, (cluster,) if cluster else ()
        return view

    def add(self, metric: Metric, value: float, *labels: object) -> None:
        self._merge_sample(metric, (*map(str, labels), *self._cluster_labels), value)

    def add_counts(self, metric: Metric, counts: Mapping[Any, float]) -> None:
        """Add one series per item; a key is the label, or a tuple of labels."""
        for key, value in counts.items():
            labels = key if isinstance(key, tuple) else (key,)
            self.add(metric, value, *labels)

    def add_histogram(self, metric: Metric, histogram: Histogram, *labels: object) -> None:
        values = [*histogram.counts, histogram.sum]
        self._merge_sample(metric, (*map(str, labels), *self._cluster_labels), values)

    def add_zeros(self, metric: Metric, *labels: Iterable[object]) -> None:
        """Add 0 for every combination of label values, so that their series exist.

        A query over a counter sees no increase where its series begins at 1, and an alert on a
        series that is not there never fires. Earlier and later values stay, except with
        MergeMode.MIN.
        """
        for values in product(*labels):
            self.add(metric, 0, *values)

    def to_json(self) -> dict[str, list[Any]]:
        """Return all samples as JSON values, for `merge` in another process."""
        return {
            name: [[labels, value] for labels, value in values.items()]
            for name, values in self._values.items()
        }

    def merge(self, samples: Mapping[str, Iterable[Any]]) -> None:
        """Add the samples of another process, as its `to_json` returned them."""
        for name, values in samples.items():
            metric = _BY_NAME.get(name)
            if metric is not None:  # a worker of another version may have other metrics
                for labels, value in values:
                    self._merge_sample(metric, tuple(labels), value)

    def __iter__(self) -> Iterator[tuple[Metric, Mapping[Labels, Value]]]:
        for name, metric in _BY_NAME.items():
            if name in self._values:
                yield metric, self._values[name]

    def __getitem__(self, metric: Metric) -> Mapping[Labels, Value]:
        return self._values.get(metric.name, {})

    def _merge_sample(self, metric: Metric, labels: Labels, value: Value) -> None:
        values = self._values.setdefault(metric.name, {})
        present = values.get(labels)
        values[labels] = value if present is None else _merge_values(metric.merge, present, value)


def select_counters(samples: Mapping[str, Iterable[Any]]) -> dict[str, list[Any]]:
    """Return the counters and histograms of a `to_json` that are not 0."""
    return {
        name: [
            [labels, value]
            for labels, value in values
            if (any(value) if isinstance(value, list) else value)
        ]
        for name, values in samples.items()
        if name in _BY_NAME and _BY_NAME[name].kind is not MetricKind.GAUGE
    }


def reset_counters(samples: Mapping[str, Iterable[Any]]) -> dict[str, Iterable[Any]]:
    """Return the samples of a `to_json` with 0 for every counter and histogram."""
    return {
        name: values
        if name not in _BY_NAME or _BY_NAME[name].kind is MetricKind.GAUGE
        else [
            [labels, [0] * len(value) if isinstance(value, list) else 0] for labels, value in values
        ]
        for name, values in samples.items()
    }


def _merge_values(merge: MergeMode, one: Value, other: Value) -> Value:
    if isinstance(one, list):
        return [mine + its for mine, its in zip(one, other, strict=True)]
    if merge is MergeMode.SUM:
        return one + other
    return max(one, other) if merge is MergeMode.MAX else min(one, other)
