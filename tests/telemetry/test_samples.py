"""Figures of several processes as one."""

from __future__ import annotations

import json

from gateway.telemetry import catalog
from gateway.telemetry.catalog import MergeMode, MetricKind
from gateway.telemetry.counts import Histogram
from gateway.telemetry.samples import MetricSamples


def of_worker(number: int) -> MetricSamples:
    figures = MetricSamples()
    figures.add(catalog.CLIENTS, number, "/a", "sse")
    figures.add(catalog.PARTITION_READY, number % 2, "orders", 0)
    figures.add(catalog.PARTITION_LAG_RECORDS, number, "orders", 0)
    figures.add_counts(catalog.PARTITION_RECONNECTS, {("orders", "timeout"): number})
    figures.add_counts(catalog.BROKER_CONNECTS, {"tail": 1})
    seconds = Histogram()
    seconds.observe(number)
    figures.add_histogram(catalog.PARTITION_READY_SECONDS, seconds, "orders")
    figures.add(catalog.PROCESS_RESIDENT_MEMORY_BYTES, 100 * number, number)
    return figures


def test_workers_come_to_sums_to_the_most_or_to_the_least_as_the_metric_says():
    merged = MetricSamples()
    for number in (1, 2, 3):
        merged.merge(json.loads(json.dumps(of_worker(number).to_json())))
    assert merged[catalog.CLIENTS] == {("/a", "sse"): 6}
    assert merged[catalog.PARTITION_READY] == {("orders", "0"): 0}
    assert merged[catalog.PARTITION_LAG_RECORDS] == {("orders", "0"): 3}
    assert merged[catalog.PARTITION_RECONNECTS] == {("orders", "timeout"): 6}
    assert merged[catalog.BROKER_CONNECTS] == {("tail",): 3}
    assert merged[catalog.PROCESS_RESIDENT_MEMORY_BYTES] == {("1",): 100, ("2",): 200, ("3",): 300}
    (seconds,) = merged[catalog.PARTITION_READY_SECONDS].values()
    assert sum(seconds[:-1]) == 3 and seconds[-1] == 6.0


def test_what_a_worker_of_another_version_knows_beside_is_left_out():
    merged = MetricSamples()
    merged.merge({"gateway_unheard_of": [[[], 1]], "gateway_workers": [[[], 1]]})
    assert [metric.name for metric, _ in merged] == ["gateway_workers"]


def test_what_is_merged_otherwise_than_by_sum_is_no_counter():
    for metric in catalog.METRICS:
        assert metric.merge is MergeMode.SUM or metric.kind is MetricKind.GAUGE


def test_zeros_are_series_that_change_no_value():
    samples = MetricSamples()
    samples.add(catalog.GAPS, 3, "orders", "retention")
    samples.add_zeros(catalog.GAPS, ["orders"], ["retention", "corrupt"])
    samples.add(catalog.GAPS, 2, "orders", "corrupt")
    assert samples[catalog.GAPS] == {("orders", "retention"): 3, ("orders", "corrupt"): 2}
    samples.add_zeros(catalog.PRODUCE_WAITING_BYTES)
    assert samples[catalog.PRODUCE_WAITING_BYTES] == {(): 0}
