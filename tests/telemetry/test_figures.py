"""Figures of several processes as one."""

from __future__ import annotations

import json

from gateway.telemetry import catalog
from gateway.telemetry.catalog import Kind, Merge
from gateway.telemetry.figures import Figures
from gateway.telemetry.histogram import Histogram


def of_worker(number: int) -> Figures:
    figures = Figures()
    figures.add(catalog.CLIENTS, number, "/a", "sse")
    figures.add(catalog.READY, number % 2, "orders", 0)
    figures.add(catalog.LAG, number, "orders", 0)
    figures.count(catalog.RECONNECTS, {("orders", "timeout"): number})
    figures.count(catalog.CONNECTS, {"tail": 1})
    seconds = Histogram()
    seconds.observe(number)
    figures.observed(catalog.READY_SECONDS, seconds, "orders")
    figures.add(catalog.RESIDENT, 100 * number, number)
    return figures


def test_workers_come_to_sums_to_the_most_or_to_the_least_as_the_metric_says():
    merged = Figures()
    for number in (1, 2, 3):
        merged.merge(json.loads(json.dumps(of_worker(number).plain())))
    assert merged[catalog.CLIENTS] == {("/a", "sse"): 6}
    assert merged[catalog.READY] == {("orders", "0"): 0}
    assert merged[catalog.LAG] == {("orders", "0"): 3}
    assert merged[catalog.RECONNECTS] == {("orders", "timeout"): 6}
    assert merged[catalog.CONNECTS] == {("tail",): 3}
    assert merged[catalog.RESIDENT] == {("1",): 100, ("2",): 200, ("3",): 300}
    (seconds,) = merged[catalog.READY_SECONDS].values()
    assert sum(seconds[:-1]) == 3 and seconds[-1] == 6.0


def test_what_a_worker_of_another_version_knows_beside_is_left_out():
    merged = Figures()
    merged.merge({"gateway_unheard_of": [[[], 1]], "gateway_workers": [[[], 1]]})
    assert [metric.name for metric, _ in merged] == ["gateway_workers"]


def test_what_is_merged_otherwise_than_by_sum_is_no_counter():
    for metric in catalog.METRICS:
        assert metric.merge is Merge.SUM or metric.kind is Kind.GAUGE
