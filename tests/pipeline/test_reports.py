from __future__ import annotations

import logging

import pytest

from gateway.pipeline import reports
from gateway.pipeline.reports import Reports
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples

JOB = "alerting"


def collect(found: Reports) -> MetricSamples:
    samples = MetricSamples()
    found.collect_metrics(samples)
    return samples


def test_an_alert_is_a_metric_while_it_lasts():
    found = Reports()
    found.raise_alert(JOB, "late", "too late")
    assert collect(found)[catalog.PIPELINE_ALERTS][JOB, "late"] == 1
    found.clear_alert(JOB, "late")
    assert (JOB, "late") not in collect(found)[catalog.PIPELINE_ALERTS]


def test_an_alert_is_logged_when_it_begins_and_ends_not_each_time(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO)
    found = Reports()
    for _ in range(3):
        found.raise_alert(JOB, "late", "too late")
    found.clear_alert(JOB, "late")
    found.clear_alert(JOB, "late")
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("WARNING", "alert late of job alerting: too late"),
        ("INFO", "alert late of job alerting is over"),
    ]


def test_parts_of_a_job_count_beside_it():
    found = Reports()
    found.increment_counter(catalog.PIPELINE_PROGRESS_UNTOLD, 2, "counted")
    found.increment_counter(catalog.PIPELINE_PROGRESS_UNTOLD, 1, "counted")
    found.set_gauge(catalog.PIPELINE_ROWS_PER_SECOND, 5, "counted")
    assert collect(found)[catalog.PIPELINE_PROGRESS_UNTOLD]["counted",] == 3
    assert collect(found)[catalog.PIPELINE_ROWS_PER_SECOND]["counted",] == 5
    with pytest.raises(ValueError, match="not a counter"):
        found.increment_counter(catalog.PIPELINE_ROWS_PER_SECOND, 1, "counted")


def test_what_parts_of_a_job_note_is_added_up_and_told_once():
    found = Reports()
    found.add_note("id", 3, sink=1.0)
    found.add_note("id", 3, sink=0.5)
    found.add_note("id", 4, sink=9.0)
    assert found.pop_notes("id", 3) == {"sink": 1.5}
    assert found.pop_notes("id", 3) == {}


def test_the_runs_of_a_job_that_starts_again_and_again_are_forgotten_but_the_latest():
    """Every run was kept for as long as the process lived."""
    found = Reports()
    found.register_run("steady-run", "steady")
    runs = [f"run-{number}" for number in range(3 * reports.RETAINED_RUNS)]
    for run in runs:
        found.register_run(run, "restless")
    known = [run for run in runs if found.find_job(run) == "restless"]
    assert known == runs[-reports.RETAINED_RUNS :]
    assert found.find_job("steady-run") == "steady"
