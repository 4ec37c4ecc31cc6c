from __future__ import annotations

import itertools
from typing import Any

from gateway.web.pipeline_demo import JobStarts


class RecordedStates:
    def __init__(self) -> None:
        self.latest: dict[str, tuple[str, str]] = {}

    def report_state(self, component: str, state: Any, text: str) -> None:
        self.latest[component] = (state, text)


def read_lines(*lines: str) -> dict[str, tuple[str, str]]:
    """What is shown after the lines, each of which comes ten seconds after the one before."""
    states = RecordedStates()
    starts = JobStarts(["known", "visits"], states, itertools.count(0.0, 10.0).__next__)
    for line in lines:
        starts.read_line(f"2026-11-26 13:12:51,007 INFO gateway.pipeline: {line}")
    return states.latest


def test_jobs_wait_for_spark_until_a_query_begins():
    assert read_lines("Java is found") == {
        "Spark": ("starting", "Java and a session"),
        "known": ("starting", "waits for Spark"),
        "visits": ("starting", "waits for Spark"),
    }
    assert read_lines("query of job known begins [job=known query=1]") == {
        "Spark": ("running", "began after 10 s"),
        "known": ("starting", "its first batch"),
        "visits": ("starting", "waits for Spark"),
    }


def test_a_job_runs_from_its_first_batch_and_only_that_is_timed():
    shown = read_lines(
        "query of job known begins [job=known]",
        "3 rows in 0.50 s [job=known batch=0]",
        "9 rows in 0.40 s [job=known batch=1]",
    )
    assert shown["known"] == ("running", "first batch after 20 s")


def test_a_job_that_fails_says_why_and_whether_it_begins_again():
    away = "query of job known failed: away", "job known begins again in 1 s: away"
    assert read_lines(*away)["known"] == ("starting", "begins again in 1 s: away")
    broken = read_lines("job visits failed: topic clicks does not exist; create it")
    assert broken["visits"] == ("failed", "topic clicks does not exist; create it")
