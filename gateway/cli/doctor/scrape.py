"""Hold the series of one scrape, to be looked up by the metrics of the catalog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Self, TypeAlias

from gateway.telemetry.catalog import Metric

LabelSet: TypeAlias = tuple[tuple[str, str], ...]
"""The labels of a series with their values, sorted by name."""


class Scrape:
    """The series of one scrape, by name (`_total`, `_sum` and `_bucket` included) and labels."""

    def __init__(self, values: Mapping[str, Mapping[LabelSet, float]]) -> None:
        self.values = values

    @classmethod
    def parse(cls, text: str) -> Self:
        from prometheus_client.parser import text_string_to_metric_families

        values: dict[str, dict[LabelSet, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                values.setdefault(sample.name, {})[labels] = float(sample.value)
        return cls(values)

    def iter_series(
        self, metric: Metric, suffix: str = "", **labels: str
    ) -> Iterator[tuple[dict[str, str], float]]:
        """Yield the series of a metric that have these labels, each with its value."""
        wanted = labels.items()
        for pairs, value in self.values.get(metric.exposed_name + suffix, {}).items():
            if wanted <= dict(pairs).items():
                yield dict(pairs), value

    def get(self, metric: Metric, labels: Mapping[str, str], suffix: str = "") -> float | None:
        series = self.values.get(metric.exposed_name + suffix, {})
        return series.get(tuple(sorted(labels.items())))

    def sum(self, metric: Metric, suffix: str = "", **labels: str) -> float:
        return sum(value for _, value in self.iter_series(metric, suffix, **labels))
