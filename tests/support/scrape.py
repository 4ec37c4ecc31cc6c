"""The metrics of a running gateway, read by Prometheus's own parser.

scrape = await scraped(gateway)
assert scrape["gateway_clients", {"route": "/events/orders", "wire": "sse"}] == 3
assert scrape.sum("gateway_partition_reconnects_total", topic="orders") > 0
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import httpx
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain
from support.gateways import GatewayProcess

OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0"

LabelSet = frozenset[tuple[str, str]]


class MetricsScrape:
    """All samples of one. names: of the metrics, as they are listed."""

    def __init__(self, families: Iterable[Any]) -> None:
        self._samples: dict[str, dict[LabelSet, float]] = {}
        self.metric_names: set[str] = set()
        for family in families:
            total = family.type == "counter"
            self.metric_names.add(f"{family.name}_total" if total else family.name)
            for sample in family.samples:
                found = self._samples.setdefault(sample.name, {})
                found[frozenset(sample.labels.items())] = sample.value

    def __getitem__(self, series: tuple[str, Mapping[str, object]]) -> float:
        """0 for a series that is not there."""
        name, labels = series
        wanted = frozenset((key, str(value)) for key, value in labels.items())
        return self._samples.get(name, {}).get(wanted, 0.0)

    def has_series(self, name: str, labels: Mapping[str, object]) -> bool:
        """Whether there is one with exactly these labels, whatever its value."""
        wanted = frozenset((key, str(value)) for key, value in labels.items())
        return wanted in self._samples.get(name, {})

    def sum_series(self, name: str, **labels: object) -> float:
        """Of all series with these labels."""
        wanted = {(key, str(value)) for key, value in labels.items()}
        return sum(value for of, value in self._samples.get(name, {}).items() if wanted <= of)


async def fetch_metrics(
    gateway: GatewayProcess | str, *, path: str = "/metrics", accept: str = ""
) -> MetricsScrape:
    """One scrape of a gateway, or of a base URL; AssertionError for any answer but a good one."""
    base = gateway if isinstance(gateway, str) else gateway.base_url
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        answer = await http.get(base + path, headers={"Accept": accept} if accept else {})
    assert answer.status_code == 200, answer.text
    is_open = answer.headers["content-type"].startswith("application/openmetrics-text")
    assert is_open == ("openmetrics" in accept)
    return MetricsScrape((openmetrics if is_open else plain)(answer.text))
