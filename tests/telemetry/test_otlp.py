"""Figures sent by OTLP, as a back end reads them."""

from __future__ import annotations

import pytest
from support.otlp import running_collector

from gateway.telemetry import catalog
from gateway.telemetry.counts import Histogram
from gateway.telemetry.otlp import OtlpExporter, build_endpoint, build_resource
from gateway.telemetry.samples import MetricSamples


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("http://c:4318", "http://c:4318/v1/metrics"),
        ("http://c:4318/", "http://c:4318/v1/metrics"),
        ("https://c/otlp/v1/metrics", "https://c/otlp/v1/metrics"),
    ],
)
def test_an_endpoint_without_a_path_gets_the_signals_own(url: str, sent: str):
    assert build_endpoint(url, "metrics") == sent


def test_figures_arrive_as_sums_gauges_and_histograms_with_who_sends_them():
    figures, latency = MetricSamples(), Histogram()
    figures.add(catalog.CLIENTS, 3, "/a", "sse")
    figures.add(catalog.STREAMS_OPENED, 5, "/a", "sse")
    latency.observe(0.0004, 2)
    latency.observe(100.0)
    figures.add_histogram(catalog.DELIVERY_LATENCY_SECONDS, latency, "/a", "sse")
    with running_collector() as back:
        push = OtlpExporter(back.url, {"authorization": "key"}, build_resource("orders", "1.2"))
        assert push.send(figures)
        push.close()
        ((path, headers, _),) = back.requests
        assert (path, headers["authorization"]) == ("/v1/metrics", "key")
        who = back.resource
        assert (who["service.name"], who["service.version"]) == ("orders", "1.2")
        assert back.get_value("gateway_clients", route="/a", wire="sse") == 3
        opened = back.metrics["gateway_streams_opened"].sum
        assert opened.is_monotonic and opened.aggregation_temporality == 2
        told = back.metrics["gateway_delivery_latency_seconds"]
        (point,) = told.histogram.data_points
        assert told.unit == "s"
        assert (point.count, point.sum) == (3, pytest.approx(100.0008))
        assert list(point.bucket_counts) == latency.counts
        assert list(point.explicit_bounds) == list(latency.bounds)
        assert not point.HasField("min") and not point.HasField("max")


def test_a_back_end_that_refuses_is_told_from_one_that_takes_them():
    with running_collector() as back:
        back.status = 400
        push = OtlpExporter(back.url, {}, build_resource("orders", "1"))
        assert not push.send(MetricSamples())
        push.close()
