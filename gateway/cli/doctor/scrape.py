"""Hold the series of one scrape, to be looked up by the metrics of the catalog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Self, TypeAlias

from gateway.telemetry.catalog import Metric

LabelSet: TypeAlias = tuple[tuple[str, str], ...]
"""The labels of a series with their values, sorted by name."""


class Scrape:
    """The series of one scrape.

    Attributes:
        values: The values by the name of the series (`_total`, `_sum` and `_bucket` included) and
            its labels.
    """

    def __init__(self, values: Mapping[str, Mapping[LabelSet, float]]) -> None:
        """Create the scrape of these series."""
        self.values = values

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse Prometheus's text format.

        Raises:
            ValueError: The text is none.
        """
        from prometheus_client.parser import text_string_to_metric_families

        values: dict[str, dict[LabelSet, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                values.setdefault(sample.name, {})[labels] = float(sample.value)
        return cls(values)

    def has(self, metric: Metric) -> bool:
        """Return whether the scrape has any series of a metric."""
        name = metric.exposed_name
        return name in self.values or f"{name}_count" in self.values

    def iter_series(
        self, metric: Metric, suffix: str = "", **labels: str
    ) -> Iterator[tuple[dict[str, str], float]]:
        """Iterate over the series of a metric that have these labels.

        Args:
            suffix: `_sum`, `_count` or `_bucket` of a histogram.
            **labels: Values that labels must have.

        Yields:
            The labels of a series, and its value.
        """
        wanted = labels.items()
        for pairs, value in self.values.get(metric.exposed_name + suffix, {}).items():
            if wanted <= dict(pairs).items():
                yield dict(pairs), value

    def get(self, metric: Metric, labels: Mapping[str, str], suffix: str = "") -> float | None:
        """Return the value of one series; None if there is none with exactly these labels."""
        series = self.values.get(metric.exposed_name + suffix, {})
        return series.get(tuple(sorted(labels.items())))

    def sum(self, metric: Metric, suffix: str = "", **labels: str) -> float:
        """Return the sum of the series of a metric that have these labels; 0 for none."""
        return sum(value for _, value in self.iter_series(metric, suffix, **labels))
