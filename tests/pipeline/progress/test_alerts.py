"""Alerts: raised, told once, over."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from gateway.pipeline.progress import alerts
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    yield
    alerts.clear_alert("orders", "late")


def test_is_a_metric_while_it_lasts():
    alerts.raise_alert("orders", "late", "too late")
    during = MetricSamples()
    alerts.collect_metrics(during)
    assert during[catalog.PIPELINE_ALERTS] == {("orders", "late"): 1}
    alerts.clear_alert("orders", "late")
    after = MetricSamples()
    alerts.collect_metrics(after)
    assert not after[catalog.PIPELINE_ALERTS]


def test_is_logged_when_it_begins_and_ends_not_each_time(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    for _ in range(3):
        alerts.raise_alert("orders", "late", "too late")
    alerts.clear_alert("orders", "late")
    alerts.clear_alert("orders", "late")
    said = [(each.levelname, each.getMessage()) for each in caplog.records]
    assert said == [
        ("WARNING", "alert late of job orders: too late"),
        ("INFO", "alert late of job orders is over"),
    ]
