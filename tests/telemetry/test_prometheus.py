"""What a scrape has, as Prometheus's own parsers read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from gateway.telemetry import catalog, prometheus
from gateway.telemetry.catalog import METRICS, Metric, MetricKind
from gateway.telemetry.counts import Histogram
from gateway.telemetry.prometheus import expose
from gateway.telemetry.samples import MetricSamples

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
PARSERS = {"text/plain": plain, OPENMETRICS: openmetrics}


def told(figures: MetricSamples, accept: str) -> str:
    return b"".join(expose(figures, accept).pieces).decode()


def every_metric() -> MetricSamples:
    figures = MetricSamples()
    for metric in METRICS:
        labels = [f'a "{name}"\n' for name in metric.labels]
        if metric.kind is MetricKind.HISTOGRAM:
            histogram = Histogram(metric.bounds)
            histogram.observe(0.3, 4)
            figures.add_histogram(metric, histogram, *labels)
        else:
            figures.add(metric, 7, *labels)
    return figures


def families(text: str, parse: Any) -> Mapping[str, Any]:
    found: Iterable[Any] = parse(text)
    return {family.name: family for family in found}


@pytest.mark.parametrize("accept", PARSERS)
def test_all_metrics_are_read_as_they_are_meant(accept: str):
    found = families(told(every_metric(), accept), PARSERS[accept])
    assert found.keys() == {metric.name for metric in METRICS}
    for metric in METRICS:
        family = found[metric.name]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == set(metric.labels)
            assert all(v == f'a "{name}"\n' for name, v in sample.labels.items() if name != "le")


@pytest.mark.parametrize("accept", PARSERS)
def test_a_histogram_is_cumulative_and_has_sum_and_count(accept: str):
    figures, histogram = MetricSamples(), Histogram()
    histogram.observe(0.0004, 5)
    histogram.observe(0.3, 2)
    histogram.observe(100.0, 1)
    figures.add_histogram(catalog.PARTITION_READY_SECONDS, histogram, "orders")
    family = families(told(figures, accept), PARSERS[accept])["gateway_partition_ready_seconds"]
    values = {
        (each.name.rpartition("_")[2], each.labels.get("le")): each.value for each in family.samples
    }
    assert values["bucket", "0.0005"] == 5
    assert values["bucket", "0.25"] == 5 and values["bucket", "0.5"] == 7
    assert values["bucket", "60.0"] == 7 and values["bucket", "+Inf"] == 8
    assert (values["count", None], values["sum", None]) == (8, pytest.approx(100.602))


@pytest.mark.parametrize("accept", PARSERS)
def test_many_series_in_pieces_are_parsed_as_a_whole(accept: str):
    figures, count = MetricSamples(), 2 * prometheus.MAX_SERIES_PER_PIECE + 1
    for partition in range(count):
        figures.add(catalog.PARTITION_LAG_RECORDS, partition, "orders", partition)
    pieces = list(expose(figures, accept).pieces)
    assert len(pieces) >= 3
    (family,) = PARSERS[accept](b"".join(pieces).decode())
    assert [each.value for each in family.samples] == list(range(count))


def test_who_asks_for_openmetrics_gets_it_and_all_others_the_text():
    assert expose(MetricSamples(), OPENMETRICS).media_type.startswith(
        "application/openmetrics-text"
    )
    assert expose(MetricSamples(), "*/*").media_type.startswith("text/plain; version=0.0.4")
    assert told(MetricSamples(), OPENMETRICS) == "# EOF\n"


def conventional(metric: Metric) -> bool:
    own = metric.name.startswith("gateway_") or metric.labels == ("worker",)
    unit = not metric.unit or metric.name.endswith(f"_{metric.unit}")
    return own and unit and not metric.name.endswith("_total") and metric.help.endswith(".")


def test_names_are_by_prometheus_convention():
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert not [metric.name for metric in METRICS if not conventional(metric)]
    for metric in METRICS:  # no other unit is hidden in a name
        words = set(metric.name.split("_"))
        assert not words & {"ms", "milliseconds", "microseconds", "kb", "mb", "percent"}


def test_no_label_can_hold_what_is_a_clients_own():
    bounded = {
        *("route", "wire", "reason", "policy", "state", "source", "limit", "status"),
        *("topic", "partition", "cause", "reader", "part", "api", "role", "outcome"),
        *("worker", "level", "name", "version", "query", "assault", "group", "verdict", "endpoint"),
        "guard",
        *("job", "phase", "operator", "alert", "error"),
    }
    assert {label for metric in METRICS for label in metric.labels} == bounded
