"""Alerts: raised, told once, over.

Other tests of the same process may have jobs with alerts, so these look at their own job alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from gateway.pipeline.progress import alerts
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples

JOB = "alerting"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    yield
    alerts.clear_alert(JOB, "late")


def test_is_a_metric_while_it_lasts():
    alerts.raise_alert(JOB, "late", "too late")
    during = MetricSamples()
    alerts.collect_metrics(during)
    assert during[catalog.PIPELINE_ALERTS][JOB, "late"] == 1
    alerts.clear_alert(JOB, "late")
    after = MetricSamples()
    alerts.collect_metrics(after)
    assert (JOB, "late") not in after[catalog.PIPELINE_ALERTS]


def test_is_logged_when_it_begins_and_ends_not_each_time(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    for _ in range(3):
        alerts.raise_alert(JOB, "late", "too late")
    alerts.clear_alert(JOB, "late")
    alerts.clear_alert(JOB, "late")
    lines = [(each.levelname, each.getMessage()) for each in caplog.records]
    said = [(level, line) for level, line in lines if f"of job {JOB}" in line]
    assert said == [
        ("WARNING", "alert late of job alerting: too late"),
        ("INFO", "alert late of job alerting is over"),
    ]
